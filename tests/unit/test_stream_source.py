"""Streaming sources of Spark on the driver: when their query runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from crosscut.spark.stream_source import StreamSource


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
    source = StreamSource(reading, "rows").placed(str(tmp_path), "lines")

    known = source.discover(None).known
    assert reading.begun == [], "the job does not own its directory yet"
    for turn in range(1, 4):
        source.begin(session._sc)
        source.discover(known)
        source.discover(known)
        assert [one.isActive for one in reading.begun] == [False] * (turn - 1) + [True]
        source.stop()
        source.discover(known)
        assert len(reading.begun) == turn, "nobody reads for a job that is over"
