"""What a job runs: every event in every phase, and what no order of events may lead to."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CancelRequested, StopRequested
from crosscut.protocol.job import job_run
from crosscut.protocol.job.job_run import (
    TRANSITIONS,
    AnnounceEnd,
    AnnounceOwned,
    AnnounceSwitch,
    CloseEngine,
    EndRequested,
    EndRun,
    EngineRunClosed,
    EngineRunEnded,
    EpochOwned,
    JobBroken,
    JobRun,
    JobStarted,
    PostToEngine,
    RunEffect,
    RunEvent,
    RunPhase,
    RunTurn,
    StartEngine,
)
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.engine_switch import BatchVisible, Engines, LagSeen, StopEngine

STOPPED, FINISHED, FAILED = EndJob("stopped"), EndJob("finished"), EndJob("failed", FailureCause("E", "why"))
BROKEN = FailureCause("OSError", "disk")
STOP, CANCEL = EndRequested(StopRequested()), EndRequested(CancelRequested())
CAUGHT_UP = BatchVisible(CheckpointId(1), 0, is_drained=False)
WHY = "0 records wait after batch 1"


def auto() -> JobRun:
    return JobRun("continuous", Engines(caught_up_at=10, behind_at=1_000, behind_for_ms=0))


def led_to(phase: RunPhase) -> JobRun:
    """Return a run of a job with two engines that is there."""
    paths: Mapping[RunPhase, list[RunEvent]] = {
        RunPhase.NEW: [],
        RunPhase.STARTING: [JobStarted()],
        RunPhase.RUNNING: [JobStarted(), EpochOwned()],
        RunPhase.SWITCHING: [JobStarted(), EpochOwned(), CAUGHT_UP],
        RunPhase.ENDING: [JobStarted(), EpochOwned(), STOP],
        RunPhase.BETWEEN: [JobStarted(), EpochOwned(), CAUGHT_UP, EngineRunEnded(STOPPED)],
        RunPhase.CLOSING: [JobStarted(), EpochOwned(), EngineRunEnded(FINISHED)],
        RunPhase.OVER: [JobStarted(), EpochOwned(), EngineRunEnded(FINISHED), EngineRunClosed()],
    }
    run = auto()
    for event in paths[phase]:
        run.handle(event)
    assert run.phase is phase
    return run


def start(number: int, engine: job_run.Engine = "micro-batch") -> StartEngine:
    return StartEngine(number, engine)


def last(end: EndJob) -> list[RunEffect]:
    return [AnnounceEnd(end), CloseEngine(is_last=True)]


BROKEN_END = EndJob("failed", BROKEN)


def broken() -> list[RunEffect]:
    """Return what becomes of an engine run when the job breaks."""
    cancel = PostToEngine(CancelRequested(BROKEN))
    return [AnnounceEnd(BROKEN_END), cancel, CloseEngine(is_last=True)]


P = RunPhase
Row = tuple[RunEvent, RunPhase, list[RunEffect]]
"""An event, the phase that follows, and the effects."""

TABLE: Mapping[RunPhase, list[Row]] = {
    P.NEW: [
        (JobStarted(), P.STARTING, [start(1)]),
        (EpochOwned(), P.NEW, []),
        # The engine run that follows is told.
        (STOP, P.NEW, []),
        (CANCEL, P.NEW, []),
        (CAUGHT_UP, P.NEW, []),
        (LagSeen(0, 5_000), P.NEW, []),
        (EngineRunEnded(STOPPED), P.NEW, []),
        (EngineRunEnded(FAILED), P.NEW, []),
        (EngineRunClosed(), P.NEW, []),
        (JobBroken(BROKEN), P.OVER, [AnnounceEnd(BROKEN_END), EndRun(BROKEN_END)]),
    ],
    P.STARTING: [
        (JobStarted(), P.STARTING, []),
        (EpochOwned(), P.RUNNING, [AnnounceOwned()]),
        (STOP, P.ENDING, [PostToEngine(StopRequested())]),
        (CANCEL, P.ENDING, [PostToEngine(CancelRequested())]),
        (CAUGHT_UP, P.STARTING, []),
        (LagSeen(0, 5_000), P.STARTING, []),
        (EngineRunEnded(STOPPED), P.CLOSING, last(STOPPED)),
        (EngineRunEnded(FAILED), P.CLOSING, last(FAILED)),
        (EngineRunClosed(), P.STARTING, []),
        (JobBroken(BROKEN), P.CLOSING, broken()),
    ],
    P.RUNNING: [
        (JobStarted(), P.RUNNING, []),
        (EpochOwned(), P.RUNNING, []),
        (STOP, P.ENDING, [PostToEngine(StopRequested())]),
        (CANCEL, P.ENDING, [PostToEngine(CancelRequested())]),
        (CAUGHT_UP, P.SWITCHING, [StopEngine(WHY)]),
        # That is for the other engine to say.
        (LagSeen(0, 5_000), P.RUNNING, []),
        (EngineRunEnded(STOPPED), P.CLOSING, last(STOPPED)),
        (EngineRunEnded(FAILED), P.CLOSING, last(FAILED)),
        (EngineRunClosed(), P.RUNNING, []),
        (JobBroken(BROKEN), P.CLOSING, broken()),
    ],
    P.SWITCHING: [
        (JobStarted(), P.SWITCHING, []),
        (EpochOwned(), P.SWITCHING, []),
        (STOP, P.ENDING, [PostToEngine(StopRequested())]),
        (CANCEL, P.ENDING, [PostToEngine(CancelRequested())]),
        (CAUGHT_UP, P.SWITCHING, []),
        (LagSeen(0, 5_000), P.SWITCHING, []),
        (EngineRunEnded(STOPPED), P.BETWEEN, [CloseEngine(is_last=False)]),
        (EngineRunEnded(FAILED), P.CLOSING, last(FAILED)),
        (EngineRunClosed(), P.SWITCHING, []),
        (JobBroken(BROKEN), P.CLOSING, broken()),
    ],
    P.ENDING: [
        (JobStarted(), P.ENDING, []),
        (EpochOwned(), P.ENDING, []),
        (STOP, P.ENDING, [PostToEngine(StopRequested())]),
        (CANCEL, P.ENDING, [PostToEngine(CancelRequested())]),
        (CAUGHT_UP, P.ENDING, []),
        (LagSeen(0, 5_000), P.ENDING, []),
        (EngineRunEnded(STOPPED), P.CLOSING, last(STOPPED)),
        (EngineRunEnded(FAILED), P.CLOSING, last(FAILED)),
        (EngineRunClosed(), P.ENDING, []),
        (JobBroken(BROKEN), P.CLOSING, broken()),
    ],
    P.BETWEEN: [
        (JobStarted(), P.BETWEEN, []),
        (EpochOwned(), P.BETWEEN, []),
        # It has stopped already.
        (STOP, P.CLOSING, [AnnounceEnd(STOPPED)]),
        (CANCEL, P.CLOSING, [AnnounceEnd(EndJob("cancelled"))]),
        (CAUGHT_UP, P.BETWEEN, []),
        (LagSeen(0, 5_000), P.BETWEEN, []),
        (EngineRunEnded(STOPPED), P.BETWEEN, []),
        (EngineRunEnded(FAILED), P.BETWEEN, []),
        (EngineRunClosed(), P.STARTING, [AnnounceSwitch("continuous", WHY), start(2, "continuous")]),
        (JobBroken(BROKEN), P.CLOSING, [AnnounceEnd(BROKEN_END)]),
    ],
    P.CLOSING: [
        (JobStarted(), P.CLOSING, []),
        (EpochOwned(), P.CLOSING, []),
        (STOP, P.CLOSING, []),
        (CANCEL, P.CLOSING, []),
        (CAUGHT_UP, P.CLOSING, []),
        (LagSeen(0, 5_000), P.CLOSING, []),
        (EngineRunEnded(STOPPED), P.CLOSING, []),
        (EngineRunEnded(FAILED), P.CLOSING, []),
        (EngineRunClosed(), P.OVER, [EndRun(FINISHED)]),
        # How the job ends is known already.
        (JobBroken(BROKEN), P.CLOSING, []),
    ],
    P.OVER: [
        (JobStarted(), P.OVER, []),
        (EpochOwned(), P.OVER, []),
        (STOP, P.OVER, []),
        (CANCEL, P.OVER, []),
        (CAUGHT_UP, P.OVER, []),
        (LagSeen(0, 5_000), P.OVER, []),
        (EngineRunEnded(STOPPED), P.OVER, []),
        (EngineRunEnded(FAILED), P.OVER, []),
        (EngineRunClosed(), P.OVER, []),
        (JobBroken(BROKEN), P.OVER, []),
    ],
}
EVENTS = tuple(event for event, _, _ in TABLE[P.NEW])


@pytest.mark.parametrize("phase", RunPhase)
def test_every_event_in_every_phase(phase: RunPhase) -> None:
    assert tuple(event for event, _, _ in TABLE[phase]) == EVENTS
    for event, follows, effects in TABLE[phase]:
        run = led_to(phase)
        assert (run.handle(event), run.phase) == (effects, follows), event


def test_everything_that_is_dropped_is_counted_by_its_reason() -> None:
    found: Counter[str] = Counter()
    for phase, rows in TABLE.items():
        for event, _, _ in rows:
            run = led_to(phase)
            run.handle(event)
            found += run.dropped
    assert found.keys() > {
        "request after the end",
        "lag of an engine run that is not to stop",
        "end of an engine run that has ended",
        "START in phase RUNNING",
        "OWNED in phase BETWEEN",
        "CLOSED in phase RUNNING",
        "BREAK in phase CLOSING",
        "BREAK in phase OVER",
    }


def test_a_job_with_one_engine_ends_with_it() -> None:
    run = JobRun("continuous")
    assert run.handle(JobStarted()) == [start(1, "continuous")]
    assert run.handle(EpochOwned()) == [AnnounceOwned()]
    assert run.handle(LagSeen(0, 5_000)) == []
    assert run.handle(EngineRunEnded(STOPPED)) == last(STOPPED)
    assert run.handle(EngineRunClosed()) == [EndRun(STOPPED)]


def test_a_request_before_there_is_an_engine_run_reaches_the_first_one_at_once() -> None:
    run = JobRun("continuous")
    assert run.handle(CANCEL) == []
    assert run.handle(JobStarted()) == [start(1, "continuous"), PostToEngine(CancelRequested())]
    assert run.handle(EpochOwned()) == [AnnounceOwned()]


def test_a_stop_between_two_engine_runs_ends_the_job_as_the_first_one_has_ended() -> None:
    run = led_to(P.SWITCHING)
    stopped = EndJob("stopped", FailureCause("NoLastCheckpoint", "why"))
    run.handle(EngineRunEnded(stopped))
    assert run.handle(STOP) == [AnnounceEnd(stopped)]
    assert run.handle(EngineRunClosed()) == [EndRun(stopped)], "the other engine would have to start first"


def test_a_job_that_breaks_between_two_engine_runs_has_no_other() -> None:
    run = led_to(P.BETWEEN)
    run.handle(JobBroken(BROKEN))
    assert run.handle(EngineRunClosed()) == [EndRun(BROKEN_END)]


def test_a_job_that_has_finished_does_not_fail_because_closing_does() -> None:
    run = led_to(P.CLOSING)
    run.handle(JobBroken(BROKEN))
    assert run.handle(EngineRunClosed()) == [EndRun(FINISHED)]


def test_a_job_changes_its_engine_as_often_as_it_has_to() -> None:
    run = led_to(P.BETWEEN)
    run.handle(EngineRunClosed())
    assert run.is_switching is False
    run.handle(EpochOwned())
    (stop,) = run.handle(LagSeen(0, 5_000))
    assert isinstance(stop, StopEngine)
    assert run.is_switching
    assert run.handle(EngineRunEnded(STOPPED)) == [CloseEngine(is_last=False)]
    assert run.handle(EngineRunClosed()) == [AnnounceSwitch("micro-batch", stop.why), start(3)]


# Rules that know nothing of the table.


class Observer:
    """What the events and effects so far have led to outside of the machine."""

    def __init__(self) -> None:
        self.engine: str = ""
        self.numbers: list[int] = []
        self.owned = self.ends = 0
        self.announced: EndJob | None = None
        self.was_asked = False
        self.was_broken = False
        self.asked_engine = False
        self.untold = 0

    def check(self, event: RunEvent, effects: list[RunEffect]) -> None:
        is_open = self.engine in ("starts", "runs")
        is_between = self.engine == "closing" and self.announced is None
        match event:
            case EpochOwned() if is_open:
                self.engine = "runs"
            case EngineRunEnded() if is_open:
                self.engine = "ended"
            case EngineRunClosed():
                self.engine = ""
            case EndRequested() if not self.ends:
                self.was_asked = True
                self.untold += not self.numbers
            case JobBroken():
                self.was_broken = True
            case _:
                pass
        for effect in effects:
            assert not self.ends, "something happens after the end"
            match effect:
                case StartEngine(number):
                    assert not self.engine, "two engine runs at once"
                    assert not self.asked_engine, "an engine run follows one that was asked to end"
                    assert not self.was_broken, "a broken job goes on"
                    assert self.announced is None, "an engine run follows the end"
                    assert number == len(self.numbers) + 1
                    self.numbers.append(number)
                    self.engine = "starts"
                case PostToEngine():
                    assert self.engine in ("starts", "runs"), "a request to nobody"
                    self.asked_engine = True
                case StopEngine():
                    assert self.engine == "runs"
                    assert not self.was_asked, "a switch when the end was asked for"
                case CloseEngine():
                    assert self.engine == "ended" or (is_open and self.was_broken), "nothing has ended"
                    self.engine = "closing"
                case AnnounceOwned():
                    self.owned += 1
                    assert self.owned == 1
                case AnnounceSwitch():
                    assert not self.engine
                case AnnounceEnd(end):
                    assert self.announced is None, "two ends"
                    self.announced = end
                case EndRun(end):
                    self.ends += 1
                    assert end == self.announced, "listeners know of another end"
                    assert not self.engine, "the end while something runs"
        if isinstance(event, JobStarted):
            assert any(isinstance(one, StartEngine) for one in effects), "nothing starts"
            told = sum(isinstance(one, PostToEngine) for one in effects)
            assert told == self.untold, "a request is lost"
        if isinstance(event, EndRequested) and is_open:
            assert any(isinstance(one, PostToEngine) for one in effects), "a request is lost"
        if isinstance(event, EndRequested | JobBroken) and is_between:
            assert self.announced is not None, "the other engine has to start first"
        if isinstance(event, EpochOwned) and is_open:
            assert self.owned == 1, "whoever has started the job waits"
        if isinstance(event, EngineRunEnded) and is_open:
            assert any(isinstance(one, CloseEngine) for one in effects), "an engine run is never closed"
        if isinstance(event, EngineRunClosed):
            assert any(isinstance(one, StartEngine | EndRun) for one in effects), "nothing follows"
        if isinstance(event, JobBroken):
            assert self.announced is not None, "a broken job goes on"
            assert self.ends or self.engine in ("ended", "closing"), "an engine run is never closed"

    def possible(self) -> Iterator[RunEvent]:
        """Yield what may happen next, outside."""
        if self.ends:
            yield from (STOP, JobBroken(BROKEN))
            return
        if not self.numbers:
            yield JobStarted()
        yield from (STOP, CANCEL, JobBroken(BROKEN))
        if self.engine == "starts":
            yield EpochOwned()
        if self.engine == "runs":
            yield BatchVisible(CheckpointId(len(self.numbers)), 0, is_drained=False)
            yield LagSeen(0, 5_000)
        if self.engine in ("starts", "runs"):
            yield from (EngineRunEnded(STOPPED), EngineRunEnded(FAILED))
        if self.engine == "closing":
            yield EngineRunClosed()
            if self.was_broken:
                # It had not ended yet when it was closed.
                yield from (EpochOwned(), EngineRunEnded(FAILED))


def walk(depth: int) -> set[RunPhase]:
    """Check all that may happen in so many steps; return the phases that were seen."""
    seen: set[RunPhase] = set()
    # From where, and with how many steps left.
    walked: dict[str, int] = {}

    def go(run: JobRun, outside: Observer, left: int) -> None:
        seen.add(run.phase)
        engines = run._engines
        state = {**vars(run), "dropped": 0, "_engines": engines and {**vars(engines), "dropped": 0}}
        where = repr((state, vars(outside)))
        if walked.get(where, 0) >= left:
            return
        walked[where] = left
        for event in outside.possible():
            next_run, next_outside = copy.deepcopy(run), copy.deepcopy(outside)
            next_outside.check(event, next_run.handle(event))
            go(next_run, next_outside, left - 1)

    go(auto(), Observer(), depth)
    go(JobRun("continuous"), Observer(), depth - 2)
    return seen


DEPTH = 7


def test_no_order_of_events_breaks_a_rule() -> None:
    assert walk(DEPTH) == set(RunPhase)


PLANTED = [
    (key, wrong)
    for key, right in TRANSITIONS.items()
    for wrong in (RunPhase.RUNNING, RunPhase.CLOSING, RunPhase.OVER, None)
    if wrong is not right
    # A run that is asked twice, or owns its epoch late, is where it was.
    and not (wrong is None and key in ((P.ENDING, RunTurn.ASK), (P.ENDING, RunTurn.OWNED)))
]


@pytest.mark.parametrize(("key", "wrong"), PLANTED, ids=str)
def test_a_planted_transition_is_found(
    key: tuple[RunPhase, RunTurn], wrong: RunPhase | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = {one: phase for one, phase in TRANSITIONS.items() if one != key or wrong is not None}
    if wrong is not None:
        planted[key] = wrong
    monkeypatch.setattr(job_run, "TRANSITIONS", planted)
    with pytest.raises((AssertionError, KeyError)):
        walk(DEPTH)
        for phase in RunPhase:
            test_every_event_in_every_phase(phase)
