"""A stream joined with a table that changes while the job runs, on both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, lose, until

import crosscut as cc
from crosscut.errors import CrosscutError


def settings(tmp_path: Path, engine: str) -> cc.Settings:
    given: dict[str, Any] = {"checkpoint_interval": "100ms", "engine": engine, **PATIENT}
    return cc.Settings(checkpoint_dir=tmp_path / "checkpoints", parallelism=2, **given)


def flow_of(table: Path, out: Path) -> cc.Flow:
    def read_table() -> list[dict[str, Any]]:
        return json.loads(table.read_text())  # type: ignore[no-any-return]

    flow = cc.Flow("lookup")
    (
        flow.source(cc.generate(lambda n: n, rate=200))
        .lookup(
            cc.lookup(read_table, key="remainder", refresh="50ms"),
            lambda n: n % 3,
            join=lambda n, row: {"n": n, "version": row and row["version"]},
        )
        .sink(cc.files.write_jsonl(out))
    )
    return flow


def write(table: Path, version: int) -> None:
    rows = [{"remainder": remainder, "version": version} for remainder in (0, 1)]
    new = table.with_suffix(".new")
    new.write_text(json.dumps(rows))
    new.replace(table)


def committed(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for one in sorted(out.glob("*.jsonl")) for line in one.read_text().splitlines()]


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_records_meet_the_version_that_their_process_has(tmp_path: Path, started: Any, engine: str) -> None:
    """I1, I2, I3: which version is not deterministic, and what is committed is there once."""
    table, out = tmp_path / "table.json", tmp_path / "out"
    write(table, 1)
    job = started.flow(flow_of(table, out), settings(tmp_path, engine))
    until(lambda: {one["version"] for one in committed(out)} == {1, None}, "the first version", DEADLINE_S)
    write(table, 2)
    until(lambda: 2 in {one["version"] for one in committed(out)}, "the second version", DEADLINE_S)
    table.write_text("no JSON")
    before = len(committed(out))
    until(lambda: len(committed(out)) > before + 50, "more output, although no refresh succeeds", DEADLINE_S)
    write(table, 3)
    if engine == "continuous":
        lose(job, started, 0)
    until(lambda: 3 in {one["version"] for one in committed(out)}, "the third version", DEADLINE_S)
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()
    found = committed(out)
    for parity in (0, 1):
        # Each of the two tasks counts by itself.
        mine = sorted(one["n"] for one in found if one["n"] % 2 == parity)
        assert mine == list(range(parity, 2 * len(mine) + parity, 2))
    assert all((one["version"] is None) == (one["n"] % 3 == 2) for one in found)


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_a_table_that_can_not_be_read_at_the_start_fails_the_job(
    tmp_path: Path, started: Any, engine: str
) -> None:
    table = tmp_path / "table.json"
    table.write_text("5")
    job = started.flow(flow_of(table, tmp_path / "out"), settings(tmp_path, engine))
    with pytest.raises(
        CrosscutError, match=r"lookup '2-lookup': crosscut.lookup\(read_table\): 5 of type int is no table"
    ):
        job.wait(DEADLINE_S)
