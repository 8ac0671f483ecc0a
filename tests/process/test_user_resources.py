"""User code that starts processes, takes all memory, or changes the records that it gets."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, Once, Record, children_of, is_gone, lose, until

from crosscut.errors import JobFailedError

BAD = 2_000
"""The number of the record at which it happens."""


# Processes.


@dataclass(frozen=True)
class Forks:
    """Starts a process at one record, which never ends by itself, and notes its pid."""

    directory: Path
    how: str

    def __call__(self, one: Record) -> Record:
        if one[1] == BAD and Once(self.directory / "forked")():
            (self.directory / "pid").write_text(str(self.start()))
            (self.directory / "pid").rename(self.directory / "child")
        return one

    def start(self) -> int:
        if self.how == "exec":
            return subprocess.Popen(["sleep", "600"]).pid
        pid = os.fork()
        if pid == 0:
            threading.Event().wait()
        return pid


def child_of(numbered: NumberedJob) -> int:
    path = numbered.directory / "child"
    until(path.exists, "the child")
    return int(path.read_text())


@pytest.fixture
def started_children() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["fork", "exec"])
def test_processes_that_user_code_has_started_end_with_the_job(
    tmp_path: Path, started: Any, started_children: list[int], how: str
) -> None:
    """L3: the worker's process goes back to Spark, and lives on."""
    numbered = NumberedJob(tmp_path, held=True, hook=Forks(tmp_path, how))
    job = started(numbered)
    child = child_of(numbered)
    started_children.append(child)
    assert not is_gone(child)
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    until(lambda: is_gone(child), "the child to end")
    assert job.report().restarts == 0
    numbered.check_output_is_exact()


def test_a_forked_process_dies_with_a_worker_that_is_killed_and_keeps_nobody_waiting(
    tmp_path: Path, started: Any, started_children: list[int]
) -> None:
    """L3, I10: it shares the worker's connections, and would keep them open."""
    numbered = NumberedJob(
        tmp_path, held=True, hook=Forks(tmp_path, "fork"), settings={"heartbeat_timeout": 10 * DEADLINE_S}
    )
    job = started(numbered)
    child = child_of(numbered)
    started_children.append(child)
    (index,) = [index for index, pid in enumerate(started.watch(job)) if child in children_of(pid)]
    lose(job, started, index)
    until(lambda: is_gone(child), "the child to die")
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


# Memory.


@dataclass(frozen=True)
class TakesAllMemory:
    """Takes memory at one record until there is none: always, or once."""

    once: Once | None = None

    def __call__(self, one: Record) -> Record:
        if one[1] == BAD and (self.once is None or self.once()):
            used_pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit_bytes = used_pages * resource.getpagesize() + (256 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))
            hoard = []
            while True:
                hoard.append(bytearray(1 << 20))
        return one


@pytest.fixture
def unlimited(started: Any) -> Iterator[None]:
    """Spark uses the workers' processes again, for other tests."""
    yield
    for pid in started.pids:
        if not is_gone(pid):
            resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.usefixtures("unlimited")
def test_a_function_that_runs_out_of_memory_costs_a_restart(tmp_path: Path, started: Any) -> None:
    """L3, I10: what it had taken is free again in the next epoch, in the same process."""
    numbered = NumberedJob(tmp_path, count=10_000, hook=TakesAllMemory(Once(tmp_path / "once")))
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts == 1
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


@pytest.mark.usefixtures("unlimited")
def test_a_function_that_always_runs_out_of_memory_ends_the_job_with_operator_and_record(
    tmp_path: Path, started: Any
) -> None:
    """L3, I12."""
    numbered = NumberedJob(tmp_path, count=10_000, hook=TakesAllMemory())
    job = started(numbered)
    with pytest.raises(JobFailedError) as caught:
        started.finish(job)
    text = str(caught.value)
    assert "operator '2-map' raised MemoryError" in text
    assert f"('key-{BAD % 499}', {BAD})" in text
    assert "the same record failed 3 times in a row" in text
    assert "hoard.append" in text


# Records that are changed.


@dataclass(frozen=True)
class Changes:
    """Changes each record, which must not have been changed before; slowly, until there is a file `go`."""

    go: Path

    def __call__(self, one: Any) -> None:
        assert one[2:] == [0], one
        one[2] += 1
        if not self.go.exists():
            threading.Event().wait(0.001)


def as_list(one: Record) -> Any:
    return [*one, 0]


def test_what_a_function_does_to_the_records_that_it_gets_is_in_no_snapshot(
    tmp_path: Path, started: Any
) -> None:
    """L3, I4: what is logged is encoded at once, and comes again as it was."""
    numbered = NumberedJob(
        tmp_path,
        count=20_000,
        rate=None,
        hook=as_list,
        keyed_hook=Changes(tmp_path / "gate"),
        settings={"snapshots": "unaligned", "checkpoint_interval": "1h"},
    )
    job = started(numbered)

    def logs_records() -> bool:
        job.checkpoint(DEADLINE_S)
        return any(one.snapshot.in_flight for one in numbered.completed()[-1].snapshots)

    for lost in ((0, 1), (0,)):
        until(logs_records, "a checkpoint with records in flight")
        lose(job, started, *lost)
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
