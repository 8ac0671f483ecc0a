"""A connector whose library is missing names the extra that has it; and no record is to blame for that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import _registry

import crosscut as cc
from crosscut.connectors.kafka.reader import PartitionReader, ReadOptions, SharedConsumer
from crosscut.errors import ConnectorError

COLUMNS = {"a": "int64"}


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def make_missing(module: str) -> None:
        for name in list(sys.modules):
            if name.startswith(f"{module}."):
                monkeypatch.delitem(sys.modules, name)
        # It remembers what another test has loaded.
        for name in [name for name, found in _registry.items() if found.__module__.startswith(module)]:
            monkeypatch.delitem(_registry, name)
        monkeypatch.setitem(sys.modules, module, None)

    yield make_missing
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("module", "extra", "used"),
    [
        ("confluent_kafka", "kafka", lambda _: cc.kafka.source("127.0.0.1:1", "t").splits(1)),
        ("confluent_kafka", "kafka", lambda _: cc.kafka.sink("127.0.0.1:1", "t").check()),
        ("fastavro", "avro", lambda _: cc.kafka.SchemaRegistry("http://127.0.0.1:1").avro()),
        ("fastavro", "avro", lambda _: cc.kafka.SchemaRegistry("http://127.0.0.1:1").avro_encoder("s", {})),
        ("psycopg", "postgres", lambda _: cc.postgres.source("dbname=x", "t", "a").splits(1)),
        ("psycopg", "postgres", lambda _: cc.postgres.changes("dbname=x", "p", "s").splits(1)),
        ("psycopg", "postgres", lambda _: cc.postgres.sink("dbname=x", "t", ["a"]).check()),
        ("psycopg", "postgres", lambda _: cc.postgres.upsert("dbname=x", "t", ["a"], key="a").check()),
        ("nats", "nats", lambda _: cc.nats.source("nats://127.0.0.1:1", "S").splits(1)),
        ("nats", "nats", lambda _: cc.nats.sink("nats://127.0.0.1:1", "S", "s").check()),
        ("httpx", "http", lambda _: cc.http.events("http://127.0.0.1:1", replays=True).splits(1)),
        ("httpx", "http", lambda _: cc.http.sink("http://127.0.0.1:1", honours_keys=True).check()),
        ("pyarrow", "parquet", lambda path: cc.files.read_parquet(f"{path}/*.parquet")),
        ("pyarrow", "parquet", lambda path: cc.files.write_parquet(path, COLUMNS)),
        ("zstandard", "zstd", lambda path: cc.files.write_jsonl(path, compression="zstd").check()),
        ("s3fs", "s3", lambda _: cc.files.read_jsonl("s3://b/in/*").splits(1)),
        ("s3fs", "s3", lambda _: cc.files.write_jsonl("s3://b/out").check()),
        ("deltalake", "delta", lambda path: cc.delta.sink(path, COLUMNS).check()),
        ("pyiceberg", "iceberg", lambda _: cc.iceberg.sink("a.b", COLUMNS).check()),
    ],
)
def test_a_connector_whose_library_is_missing_names_the_extra(
    module: str,
    extra: str,
    used: Callable[[str], Any],
    missing: Callable[[str], None],
    tmp_path: Path,
) -> None:
    (tmp_path / "a.parquet").touch()
    missing(module)
    with pytest.raises(ConnectorError, match=rf"pip install 'crosscut\[{extra}\]', on the workers too"):
        used(str(tmp_path))


def test_no_message_is_skipped_because_a_worker_lacks_the_library_that_decodes_it(
    missing: Callable[[str], None],
) -> None:
    """The driver had it when the flow was made; of a malformed message a warning would be enough."""
    ck = pytest.importorskip("confluent_kafka")
    pytest.importorskip("fastavro")
    decode = cc.kafka.SchemaRegistry("http://127.0.0.1:1").avro()
    message = ck.Message(topic="a", partition=0, offset=0, value=b"\0\0\0\0\1x")

    class Client:
        def incremental_assign(self, partitions: list[Any]) -> None:
            pass

        def consume(self, count: int, timeout: float) -> list[Any]:
            return [message]

    reading = ReadOptions(decode, "skip", has_group=False)
    reader = PartitionReader(reading, SharedConsumer(Client(), "servers"), ("a", 0), 0, float("inf"))
    missing("fastavro")
    with pytest.raises(ConnectorError, match=r"crosscut\[avro\]"):
        reader.read(10)
    assert reader.position == 0
