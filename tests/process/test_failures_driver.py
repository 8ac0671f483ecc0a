"""Drivers that die or sleep: the job log alone says what the next driver has to do.

The driver that is killed is a process of its own; the one that takes over runs in this process. In simulated
worlds drivers die at each of these moments. Here, of those that lie close together, one is in `make test`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobs
import pytest
from drivers import Driver
from jobs import DEADLINE_S, Armed, NumberedJob, limit_s, pending_handles, until
from proving import proven

import crosscut
from crosscut.protocol.log.entries import CheckpointCompleted


def resume(numbered: NumberedJob, started: Any) -> Any:
    numbered.open_gate()
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.status == "finished"
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()
    return job


@pytest.mark.parametrize(
    "trap",
    [
        # To the next driver the same as the one after it.
        proven("driver.acknowledged:kill:6"),  # two of four acknowledgements are in
        proven("driver.append:kill:2"),  # all are in, no log entry
        "driver.appended:kill:2",  # the log entry is durable, and nobody knows
        proven("driver.commit:kill:4"),  # ... and one of two workers has been told
    ],
)
def test_a_driver_killed_around_the_log_entry_is_replaced_by_one_that_reads_the_log(
    tmp_path: Path, drive: Callable[..., Driver], started: Any, trap: str
) -> None:
    """B1, B2, B3, I8, I9: what the log holds is committed, what it does not hold never was."""
    numbered = NumberedJob(tmp_path, count=20_000, held=True)
    armed = Armed(tmp_path / "failpoints", (trap,))
    driver = drive(numbered, armed.environment)
    assert driver.wait() == -signal.SIGKILL, driver.errors
    assert armed.fired == {trap}
    numbered.check_nothing_is_visible_too_early()
    completed = numbered.completed()
    assert len(completed) == (1 if "acknowledged" in trap or trap.startswith("driver.append:") else 2)
    driver.family_is_gone()
    resume(numbered, started)
    visible = {path.name for path in numbered.out.iterdir()}
    for entry in completed:
        assert {handle["final"].rpartition("/")[2] for handle in pending_handles(entry)} <= visible


def test_a_driver_killed_when_one_sink_of_two_has_committed_is_replaced(
    tmp_path: Path, drive: Callable[..., Driver], started: Any
) -> None:
    """B3, I9: the other sink stands still in its commit, so exactly one half is visible."""
    numbered = NumberedJob(tmp_path, count=20_000, held=True)
    armed = Armed(tmp_path / "failpoints", ("commit.before:stop:2:1",))
    driver = drive(numbered, armed.environment)
    until(lambda: armed.fired, "the worker to stop")

    def is_half_visible(entry: CheckpointCompleted) -> bool:
        finals = [handle["final"].rpartition("/")[2] for handle in pending_handles(entry)]
        return {(numbered.out / name).exists() for name in finals} == {True, False}

    # Not checkpoint 2 in any case: on a slow machine the first one may be without a record of this sink.
    until(lambda: any(map(is_half_visible, numbered.completed())), "half of a checkpoint")
    driver.kill()
    stopped = [pid for pid in driver.family if jobs.state_of(pid) == "T"]
    resume(numbered, started)
    for pid in stopped:
        if jobs.state_of(pid) == "T":
            os.kill(pid, signal.SIGCONT)
    driver.family_is_gone()
    numbered.check_output_is_exact()


def test_a_driver_killed_between_the_final_checkpoint_and_the_end_is_replaced(
    tmp_path: Path, drive: Callable[..., Driver], started: Any
) -> None:
    """F5: the final checkpoint is complete; the next driver commits it and only then says finished."""
    numbered = NumberedJob(tmp_path, count=5_000, rate=1e9, settings={"checkpoint_interval": "1h"})
    armed = Armed(tmp_path / "failpoints", ("driver.completed:kill:1",))
    driver = drive(numbered, armed.environment, checkpoint_interval="1h")
    assert driver.wait() == -signal.SIGKILL, driver.errors
    assert armed.fired
    assert [entry.is_final for entry in numbered.completed()] == [True]
    resume(numbered, started)
    assert [entry.is_final for entry in numbered.completed()] == [True]
    # Once more: a finished job is finished, and nothing is done again.
    before = jobs.snapshot_of_tree(tmp_path)
    assert started(numbered).wait(DEADLINE_S)
    assert jobs.snapshot_of_tree(tmp_path) == before


@pytest.mark.proof
def test_a_driver_killed_at_any_moment_is_replaced(
    tmp_path: Path, drive: Callable[..., Driver], started: Any
) -> None:
    """B1, I6, I10: a moment that nobody has chosen; every run has another one."""
    numbered = NumberedJob(tmp_path, rate=1e9, held=True)
    driver = drive(numbered)
    until(lambda: len(numbered.completed()) >= 2, "checkpoints")
    driver.kill()
    numbered.check_nothing_is_visible_too_early()
    resume(numbered, started)


def test_a_driver_that_slept_finds_itself_fenced_and_changes_nothing(
    tmp_path: Path, drive: Callable[..., Driver], started: Any
) -> None:
    """B5, I7: SIGSTOP, a second driver takes over, SIGCONT in the middle of its run."""
    numbered = NumberedJob(tmp_path, rate=1e9, held=True)
    asleep = drive(numbered, heartbeat_timeout=limit_s(2), failures=1_000)
    until(lambda: len(numbered.completed()) >= 2, "two checkpoints")
    os.kill(asleep.pid, signal.SIGSTOP)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 2, "checkpoints of the second driver")
    os.kill(asleep.pid, signal.SIGCONT)
    assert asleep.wait() == 0, asleep.errors
    last = asleep.reports[-1]
    assert last["status"] == "fenced"
    assert f"another driver (pid {os.getpid()} on " in last["error"]
    assert re.search(rf"takes over from epoch \d+ \(pid {asleep.pid} on ", job.report().takeover)
    assert job.status == "running"
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    # What its workers may have stored meanwhile, in vain, the sweep of a later epoch would find.
    numbered.check_output_is_exact()


def test_a_second_driver_takes_a_running_job_over(
    tmp_path: Path, drive: Callable[..., Driver], started: Any
) -> None:
    """B5, I7: both are awake; the newest claim wins, the older driver ends as fenced."""
    numbered = NumberedJob(tmp_path, rate=1e9, held=True)
    older = drive(numbered)
    until(lambda: len(numbered.completed()) >= 2, "two checkpoints")
    job = started(numbered)
    assert older.wait() == 0, older.errors
    assert older.reports[-1]["status"] == "fenced"
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()


JUMPING_CLOCK = """
import os, random, time
true_ns = time.time_ns
def jumping_ns():
    return true_ns() + random.choice((-1, 0, 1)) * 3_600 * 10**9
time.time_ns = jumping_ns
time.time = lambda: jumping_ns() / 1e9
open(os.path.join(os.path.dirname(__file__), f"read-by-{os.getpid()}"), "w").close()
"""


def test_a_wall_clock_that_jumps_by_hours_changes_nothing(
    tmp_path: Path, drive: Callable[..., Driver], started: Any
) -> None:
    """I-1: in the driver and in every worker, with a failover in between."""
    numbered = NumberedJob(tmp_path, count=20_000, held=True)
    clock = tmp_path / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(JUMPING_CLOCK)
    path = os.pathsep.join([str(clock), *filter(None, sys.path)])
    armed = Armed(tmp_path / "failpoints", ("snapshot.stored:kill:5:0",))
    driver = drive(numbered, {"PYTHONPATH": path, **armed.environment})
    until(armed.all_fired, "the kill")
    numbered.open_gate()
    assert driver.wait() == 0, driver.errors
    assert driver.reports[-1] == {"status": "finished"}
    readers = {int(one.name.rpartition("-")[2]) for one in clock.glob("read-by-*")}
    # Workers are forked from Spark's daemon, which has read it for them.
    assert driver.pid in readers
    assert len(readers) >= 2
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


def test_only_one_place_reads_the_wall_clock_and_only_to_show_it() -> None:
    """I-1: whatever decides about a job takes its time from the monotonic clock."""
    root = Path(crosscut.__file__).parent
    reads = re.compile(r"time\.time\(|time\.time_ns|datetime\.now|utcnow|time\.localtime|date\.today")
    shown_to_people = {"cli", "testing", "web"}
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).parts[0] not in shown_to_people
        for line in path.read_text().splitlines()
        if reads.search(line)
    ]
    for_outside = [
        # Beside the times of files, for a command that somebody gives.
        'connectors/files/merging.py: before = time.time() - duration_ms(older_than, "older_than") / 1_000',
        # Said to the server, which shows it.
        # A broker refuses messages too far in the future of its wall clock.
        "connectors/kafka/sink_topics.py: latest_ms = time.time_ns() // 1_000_000 + limits.future_ms",
        "connectors/postgres/changes/stream.py: now = time.time_ns() // 1_000 - _MICROSECONDS_OF_2000",
        # When the next record of a paced source is due, for the reader that follows, in whatever process.
        "connectors/simple/generate.py: return time.time() - time.monotonic()",
        # `crosscut doctor --cluster` compares the clocks of executors with the driver's.
        "spark/cluster/survey.py: clocks[token.decode()] = float(their_s) - time.time()",
        'spark/cluster/survey.py: peer.sendall(f"{token} {time.time()!r}\\n".encode())',
    ]
    assert sorted(found) == sorted([*for_outside, "host/clock.py: return datetime.now(UTC)"])
