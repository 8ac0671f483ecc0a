"""A coordinator in many situations of each phase, and what every event makes of it there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.proof.explorer.machines import copied
from tests.simulation.conversation import (
    CAUSE,
    K0,
    K1,
    LINKS,
    S0,
    S1,
    SPLITS,
    TASKS,
    Talk,
    at,
    claim,
    completed,
    events,
    registration,
    snapshot,
)

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import AttemptId, CheckpointId, Epoch, LogIndex, TaskId, WorkerIndex
from crosscut.protocol.events import (
    CheckpointRequested,
    CutJudged,
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    JobEvent,
    LinkClosed,
    LinkOpened,
    LogTailRead,
    MessageReceived,
    PartsListed,
    SplitsDiscovered,
    StopRequested,
    Timer,
    TimerFired,
    WorkersEnded,
)
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec
from crosscut.protocol.job.phases import DEPLOYED, Phase
from crosscut.protocol.job.workers import LIVENESS_TICKS
from crosscut.protocol.log.entries import JobFinished, LogEntry, SegmentOpened
from crosscut.protocol.log.ownership import CLAIM_ATTEMPTS_MAX
from crosscut.protocol.log.pending_append import UNCERTAIN_ATTEMPTS_MAX
from crosscut.protocol.messages import (
    FailureCause,
    SnapshotAcknowledged,
    SourceDrained,
    TaskFailed,
    TransactionsCommitted,
    UnitFinished,
    WorkerFailed,
    WorkerReady,
)
from crosscut.protocol.snapshots import Part, Snapshot

RESTARTED = DEPLOYED | {Phase.GATHERING}
"""From here a failure leads to WAITING; with a delay of 0, at once from there to CLAIMING."""

Kind = str
"""What an event is: the class of the message, the name of the timer, or its own class."""

E1, E2, N1 = Epoch(1), Epoch(2), CheckpointId(1)
HEAD = SegmentOpened(claim(), None)
PROVEN = (LinkOpened(98, WorkerIndex(0), AttemptId(1)), LinkOpened(99, WorkerIndex(1), AttemptId(6)))
CAN_NOT_START = WorkerFailed(WorkerIndex(1), AttemptId(6), CAUSE)
GONE = FailureCause("StoreError", "parts/1/out-0-1-ab is missing", is_final=True)
DANGLING = Snapshot(parts=(Part("parts/0/gone", 1, "00"),))
FINAL = ((at(1), HEAD), (at(2), completed(1, final=True)))


def kind_of(event: JobEvent) -> Kind:
    """Return what `event` is."""
    match event:
        case MessageReceived(_, message):
            return type(message).__name__
        case TimerFired(timer):
            return f"timer {timer.kind}"
        case _:
            return type(event).__name__


def all_events() -> list[JobEvent]:
    """Return every kind of event, with content that fits some situation, and with content that fits none."""
    final = completed(1, final=True)
    finals = [SnapshotAcknowledged(E1, N1, task, snapshot(task, 1, drained=True)) for task in (K0, S0)]
    return [
        *events(),
        *(MessageReceived(LINKS[0], one) for one in finals),
        LogTailRead(FINAL),
        LogTailRead((*FINAL, (at(3), JobFinished(E1, N1)))),
        *(TimerFired(Timer("log-call", number=index)) for index in (2, 3)),
        *(MessageReceived(98, registration(0, 1)), MessageReceived(99, CAN_NOT_START)),
        MessageReceived(LINKS[0], SnapshotAcknowledged(E1, N1, K0, DANGLING)),
        EntryRead(at(1), HEAD),
        *(EntryRead(at(index), entry) for index in (2, 3) for entry in (final, claim(2, 2))),
        *(
            EntryUncertain(at(4), "time out"),
            EntryRefused(at(4), "no space"),
            EntryAppended(at(4)),
            EntryTaken(at(4)),
        ),
        WorkersEnded("Spark is gone", is_final=True),
        MessageReceived(LINKS[0], TaskFailed(E1, K0, GONE)),
        CutJudged(N1, unjudged=("total",)),
    ]


def situations(*, is_long: bool) -> Iterator[Talk]:
    """Yield a coordinator in each situation that makes a difference to some event.

    Args:
        is_long: In all pairs of terms. In any case each of the terms is in one pair.
    """
    for strict in (False, True):
        # Strict: nothing is tolerated. Else a restart waits; the delay of 0 is in the strict ones as well.
        limits: dict[str, Any] = (
            {"failures_max": 0, "checkpoint_failures_max": 0, "awaits_verdict": True}
            if strict
            else {"delay_ms": 100}
        )
        ahead = limits | {"periodic": False, "in_flight_max": 2, "pause_ms": 50}
        for terms in (limits, ahead) if is_long else (ahead if strict else limits,):
            for talk in _situations(terms):
                # Two more processes have proven who they are: one that is missing, and one that can't start.
                talk.hear(*PROVEN)
                yield talk


def _situations(terms: dict[str, Any]) -> Iterator[Talk]:
    yield from _claiming(terms)
    yield from _starting(terms)
    yield from _running(terms)
    yield from _ending(terms)
    yield from _in_an_outage(terms)
    yield from _finding(terms)
    yield _stopping_with_logs(terms)
    yield from _second_epoch(terms | {"failures_max": 1} if "failures_max" in terms else terms)
    for talk in (*_starting(terms), *_running(terms), *_ending(terms)):
        for _ in range(LIVENESS_TICKS):
            talk.fire("liveness", 0)
        yield talk


def _talk(terms: dict[str, Any], *told: JobEvent) -> Talk:
    talk = Talk(**terms)
    talk.hear(*told)
    return talk


def _in_an_outage(terms: dict[str, Any]) -> Iterator[Talk]:
    """Checkpoints have failed for so long that one more takes the job back."""
    for is_appending in (False, True):
        talk = Talk(**terms | {"checkpoint_failures_max": None, "outage_ms": 1})
        talk.running()
        talk.coordinator.checkpoints.failed.note(CheckpointId(0), "no space", now_ms=-1)
        talk.fire("trigger")
        if is_appending:
            talk.acknowledge(1)
        yield talk


def _claiming(terms: dict[str, Any]) -> Iterator[Talk]:
    yield _talk(terms)
    yield _talk(terms, LogTailRead(()))
    yield _talk(terms, LogTailRead(()), SplitsDiscovered(SPLITS))
    yield _talk(terms, LogTailRead(()), SplitsDiscovered(SPLITS), EntryTaken(at(1)))
    yield _talk(terms, LogTailRead(()), SplitsDiscovered(SPLITS), EntryUncertain(at(1), "time out"))
    overtaken = (EntryTaken(at(1)), EntryRead(at(1), claim(driver="driver 2")))
    yield _talk(terms, LogTailRead(()), SplitsDiscovered(SPLITS), *overtaken, LogTailRead(()))
    yield _talk(terms, LogTailRead(((at(1), HEAD), (at(2), completed(1)))))
    uncertain = _talk(terms, LogTailRead(()), SplitsDiscovered(SPLITS))
    _make_uncertain(uncertain, 1)
    yield uncertain
    talk = Talk(**terms)
    log: list[tuple[LogIndex, LogEntry]] = [(at(1), HEAD)]
    for index in range(2, CLAIM_ATTEMPTS_MAX + 2):
        theirs = claim(index, driver="driver 3")
        talk.hear(LogTailRead(tuple(log)), SplitsDiscovered(SPLITS))
        talk.hear(EntryTaken(at(index)), EntryRead(at(index), theirs))
        log.append((at(index), theirs))
    talk.hear(LogTailRead(()))
    yield talk


def _starting(terms: dict[str, Any]) -> Iterator[Talk]:
    gathering = Talk(**terms)
    gathering.gathering()
    yield gathering
    one_is_there = Talk(**terms)
    one_is_there.gathering()
    one_is_there.message(1, registration(1, 2))
    yield one_is_there
    restoring = Talk(**terms)
    restoring.gathering()
    restoring.register()
    yield restoring
    one_is_ready = Talk(**terms)
    one_is_ready.gathering()
    one_is_ready.register()
    one_is_ready.message(1, WorkerReady(E1))
    yield one_is_ready
    hopeless = Talk(**terms)
    hopeless.gathering()
    hopeless.register()
    hopeless.failed(cause=GONE)
    yield hopeless
    at_the_end = Talk(**terms)
    at_the_end.hear(LogTailRead(FINAL), EntryAppended(at(3)), EntryAppended(LogIndex(2, 0)))
    at_the_end.register()
    at_the_end.message(1, WorkerReady(E2))
    yield at_the_end


def _running(terms: dict[str, Any]) -> Iterator[Talk]:
    for is_stopping in (False, True):
        for drained in (False, True):
            for stage in range(7):
                talk = Talk(**terms)
                talk.running()
                if stage >= 1:
                    talk.hear(CheckpointRequested(7))
                if is_stopping:
                    talk.hear(StopRequested())
                if stage >= 2:
                    _acknowledge(talk, TASKS[1:], drained=drained)
                if stage == 3:
                    talk.message(0, SourceDrained(E1, S0))
                if stage >= 4:
                    talk.acknowledge(1, drained=drained)
                if stage == 5:
                    _make_uncertain(talk, 2)
                if stage == 6:
                    talk.hear(EntryTaken(at(2)))
                yield talk
    waiting = Talk(**terms)
    waiting.running()
    waiting.failed()
    yield waiting
    claiming = Talk(**terms)
    claiming.running()
    claiming.message(1, SourceDrained(E1, S1))
    claiming.hear(LinkClosed(LINKS[0], "reset"))
    claiming.fire("restart")
    yield claiming


def _finding(terms: dict[str, Any]) -> Iterator[Talk]:
    """A source has been asked for splits that have come."""
    for stage in range(3):
        talk = Talk(**terms, dynamic_sources=((S0.vertex, 500),))
        talk.running()
        if stage < 2:
            talk.fire("find")
        if stage == 1:
            talk.hear(StopRequested())
        yield talk


def _stopping_with_logs(terms: dict[str, Any]) -> Talk:
    """One of two workers with logs has finished."""

    def make(spec: CoordinatorSpec) -> Coordinator:
        return Coordinator(replace(spec, identity=replace(spec.identity, unit_log="objects")))

    talk = Talk(make, **terms | {"periodic": False})
    talk.running()
    talk.message(1, UnitFinished(E1))
    talk.hear(StopRequested())
    return talk


def _ending(terms: dict[str, Any]) -> Iterator[Talk]:
    for stage in range(7):
        talk = Talk(**terms)
        talk.running()
        talk.hear(StopRequested() if stage == 1 else CheckpointRequested(7))
        talk.acknowledge(1, drained=stage != 1)
        talk.hear(EntryAppended(at(2)))
        if stage in (1, 2, 3):
            talk.message(1, TransactionsCommitted(E1, N1, K1))
        if stage == 3:
            talk.hear(CutJudged(N1))
        if stage >= 4:
            talk.committed(1)
        if stage >= 5 and terms.get("awaits_verdict"):
            talk.hear(CutJudged(N1))
        if stage == 6:
            _make_uncertain(talk, 3)
        yield talk
    if terms.get("in_flight_max", 1) > 1:
        # Another final one is being appended.
        for is_committed in (False, True):
            talk = Talk(**terms)
            talk.running()
            talk.hear(CheckpointRequested(7), CheckpointRequested(8))
            for n in (1, 2):
                talk.acknowledge(n, drained=True)
            talk.hear(EntryAppended(at(2)))
            if is_committed:
                talk.committed(1)
            yield talk
    ended = Talk(**terms)
    ended.running()
    ended.hear(WorkersEnded("Spark is gone", is_final=True))
    yield ended


def _second_epoch(terms: dict[str, Any]) -> Iterator[Talk]:
    """In each phase with a completed checkpoint, while parts are being deleted."""
    for stage in range(6):
        talk = Talk(**terms)
        talk.running()
        talk.complete(1, 2)
        talk.hear(PartsListed(("parts/1/out-0-0-ab",)))
        if stage >= 1:
            talk.failed()
        if stage >= 2:
            talk.fire("restart")
        if stage >= 3:
            talk.hear(LinkClosed(LINKS[0], "reset"), EntryAppended(at(3)))
        if stage >= 4:
            talk.comes(LINKS[0], registration(0, 1))
        if stage >= 5:
            talk.ready(2)
            talk.hear(StopRequested())
        yield talk


def _acknowledge(talk: Talk, tasks: tuple[TaskId, ...], *, drained: bool) -> None:
    for task in tasks:
        talk.message(task.index, SnapshotAcknowledged(E1, N1, task, snapshot(task, 1, drained=drained)))


def _make_uncertain(talk: Talk, index: int) -> None:
    """One more answer that says nothing, and the log is given up."""
    for _ in range(UNCERTAIN_ATTEMPTS_MAX - 1):
        talk.hear(EntryUncertain(at(index), "time out"))
        talk.fire("retry-append", 0, index)


def walk(*, is_long: bool) -> dict[tuple[Phase, Kind], frozenset[Phase]]:
    """Return which phases follow which event in which phase.

    Args:
        is_long: From all `situations`.
    """
    found: dict[tuple[Phase, Kind], set[Phase]] = defaultdict(set)
    told = [(kind_of(event), event) for event in all_events()]
    for talk in situations(is_long=is_long):
        before = talk.coordinator.phase
        for kind, event in told:
            coordinator = copied(talk.coordinator)
            try:
                coordinator.handle(event)
            except ProtocolError:
                continue
            is_at_once = before in RESTARTED and coordinator.phase is Phase.CLAIMING
            found[before, kind].add(Phase.WAITING if is_at_once else coordinator.phase)
    return {pair: frozenset(phases) for pair, phases in found.items()}
