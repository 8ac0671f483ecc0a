"""Spark's own streaming sources in a job: every row once, whatever is killed, under both engines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, lose, until
from pyspark import SparkContext
from pyspark.sql import SparkSession

import crosscut as cc
from crosscut.errors import ConnectorError

pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")

FILES, LINES_EACH = 12, 50


def written(directory: Path, numbers: range) -> None:
    """Write files of lines, each of which is there at once."""
    directory.mkdir(exist_ok=True)
    for number in numbers:
        path = directory.parent / f"{number}.part"
        path.write_text("".join(f"{number}-{line}\n" for line in range(LINES_EACH)))
        os.rename(path, directory / f"{number:03}.txt")


def test_what_a_streaming_source_of_spark_reads_is_there_exactly_once_under_both_engines(
    spark: SparkContext, started: Any, tmp_path: Path
) -> None:
    SparkSession.builder.getOrCreate()
    lines, out = tmp_path / "lines", cc.collect(tmp_path / "out")
    flow = cc.Flow("streamed")
    options = {"path": str(lines), "maxFilesPerTrigger": 2}
    source = flow.source(cc.spark.stream("text", options, records="values", every="100ms"))
    # Made anew at each attempt: what was staged first is what counts.
    source.named("lines").map(lambda line: line).sink(out)

    def settings(engine: Any) -> cc.Settings:
        return cc.Settings(
            parallelism=2,
            engine=engine,
            checkpoint_dir=str(tmp_path / "checkpoints"),
            checkpoint_interval="200ms",
            restart=cc.Restart(delay="0s"),
            **PATIENT,
        )

    def expected(files: int) -> list[str]:
        return sorted(f"{number}-{line}" for number in range(files) for line in range(LINES_EACH))

    written(lines, range(FILES))
    job = started.flow(flow, settings("continuous"))
    until(out.records, "the first lines")
    lose(job, started, 0)
    until(lambda: len(out.records()) >= FILES * LINES_EACH, "all lines")
    assert sorted(out.records()) == expected(FILES)
    batches = tmp_path / "checkpoints" / "streams" / "lines" / "batches"
    until(lambda: not list(batches.iterdir()), "the end of what was staged")
    assert job.stop(DEADLINE_S)

    written(lines, range(FILES, FILES + 4))
    job = started.flow(flow, settings("micro-batch"))
    until(lambda: len(out.records()) >= (FILES + 4) * LINES_EACH, "the lines that have come meanwhile")
    assert job.stop(DEADLINE_S)
    assert sorted(out.records()) == expected(FILES + 4)


def test_a_job_that_reads_what_there_is_reads_all_that_spark_has_at_its_first_start_and_the_next(
    spark: SparkContext, started: Any, tmp_path: Path
) -> None:
    SparkSession.builder.getOrCreate()
    lines, out = tmp_path / "lines", cc.collect(tmp_path / "out")
    flow = cc.Flow("what-there-is")
    source = flow.source(
        cc.spark.stream("text", {"path": str(lines), "maxFilesPerTrigger": 1}, records="values")
    )
    source.named("lines").sink(out)
    settings = cc.Settings(
        parallelism=2,
        engine=cc.MicroBatch(trigger="available_now"),
        checkpoint_dir=str(tmp_path / "checkpoints"),
        **PATIENT,
    )
    for first, end in ((0, 3), (3, 14), (14, 14)):
        written(lines, range(first, end))
        job = started.flow(flow, settings)
        assert job.wait(DEADLINE_S)
        found = sorted(out.records())
        assert found == sorted(f"{number}-{line}" for number in range(end) for line in range(LINES_EACH))


def test_a_query_that_fails_fails_the_job_with_its_cause(
    spark: SparkContext, started: Any, tmp_path: Path
) -> None:
    settings = cc.Settings(
        parallelism=1, checkpoint_dir=str(tmp_path / "checkpoints"), restart=cc.Restart(failures=0)
    )
    lines = tmp_path / "lines"
    lines.mkdir()
    job = started.flow(failing("text", tmp_path, path=lines, maxFilesPerTrigger=0), settings)
    with pytest.raises(cc.errors.JobFailedError, match=r"source 'nothing': .*maxFilesPerTrigger"):
        job.wait(DEADLINE_S)


def test_what_spark_can_not_even_plan_is_refused_at_the_start_with_what_to_do(
    spark: SparkContext, started: Any, tmp_path: Path
) -> None:
    settings = cc.Settings(parallelism=1, checkpoint_dir=str(tmp_path / "checkpoints"))
    advice = r"spark\.jars\.packages=org\.apache\.spark:spark-sql-kafka-0-10_2\.13:\d"
    for source_format, expected in [("no-such-format", r"packages=group:name"), ("kafka", advice)]:
        with pytest.raises(ConnectorError, match=rf"(?s)'nothing': Spark can't read stream .*{expected}"):
            started.flow(failing(source_format, tmp_path), settings)
    with pytest.raises(ConnectorError, match="PATH_NOT_FOUND"):
        started.flow(failing("text", tmp_path, path=tmp_path / "nowhere"), settings)
    assert not (tmp_path / "checkpoints" / "log").exists(), "nothing has been changed"


def failing(source_format: str, directory: Path, **options: Any) -> cc.Flow:
    flow = cc.Flow("failing")
    source = flow.source(cc.spark.stream(source_format, options)).named("nothing")
    source.sink(cc.collect(directory / "out"))
    return flow


def test_what_can_be_seen_to_be_wrong_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConnectorError, match="expected the name of a format"):
        cc.spark.stream("")
    with pytest.raises(ConnectorError, match="records='pandas'"):
        cc.spark.stream("rate", records="pandas")  # type: ignore[arg-type]
