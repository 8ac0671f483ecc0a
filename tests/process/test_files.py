"""Files in and out: rows appear once, whole checkpoints at a time, whatever is killed."""

from __future__ import annotations

import csv
import gzip
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, Held, lose, until

import crosscut as cc
from crosscut.testing.sources import read_source

library = pytest.importorskip("pyarrow.parquet", reason="pip install 'crosscut[parquet]'")

KEYS, FILES, ROWS = 50, 4, 3_000


def counted(update: tuple[str, int]) -> str:
    return f"{update[0]} {update[1]}"


def test_packed_csv_becomes_parquet_csv_and_text_through_kills(tmp_path: Path, started: Any) -> None:
    """A1, F1, I1, I2, I3: three sinks in one checkpoint, and what is visible is always a prefix."""
    (tmp_path / "in").mkdir()
    keys: Counter[str] = Counter()
    for number in range(FILES):
        rows = [(f"key {(i * 7 + number) % KEYS}", 'a\n"b"') for i in range(ROWS)]
        keys.update(key for key, _ in rows)
        with gzip.open(tmp_path / "in" / f"{number}.csv.gz", "wt", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("key", "text"), *rows])

    flow = cc.Flow("files")
    # It can't end before the gate is opened.
    held = Held(cc.files.read_csv(tmp_path / "in" / "*.csv.gz"), tmp_path / "gate", rate=200)
    source = flow.source(held).named("in")
    counts = source.key_by(lambda row: row["key"]).count().named("counts")
    counts.sink(cc.files.write_parquet(tmp_path / "parquet", {"key": "string", "count": "int64"})).named(
        "parquet"
    )
    counts.sink(cc.files.write_csv(tmp_path / "csv", ["key", "count"], compression="gzip")).named("csv")
    counts.map(counted).sink(cc.files.write_text(tmp_path / "text")).named("text")

    def from_parquet() -> list[tuple[str, int]]:
        tables = [library.read_table(path) for path in sorted((tmp_path / "parquet").glob("*.parquet"))]
        return [(row["key"], row["count"]) for table in tables for row in table.to_pylist()]

    def check_prefix(updates: list[tuple[str, int]]) -> int:
        seen: dict[str, int] = defaultdict(int)
        for key, count in updates:
            assert count == seen[key] + 1, f"{key}: {count} after {seen[key]}"
            seen[key] = count
        return len(updates)

    settings = cc.Settings(
        checkpoint_dir=str(tmp_path / "checkpoints"),
        checkpoint_interval="50ms",
        restart=cc.Restart(delay_step="50ms", delay_max="200ms"),
    )
    job = started.flow(flow, settings)
    for _ in range(2):
        before = len(from_parquet())
        until(lambda n=before: len(from_parquet()) > n, "more output")  # type: ignore[misc]
        check_prefix(from_parquet())
        lose(job, started, 0)
    (tmp_path / "gate").touch()
    started.finish(job, lambda: check_prefix(from_parquet()))

    assert check_prefix(from_parquet()) == FILES * ROWS
    packed = cc.files.read_csv(tmp_path / "csv" / "*.csv.gz", types={"count": int})
    assert check_prefix([(row["key"], row["count"]) for row in read_source(packed)]) == FILES * ROWS
    lines = [line.rpartition(" ") for line in read_source(cc.files.read_text(tmp_path / "text" / "*.txt"))]
    assert check_prefix([(key, int(count)) for key, _, count in lines]) == FILES * ROWS
    assert Counter(key for key, _ in from_parquet()) == keys


def test_files_that_appear_while_a_job_runs_are_read_once_through_kills(
    tmp_path: Path, started: Any, arm: Any
) -> None:
    """I1, I2, I3: workers die while files are found, read and committed."""
    armed = arm("snapshot.stored:kill:2:0", "commit.before:kill:3:1", "commit.after:kill:4:0")
    incoming, out = tmp_path / "in", tmp_path / "out"
    incoming.mkdir()
    flow = cc.Flow("arriving")
    source = cc.files.watch(cc.files.read_text(incoming / "*.txt"), every="20ms")
    flow.source(source).named("in").sink(cc.files.write_text(out)).named("out")
    settings = cc.Settings(
        parallelism=2, checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_interval="100ms"
    )
    job = started.flow(flow, settings)
    sent = 0

    def appeared() -> bool:
        nonlocal sent
        if sent > 500 + 50 * len(list(out.glob("part-*.txt"))):
            # Faster than the job is of no use.
            return bool(armed.all_fired())
        hidden = incoming / f".{sent}"
        hidden.write_text("".join(f"{number}\n" for number in range(sent, sent + 10)))
        hidden.rename(incoming / f"{sent}.txt")
        sent += 10
        return bool(armed.all_fired())

    def committed() -> list[int]:
        return [int(line) for path in out.glob("part-*.txt") for line in path.read_text().splitlines()]

    def all_is_there() -> bool:
        found = committed()
        assert len(found) == len(set(found)), "a line was committed twice"
        return set(found) == set(range(sent))

    until(appeared, "every kill", DEADLINE_S)
    until(all_is_there, f"{sent} lines", DEADLINE_S)
    assert job.report().restarts >= 1
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()
    assert all_is_there()
