"""Which engine a job runs under with `engine="auto"`, and when it goes over to the other.

A job that is far behind catches up in batches; one that has caught up runs in tasks that stay. It goes over
by a stop at a checkpoint and a start under the other engine, so this decides nothing about records: whatever
becomes of the stop, the next engine claims an epoch and goes on from the newest checkpoint. After a stop
without a last one, since something failed meanwhile, some work is done again.

How far behind it is:

* After a batch: by what readers know of their lag. Of one that knows nothing, a batch that was full says that
  more waits, nobody knows how much; and one that was not, that nothing does.
* While tasks run: by the sum of the lags that are known. A source that doesn't know is never behind.

It comes to rest: it goes back only if so much more waits than when it went over, for so long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Literal, assert_never

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId

Engine = Literal["continuous", "micro-batch"]


@dataclass(frozen=True, slots=True)
class SourceRead:
    """What one source task has said after a batch.

    Attributes:
        lag: Records that wait, as far as its readers know; None: none of them does.
        is_full: It stopped because the batch may hold no more.
    """

    lag: int | None
    is_full: bool


def waiting(sources: Iterable[SourceRead]) -> int | None:
    """Return how many records wait after a batch; None: some do, but it is unknown how many."""
    total = 0
    for one in sources:
        if one.lag is not None:
            total += one.lag
        elif one.is_full:
            return None
    return total


def behind(lags: Iterable[int | None]) -> int | None:
    """Return how many records wait while tasks run; None: no source knows."""
    known = [one for one in lags if one is not None]
    return sum(known) if known else None


# Events.


@dataclass(frozen=True, slots=True)
class BatchVisible:
    """The output of batch n is visible. It may be told more than once.

    Attributes:
        waiting: See `waiting`.
        is_drained: All input has been read: the job ends by itself.
    """

    checkpoint_id: CheckpointId
    waiting: int | None
    is_drained: bool


@dataclass(frozen=True, slots=True)
class LagSeen:
    """Tasks run, and so many records wait; None: no source knows."""

    now_ms: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class EndAsked:
    """The user has asked for the end of the job: whichever engine runs hears of it."""


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """What ran has ended, and nothing of it acts any more but zombies, which the next epoch fences."""

    outcome: str


EngineEvent = BatchVisible | LagSeen | EndAsked | EngineEnded

# Effects.


@dataclass(frozen=True, slots=True)
class StopEngine:
    """Have what runs take a last checkpoint and end.

    After: -
    Answer: EngineEnded
    Lost: with the driver; the next start goes on from the log
    """

    why: str


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Go on from the newest checkpoint under this engine.

    After: the end of the other engine run
    Answer: EngineEnded, at its end
    Lost: with the driver; the next start goes on from the log
    """

    engine: Engine
    why: str


EngineEffect = StopEngine | StartEngine


class Switch(Enum):
    """Where a job with two engines is."""

    RUNNING = "an engine runs"
    SWITCHING = "the engine ends, and the other one starts"
    ENDING = "the user has stopped the job: no other engine starts"
    OVER = "the job is over"


class Engines:
    """The engines of one run of a job, one at a time.

    Args:
        caught_up_at: With so many records waiting, or fewer, after a batch, tasks go on.
        behind_at: With more waiting, for `behind_for_ms`, batches do.

    Attributes:
        engine: The one that runs, or has to be started.
        phase: Where it is.
    """

    def __init__(self, *, caught_up_at: int, behind_at: int, behind_for_ms: int) -> None:
        self._caught_up_at = caught_up_at
        self._behind_at = behind_at
        self._behind_for_ms = behind_for_ms
        # It is not known yet how far behind it is; the first batch says so.
        self.engine: Engine = "micro-batch"
        self.phase = Switch.RUNNING
        self._behind_since_ms: int | None = None
        self._seen = CheckpointId(0)
        self._why = ""
        self.dropped: Counter[str] = Counter()

    def handle(self, event: EngineEvent) -> list[EngineEffect]:
        """Take one event and return the effects to perform, in order."""
        match event:
            case BatchVisible():
                return self._batch(event)
            case LagSeen(now_ms, lag):
                return self._lag(now_ms, lag)
            case EndAsked():
                return self._end_asked()
            case EngineEnded(outcome):
                return self._ended(outcome)
            case _:
                assert_never(event)

    def _batch(self, event: BatchVisible) -> list[EngineEffect]:
        if self.phase is not Switch.RUNNING or self.engine != "micro-batch":
            self.dropped["word of an engine that is to end"] += 1
            return []
        if event.checkpoint_id <= self._seen:
            self.dropped["batch that was seen"] += 1
            return []
        self._seen = event.checkpoint_id
        if event.is_drained or event.waiting is None or event.waiting > self._caught_up_at:
            return []
        return self._switch(f"{event.waiting} records wait after batch {event.checkpoint_id}")

    def _lag(self, now_ms: int, lag: int | None) -> list[EngineEffect]:
        if self.phase is not Switch.RUNNING or self.engine != "continuous":
            self.dropped["word of an engine that is to end"] += 1
            return []
        if lag is None or lag <= self._behind_at:
            self._behind_since_ms = None
            return []
        if self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        if now_ms - self._behind_since_ms < self._behind_for_ms:
            return []
        return self._switch(f"{lag} records wait, and more than {self._behind_at} did for some time")

    def _switch(self, why: str) -> list[EngineEffect]:
        self.phase = Switch.SWITCHING
        self._why = why
        return [StopEngine(why)]

    def _end_asked(self) -> list[EngineEffect]:
        if self.phase is not Switch.OVER:
            self.phase = Switch.ENDING
        return []

    def _ended(self, outcome: str) -> list[EngineEffect]:
        if self.phase is Switch.OVER:
            self.dropped["end of a job that is over"] += 1
            return []
        # It may have finished, failed or been fenced before it heard that it is to stop.
        if self.phase is not Switch.SWITCHING or outcome != "stopped":
            self.phase = Switch.OVER
            return []
        self.phase = Switch.RUNNING
        self.engine = "continuous" if self.engine == "micro-batch" else "micro-batch"
        self._behind_since_ms = None
        return [StartEngine(self.engine, self._why)]
