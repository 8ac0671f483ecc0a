"""Data sources of PySpark in a job on Spark: read and written exactly once, whatever is killed."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, lose, until
from pyspark import SparkContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from tests.unit.pyspark_examples import FakeDataSource

import crosscut as cc
from crosscut.errors import ConnectorError

ROWS_EACH = 40


class Numbers(DataSource):
    """Numbers, endless by default, two partitions a batch; notes what was committed."""

    def schema(self) -> str:
        return "number BIGINT, text STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        path = Path(self.options["committed"])
        count = int(self.options.get("count", 1 << 40))

        class Reader(DataSourceStreamReader):
            def initialOffset(self) -> dict[str, int]:
                return {"number": 0}

            def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
                return {"number": min(count, start["number"] + 2 * ROWS_EACH)}

            def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
                return [InputPartition(n) for n in range(start["number"], end["number"], ROWS_EACH)]

            def read(self, partition: InputPartition) -> Iterator[Any]:
                for number in range(partition.value, partition.value + ROWS_EACH):
                    yield number, f"n{number}"

            def commit(self, end: dict[str, int]) -> None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(f"{end['number']}\n")

        return Reader()


class Message(WriterCommitMessage):
    def __init__(self, staged: str) -> None:
        self.staged = staged


class Renamed(DataSource):
    """Writes a staged file, and names it after its batch when that is committed."""

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        directory = Path(self.options["path"])

        class Writer(DataSourceStreamWriter):
            def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
                staged = directory / f".{secrets.token_hex(8)}"
                staged.write_text(json.dumps([[row.number, row.text] for row in iterator]))
                return Message(str(staged))

            def commit(self, messages: list[Any], batchId: int) -> None:
                for number, one in enumerate(messages):
                    if os.path.exists(one.staged):
                        os.rename(one.staged, directory / f"{batchId:06}-{number}.json")

            def abort(self, messages: list[Any], batchId: int) -> None:
                for one in messages:
                    os.unlink(one.staged)

        return Writer()


def settings(directory: Path) -> cc.Settings:
    return cc.Settings(
        parallelism=2,
        checkpoint_dir=str(directory / "checkpoints"),
        checkpoint_interval="100ms",
        restart=cc.Restart(delay="0s"),
        **PATIENT,
    )


def flow_of(directory: Path) -> cc.Flow:
    flow = cc.Flow("numbers")
    source = cc.spark.source(Numbers, {"committed": str(directory / "committed")})
    sink = cc.spark.sink(Renamed, {"path": str(directory / "out")}, "number BIGINT, text STRING")
    flow.source(source).named("in").rate_limit(2_000).named("rate").sink(sink).named("out")
    return flow


def rows(directory: Path) -> list[Any]:
    files = sorted((directory / "out").glob("*.json"))
    return [row for path in files for row in json.loads(path.read_text())]


def test_rows_go_from_one_data_source_to_another_exactly_once(started: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    job = started.flow(flow_of(tmp_path), settings(tmp_path))

    def more_rows() -> None:
        seen = len(rows(tmp_path))
        until(lambda: len(rows(tmp_path)) > seen + 100, "more rows")

    for index in (0, 1):
        more_rows()
        lose(job, started, index)
        more_rows()
    assert job.stop(DEADLINE_S)
    job = started.flow(flow_of(tmp_path), settings(tmp_path))
    more_rows()
    assert job.stop(DEADLINE_S)
    found = rows(tmp_path)
    assert found == [[number, f"n{number}"] for number in range(len(found))]
    committed = [int(line) for line in (tmp_path / "committed").read_text().split()]
    assert committed
    assert all(end % (2 * ROWS_EACH) == 0 for end in committed), "only whole batches are committed"


def test_all_tasks_read_partitions_and_write_each_exactly_once_whoever_is_killed(
    started: Any, tmp_path: Path
) -> None:
    count = 50 * ROWS_EACH
    (tmp_path / "out").mkdir()
    options = {"committed": str(tmp_path / "committed"), "count": count}
    flow = cc.Flow("planned")
    numbers = flow.source(cc.spark.source(Numbers, options, parallel=True)).named("in")
    sink = cc.spark.sink(
        Renamed, {"path": str(tmp_path / "out")}, "number BIGINT, text STRING", parallel=True
    )
    numbers.rate_limit(1_000).named("rate").sink(sink).named("out")
    job = started.flow(flow, settings(tmp_path))
    # The one that commits, and one that does not.
    for index, seen in ((0, 100), (1, 600)):
        until(lambda seen=seen: len(rows(tmp_path)) > seen, "rows")  # type: ignore[misc]
        lose(job, started, index)
    until(lambda: len(rows(tmp_path)) == count, "all numbers")
    sources = [one for one in job.report().tasks if one.task.vertex == "in"]
    assert all(one.records_in for one in sources), "each task reads some of it"
    committed = tmp_path / "committed"
    until(lambda: committed.read_text().endswith(f"\n{count}\n"), "the last commit")
    assert job.stop(DEADLINE_S)
    assert sorted(rows(tmp_path)) == [[number, f"n{number}"] for number in range(count)]
    assert list((tmp_path / "out").glob("*-1.json")), "commits had messages of more than one task"
    ends = [int(line) for line in committed.read_text().split()]
    assert ends == sorted(ends)
    assert all(end % (2 * ROWS_EACH) == 0 for end in ends), "only whole batches are committed"


def test_a_batch_reader_with_its_own_schema_ends(spark: SparkContext, started: Any, tmp_path: Path) -> None:
    flow, out = cc.Flow("names"), cc.collect()
    flow.source(cc.spark.source(FakeDataSource, {"numRows": 4})).sink(out)
    started.finish(started.flow(flow, settings(tmp_path)))
    assert sorted(row.name for row in out.records()) == [f"name {i}" for i in range(4)]
    with pytest.raises(ConnectorError, match="data source FakeDataSource: schema\\(\\) raised"):
        cc.spark.source(FakeDataSource, None, "number BIGNUM")


PROGRAM = """
import json, os, sys
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
import crosscut as cc

class Message(WriterCommitMessage):
    def __init__(self, numbers):
        self.numbers = numbers

class Writer(DataSourceStreamWriter):
    def __init__(self, path):
        self.path = path
    def write(self, rows):
        return Message([row.number for row in rows])
    def commit(self, messages, batchId):
        assert all(isinstance(one, Message) for one in messages), messages
        with open(f"{self.path}/{batchId}.json", "w") as file:
            json.dump([number for one in messages for number in one.numbers], file)
        with open(f"{self.path}/committers", "a") as file:
            print(os.getpid(), file=file)
    def abort(self, messages, batchId):
        pass

class Noted(DataSource):
    def streamWriter(self, schema, overwrite):
        return Writer(self.options["path"])

if __name__ == "__main__":
    directory, engine = sys.argv[1:]
    flow = cc.Flow("noted")
    rows = flow.source(cc.items(range(100))).map(lambda number: (number,))
    rows.sink(cc.spark.sink(Noted, {"path": directory}, "number BIGINT"))
    settings = cc.Settings(parallelism=1, checkpoint_dir=f"{directory}/job", engine=engine)
    flow.start(settings).wait()
    print("DRIVER", os.getpid())
"""


@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_messages_of_a_class_of_the_main_program_are_committed_by_either_engine(
    tmp_path: Path, engine: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path), engine],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [number for path in tmp_path.glob("*.json") for number in json.loads(path.read_text())]
    assert sorted(found) == list(range(100))
    driver = done.stdout.split()[-1]
    assert (driver in (tmp_path / "committers").read_text().split()) == (engine == "micro-batch")
