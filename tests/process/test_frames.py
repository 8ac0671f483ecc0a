"""Frames in real jobs: columns come out once, whole checkpoints at a time, whatever is killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import Held, lose, until

import crosscut as cc
from crosscut.contracts.frames import FrameSource

pl = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")

FILES, ROWS = 4, 20_000
COLUMNS = {"number": "int64", "word": "string"}
COUNTS = {"group": "string", "n": "int64", "total": "int64"}
GROUPS = 23


@dataclass(frozen=True)
class HeldFrames(Held, FrameSource):
    """See `Held`; gives columns."""

    def frame_schema(self) -> Any:
        return self.source.frame_schema()

    def in_frames(self, columns: Any) -> Any:
        return HeldFrames(self.source.in_frames(columns), self.gate, self.rate)


def test_parquet_goes_through_frames_into_parquet_exactly_once_through_kills(
    tmp_path: Path, started: Any
) -> None:
    """A1, F1, I1, I2, I3: two sinks of one checkpoint; a broadcast edge carries columns between vertices."""
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        numbers = pl.int_range(file * ROWS, (file + 1) * ROWS, eager=True)
        groups = "g" + (numbers % GROUPS).cast(pl.String)
        pl.DataFrame(
            {"number": numbers, "word": numbers.cast(pl.String) + " é", "group": groups}
        ).write_parquet(tmp_path / "in" / f"{file}.parquet", row_group_size=1_000)
    flow = cc.Flow("frames")
    held = HeldFrames(cc.files.read_parquet(tmp_path / "in" / "*.parquet"), tmp_path / "gate", rate=2_000)
    frame = flow.source(held, name="in").frame()
    kept = frame.filter(pl.col("number") % 3 > 0).with_columns(number=pl.col("number") * 2).drop("group")
    kept.sink(cc.files.write_parquet(tmp_path / "columns", COLUMNS), name="columns")
    counts = frame.key_by("group").agg(pl.len().alias("n"), total=pl.col("number").sum(), name="counts")
    counts.sink(cc.files.write_parquet(tmp_path / "counts", COUNTS), name="running")
    words = frame.select("word").rows().map(lambda row: row["word"])
    words.sink(cc.files.write_text(tmp_path / "text"), name="text")

    def in_columns() -> Any:
        found = [pl.read_parquet(path) for path in (tmp_path / "columns").glob("*.parquet")]
        return pl.concat(found) if found else pl.DataFrame(schema={"number": pl.Int64, "word": pl.String})

    def updates() -> Any:
        found = [pl.read_parquet(path) for path in sorted((tmp_path / "counts").glob("*.parquet"))]
        return pl.concat(found) if found else pl.DataFrame(schema={"group": pl.String, "n": pl.Int64})

    def no_row_is_there_twice() -> None:
        assert in_columns()["number"].is_duplicated().sum() == 0
        # A group has one owner throughout, whose files are in order: its counts only grow.
        grows = updates().with_columns(more=pl.col("n").diff().over("group"))
        assert grows.filter(pl.col("more") <= 0).height == 0

    settings = cc.Settings(
        parallelism=2,
        checkpoint_dir=str(tmp_path / "checkpoints"),
        checkpoint_interval="50ms",
        restart=cc.Restart(delay_step="50ms", delay_max="200ms"),
    )
    job = started.flow(flow, settings)
    for worker in (0, 1):
        before = len(in_columns())
        until(lambda n=before: len(in_columns()) > n, "more output")  # type: ignore[misc]
        no_row_is_there_twice()
        lose(job, started, worker)
    (tmp_path / "gate").touch()
    started.finish(job, no_row_is_there_twice)

    every = pl.DataFrame({"number": pl.int_range(FILES * ROWS, eager=True)})
    every = every.with_columns(word=pl.col("number").cast(pl.String) + " é")
    expected = every.filter(pl.col("number") % 3 > 0).with_columns(number=pl.col("number") * 2)
    assert in_columns().sort("number").equals(expected)
    totals = updates().unique("group", keep="last").sort("group")
    exact = every.group_by(group="g" + (pl.col("number") % GROUPS).cast(pl.String))
    assert totals.equals(exact.agg(n=pl.len().cast(pl.Int64), total=pl.col("number").sum()).sort("group"))
    lines = [line for path in (tmp_path / "text").glob("*.txt") for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(every["word"])
