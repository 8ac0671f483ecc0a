"""What a job runs, from its start to its end: one engine run after the other.

An engine run claims an epoch, restores the newest checkpoint, restarts after failures by itself (see
`crosscut.protocol.job.coordinator`), and ends. A job with two engines stops the one at a checkpoint and
starts the other; `Engines` decides when. At most one engine run exists at a time: the next one starts after
everything of the one before has been closed.

Effects are performed in order. `StartEngine` and `CloseEngine` take time and are answered by events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import assert_never

from crosscut.errors import invariant
from crosscut.foundation.frozen import dataclass
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CancelRequested, StopRequested
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch import engine_switch as switch
from crosscut.protocol.microbatch.engine_switch import BatchVisible, Engine, Engines, LagSeen

EndRequest = StopRequested | CancelRequested

# Events.


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job may run. The first event, once."""


@dataclass(frozen=True, slots=True)
class EpochOwned:
    """The engine run has claimed an epoch. Not posted if it has ended meanwhile."""


@dataclass(frozen=True, slots=True)
class EndRequested:
    """The user asks for the end of the job."""

    request: EndRequest


@dataclass(frozen=True, slots=True)
class EngineRunEnded:
    """The engine run has ended; the cluster may still hold its tasks. Answers `StartEngine`."""

    end: EndJob


@dataclass(frozen=True, slots=True)
class EngineRunClosed:
    """Nothing of the engine run is left but zombies, which the next epoch fences. Answers `CloseEngine`."""


@dataclass(frozen=True, slots=True)
class JobBroken:
    """Performing an effect has failed on the driver, so the job can't continue."""

    cause: FailureCause


RunEvent = (
    JobStarted | EpochOwned | EndRequested | BatchVisible | LagSeen | EngineRunEnded | EngineRunClosed
    | JobBroken
)  # fmt: skip

# Effects.


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Start an engine run, which goes on from the newest checkpoint.

    After: -
    Answer: EpochOwned and later EngineRunEnded, or EngineRunEnded alone
    Lost: with the driver; the next start goes on from the log

    Attributes:
        number: Of the engine run, from 1 on.
    """

    number: int
    engine: Engine


@dataclass(frozen=True, slots=True)
class PostToEngine:
    """Hand a request to the engine run, after `StartEngine`; it may not own an epoch yet.

    After: -
    Answer: EngineRunEnded
    Lost: with the driver, and the request with it
    """

    request: EndRequest


@dataclass(frozen=True, slots=True)
class AnnounceOwned:
    """The job owns its checkpoint directory: let the start return. Emitted once.

    After: the claim of the epoch
    Answer: nothing
    Lost: with the driver
    """


@dataclass(frozen=True, slots=True)
class AnnounceSwitch:
    """Tell listeners that another engine follows; the engine run before is closed.

    After: -
    Answer: nothing
    Lost: with the driver
    """

    engine: Engine
    why: str


@dataclass(frozen=True, slots=True)
class AnnounceEnd:
    """Tell listeners how the job ends. Once, before `EndRun`.

    After: what the outcome says
    Answer: nothing
    Lost: with the driver
    """

    end: EndJob


@dataclass(frozen=True, slots=True)
class CloseEngine:
    """End all that the cluster runs for the engine run.

    After: -
    Answer: EngineRunClosed
    Lost: with the driver; zombies are fenced by the next epoch

    Attributes:
        is_last: No other follows. Else savepoints that are being written are waited for first: they read
            parts that the next engine run may delete.
    """

    is_last: bool


@dataclass(frozen=True, slots=True)
class EndRun:
    """The job is over. The last effect.

    After: what the outcome says
    Answer: nothing
    Lost: with the driver
    """

    end: EndJob


RunEffect = (
    StartEngine | PostToEngine | switch.StopEngine | CloseEngine
    | AnnounceOwned | AnnounceSwitch | AnnounceEnd | EndRun
)  # fmt: skip


class RunPhase(Enum):
    """Where the run of a job is."""

    NEW = "nothing has started"
    STARTING = "an engine run claims an epoch"
    RUNNING = "an engine run has its epoch"
    SWITCHING = "the engine run is to stop, and the other engine follows"
    ENDING = "the user has asked for the end"
    BETWEEN = "an engine run has stopped, and the other engine follows once it is closed"
    CLOSING = "the last engine run has ended and is being closed"
    OVER = "the job is over"


class RunTurn(Enum):
    """What takes the run of a job from one phase to the next."""

    START = "the job may run"
    OWNED = "the engine run has claimed an epoch"
    SWITCH = "the other engine suits the job better"
    ASK = "the user asks for the end"
    HAND_OVER = "the engine run has stopped for the other engine"
    END = "the engine run has ended, and no other follows"
    CLOSED = "the engine run is closed"
    BREAK = "an effect could not be performed"


HAS_ENGINE = frozenset({RunPhase.STARTING, RunPhase.RUNNING, RunPhase.SWITCHING, RunPhase.ENDING})
"""Phases in which an engine run receives requests."""

TRANSITIONS: Mapping[tuple[RunPhase, RunTurn], RunPhase] = {
    (RunPhase.NEW, RunTurn.START): RunPhase.STARTING,
    (RunPhase.STARTING, RunTurn.OWNED): RunPhase.RUNNING,
    (RunPhase.STARTING, RunTurn.ASK): RunPhase.ENDING,
    (RunPhase.STARTING, RunTurn.END): RunPhase.CLOSING,
    (RunPhase.RUNNING, RunTurn.SWITCH): RunPhase.SWITCHING,
    (RunPhase.RUNNING, RunTurn.ASK): RunPhase.ENDING,
    (RunPhase.RUNNING, RunTurn.END): RunPhase.CLOSING,
    (RunPhase.SWITCHING, RunTurn.ASK): RunPhase.ENDING,
    (RunPhase.SWITCHING, RunTurn.HAND_OVER): RunPhase.BETWEEN,
    (RunPhase.SWITCHING, RunTurn.END): RunPhase.CLOSING,
    (RunPhase.ENDING, RunTurn.OWNED): RunPhase.ENDING,
    (RunPhase.ENDING, RunTurn.ASK): RunPhase.ENDING,
    (RunPhase.ENDING, RunTurn.END): RunPhase.CLOSING,
    (RunPhase.BETWEEN, RunTurn.ASK): RunPhase.CLOSING,
    (RunPhase.BETWEEN, RunTurn.CLOSED): RunPhase.STARTING,
    (RunPhase.CLOSING, RunTurn.CLOSED): RunPhase.OVER,
    (RunPhase.NEW, RunTurn.BREAK): RunPhase.OVER,
    (RunPhase.BETWEEN, RunTurn.BREAK): RunPhase.CLOSING,
    # What the cluster holds for the engine run is given back first.
    **{(phase, RunTurn.BREAK): RunPhase.CLOSING for phase in RunPhase if phase in HAS_ENGINE},
}
"""Every transition there is. In any other case an event is stale, and dropped.

In CLOSING it is known how the job ends: what fails from then on does not change it.
"""


class JobRun:
    """Decides what a job runs.

    Args:
        engine: The one that runs; with `engines`, that decides.
        engines: Of a job with two engines; None: it has one.

    Attributes:
        phase: Where it is.
        number: Of the newest engine run; 0: none yet.
        end: How the job ends, once that is known.
    """

    def __init__(self, engine: Engine, engines: Engines | None = None) -> None:
        self._engine = engine
        self._engines = engines
        self.phase = RunPhase.NEW
        self.number = 0
        self.end: EndJob | None = None
        # Requests from before the first engine run.
        self._unsent: list[EndRequest] = []
        self._is_owned = False
        # In BETWEEN: what follows, and how the engine run before has ended.
        self._following: switch.StartEngine | None = None
        self._stopped: EndJob | None = None
        self.dropped: Counter[str] = Counter()

    @property
    def is_switching(self) -> bool:
        """Whether one engine makes way for the other."""
        return self.phase in (RunPhase.SWITCHING, RunPhase.BETWEEN)

    def handle(self, event: RunEvent) -> list[RunEffect]:
        """Take one event and return the effects to perform, in order."""
        match event:
            case JobStarted():
                return self._start() if self._go(RunTurn.START) else []
            case EpochOwned():
                return self._owned() if self._go(RunTurn.OWNED) else []
            case EndRequested(request):
                return self._end_requested(request)
            case BatchVisible() | LagSeen():
                return self._lag_seen(event)
            case EngineRunEnded(end):
                return self._engine_ended(end)
            case EngineRunClosed():
                return self._closed() if self._go(RunTurn.CLOSED) else []
            case JobBroken(cause):
                return self._broken(cause)
            case _:
                assert_never(event)

    def _start(self) -> list[RunEffect]:
        self.number += 1
        engine = self._engines.engine if self._engines is not None else self._engine
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._go(RunTurn.ASK)
        return [StartEngine(self.number, engine), *map(PostToEngine, unsent)]

    def _owned(self) -> list[RunEffect]:
        announced: list[RunEffect] = [] if self._is_owned else [AnnounceOwned()]
        self._is_owned = True
        return announced

    def _end_requested(self, request: EndRequest) -> list[RunEffect]:
        if self.phase in (RunPhase.CLOSING, RunPhase.OVER):
            self.dropped["request after the end"] += 1
            return []
        if self._engines is not None:
            self._engines.handle(switch.EndAsked())
        if self.phase is RunPhase.NEW:
            self._unsent.append(request)
            return []
        is_between = self.phase is RunPhase.BETWEEN
        self._go(RunTurn.ASK)
        return self._ended_between(request) if is_between else [PostToEngine(request)]

    def _ended_between(self, request: EndRequest) -> list[RunEffect]:
        """End without another engine run: the one before has stopped at a checkpoint."""
        match request:
            case StopRequested():
                invariant(self._stopped is not None, "no engine run has stopped, and another one follows")
                self.end = self._stopped
            case CancelRequested(cause):
                self.end = EndJob("failed" if cause else "cancelled", cause)
            case _:
                assert_never(request)
        self._following = None
        return [AnnounceEnd(self.end)] if self.end is not None else []

    def _lag_seen(self, event: BatchVisible | LagSeen) -> list[RunEffect]:
        if self._engines is None or self.phase is not RunPhase.RUNNING:
            self.dropped["lag of an engine run that is not to stop"] += 1
            return []
        stops = [one for one in self._engines.handle(event) if isinstance(one, switch.StopEngine)]
        if stops:
            self._go(RunTurn.SWITCH)
        return [*stops]

    def _engine_ended(self, end: EndJob) -> list[RunEffect]:
        if self.phase not in HAS_ENGINE:
            self.dropped["end of an engine run that has ended"] += 1
            return []
        follows = self._engines.handle(switch.EngineEnded(end.outcome)) if self._engines is not None else []
        for effect in follows:
            if isinstance(effect, switch.StartEngine):
                self._go(RunTurn.HAND_OVER)
                self._following, self._stopped = effect, end
                return [CloseEngine(is_last=False)]
        self._go(RunTurn.END)
        self.end = end
        return [AnnounceEnd(end), CloseEngine(is_last=True)]

    def _closed(self) -> list[RunEffect]:
        following, self._following = self._following, None
        if following is not None:
            return [AnnounceSwitch(following.engine, following.why), *self._start()]
        end = self.end
        invariant(end is not None, "the last engine run is closed, and has not ended")
        return [EndRun(end)] if end is not None else []

    def _broken(self, cause: FailureCause) -> list[RunEffect]:
        before = self.phase
        if not self._go(RunTurn.BREAK):
            return []
        self._following = None
        self.end = end = EndJob("failed", cause)
        announced: list[RunEffect] = [AnnounceEnd(end)]
        if before is RunPhase.NEW:
            return [*announced, EndRun(end)]
        if before is RunPhase.BETWEEN:
            # The engine run is being closed already.
            return announced
        # Its workers end by themselves then, and it takes no other checkpoint meanwhile.
        return [*announced, PostToEngine(CancelRequested(cause)), CloseEngine(is_last=True)]

    def _go(self, turn: RunTurn) -> bool:
        """Take a turn, if there is one from here; return whether there was."""
        found = TRANSITIONS.get((self.phase, turn))
        if found is None:
            self.dropped[f"{turn.name} in phase {self.phase.name}"] += 1
            return False
        self.phase = found
        return True
