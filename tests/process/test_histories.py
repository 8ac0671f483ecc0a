"""N1, N3 with whole jobs: checkpoints that do not belong to the output, and output that readers take away."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, log_files, until

from crosscut.errors import HistoryError

RECORDS = 4_000


def files_of(directory: Path) -> dict[Path, bytes]:
    """Return all files there are: checkpoints, output, and what the sink notes for itself."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def committed_lines(numbered: NumberedJob) -> int:
    return sum(path.read_bytes().count(b"\n") for path in numbered.out.glob("part-*"))


def refuse(started: Any, numbered: NumberedJob, words: str) -> None:
    """The job does not start: by name, and nothing has changed anywhere."""
    before = files_of(numbered.directory)
    with pytest.raises(HistoryError, match=words) as refused:
        started(numbered)
    assert str(numbered.out) in str(refused.value), "the sink is not named"
    assert files_of(numbered.directory) == before


def test_one_history_is_told_from_another_before_anything_is_read(tmp_path: Path, started: Any) -> None:
    numbered = NumberedJob(tmp_path, count=RECORDS, held=1, parallelism=1)
    checkpoints, copy, taken = numbered.checkpoint_dir, tmp_path / "copy", tmp_path / "taken"
    of_copy = replace(numbered, settings={"checkpoint_dir": str(copy)})
    job = started(numbered)
    until(lambda: len(list(numbered.out.glob("part-*"))) >= 2, "output")
    assert job.stop(DEADLINE_S)

    # The checkpoints are deleted.
    shutil.copytree(checkpoints, copy)
    shutil.rmtree(checkpoints)
    refuse(started, numbered, "has committed output of another history.*--fresh")
    shutil.rmtree(checkpoints)
    shutil.copytree(copy, checkpoints)

    # The newest entries of the log are lost.
    entries = log_files(checkpoints)
    for entry in entries[len(entries) // 2 :]:
        entry.unlink()
    refuse(started, numbered, "of this very job.*The job log has lost entries.*or this is a copy")
    shutil.rmtree(checkpoints)
    shutil.copytree(copy, checkpoints)

    # Readers take away what is visible: that is not lost (N3).
    taken.mkdir()
    for path in numbered.out.glob("part-*"):
        path.rename(taken / path.name)
    job = started(numbered)
    until(lambda: any(numbered.out.glob("part-*")), "output of the resumed job")

    # A copy is run at the same time, and once more when all is over.
    with pytest.raises(HistoryError, match="a copy of"):
        started(of_copy)
    numbered.open_gate()
    started.finish(job)
    for path in taken.iterdir():
        path.rename(numbered.out / path.name)
    numbered.check_output_is_exact()
    refuse(started, of_copy, "this is a copy of one whose job went on elsewhere")

    # Whoever wants it all a second time says so; from then on it is a job like any other.
    shutil.rmtree(checkpoints)
    fresh = replace(numbered, settings={"fresh": True})
    assert started(fresh).wait(DEADLINE_S)
    assert committed_lines(numbered) == 2 * RECORDS
    assert started(numbered).wait(DEADLINE_S), "it has finished before"
    assert committed_lines(numbered) == 2 * RECORDS
