"""Sinks that can't keep up: how many completed checkpoints wait for them, and who waits then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.conversation import K0, K1, Talk, at, both, completed, coordinator_spec

from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.protocol.effects import StartTimer
from crosscut.protocol.events import CheckpointRequested, ClockRead, EntryAppended, StopRequested, Timer
from crosscut.protocol.job.commits import Commits
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.messages import (
    DeployTasks,
    FailureCause,
    PauseSources,
    TransactionsCommitted,
    TriggerCheckpoint,
)
from crosscut.protocol.snapshots import KnownCommitted, PendingTransaction, TaskSnapshot

E1 = Epoch(1)
N0, N1, N2, N3 = (CheckpointId(n) for n in range(4))


def timer(kind: Any, epoch: int, delay_ms: int, number: int = 0) -> StartTimer:
    return StartTimer(Timer(kind, Epoch(epoch), number), delay_ms)


def behind(count: int, **terms: Any) -> Talk:
    """Return a conversation in which so many checkpoints are complete, and none is committed."""
    talk = Talk(**terms)
    talk.running()
    for n in range(1, count + 1):
        talk.complete(n, n + 1)
    return talk


def now(talk: Talk, ms: int) -> None:
    talk.hear(ClockRead(ms, "then"))


def commits(talk: Talk, n: int, task: Any) -> list[Any]:
    return talk.message(task.index, TransactionsCommitted(E1, CheckpointId(n), task))


def test_with_too_many_uncommitted_no_checkpoint_starts_until_all_sinks_have_committed_one() -> None:
    talk = behind(2, uncommitted_max=2)
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000)]
    assert commits(talk, 1, K0) == []
    assert commits(talk, 1, K1)[:2] == both(TriggerCheckpoint(E1, N3))


def test_one_less_holds_nothing_back() -> None:
    talk = behind(1, uncommitted_max=2)
    assert talk.fire("trigger")[1:3] == both(TriggerCheckpoint(E1, N2))


def test_a_commit_starts_no_checkpoint_that_is_not_due() -> None:
    talk = behind(2, uncommitted_max=2)
    assert talk.committed(2) == []


def test_sources_wait_once_a_checkpoint_was_held_back_for_long_and_read_on_after_its_barrier() -> None:
    talk = behind(2, uncommitted_max=2)
    now(talk, 999)
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000)], "a slower pace may be enough"
    now(talk, 1_000)
    pause = both(PauseSources(E1, is_paused=True))
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000), *pause]
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000)], "they wait already"
    assert talk.committed(1) == [
        *both(TriggerCheckpoint(E1, N3)),
        timer("checkpoint-timeout", 1, 60_000, 3),
        *both(PauseSources(E1, is_paused=False)),
    ]


def test_sources_wait_once_a_checkpoint_under_way_has_waited_for_a_commit_for_long() -> None:
    """A sink prepares a checkpoint when it has committed the one before, so there never are too many."""
    talk = behind(1, uncommitted_max=4)
    assert talk.fire("trigger")[1:3] == both(TriggerCheckpoint(E1, N2))
    now(talk, 999)
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000)]
    assert talk.coordinator.commits.shown == ""
    now(talk, 1_000)
    pause = both(PauseSources(E1, is_paused=True))
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000), *pause]
    assert talk.coordinator.commits.shown == (
        f"the sink can't keep up: 1 completed checkpoint is uncommitted, the oldest by {K0}, {K1}"
    )
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000)], "they wait already"
    assert commits(talk, 1, K0) == []
    assert commits(talk, 1, K1) == both(PauseSources(E1, is_paused=False))
    assert talk.coordinator.commits.shown == ""


def test_a_checkpoint_that_takes_long_for_another_reason_lets_sources_read() -> None:
    talk = behind(1, uncommitted_max=4)
    talk.committed(1)
    talk.fire("trigger")
    now(talk, 5_000)
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000)]


def test_who_asks_for_a_checkpoint_waits_for_commits_and_gets_one_then() -> None:
    talk = behind(1, uncommitted_max=1, periodic=False)
    assert talk.hear(CheckpointRequested(7)) == []
    assert talk.committed(1)[:2] == both(TriggerCheckpoint(E1, N2))


def test_a_stop_takes_its_last_checkpoint_at_once_and_sources_do_not_read_on() -> None:
    """However many are uncommitted: there will be one more at most."""
    talk = behind(1, uncommitted_max=1)
    now(talk, 5_000)
    talk.fire("trigger")
    pause = both(PauseSources(E1, is_paused=True))
    assert talk.hear(StopRequested())[1:] == [
        *pause,
        *both(TriggerCheckpoint(E1, N2)),
        timer("checkpoint-timeout", 1, 60_000, 2),
    ]
    assert talk.committed(1) == []
    talk.acknowledge(2)
    talk.hear(EntryAppended(at(3)))
    talk.committed(2)
    assert talk.coordinator.phase is Phase.ENDED


def test_the_cause_of_a_restart_says_that_the_sink_can_not_keep_up() -> None:
    talk = behind(2, uncommitted_max=2)
    talk.failed(cause=FailureCause("CommitFailed", "no answer"))
    (cause,) = talk.coordinator.failures
    assert cause.message.endswith(
        "no answer; the sink can't keep up: 2 completed checkpoints are uncommitted, the oldest by "
        f"{K0}, {K1}"
    )


def test_an_epoch_begins_with_nothing_uncommitted_and_nobody_waiting() -> None:
    talk = behind(2, uncommitted_max=2)
    now(talk, 5_000)
    talk.fire("trigger")
    talk.failed()
    assert talk.coordinator.commits.waiting_count == 0
    talk.hear(EntryAppended(at(4)))
    talk.ready(2)
    assert talk.coordinator.phase is Phase.RUNNING
    assert talk.fire("trigger", 2)[1:3] == both(TriggerCheckpoint(talk.coordinator.epoch, N3))


def test_what_a_sink_has_answered_for_is_not_committed_again_after_a_failover() -> None:
    """C21: task 0 has committed checkpoint 2 of what is pending, task 1 only checkpoint 1."""
    talk = Talk(uncommitted_max=4)
    talk.running()
    entry = completed(3)
    pending = tuple(PendingTransaction(CheckpointId(n), f"t{n}") for n in (1, 2, 3))
    before = KnownCommitted(N0, "here")
    entry = replace(
        entry,
        snapshots=tuple(
            TaskSnapshot(one.task, replace(one.snapshot, pending=pending, committed=before))
            if one.task in (K0, K1)
            else one
            for one in entry.snapshots
        ),
    )
    commits_of = talk.coordinator.commits
    commits_of.committed(K0, N2)
    commits_of.committed(K1, N1)
    left = commits_of.left(entry)
    assert left is not None
    of_task = {one.task: [each.handle for each in one.snapshot.pending] for one in left.snapshots}
    assert (of_task[K0], of_task[K1]) == (["t3"], ["t2", "t3"])
    known = {one.task: one.snapshot.committed for one in left.snapshots}
    assert (known[K0], known[K1]) == (KnownCommitted(N2, "here"), KnownCommitted(N1, "here"))
    talk.coordinator.checkpoints._retention.add(entry, 1, ())
    talk.failed()
    effects = talk.hear(EntryAppended(at(2)))
    deployed = [one.message for one in effects if isinstance(getattr(one, "message", None), DeployTasks)]
    sent = {
        one.task: [each.handle for each in one.snapshot.pending]
        for deploy in deployed
        for one in deploy.snapshots
    }
    assert (sent[K0], sent[K1]) == (["t3"], ["t2", "t3"])


@pytest.mark.parametrize("sinks", [frozenset(), frozenset({K0, K1})])
def test_a_job_without_sinks_never_waits(sinks: Any) -> None:
    found = Commits(sinks, 1)
    found.completed(N1)
    assert found.is_full is bool(sinks)
    assert found.shown == (
        f"the sink can't keep up: 1 completed checkpoint is uncommitted, the oldest by {K0}, {K1}"
        if sinks
        else ""
    )
    assert found.left(None) is None
    assert found.left(completed(1)) == completed(1)


def test_a_sink_that_shares_its_vertex_with_other_operators_is_named_beside_the_task() -> None:
    found = Commits(frozenset({K0}), 1, {K0.vertex: "rows"})
    found.completed(N1)
    assert found.shown.endswith(f"the oldest by {K0} (sink 'rows')")
    found = Commits(frozenset({K0}), 1, {K0.vertex: K0.vertex})
    found.completed(N1)
    assert found.shown.endswith(f"the oldest by {K0}")


def test_the_default_lets_four_wait() -> None:
    assert coordinator_spec().checkpoints.uncommitted_max == 4
