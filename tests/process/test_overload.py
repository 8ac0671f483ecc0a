"""More records than can be processed, most of them with one key: back pressure, and recovery under it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, KEYS, NumberedJob, Record, lose, until
from proving import proven

from crosscut import Continuous
from crosscut.foundation.ids import ChannelId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store
from crosscut.task.channel_log import decoded_log

CHANNEL_BYTES = 64 * 1024
"""The least that can be set. A batch's first record of a key takes 20 bytes, a further one 9."""
IN_FLIGHT_MAX = 20_000
"""What two channels of that size, and five batches in each of two within a worker, can hold at most."""


def skewed(number: int) -> Record:
    """Nine of ten records have the same key, so one task has nearly all the work."""
    return ("key-0" if number % 10 else f"key-{number // 10 % KEYS}"), number


def padded(one: Record) -> Any:
    """A record of 2 KB: a batch of them is many times what a channel gives credit for."""
    return (*one, bytes(2_000))


@dataclass(frozen=True)
class SlowUntil:
    """Waits for each record until there is a file `go`: sources can make 100 times as many meanwhile."""

    go: Path
    wait_s: float

    def __call__(self, one: Record) -> None:
        if not self.go.exists():
            threading.Event().wait(self.wait_s)


STALE_S_MAX = 20
"""Workers say at different moments how far they are. Without back pressure it would take far longer."""


def records_in(job: Any, vertex: str) -> int:
    """How many records the tasks of a vertex have taken up, as the workers last said."""
    return sum(one.records_in for one in job.report().tasks if one.task.vertex.startswith(vertex))


def in_flight(job: Any) -> int:
    """How many records the sources have read that no keyed task has taken up, as the workers last said."""
    return records_in(job, "numbers") - records_in(job, "sums")


def check_in_flight_is_bounded(job: Any) -> None:
    read = records_in(job, "numbers")
    until(lambda: read - records_in(job, "sums") <= IN_FLIGHT_MAX, "records to be taken up", STALE_S_MAX)


@pytest.mark.parametrize(
    ("snapshots", "wait_s", "full", "timeout"),
    [
        ("aligned", 0.0001, 1_000, "60s"),
        proven("unaligned", 0.0001, 1_000, "60s"),
        ("aligned, unaligned after 50ms", 0.02, 20, "60s"),
        ("aligned", 0.001, 200, "1s"),
    ],
)
def test_a_task_that_falls_behind_throttles_the_sources_and_checkpoints_go_on(
    tmp_path: Path, started: Any, snapshots: str, wait_s: float, full: int, timeout: str
) -> None:
    """J1, I10, I11: checkpoints complete, or time out and harm nobody; also behind a kill."""
    numbered = NumberedJob(
        tmp_path,
        count=100_000,
        rate=None,
        record=skewed,
        keyed_hook=SlowUntil(tmp_path / "gate", wait_s),
        settings={
            "snapshots": snapshots,
            "engine": Continuous(channel_bytes=CHANNEL_BYTES),
            "batch_rows": 100,
            "checkpoint_timeout": timeout,
            "checkpoint_failures": 1_000,
        },
    )
    job = started(numbered)

    def decided() -> int:
        check_in_flight_is_bounded(job)
        status = job.report()
        count: int = status.checkpoints_completed
        return count + (status.checkpoints_failed if timeout == "1s" else 0)

    for _ in range(2):
        until(lambda: in_flight(job) > full, "the channels to be full")
        before = decided()
        until(lambda before=before: decided() >= before + 2, "checkpoints under pressure")
        lose(job, started, 0)
    until(lambda: in_flight(job) > full, "the channels to be full again")
    assert decided() >= 4
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    # A commit that takes longer than a checkpoint may is a failure, too, as it is on a busy machine.
    assert job.report().restarts == 2 or timeout == "1s"
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


def logged_bytes(numbered: NumberedJob, completed: CheckpointCompleted) -> Counter[ChannelId]:
    """How much of each channel a checkpoint holds."""
    store = open_store(str(numbered.checkpoint_dir), create=False)
    found: Counter[ChannelId] = Counter()
    for one in completed.snapshots:
        for part in one.snapshot.log:
            for logged in decoded_log(store.read_part(part)):
                found[logged.channel] += len(logged.data)
    return found


@pytest.mark.parametrize("snapshots", ["unaligned", proven("aligned, unaligned after 50ms")])
def test_channels_are_restored_though_they_held_more_than_they_have_credit_for(
    tmp_path: Path, started: Any, snapshots: str
) -> None:
    """J2, I4, I10, FLINK-19027: all workers die with full buffers, twice; the second time, in the replay."""
    numbered = NumberedJob(
        tmp_path,
        count=20_000,
        rate=None,
        record=skewed,
        hook=padded,
        keyed_hook=SlowUntil(tmp_path / "gate", 0.001),
        settings={
            "snapshots": snapshots,
            "engine": Continuous(channel_bytes=CHANNEL_BYTES),
            "batch_rows": 200,
            "checkpoint_interval": "1h",
        },
    )
    job = started(numbered)
    for _ in range(2):

        def has_much_in_flight() -> bool:
            n = job.checkpoint(DEADLINE_S).checkpoint_id
            newest = numbered.completed()[-1]
            assert newest.checkpoint_id == n
            found = logged_bytes(numbered, newest)
            return any(
                size_bytes > 2 * CHANNEL_BYTES
                for channel, size_bytes in found.items()
                if channel.source.index != channel.target.index
            )

        until(has_much_in_flight, "a checkpoint with much in flight")
        lose(job, started, 0, 1)
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()
