"""Streaming sources of Spark on the driver: when their query runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from crosscut.connectors.files.staged_rows import staged
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.spark.data.stream_source import StreamSource
from crosscut.store.checkpoint_store import open_store
from crosscut.store.files import TEMPORARY, LocalFiles


class _Query:
    def __init__(self) -> None:
        self.isActive = True

    def stop(self) -> None:
        self.isActive = False


class _Reading:
    """In place of Spark, where a query that is begun runs until it is stopped."""

    format, options, every_ms = "fake", (), 100

    def __init__(self) -> None:
        self.schema = StructType([StructField("line", StringType())])
        self.writeStream = self
        self.begun: list[_Query] = []

    def frame(self, spark: object) -> Any:
        return self

    def foreachBatch(self, call: object) -> Any:
        return self

    def option(self, name: str, value: str) -> Any:
        return self

    def trigger(self, *, processingTime: str) -> Any:
        return self

    def start(self) -> _Query:
        self.begun.append(_Query())
        return self.begun[-1]


def test_when_the_turn_of_an_engine_comes_again_its_query_of_spark_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = type("Session", (), {"_sc": object()})()
    monkeypatch.setattr(SparkSession, "_instantiatedSession", session)
    reading: Any = _Reading()
    source = StreamSource(reading, "rows").placed(str(tmp_path), "lines", session._sc)

    known = source.discover(None).known
    assert reading.begun == [], "the job does not own its directory yet"
    for turn in range(1, 4):
        source.begin(ends=False)
        source.discover(known)
        source.discover(known)
        assert [one.isActive for one in reading.begun] == [False] * (turn - 1) + [True]
        source.stop()()
        source.discover(known)
        assert len(reading.begun) == turn, "nobody reads for a job that is over"


def test_a_query_that_stops_late_leaves_that_of_the_next_engine_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = type("Session", (), {"_sc": object()})()
    monkeypatch.setattr(SparkSession, "_instantiatedSession", session)
    reading: Any = _Reading()
    source = StreamSource(reading, "rows").placed(str(tmp_path), "lines", session._sc)
    source.begin(ends=False)
    known = source.discover(None).known
    stop = source.stop()
    source.begin(ends=False)
    assert source.discover(known).is_coming
    assert len(reading.begun) == 1, "two queries have the same log"
    stop()
    source.discover(known)
    assert [one.isActive for one in reading.begun] == [False, True]
    stop()
    assert [one.isActive for one in reading.begun] == [False, True]


def test_a_query_that_begins_while_its_engine_run_ends_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = type("Session", (), {"_sc": object()})()
    monkeypatch.setattr(SparkSession, "_instantiatedSession", session)
    reading: Any = _Reading()
    source = StreamSource(reading, "rows").placed(str(tmp_path), "lines", session._sc)
    start = reading.start

    def ends_meanwhile() -> _Query:
        source.stop()()
        return start()  # type: ignore[no-any-return]

    reading.start = ends_meanwhile
    source.begin(ends=False)
    source.discover(None)
    assert [one.isActive for one in reading.begun] == [False]


def attempt(where: str, batch: int, *rows: str) -> list[Any]:
    """Stage rows as one attempt at a batch does; return what an entry says of the file."""
    rows_in_arrow = iter([pyarrow.RecordBatch.from_pydict({"line": list(rows)})])
    task = TaskId(VertexId("lines"), 0)
    ((part, count),) = staged(
        rows_in_arrow, store_url=where, task=task, epoch=Epoch(1), number=CheckpointId(batch)
    )
    return [part.path, part.size_bytes, part.sha256, count]


def test_what_attempts_have_left_that_did_not_count_goes_with_the_batch(tmp_path: Path) -> None:
    source = StreamSource(_Reading(), "values").placed(str(tmp_path), "lines")  # type: ignore[arg-type]
    first = source.discover(None)
    where = str(tmp_path / "streams" / "lines")
    open_store(where)
    files = LocalFiles(where)
    for batch in range(3):
        attempt(where, batch, f"lost-{batch}")
        kept = attempt(where, batch, f"kept-{batch}")
        files.put_if_absent(f"batches/{batch:012}.json", json.dumps([kept]).encode())
    late = attempt(where, 3, "of a batch that has not been said yet")[0]
    # Of a driver that died while it wrote.
    (Path(where) / "batches" / f"{TEMPORARY}12ab").write_text("{")
    found = source.discover(first.known)
    assert len(found.splits) == 3
    store = open_store(where)
    source.completed(found.known, [found.splits[1].detail])
    assert [path.split("/")[1] for path in store.list_parts()] == ["1", "1", "2", "2", "3"]
    # A zombie: what it stages now goes later.
    attempt(where, 0, "lost")
    source.completed(found.known, [])
    assert store.list_parts() == [late]
    assert [path for path in files.walk("batches") if TEMPORARY not in path] == []


def test_a_batch_that_is_missing_between_others_is_named_and_not_waited_for(tmp_path: Path) -> None:
    source = StreamSource(_Reading(), "values").placed(str(tmp_path), "lines")  # type: ignore[arg-type]
    known = source.discover(None).known
    where = str(tmp_path / "streams" / "lines")
    open_store(where)
    entries = [Path(where) / "batches" / f"{batch:012}.json" for batch in range(4)]
    for batch in (0, 2, 3):
        entries[batch].write_text(json.dumps([attempt(where, batch, "line")]))
    with pytest.raises(ConnectorError, match=r"'lines': batch 1 .*/000000000001\.json, since batch 2 "):
        source.discover(known)
    # As it is when it has come after it was asked for, and before the later ones were seen.
    entries[1].write_text(json.dumps([attempt(where, 1, "line")]))
    source._check_order(1)
    assert len(source.discover(known).splits) == 4
