"""Those who read a directory of Parquet themselves see what is committed and nothing else, at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage

pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
duckdb = pytest.importorskip("duckdb")
polars = pytest.importorskip("polars")

SCHEMA = {"number": "int64", "part": "string"}
Rows = list[tuple[int, str]]


def row(number: int) -> tuple[int, str]:
    return number, f"part {number % 6}"


def by_duckdb(directory: Path) -> Rows:
    """Return the rows of the files whose names match, in the order of the names."""
    try:
        found: Rows = duckdb.sql(
            f"SELECT number, part FROM read_parquet('{directory}/**/*.parquet', filename=true, "
            "file_row_number=true) ORDER BY filename, file_row_number"
        ).fetchall()
    except duckdb.IOException as error:
        assert "No files found" in str(error)
        return []
    return found


def by_duckdb_by_name(directory: Path) -> Rows:
    """Return the rows of a directory that is named without a pattern; DuckDB leaves hidden ones out."""
    try:
        found: Rows = duckdb.sql(f"SELECT number, part FROM read_parquet('{directory}')").fetchall()
    except duckdb.IOException as error:
        assert "No files found" in str(error)
        return []
    return found


def by_polars(directory: Path) -> Rows:
    try:
        found = polars.scan_parquet(directory / "**" / "*.parquet", hive_partitioning=True)
        frame = found.select("number", "part").collect()
    except polars.exceptions.ComputeError as error:
        assert "expanded paths were empty" in str(error)
        return []
    return list(frame.iter_rows())


@pytest.mark.parametrize("reader", [by_duckdb, by_polars])
@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_a_sink_conforms_when_others_read_its_directory(
    check: Callable[[SinkTarget], None], reader: Callable[[Path], Rows], tmp_path: Path
) -> None:
    """I2, I3, F1, F2, F4, F6, F8, D7."""
    directory = tmp_path / "out"
    check(SinkTarget(cc.files.write_parquet(directory, SCHEMA), lambda: reader(directory), row))


@pytest.mark.parametrize("reader", [by_duckdb, by_duckdb_by_name, by_polars])
def test_the_files_of_one_commit_appear_one_after_the_other_and_whole(
    reader: Callable[[Path], Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7: of a commit of several files others may see any number at a moment."""
    directory, rename = tmp_path / "out", os.rename
    seen: list[Rows] = []

    def watched(*arguments: Any, **others: Any) -> None:
        seen.append(sorted(reader(directory)))
        rename(*arguments, **others)

    monkeypatch.setattr(os, "rename", watched)
    writer = open_writer(cc.files.write_parquet(directory, SCHEMA, partition_by="part"), 1)
    before: Rows = []
    for n in (1, 2):
        rows = [row(number) for number in range(n * 100, n * 100 + 60)]
        handle = stage(writer, rows, n)
        seen.clear()
        writer.commit(permit(n), [handle])
        seen.append(sorted(reader(directory)))
        # Each of six files has ten rows, and all that was there before stays.
        assert [len(one) for one in seen] == [len(before) + 10 * files for files in range(7)]
        assert seen[0] == before and seen[-1] == sorted(before + rows)
        for earlier, later in pairwise(seen):
            assert set(earlier) < set(later)
            assert len({part for _, part in set(later) - set(earlier)}) == 1, "a file at a time"
        before = seen[-1]
    writer.close()
