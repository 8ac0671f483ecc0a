"""Savepoints of a real job: taken while it runs and when it stops, restored at another parallelism."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, until
from pyspark import SparkContext
from pyspark.sql import SparkSession

import crosscut as cc
from crosscut.errors import HistoryError, StoreError
from crosscut.savepoints.manifest import opened


def test_a_job_is_copied_while_it_runs_and_goes_on_elsewhere_from_where_it_was_stopped(
    tmp_path: Path, started: Any, spark: SparkContext
) -> None:
    numbered = NumberedJob(tmp_path / "first", count=20_000, branches=2, held=1)
    job = started(numbered)
    until(lambda: job.report().records_read > 500, "records")
    early, late = tmp_path / "early", tmp_path / "late"
    assert job.savepoint(early, DEADLINE_S) == str(early)
    at_least = dict(cc.read_state(early, "sums").select("key", "value").rows())
    values = job.values("sums")
    assert at_least and all(values[key][0] >= count for key, (count, *_) in at_least.items())
    read = job.report().records_read
    until(lambda: job.report().records_read > read + 300, "records after it")
    with pytest.raises(StoreError, match="early is there already, and not empty"):
        job.stop(DEADLINE_S, savepoint=early)
    assert job.status == "running"
    assert job.stop(DEADLINE_S, savepoint=late)
    before, after = (cc.read_state(path, "sums") for path in (early, late))
    assert 0 < sum(count for count, *_ in before["value"]) < sum(count for count, *_ in after["value"])

    def of_spark(path: Path) -> dict[Any, Any]:
        schema = "key STRING, value STRUCT<count: BIGINT, total: BIGINT, number: BIGINT>"
        rows = cc.read_state(path, "sums", spark=SparkSession(spark), schema=schema)
        assert rows.rdd.getNumPartitions() == 2
        return {row.key: tuple(row.value) for row in rows.collect()}

    checkpoint = numbered.checkpoint_dir
    expected = {key: tuple(value) for key, value in zip(after["key"], after["value"], strict=True)}
    assert of_spark(late) == of_spark(checkpoint) == expected
    # Beside the output of the first job: what the savepoint knows of is not written again.
    elsewhere = {"checkpoint_dir": str(tmp_path / "second"), "parallelism": 3}
    with pytest.raises(HistoryError, match="up to checkpoint"):
        started(replace(numbered, settings={**elsewhere, "restore_from": early}))
    second = replace(numbered, settings={**elsewhere, "restore_from": late})
    job = started(second)
    first = opened(late).manifest.checkpoint_id + 1
    assert f"restores checkpoint {first} at parallelism 3, was 2" in job.report().takeover
    until(lambda: job.report().records_read > read + 600, "more records")
    numbered.open_gate()
    assert job.wait(DEADLINE_S)
    exact = replace(numbered, directory=tmp_path / "first", settings={})
    exact.check_records_are_exact()
