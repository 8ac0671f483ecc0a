"""Processes that were believed dead and are not: whatever they do then, it changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempts import Attempts
from jobs import DEADLINE_S, MANY_RESTARTS, Armed, NumberedJob, limit_s, state_of, until
from proving import proven

from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.graph.channels import inputs_of
from crosscut.net.peer_links import ConnectingPeerLink, PeerLink
from crosscut.task.flow_control import Credit
from crosscut.task.items import Barrier, Item

SHORT_S = 0.6
"""Within which a worker that sleeps is missed."""


def epoch_of(job: Any) -> int:
    return int(job.report().epoch)


@pytest.mark.parametrize(
    "place",
    [
        "snapshot.encoded",  # C4: goes on to upload the state of its old epoch
        proven("snapshot.stored"),  # C2: goes on to acknowledge
        "commit.before",  # C1: goes on to commit what its replacement has committed
        proven("align.partial"),  # C3: goes on to process records and send them to its old peers
    ],
)
def test_a_worker_stopped_past_its_replacement_changes_nothing_when_it_goes_on(
    tmp_path: Path, started: Any, attempts: Callable[[Any], Attempts], place: str
) -> None:
    """C1, C2, C3, C4, I-2, I7, I8: SIGSTOP, a new epoch without it, SIGCONT.

    Spark starts a replacement only when it has killed what it replaces, so the worker that sleeps is
    one of ours; Spark's own is on standby.
    """
    numbered = NumberedJob(
        tmp_path,
        rate=None,
        held=True,
        settings={"heartbeat_timeout": limit_s(SHORT_S), "restart": MANY_RESTARTS},
    )
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 1, "a checkpoint")
    armed = Armed(tmp_path / "failpoints", (f"{place}:stop:3:0",))
    zombie = attempts(job).start(0, armed)
    until(lambda: 0 in job._run.driver._coordinator.registry.standby, "it to is on standby")
    os.kill(started.watch(job)[0], signal.SIGKILL)
    until(lambda: state_of(zombie.pid) == "T", "it to take the place over, and to stop")
    assert armed.fired
    # Perhaps not the third: on a busy machine so short a timeout costs others their place, too. The epoch
    # is read first: it only grows, while a status that is read first may be that of the epoch before.
    until(
        lambda: (
            epoch_of(job) >= 3
            and job.status == "running"
            and zombie.pid not in started.watch(job)
            and len(job.workers()) == 2
        ),
        "the next epoch, without it",
    )
    before = len(job.checkpoints())
    until(lambda: len(job.checkpoints()) > before, "a checkpoint of the next epoch")
    zombie.send_signal(signal.SIGCONT)
    _, errors = zombie.communicate(timeout=DEADLINE_S)
    assert zombie.returncode == 1
    assert "worker 0 has lost the coordinator" in errors
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts >= 2
    numbered.check_output_is_exact()
    left = [path for path in numbered.out.rglob("*") if path.is_file() and path.parent != numbered.out]
    assert [path for path in left if path.suffix != ".ledger"] == []


class Owner:
    """The owner of one raw connection to a worker."""

    def __init__(self) -> None:
        self.opened = False
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def peer_link_opened(self, end: PeerLink) -> None:
        self.opened = True

    def peer_link_proven(self, proven: Any, end: Any) -> None:
        raise AssertionError

    def peer_link_lost(self, end: PeerLink, reason: str) -> None:
        self.reason.set_result(reason)


class Channels:
    """What its channels lead to: nothing may come."""

    def channel_received(self, channel: ChannelId, item: Item, size_bytes: int) -> None:
        raise AssertionError

    def channel_credited(self, channel: ChannelId, credit: Credit) -> None:
        raise AssertionError


def test_a_connection_of_an_older_epoch_is_refused_by_the_new_peer(tmp_path: Path, started: Any) -> None:
    """C3, I7: a zombie that knows the secret and the channel, and connects with the epoch it knows."""
    numbered = NumberedJob(tmp_path, rate=None, held=True)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 1, "a checkpoint")
    os.kill(started.watch(job)[0], signal.SIGKILL)
    until(lambda: epoch_of(job) == 2 and job.status == "running", "the next epoch")
    plan = job._run.driver._supply._plan
    place = job._run.driver._coordinator.registry.held[1].registration
    vertex = VertexId(job._run._graph.vertices[-1].vertex_id)
    channels = sorted(
        one
        for index in (0, 1)
        for one in inputs_of(job._run._graph, TaskId(vertex, index))
        if one.source.index == 1 - index
    )
    (channel,) = [one for one in channels if one.source.index == 0]

    async def connect(epoch: int) -> tuple[bool, str]:
        owner = Owner()
        end = ConnectingPeerLink(owner, plan.credentials, Epoch(epoch), channels)
        end.carry(WorkerIndex(0), WorkerIndex(1), channels, Channels())
        await asyncio.get_running_loop().create_connection(lambda: end, place.host, place.data_port)
        end.outgoing[channel].send_item(Barrier(CheckpointId(10**6)))
        return owner.opened, await asyncio.wait_for(owner.reason, DEADLINE_S)

    assert asyncio.run(connect(1)) == (False, "the peer refused: stale epoch")
    # Of this epoch, there is one already.
    assert asyncio.run(connect(2)) == (False, "the peer refused: refused")
    numbered.open_gate()
    started.finish(job)
    assert job.report().restarts == 1
    numbered.check_output_is_exact()


def test_of_two_live_attempts_one_works_one_waits_and_a_third_is_told_to_exit(
    tmp_path: Path, started: Any, attempts: Callable[[Any], Attempts]
) -> None:
    """C5, I7: the one on standby takes the place over when the holder dies."""
    numbered = NumberedJob(tmp_path, rate=None, held=True)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 1, "a checkpoint")
    raw = attempts(job)
    coordinator = job._run.driver._coordinator
    second = raw.start(0)
    until(lambda: 0 in coordinator.registry.standby, "the second attempt to wait")
    assert second.pid not in started.watch(job)
    assert epoch_of(job) == 1, "nobody was disturbed"
    third, unauthenticated_peer = raw.start(0), raw.start(7)
    _, errors = third.communicate(timeout=DEADLINE_S)
    assert third.returncode == 1
    assert "was told to exit: worker 0 is held by one live attempt, and a second one waits" in errors
    _, errors = unauthenticated_peer.communicate(timeout=DEADLINE_S)
    assert "was told to exit: worker 7 of a job that has workers 0 to 1" in errors
    os.kill(started.watch(job)[0], signal.SIGKILL)
    until(lambda: started.watch(job)[:1] == [second.pid], "the second attempt to take over")
    # Spark's own replacement waits now, and takes over in its turn.
    until(lambda: 0 in coordinator.registry.standby, "Spark's replacement to wait")
    checkpoints = len(job.checkpoints())
    until(lambda: len(job.checkpoints()) > checkpoints, "a checkpoint of the second attempt")
    second.kill()
    until(lambda: epoch_of(job) == 3 and second.pid not in started.watch(job), "Spark's to take over")
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts == 2
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


def test_an_attempt_in_reserve_ends_with_the_job_and_one_that_comes_later_exits_by_itself(
    tmp_path: Path, started: Any, attempts: Callable[[Any], Attempts]
) -> None:
    """C5, SPARK-18761: nobody goes on working for a job that is over."""
    numbered = NumberedJob(tmp_path, rate=None, held=True)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 1, "a checkpoint")
    raw = attempts(job)
    waiting = raw.start(1)
    until(lambda: 1 in job._run.driver._coordinator.registry.standby, "the attempt to wait")
    numbered.open_gate()
    started.finish(job)
    waiting.communicate(timeout=DEADLINE_S)
    assert waiting.returncode == 0
    late = raw.start(0)
    _, errors = late.communicate(timeout=DEADLINE_S)
    assert late.returncode == 1
    assert "worker 0 can't reach the coordinator" in errors
    numbered.check_output_is_exact()
