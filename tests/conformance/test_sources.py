"""Every source of ours conforms, and the suite finds sources that do not."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crosscut.connectors.files.csv_source import CsvSource, read_csv
from crosscut.connectors.files.jsonl_source import read_jsonl
from crosscut.connectors.files.lines import Lines
from crosscut.connectors.files.parquet_source import ParquetSource, read_parquet
from crosscut.connectors.files.watch import Watched
from crosscut.connectors.simple.generate import generate
from crosscut.connectors.simple.items import items
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader
from crosscut.testing.sources import (
    SOURCE_CHECKS,
    ReadStep,
    check_positions,
    check_restarts,
    check_source,
    read_source,
)

Check = Callable[[Source], None]
plans = st.lists(st.builds(ReadStep, st.integers(1, 40), st.booleans()), min_size=1, max_size=8)
in_tmp_path = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def lines_source(directory: Path) -> Source:
    (directory / "deep").mkdir()
    text = "".join(f"line {i} ü\u2028\x0b €\r\n" if i % 7 == 0 else f"{'x' * (i % 50)}\n" for i in range(400))
    (directory / "a.txt").write_bytes(text.encode())
    (directory / "deep" / "b.txt").write_bytes(b"\n\n\nno end of line")
    (directory / "empty.txt").write_bytes(b"")
    return Lines(str(directory / "**" / "*.txt"), "/", split_bytes=5_000, chunk_bytes=300)


def packed_source(directory: Path) -> Source:
    text = "".join(f"line {i} {'x' * (i % 50)}\n" for i in range(500))
    (directory / "a.txt.gz").write_bytes(gzip.compress(text.encode() + b"no end of line"))
    (directory / "b.txt.bz2").write_bytes(bz2.compress(text.encode()))
    (directory / "c.txt.xz").write_bytes(lzma.compress(b""))
    library = pytest.importorskip("zstandard", reason="pip install 'crosscut[zstd]'")
    frames = [library.compress(text[:cut].encode()) for cut in (2_000, 0, 5_000)]
    (directory / "d.txt.zst").write_bytes(b"".join(frames))
    return Lines(str(directory / "*.txt.*"), "/", chunk_bytes=300)


class FarFiles(LocalFileSystem):
    """Files behind a URL of another scheme than the local one."""

    protocol = "far"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("far://")))


fsspec.register_implementation("far", FarFiles)


def remote_source(directory: Path) -> Source:
    """It is read in threads, since it might be far away."""
    (directory / ".hidden").mkdir()
    for name, rows in (("a", 500), ("b", 3), ("c", 0)):
        data = "".join(f"line {i} of {name}\n" for i in range(rows)).encode()
        for path in (directory / f"{name}.txt", directory / ".hidden" / f"{name}.txt"):
            path.write_bytes(data)
        (directory / f"{name}.txt.gz").write_bytes(gzip.compress(data))
    source = Lines(f"far://{directory}/**", "/", chunk_bytes=700, split_bytes=2_000)
    assert not any("hidden" in one.split_id for one in source.splits(1))
    return source


def watched_source(directory: Path) -> Source:
    for name in range(7):
        text = "".join(f"line {i} of {name}\n" for i in range(name * 20))
        (directory / f"{name}.txt").write_text(text)
    return Watched(Lines(str(directory / "*.txt"), "/", split_bytes=500), 1.0, ends=True)


def jsonl_source(directory: Path) -> Source:
    text = "".join(f'{{"i": {i}}}\n' + "\n" * (i % 3) for i in range(300))
    (directory / "a.jsonl").write_text(text)
    return replace(
        read_jsonl(directory / "*.jsonl"), lines=Lines(str(directory / "*.jsonl"), "/", chunk_bytes=90)
    )


def csv_source(directory: Path) -> Source:
    rows = [{"i": i, "text": 'a "b",\n\nü' * (i % 4)} for i in range(300)]
    with (directory / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["i", "text"], lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(rows)
    (directory / "b.csv").write_bytes(b"i,text\n7,no end of line")
    (directory / "empty.csv").write_bytes(b"")
    source = read_csv(directory / "*.csv", types={"i": int})
    assert read_source(source) == [*rows, {"i": 7, "text": "no end of line"}]
    return replace(source, lines=replace(source.lines, chunk_bytes=80))


def parquet_source(directory: Path) -> ParquetSource:
    arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    library = pytest.importorskip("pyarrow.parquet")
    for name, rows in (("a", 500), ("b", 3), ("c", 0)):
        table = arrow.table({"i": range(rows), "text": [f"{name} {i}" for i in range(rows)]})
        library.write_table(table, directory / f"{name}.parquet", row_group_size=120)
    source = read_parquet(directory / "*.parquet")
    assert isinstance(source, ParquetSource)
    assert len(read_source(source)) == 503
    return replace(source, split_bytes=1_500, batch_rows=50)


def remote_parquet_source(directory: Path) -> Source:
    source = parquet_source(directory)
    return replace(source, pattern=f"far://{directory}/*.parquet")


def generate_source(_: Path) -> Source:
    return generate(lambda i: i * i, count=500)


def items_source(_: Path) -> Source:
    return items([i * i for i in range(300)] + [[i] for i in range(50)])


def paced_source(_: Path) -> Source:
    return generate(lambda i: (i, str(i)), count=400, rate=200_000)


@pytest.mark.parametrize(
    "make",
    [
        lines_source,
        packed_source,
        remote_source,
        jsonl_source,
        watched_source,
        csv_source,
        parquet_source,
        remote_parquet_source,
        generate_source,
        items_source,
        paced_source,
    ],
)
@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_our_sources_conform(check: Check, make: Callable[[Path], Source], tmp_path: Path) -> None:
    check(make(tmp_path))


@in_tmp_path
@given(
    text=st.text(st.sampled_from("ab\n\r\u2028\x0b\x85ü€😀"), max_size=300),
    plan=plans,
    chunk_bytes=st.integers(1, 64),
    split_bytes=st.integers(1, 200),
)
def test_lines_are_the_same_for_any_read_limits_restarts_chunks_and_ranges(
    tmp_path: Path, text: str, plan: list[ReadStep], chunk_bytes: int, split_bytes: int
) -> None:
    """Against an oracle: split at newlines, one carriage return before each dropped, nothing else."""
    (tmp_path / "input").write_bytes(text.encode())
    source = Lines("input", str(tmp_path), chunk_bytes=chunk_bytes, split_bytes=split_bytes)
    *ended, last = text.split("\n")
    expected = [line.removesuffix("\r") for line in ended] + ([last] if last else [])
    assert read_source(source) == expected
    check_positions(source)
    check_restarts(source, plan)


@in_tmp_path
@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\xff", b"\xe2\x82", "€".encode()]), max_size=80),
    errors=st.sampled_from(["replace", "ignore", "surrogateescape", "backslashreplace"]),
    plan=plans,
    chunk_bytes=st.integers(1, 16),
)
def test_positions_are_bytes_whatever_is_done_about_bytes_that_are_not_utf8(
    tmp_path: Path, data: list[bytes], errors: str, plan: list[ReadStep], chunk_bytes: int
) -> None:
    content = b"".join(data)
    (tmp_path / "input").write_bytes(content)
    source = Lines("input", str(tmp_path), errors, chunk_bytes=chunk_bytes, split_bytes=50)
    *ended, last = content.split(b"\n")
    raw_lines = [line.removesuffix(b"\r") for line in ended] + ([last] if last else [])
    assert read_source(source) == [line.decode("utf-8", errors) for line in raw_lines]
    check_restarts(source, plan)


@in_tmp_path
@given(
    rows=st.lists(
        st.lists(st.text(st.sampled_from('ab",;\n\r ü'), max_size=8), min_size=2, max_size=2), max_size=12
    ),
    plan=plans,
    chunk_bytes=st.integers(1, 64),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_rows_of_csv_are_the_same_for_any_read_limits_restarts_and_chunks(
    tmp_path: Path, rows: list[list[str]], plan: list[ReadStep], chunk_bytes: int, line_end: str
) -> None:
    """Against what was written; a line end within quotes comes out as a newline."""
    with (tmp_path / "input.csv").open("w", newline="", encoding="utf-8") as file:
        # With a bare newline at the end of rows, Python does not quote a carriage return.
        quoting: Any = csv.QUOTE_MINIMAL if line_end == "\r\n" else csv.QUOTE_ALL
        csv.writer(file, lineterminator=line_end, quoting=quoting).writerows([["a", "b"], *rows])
    lines = Lines("input.csv", str(tmp_path), chunk_bytes=chunk_bytes, split_bytes=1 << 62)
    source = CsvSource(lines)
    expected = [[value.replace("\r\n", "\n") for value in row] for row in rows]
    assert [list(record.values()) for record in read_source(source)] == expected
    check_positions(source)
    check_restarts(source, plan)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 200), parallelism=st.integers(1, 7), plan=plans)
def test_generated_records_are_each_made_once_whatever_the_restarts(
    count: int, parallelism: int, plan: list[ReadStep]
) -> None:
    source = generate(lambda i: i, count=count)
    assert sorted(read_source(source, parallelism)) == list(range(count))
    check_restarts(source, plan)


@dataclass(frozen=True)
class PlantedBug(Source):
    """A source of the numbers 0 to 99, with one bug."""

    bug: str

    def splits(self, parallelism: int) -> Sequence[Split]:
        split = Split("only", 0)
        return [split, replace(split, start=50)] if self.bug == "same split id twice" else [split]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        assert isinstance(position, int)
        return PlantedBugReader(self.bug, position)


class PlantedBugReader(SplitReader):
    def __init__(self, bug: str, position: int) -> None:
        self.bug = bug
        self.next = position

    @property
    def position(self) -> JSON:
        if self.bug == "position of the last record":
            return max(0, self.next - 1)
        if self.bug == "position of the block":
            return self.next // 10 * 10
        return self.next

    def read(self, limit: int) -> list[Any] | EndOfSplit:
        stop = min(100, self.next + limit + (self.bug == "too many records"))
        if self.next >= stop and self.bug != "empty list at the end":
            return EndOfSplit()
        records = list(range(self.next, stop))
        self.next = stop
        return records


@pytest.mark.parametrize(
    "bug",
    [
        "same split id twice",
        "position of the last record",
        "position of the block",
        "too many records",
        "empty list at the end",
    ],
)
def test_the_suite_finds_planted_bugs(bug: str) -> None:
    check_source(PlantedBug("none"))
    with pytest.raises(AssertionError):
        check_source(PlantedBug(bug))
