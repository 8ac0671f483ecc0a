"""Workers that die at the worst moments: what is committed is what a run without failures commits.

In simulated worlds they die at every step. Here, of moments that lie close together, one is in `make test`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Armed, KillBehindCheckpoint, NumberedJob, Once, lose, shaken, until
from proving import proven

Arm = Callable[..., Armed]


def run_and_check(numbered: NumberedJob, started: Any, fired: Callable[[], object] = bool) -> Any:
    """Run a job to its end; one that is held goes on when what it waits for has `fired`."""
    job = started(numbered)
    if numbered.held:
        until(lambda: numbered.check_nothing_is_visible_too_early() or fired(), f"the failures of {job!r}")
        numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.status == "finished"
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()
    return job


def test_a_run_without_failures_is_exact(tmp_path: Path, started: Any) -> None:
    """The oracle accepts what it has to accept, and refuses what it has to refuse."""
    numbered = NumberedJob(tmp_path, count=10_000)
    job = run_and_check(numbered, started)
    assert job.report().restarts == 0
    parts = [part for entry in numbered.completed() for one in entry.snapshots for part in one.snapshot.parts]
    assert any(part.path for part in parts), "the state is large enough to be in files"
    first, second, *_ = sorted(numbered.out.iterdir(), key=lambda path: path.stat().st_size, reverse=True)
    good = first.read_bytes()
    lines = good.splitlines(keepends=True)
    for bad in (
        b"".join(lines[1:]),  # lost
        b"".join([lines[0], *lines]),  # twice
        b"".join(reversed(lines)),  # out of order
        good + second.read_bytes(),
    ):
        first.write_bytes(bad)
        with pytest.raises(AssertionError):
            numbered.check_output_is_exact()
    first.write_bytes(good)
    numbered.check_output_is_exact()
    (numbered.out / first.name.replace("-0", "-9", 2).replace("part-9", "part-0")).write_bytes(b"")
    with pytest.raises(AssertionError):
        numbered.check_nothing_is_visible_too_early()


@pytest.mark.parametrize("parallelism", [2, proven(3)])
def test_a_source_killed_between_its_records_and_its_barrier_changes_nothing(
    tmp_path: Path, started: Any, parallelism: int
) -> None:
    """A1, I1, I2, I4: batches behind the last checkpoint have left the source already."""
    kill = KillBehindCheckpoint(Once(tmp_path / "killed"), tmp_path / "checkpoints" / "log", 1_000)
    numbered = NumberedJob(tmp_path, parallelism=parallelism, hook=kill, held=True)
    job = run_and_check(numbered, started, kill.once.marker.exists)
    assert job.report().restarts == 1


@pytest.mark.parametrize("branches", [proven(1), 2])
def test_a_task_killed_in_the_middle_of_an_alignment_changes_nothing(
    tmp_path: Path, started: Any, arm: Arm, branches: int
) -> None:
    """A2, I2, I4, I5: one input has delivered the barrier and is blocked, another one has not."""
    armed = arm("align.partial:kill:3:0", "align.partial:kill:5:1")
    numbered = NumberedJob(tmp_path, count=20_000, branches=branches, held=branches)
    job = run_and_check(numbered, started, armed.all_fired)
    assert job.report().restarts >= 1, "two at once are one failure"


@pytest.mark.parametrize("place", [proven("snapshot.frozen"), proven("snapshot.encoded"), "snapshot.stored"])
def test_a_worker_killed_while_its_snapshot_is_stored_changes_nothing(
    tmp_path: Path, started: Any, arm: Arm, place: str
) -> None:
    """A3, A4, I6, I8: between freeze and upload, and between upload and acknowledgement."""
    armed = arm(f"{place}:kill:6:0", f"{place}:kill:12:1")
    run_and_check(NumberedJob(tmp_path, held=True), started, armed.all_fired)


@pytest.mark.parametrize("place", [proven("commit.told"), proven("commit.before"), "commit.after"])
def test_a_worker_killed_around_a_commit_changes_nothing(
    tmp_path: Path, started: Any, arm: Arm, place: str
) -> None:
    """F1, F2, I9: the log entry is durable, so every task's part of the output has to become visible."""
    armed = arm(f"{place}:kill:4:0", f"{place}:kill:7:1")
    run_and_check(NumberedJob(tmp_path, held=True), started, armed.all_fired)


@pytest.mark.parametrize(
    "place", [*map(proven, ("restore.begin", "restore.state", "restore.ready")), "restore.task"]
)
def test_workers_killed_in_two_restores_in_a_row_and_in_close_change_nothing(
    tmp_path: Path, started: Any, arm: Arm, place: str
) -> None:
    """A5, I4, I10: the first kill is in the running job, those in the restores follow from it."""
    passes = 2 if place in ("restore.begin", "restore.ready") else 3
    armed = arm(
        "snapshot.stored:kill:6:0", f"{place}:kill:{passes}:1", f"{place}:kill:{passes}:0", "close:kill:2:1"
    )
    # Whether worker 0 comes as far as that a second time depends on who is first.
    job = run_and_check(
        NumberedJob(tmp_path, held=True), started, lambda: armed.fired >= set(armed.traps[:2])
    )
    assert job.report().restarts >= 2


def test_every_worker_may_be_killed_at_any_time_while_user_code_is_not_deterministic(
    tmp_path: Path, started: Any
) -> None:
    """A6, I1, I2, I10: bursts of SIGKILL at both workers, at moments that differ in every run."""
    seed = random.SystemRandom().randrange(2**32)
    choices = random.Random(seed)
    numbered = NumberedJob(tmp_path, rate=None, held=True, hook=shaken)
    job = started(numbered)
    for _ in range(4):
        wanted = job.report().checkpoints_completed + choices.randint(1, 3)
        until(lambda: job.report().checkpoints_completed >= wanted, f"checkpoints, seed {seed}")  # noqa: B023
        lose(job, started, *choices.sample((0, 1), choices.randint(1, 2)))
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts >= 4, f"seed {seed}"
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


@pytest.mark.parametrize(
    "trap",
    [
        "snapshot.stored:kill:1:0",  # before the final checkpoint is complete
        proven("commit.told:kill:1:1"),  # it is complete, and not committed
        "commit.after:kill:1:0",  # one sink has committed the tail
    ],
)
def test_a_worker_killed_around_the_final_checkpoint_loses_no_tail(
    tmp_path: Path, started: Any, arm: Arm, trap: str
) -> None:
    """F5, I1, I2: with no periodic checkpoint in the way, the only one is the final one."""
    armed = arm(trap)
    numbered = NumberedJob(tmp_path, count=5_000, rate=None, settings={"checkpoint_interval": "1h"})
    run_and_check(numbered, started)
    assert armed.fired == {trap}


def test_a_branch_may_end_long_before_the_other(tmp_path: Path, started: Any, arm: Arm) -> None:
    """F5: checkpoints go on behind the end of one source, and a kill there loses nothing."""
    armed = arm("align.partial:kill:9:1", "commit.after:kill:9:0")
    # The other one waits for the kills.
    run_and_check(NumberedJob(tmp_path, count=24_000, branches=2, held=1), started, armed.all_fired)
