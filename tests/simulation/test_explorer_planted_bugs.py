"""The explorer is able to fail: each planted bug is found, in the graph and under the protocol named here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.proof.explorer.bounds import Bounds, Faults
from tests.proof.explorer.conversation import conversation
from tests.proof.explorer.frozen import Captured
from tests.proof.explorer.graphs import graph
from tests.proof.explorer.items import END
from tests.proof.explorer.machines import copied
from tests.proof.explorer.search import explore
from tests.proof.explorer.tasks import ExploredTask
from tests.proof.explorer.world import World
from tests.proof.explorer.world_tables import Make
from tests.simulation.planted_barriers import (
    AcknowledgesAtOnce,
    BlocksItsBackEdges,
    CapturesWithoutWaiting,
    CountsBarriers,
    ForgetsAborts,
    IgnoresNewerBarriers,
    LetsEarlyReturnsThrough,
    LogsNothing,
    LogsOneChannelOnly,
    NeverBlocks,
)

from crosscut.foundation.ids import CheckpointId, LogIndex
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.checkpoint import retention, scheduler
from crosscut.protocol.checkpoint.events import EpochEnded
from crosscut.protocol.checkpoint.pending import PendingCheckpoint
from crosscut.protocol.checkpoint.requests import CheckpointRequests
from crosscut.protocol.checkpoint.scheduler import CheckpointScheduler
from crosscut.protocol.checkpoint.termination import Component, Stillness, is_exhausted
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.log import recovery
from crosscut.protocol.log import writer as job_log
from crosscut.protocol.log.entries import CheckpointCompleted, SegmentOpened
from crosscut.protocol.log.segments import LogEnd, following, written_before
from crosscut.protocol.messages import CommitCheckpoint, SnapshotAcknowledged
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshots import PendingTransaction

STATES_MAX = 400_000


def found(
    graph_name: str, kind: ProtocolKind, make: Make, records: int = 1, checkpoints: int = 1, **more: Any
) -> str:
    """Return the counter-example, or ""."""
    others = {name: more.pop(name) for name in ("slow_control", "segment_entries_max") if name in more}
    bounds = Bounds(checkpoints, Faults(**more), **others)
    world = World(graph(graph_name, records), kind, bounds, make)
    return conversation(world, explore(world, STATES_MAX))


def planted(kind: type[SnapshotProtocol]) -> Make:
    return Make(protocol=lambda _, inputs, back_edges: kind(inputs, back_edges))


# What a task does with the effects.


class DropsTheLog(ExploredTask):
    def log(self, n: int, channel: int, item: int, *, by_sender: bool) -> None:
        pass


class ForgetsWhatWasOvertaken(ExploredTask):
    def log(self, n: int, channel: int, item: int, *, by_sender: bool) -> None:
        if not by_sender:
            super().log(n, channel, item, by_sender=by_sender)


class StartsTheLogLate(ExploredTask):
    """What waits when the log starts is not in it."""

    def start_log(self, n: CheckpointId, channel: int) -> None:
        if -n in self.queues[channel]:
            super().start_log(n, channel)


class StartsTheLogEarly(ExploredTask):
    """The log of a back edge starts with the first barrier, before the capture."""

    def process(self, channel: int) -> None:
        item = self.queues[channel][0]
        before = self.machine.aligning
        super().process(channel)
        is_back = self.site.graph.channels[channel][2]
        if is_back and 0 <= item != END and before is None:
            self.logs.setdefault(1, []).append((channel, item, False))


class SendsBarriersBeforeTheirRecords(ExploredTask):
    """A source reads one more record before its capture and sends it behind the barrier."""

    def perform(self, effect: do.TaskEffect) -> None:
        is_early = isinstance(effect, do.CaptureState) and not self.site.inputs
        if is_early and self.position < len(self.site.records):
            for channel in self.site.outputs:
                self.emit(channel, -effect.checkpoint_id)  # type: ignore[union-attr]
            self.read()
        if isinstance(effect, do.ForwardBarrier) and not self.site.inputs and self.sends:
            return
        super().perform(effect)


class LogsReplayAndOriginal(ExploredTask):
    """A replayed record is logged by the sender's and by the receiver's snapshot."""

    def log(self, n: int, channel: int, item: int, *, by_sender: bool) -> None:
        super().log(n, channel, item, by_sender=by_sender)
        if self.epoch > 1:
            super().log(n, channel, item, by_sender=by_sender)


class ReplaysAfterNewInput(ExploredTask):
    """The log of a restored task waits until its first new record has come."""

    def replay(self, channel: int, item: int, *, by_sender: bool) -> None:
        self.logs.setdefault(0, []).append((channel, item, by_sender))

    def process(self, channel: int) -> None:
        super().process(channel)
        for one, item, by_sender in self.logs.pop(0, []):
            super().replay(one, item, by_sender=by_sender)


class ReplaysNothing(ExploredTask):
    def replay(self, channel: int, item: int, *, by_sender: bool) -> None:
        pass


class DrainedWithItsSources(ExploredTask):
    """A task calls itself drained whatever is on its way to it; so the sources alone decide."""

    def acknowledgement(self, one: Captured) -> SnapshotAcknowledged:
        message = super().acknowledgement(one)
        is_drained = one.ended or bool(self.site.inputs)
        return replace(message, snapshot=replace(message.snapshot, drained=is_drained))


class CommitsAtPrepare(ExploredTask):
    def prepare(self) -> None:
        n = self.rotated[0][0]
        super().prepare()
        self.tell_committer(on.CommitAuthorised(CheckpointId(n)))


class ForgetsTransactionsOfAborted(ExploredTask):
    """An abort throws the staged transaction away, though its records come before every later barrier."""

    def perform(self, effect: do.TaskEffect) -> None:
        super().perform(effect)
        if isinstance(effect, do.DiscardSnapshot):
            self.rotated = [one for one in self.rotated if one[0] != effect.checkpoint_id]


class DropsStagedOfAborted(ExploredTask):
    """As above, but what it throws away has been prepared: the sink aborts it."""

    def perform(self, effect: do.TaskEffect) -> None:
        super().perform(effect)
        if isinstance(effect, do.DiscardSnapshot):
            committer = copied(self.site.committers.machines[self.committer])
            committer._pending.pop(effect.checkpoint_id, None)
            self.committer = self.site.committers.number(committer)


# Commit.


class CommitsOwnTransactionOnly(Committer):
    def pending(self, checkpoint_id: CheckpointId) -> tuple[PendingTransaction, ...]:
        return tuple(one for one in super().pending(checkpoint_id) if one.checkpoint_id == checkpoint_id)


# The coordinator.


class TellsBeforeTheEntryIsDurable(Coordinator):
    """Completion is announced when the entry is appended rather than when it is durable."""

    def handle(self, event: on.JobEvent) -> list[do.JobEffect]:
        effects = super().handle(event)
        for one in list(effects):
            if isinstance(one, do.AppendEntry) and isinstance(one.entry, CheckpointCompleted):
                commit = CommitCheckpoint(self.epoch, one.entry.checkpoint_id)
                effects += [do.SendMessage(place.link, commit) for place in self.registry.held.values()]
        return effects


class HearsOldAcknowledgements(Coordinator):
    """The epoch is missing in acknowledgements: they are taken for those of the present one."""

    def handle(self, event: on.JobEvent) -> list[do.JobEffect]:
        match event:
            case on.MessageReceived(link, SnapshotAcknowledged() as message):
                event = on.MessageReceived(link, replace(message, epoch=self.epoch))
            case _:
                pass
        return super().handle(event)


class HearsEveryEpoch(Coordinator):
    """No message of a worker is too old."""

    def handle(self, event: on.JobEvent) -> list[do.JobEffect]:
        match event:
            case on.MessageReceived(link, message) if hasattr(message, "epoch"):
                event = on.MessageReceived(link, replace(message, epoch=self.epoch))  # type: ignore[type-var]
            case _:
                pass
        return super().handle(event)


@dataclass(frozen=True)
class Patch:
    """Replaces an attribute for one test."""

    target: object
    name: str
    value: object


@property  # type: ignore[misc]
def without_a_sink(self: PendingCheckpoint) -> bool:
    """Completes when all but the last task have acknowledged."""
    return len(self._tasks - self._snapshots.keys()) <= 1


original_pending = PendingCheckpoint.handle


def counting(self: PendingCheckpoint, message: Any) -> list[do.JobEffect]:
    """Counts acknowledgements: one that comes twice stands for another task's."""
    if isinstance(message, SnapshotAcknowledged) and message.task in self._snapshots:
        if len(self._tasks - self._snapshots.keys()) == 1:
            self._tasks = frozenset(self._snapshots)
        return []
    return original_pending(self, message)


original_log_handle = job_log.LogWriter.handle


def writes_behind(self: job_log.LogWriter, event: Any) -> Any:
    """No fence for checkpoints: if the index is taken, the next one is tried."""
    if isinstance(event, on.EntryTaken) and isinstance(self._queue[0], CheckpointCompleted):
        self._next_index = following(self._next_index)
        return self._ask_next(), None
    return original_log_handle(self, event)


def unknown_is_failure(self: job_log.LogWriter, event: Any) -> Any:
    """A checkpoint whose append has an unknown outcome is taken for one that is not in the log."""
    if isinstance(event, on.EntryUncertain) and isinstance(self._queue[0], CheckpointCompleted):
        return original_log_handle(self, on.EntryRefused(event.index, event.reason))
    return original_log_handle(self, event)


def deletes_what_closed_a_segment(head: SegmentOpened, *, was_closed: bool) -> tuple[LogIndex, ...]:
    """What fences the driver before is deleted with all the rest of its segment."""
    return written_before(head, was_closed=False)


original_log_writer = job_log.LogWriter.__init__


def leaves_the_segment_open(self: job_log.LogWriter, end: LogEnd, *arguments: Any, **options: Any) -> None:
    """Whoever takes over opens a segment, and does not close the one of the driver before."""
    original_log_writer(self, replace(end, is_closed=end.last is not None), *arguments, **options)


original_schedule = CheckpointScheduler.handle


def answers_before_the_commit(
    self: CheckpointRequests, is_committed: Any, **others: Any
) -> list[do.JobEffect]:
    return DUE(self, lambda n: True, **others)


DUE = CheckpointRequests.due


def forgets_void_ids(self: CheckpointScheduler, event: Any) -> list[do.JobEffect]:
    """The ids of checkpoints that an epoch leaves unfinished are used again in the next one."""
    are_appending = any(one.is_appending for one in self._pending.values())
    if isinstance(event, EpochEnded) and self.under_way is not None and not are_appending:
        self.next_id = self.under_way
    return original_schedule(self, event)


def closes_loops_while_records_go_round(loops: Sequence[Component], shown: Stillness) -> Any:
    """What feeds a loop is drained; what is in it is not looked at."""
    return plain_heads(loops, replace(shown, restless=frozenset()))


def closes_loops_when_nothing_is_logged(loops: Sequence[Component], shown: Stillness) -> Any:
    """What feeds a loop may still have its results to say, or have its end of input on the way to it."""
    is_quiet = not shown.restless and "a" not in shown.speaking
    return tuple(head for loop in loops for head in loop.heads) if is_quiet else ()


def closes_all_loops_with_the_first(loops: Sequence[Component], shown: Stillness) -> Any:
    is_any = any(is_exhausted(loop, shown) for loop in loops)
    return tuple(head for loop in loops for head in loop.heads) if is_any else ()


plain_heads = scheduler.heads_to_close


original_claim = recovery.claim


def reuses_ids(tail: Any, *who: Any) -> Any:
    """A new driver starts with id 1 again."""
    decision = original_claim(tail, *who)
    if isinstance(decision, recovery.Claim):
        return replace(decision, entry=replace(decision.entry, first_checkpoint_id=CheckpointId(1)))
    return decision


def keeps_nothing(paths: Any, kept: Any) -> tuple[str, ...]:
    """Retention deletes whatever it is shown."""
    return tuple(sorted(paths))


class SparesSideOutputs(ExploredTask):
    """A barrier goes only where results go, and not where an operator says something beside them."""

    def perform(self, effect: do.TaskEffect) -> None:
        if isinstance(effect, do.ForwardBarrier) and len(self.site.outputs) > 1:
            self.emit(self.site.outputs[0], -effect.checkpoint_id)
            return
        super().perform(effect)


CUT, LOST, TWICE, EARLY, STUCK = "I4", "I1", "I2", "I3", "I10"

BUGS: dict[str, tuple[Callable[[], str], str]] = {
    "no barrier on a side output": (
        lambda: found("two sinks", "aligned", Make(task=SparesSideOutputs), records=2),
        STUCK,
    ),
    "no blocking": (lambda: found("join", "aligned", planted(NeverBlocks)), CUT),
    "the capture waits for a back edge": (
        lambda: found("loop", "aligned", planted(BlocksItsBackEdges)),
        STUCK,
    ),
    "the log of a back edge is not started": (lambda: found("loop", "aligned", planted(LogsNothing)), CUT),
    "an early return is taken for a regular barrier": (
        lambda: found("ring", "aligned", planted(CapturesWithoutWaiting)),
        CUT,
    ),
    "an early return is not held": (
        lambda: found("ring", "aligned", planted(LetsEarlyReturnsThrough)),
        CUT,
    ),
    "abort forgotten": (
        lambda: found("shortcut", "aligned", planted(ForgetsAborts), records=0, checkpoints=2, timeouts=1),
        STUCK,
    ),
    "supersede ignored": (
        lambda: found(
            "shortcut", "aligned", planted(IgnoresNewerBarriers), records=0, checkpoints=2, timeouts=1
        ),
        STUCK,
    ),
    "barriers are counted instead of remembered": (
        lambda: found("shortcut", "aligned", planted(CountsBarriers), checkpoints=2, timeouts=1),
        CUT,
    ),
    "acknowledged before it is durable": (
        lambda: found("edge", "aligned", planted(AcknowledgesAtOnce)),
        "I8",
    ),
    "one channel is logged only": (lambda: found("join", "unaligned", planted(LogsOneChannelOnly)), CUT),
    "channel log dropped": (lambda: found("edge", "unaligned", Make(task=DropsTheLog)), CUT),
    "overtaken output forgotten": (
        lambda: found("edge", "unaligned", Make(task=ForgetsWhatWasOvertaken)),
        CUT,
    ),
    "loop log started after what waits": (
        lambda: found("edge", "unaligned", Make(task=StartsTheLogLate)),
        CUT,
    ),
    "loop log started before the capture": (
        lambda: found("loop", "aligned", Make(task=StartsTheLogEarly)),
        CUT,
    ),
    "barrier overtakes a record on a FIFO channel": (
        lambda: found("edge", "aligned", Make(task=SendsBarriersBeforeTheirRecords)),
        CUT,
    ),
    "replay and original are both logged": (
        lambda: found("edge", "unaligned", Make(task=LogsReplayAndOriginal), crashes=1),
        CUT,
    ),
    "replay after new input": (
        lambda: found("edge", "unaligned", Make(task=ReplaysAfterNewInput), records=2, crashes=1),
        "I5",
    ),
    "no replay": (lambda: found("edge", "unaligned", Make(task=ReplaysNothing), crashes=1), CUT),
    "final checkpoint not drained": (
        lambda: found("edge", "unaligned", Make(task=DrainedWithItsSources)),
        "F5",
    ),
    "commit at prepare": (lambda: found("edge", "aligned", Make(task=CommitsAtPrepare)), EARLY),
    "transaction of an aborted checkpoint forgotten": (
        lambda: found("edge", "aligned", Make(task=ForgetsTransactionsOfAborted), timeouts=1),
        LOST,
    ),
    "transaction dropped with its aborted checkpoint, after a timeout": (
        lambda: found("edge", "aligned", Make(task=DropsStagedOfAborted), timeouts=1),
        LOST,
    ),
    "transaction dropped with its aborted checkpoint, after a decline": (
        lambda: found("edge", "aligned", Make(task=DropsStagedOfAborted), failures=1),
        LOST,
    ),
    "messages of older epochs are heard": (
        lambda: found("edge", "aligned", Make(coordinator=HearsEveryEpoch), crashes=2, slow_control=True),
        "I7",
    ),
    "commit own transaction only": (
        lambda: found("edge", "aligned", Make(committer=CommitsOwnTransactionOnly), timeouts=1),
        LOST,
    ),
    "no commit on restore": (
        lambda: found("edge", "aligned", Make(commits_on_restore=False), crashes=1),
        LOST,
    ),
    "commit before the entry is durable": (
        lambda: found("edge", "aligned", Make(coordinator=TellsBeforeTheEntryIsDurable)),
        EARLY,
    ),
}

PATCHED: dict[str, tuple[Patch, Callable[[], str], str]] = {
    "complete without a sink's acknowledgement": (
        Patch(PendingCheckpoint, "is_whole", without_a_sink),
        lambda: found("two sinks", "aligned", Make()),
        CUT,
    ),
    "counting instead of remembering": (
        Patch(PendingCheckpoint, "handle", counting),
        lambda: found("edge", "aligned", Make(), repeats=1),
        CUT,
    ),
    "no fence": (
        Patch(job_log.LogWriter, "handle", writes_behind),
        lambda: found("edge", "aligned", Make(), drivers=1, zombies=1),
        "I7",
    ),
    "an unknown append is a failed one": (
        Patch(job_log.LogWriter, "handle", unknown_is_failure),
        lambda: found("edge", "aligned", Make(), unknown=1),
        "I8",
    ),
    # The old snapshot stands for the new one, and its part has been swept.
    "epoch missing in acknowledgements, and ids used again": (
        Patch(CheckpointScheduler, "handle", forgets_void_ids),
        lambda: found("edge", "aligned", Make(coordinator=HearsOldAcknowledgements), crashes=1, repeats=1),
        "I8",
    ),
    "loops closed while a record circles": (
        Patch(scheduler, "heads_to_close", closes_loops_while_records_go_round),
        lambda: found("loop", "unaligned", Make()),
        "F5",
    ),
    "loops closed while a count has its results to say": (
        Patch(scheduler, "heads_to_close", closes_loops_when_nothing_is_logged),
        lambda: found("loop, count, loop", "aligned", Make()),
        "F5",
    ),
    "loops closed while the end of input is on its way to a count": (
        Patch(scheduler, "heads_to_close", closes_loops_when_nothing_is_logged),
        lambda: found("count, loop, count", "unaligned", Make()),
        "F5",
    ),
    "all loops closed with the first one": (
        Patch(scheduler, "heads_to_close", closes_all_loops_with_the_first),
        lambda: found("loop, count, loop", "halting", Make()),
        "F5",
    ),
    "what closed a segment is deleted": (
        Patch(job_log, "written_before", deletes_what_closed_a_segment),
        lambda: found(
            "edge", "aligned", Make(), 0, checkpoints=3, drivers=1, zombies=1, segment_entries_max=1
        ),
        "I7",
    ),
    "the segment of the driver before stays open": (
        Patch(job_log.LogWriter, "__init__", leaves_the_segment_open),
        lambda: found("edge", "aligned", Make(), 0, drivers=1, zombies=1),
        "I7",
    ),
    "ids are used again": (
        Patch(recovery, "claim", reuses_ids),
        lambda: found("edge", "aligned", Make(), drivers=1),
        "I6",
    ),
    "retention deletes what a savepoint is still to be written from": (
        Patch(CheckpointRequests, "paths", frozenset[str]()),
        lambda: found("edge", "aligned", Make(), 0, checkpoints=2, savepoints=1),
        "I8",
    ),
    "a savepoint is written before its output is committed": (
        Patch(CheckpointRequests, "due", answers_before_the_commit),
        lambda: found("edge", "aligned", Make(), 1, savepoints=1),
        "F7",
    ),
    "retention deletes what is referred to": (
        Patch(retention, "unreferenced", keeps_nothing),
        lambda: found("edge", "aligned", Make(), drivers=1),
        "I8",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_finds_the_planted_bug(name: str) -> None:
    search, invariant = BUGS[name]
    assert f"then: {invariant}" in search(), name


@pytest.mark.proof
@pytest.mark.parametrize("name", BUGS)
def test_finds_the_planted_bug_without_the_reduction_as_well(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(World.__init__.__kwdefaults__, "is_reduced", False)
    search, invariant = BUGS[name]
    assert f"then: {invariant}" in search(), name


@pytest.mark.parametrize("name", PATCHED)
def test_finds_the_planted_bug_of_the_coordinator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, search, invariant = PATCHED[name]
    monkeypatch.setattr(patch.target, patch.name, patch.value)
    assert f"then: {invariant}" in search(), name


def test_neither_half_of_the_pair_shows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are never used again, and epochs are checked: each makes up for the other where the other fails.

    A late acknowledgement of epoch e names a checkpoint of e. In e + 1 no checkpoint has its id, so it is
    dropped whether its epoch is looked at or not: without the check alone, nothing can break. And an id that
    is used again is told apart by the epoch of every message, part and transaction.
    """
    bounds = Bounds(1, Faults(crashes=1, repeats=1))
    hears = World(graph("edge", 1), "aligned", bounds, Make(coordinator=HearsOldAcknowledgements))
    assert explore(hears).is_complete
    monkeypatch.setattr(CheckpointScheduler, "handle", forgets_void_ids)
    assert explore(World(graph("edge", 1), "aligned", bounds)).is_complete


def test_there_are_at_least_twenty() -> None:
    assert len(BUGS) + len(PATCHED) >= 20
