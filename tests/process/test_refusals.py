"""What the system behind a sink refuses: dead letters before the commit, a way out after it (P6)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, until

import crosscut as cc
from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    CommittedOutput,
    Sink,
    SinkContext,
    SinkWriter,
)
from crosscut.errors import ConnectorError, JobFailedError
from crosscut.foundation.ids import CheckpointId

BAD = 150
COUNT = 300


@dataclass(frozen=True)
class Strict(Sink[int]):
    """Files, in a system that refuses the record BAD: when it is prepared, or only when it is committed."""

    files: Sink[Any]
    at_commit: bool

    def writer(self, context: SinkContext) -> SinkWriter:
        return StrictWriter(self.files.writer(context), at_commit=self.at_commit)

    def committed(self) -> Sequence[CommittedOutput]:
        return self.files.committed()


class StrictWriter(SinkWriter):
    def __init__(self, files: SinkWriter, *, at_commit: bool) -> None:
        self.files = files
        self.at_commit = at_commit
        self.open: list[int] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[Any]) -> None:
        self.check(handles)
        self.files.recover(permit, [one["file"] for one in handles if one["file"]])

    def begin_attempt(self, handles: Sequence[Any]) -> None:
        self.files.begin_attempt([one["file"] for one in handles if one["file"]])

    def write(self, records: list[int]) -> None:
        self.open += records

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if not self.open:
            return None
        records, self.open = self.open, []
        return checkpoint_id, records

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, records = transaction
        taken = []
        for record in records:
            if record == BAD and not self.at_commit:
                self.refuse(record, "column n: at most 149")
            else:
                taken.append(record)
        if not taken:
            return {"file": None, "records": []}
        self.files.write(taken)
        file = self.files.prepare(self.files.rotate(checkpoint_id))
        return {"file": file, "records": list(taken)}

    def commit(self, permit: CommitPermit, handles: Sequence[Any]) -> None:
        self.check(handles)
        self.files.commit(permit, [one["file"] for one in handles if one["file"]])

    def check(self, handles: Sequence[Any]) -> None:
        if any(BAD in one["records"] for one in handles):
            raise ConnectorError("column n: at most 149")

    def pending_records(self, handles: Sequence[Any]) -> list[int]:
        return [record for one in handles for record in one["records"]]

    def abort(self, handles: Sequence[Any]) -> None:
        self.files.abort([one["file"] for one in handles if one["file"]])

    def sweep(self) -> None:
        self.files.sweep()

    def close(self) -> None:
        self.files.close()


def settings(directory: Path, engine: Any) -> cc.Settings:
    return cc.Settings(
        parallelism=1,
        engine=cc.MicroBatch(records_max=40) if engine == "micro-batch" else engine,
        checkpoint_dir=str(directory / "checkpoints"),
        checkpoint_interval="200ms",
        commit_attempts=2,
        restart=cc.Restart(failures=1, delay_step="20ms", delay_max="50ms"),
        **PATIENT,
    )


def numbers(directory: Path, engine: str, *, at_commit: bool, **dead_letters: Any) -> cc.Flow:
    flow = cc.Flow("numbers")
    # Both engines have some checkpoints on the way.
    rate = 200 if engine == "continuous" else None
    source = flow.source(cc.generate(int, count=COUNT, rate=rate))
    source.named("numbers").sink(
        Strict(cc.files.write_jsonl(directory / "out"), at_commit), **dead_letters
    ).named("out")
    return flow


def written(directory: Path) -> list[Any]:
    return sorted(
        json.loads(line) for path in directory.glob("part-*") for line in path.read_text().splitlines()
    )


def failure(job: Any) -> str:
    with pytest.raises(JobFailedError) as caught:
        until(lambda: job.wait(0.1), "the end of the job")
    return str(caught.value)


def transactions(*arguments: str) -> str:
    command = [sys.executable, "-m", "crosscut", "transactions", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


ENGINES = pytest.mark.parametrize("engine", ["continuous", "micro-batch"])


@ENGINES
def test_a_refused_record_is_a_dead_letter_once_and_all_others_are_written_once(
    engine: Any, tmp_path: Path, started: Any
) -> None:
    letters = cc.files.write_jsonl(tmp_path / "refused")
    job = started.flow(
        numbers(tmp_path, engine, at_commit=False, dead_letters=letters), settings(tmp_path, engine)
    )
    started.finish(job)
    assert written(tmp_path / "out") == [number for number in range(COUNT) if number != BAD]
    (letter,) = (
        json.loads(line)
        for path in (tmp_path / "refused").glob("part-*")
        for line in path.read_text().splitlines()
    )
    assert (letter["record"], letter["error"], letter["operator"]) == (BAD, "column n: at most 149", "out")


@ENGINES
def test_without_dead_letters_it_fails_the_job_by_name_and_a_fixed_flow_goes_on(
    engine: Any, tmp_path: Path, started: Any
) -> None:
    job = started.flow(numbers(tmp_path, engine, at_commit=False), settings(tmp_path, engine))
    text = failure(job)
    assert "record 150 is refused: column n: at most 149" in text
    assert BAD not in written(tmp_path / "out")
    letters = cc.files.write_jsonl(tmp_path / "refused")
    started.finish(
        started.flow(
            numbers(tmp_path, engine, at_commit=False, dead_letters=letters), settings(tmp_path, engine)
        )
    )
    assert written(tmp_path / "out") == [number for number in range(COUNT) if number != BAD]


APP = """
import sys

sys.path.insert(0, {tests!r})

from pathlib import Path

from test_refusals import numbers

flow = numbers(Path({directory!r}), {engine!r}, at_commit=True)
"""


@ENGINES
def test_output_that_is_refused_at_commit_is_listed_exported_and_dropped_and_the_job_goes_on(
    engine: Any, tmp_path: Path, started: Any
) -> None:
    job = started.flow(numbers(tmp_path, engine, at_commit=True), settings(tmp_path, engine))
    assert "column n: at most 149" in failure(job)
    directory, app = str(tmp_path / "checkpoints"), tmp_path / "app.py"
    app.write_text(APP.format(tests=str(Path(__file__).parent), directory=str(tmp_path), engine=engine))
    target = f"{app}:flow"
    assert "prepared transactions" in transactions("ls", directory, target)
    exported = [
        json.loads(line)
        for line in transactions("export", directory, target, "--sink", "numbers").splitlines()
    ]
    (n,) = {one["checkpoint"] for one in exported if one["record"] == BAD}
    lost = [one["record"] for one in exported if one["checkpoint"] == n]
    transactions(
        "drop",
        directory,
        "--sink",
        "numbers[0]",
        "--checkpoint",
        str(n),
        "--reason",
        "150",
        "--yes",
        "--force",
    )
    assert "150" in transactions("ls", directory)
    started.finish(started.flow(numbers(tmp_path, engine, at_commit=True), settings(tmp_path, engine)))
    assert written(tmp_path / "out") == [number for number in range(COUNT) if number not in lost]
