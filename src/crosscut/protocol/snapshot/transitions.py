"""What each snapshot protocol makes of checkpoint n: tables of (state, what happens) -> next state, effects.

The machines don't read them, since they know more than a state: which inputs owe which barrier. So there may
be several outcomes. A test takes every machine through all of its states, with every event in each, and
finds these outcomes and no others. docs/protocol.md shows the tables as they stand here.

Blocking is left out: a channel is blocked if and only if it has delivered the barrier that is being aligned,
and every channel of a task that stands still.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from crosscut.protocol import effects as do
from crosscut.protocol.effects import TaskEffect
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshot.snapshotting import SnapshotState


class Happening(Enum):
    """The events of a task, as seen from checkpoint n."""

    BARRIER = "barrier n"
    NEWER_BARRIER = "barrier of a newer checkpoint"
    ANNOUNCED = "barrier n waits in an input"
    DEPARTED = "barrier n has left"
    TRIGGERED = "trigger n"
    NEWER_TRIGGERED = "trigger of a newer checkpoint"
    TIMED_OUT = "the alignment of n times out"
    NEWER_TIMED_OUT = "the alignment of a newer checkpoint times out"
    ABORTED = "abort n"
    STORED = "snapshot n is stored"
    FAILED = "snapshot n can't be stored"
    CAPTURE_ALLOWED = "permission to capture n"
    RESUMED = "resume after n"


class Outcome(NamedTuple):
    """One of the things that may come of it.

    Attributes:
        next: The state afterwards.
        effects: Those that name n, in order, without the start of its alignment timer.
    """

    next: SnapshotState
    effects: tuple[type[TaskEffect], ...] = ()


Table = Mapping[tuple[SnapshotState, Happening], frozenset[Outcome]]
"""Any other pair changes nothing: the event is dropped, or impossible, which raises `ProtocolError`."""

UNSEEN, ALIGNING, PASSED = SnapshotState.UNSEEN, SnapshotState.ALIGNING, SnapshotState.PASSED
HALTED, ANSWERED = SnapshotState.HALTED, SnapshotState.ANSWERED
LOGGING, DEPARTING, STORING = SnapshotState.LOGGING, SnapshotState.DEPARTING, SnapshotState.STORING
BOTH = SnapshotState.LOGGING_AND_DEPARTING
BARRIER, NEWER_BARRIER = Happening.BARRIER, Happening.NEWER_BARRIER
TRIGGERED, NEWER_TRIGGERED = Happening.TRIGGERED, Happening.NEWER_TRIGGERED
TIMED_OUT, NEWER_TIMED_OUT = Happening.TIMED_OUT, Happening.NEWER_TIMED_OUT
ABORTED, STORED, FAILED = Happening.ABORTED, Happening.STORED, Happening.FAILED
DEPARTED, CAPTURE_ALLOWED, RESUMED = Happening.DEPARTED, Happening.CAPTURE_ALLOWED, Happening.RESUMED

_DECLINES = (do.DiscardSnapshot, do.DeclineCheckpoint)
_FORWARDS = (do.CaptureState, do.ForwardBarrier)
_OVERTAKES = (do.CaptureState, do.OvertakeWithBarrier)


def _to(state: SnapshotState, *effects: type[TaskEffect]) -> Outcome:
    return Outcome(state, effects)


def _any(*outcomes: Outcome) -> frozenset[Outcome]:
    return frozenset(outcomes)


# After the capture: log until the owed barriers have come, then write, then acknowledge.
_CAPTURED: Table = {
    (LOGGING, BARRIER): _any(_to(LOGGING), _to(STORING, do.StoreSnapshot)),
    (LOGGING, NEWER_BARRIER): _any(_to(LOGGING), _to(PASSED, *_DECLINES)),
    (LOGGING, ABORTED): _any(_to(PASSED, do.DiscardSnapshot)),
    (STORING, ABORTED): _any(_to(PASSED, do.DiscardSnapshot)),
    (STORING, STORED): _any(_to(PASSED, do.AcknowledgeSnapshot)),
    (STORING, FAILED): _any(_to(PASSED, *_DECLINES)),
}

# A checkpoint that was given up before anything was captured.
_NOT_CAPTURED: Table = {
    (UNSEEN, NEWER_BARRIER): _any(_to(UNSEEN), _to(PASSED)),
    (UNSEEN, NEWER_TRIGGERED): _any(_to(UNSEEN), _to(PASSED)),
    (UNSEEN, ABORTED): _any(_to(PASSED)),
    (ALIGNING, NEWER_BARRIER): _any(_to(PASSED, do.DeclineCheckpoint)),
    (ALIGNING, ABORTED): _any(_to(PASSED)),
}

_CAPTURES_WITH_THE_LAST = _any(
    _to(ALIGNING), _to(LOGGING, *_FORWARDS, do.StartLog), _to(STORING, *_FORWARDS, do.StoreSnapshot)
)

_ALIGNED: Table = {
    **_NOT_CAPTURED,
    **_CAPTURED,
    (UNSEEN, TRIGGERED): _any(_to(STORING, *_FORWARDS, do.StoreSnapshot)),
    (UNSEEN, BARRIER): _CAPTURES_WITH_THE_LAST,
    (UNSEEN, NEWER_BARRIER): _any(_to(PASSED)),
    (ALIGNING, BARRIER): _CAPTURES_WITH_THE_LAST,
}

_AT_LEAST_ONCE: Table = {
    **_ALIGNED,
    (UNSEEN, NEWER_BARRIER): _any(_to(UNSEEN), _to(PASSED)),
    (ALIGNING, NEWER_BARRIER): _any(_to(ALIGNING), _to(PASSED, do.DeclineCheckpoint)),
}

_UNALIGNED: Table = {
    **{pair: outcomes for pair, outcomes in _NOT_CAPTURED.items() if pair[0] is not ALIGNING},
    **_CAPTURED,
    (UNSEEN, TRIGGERED): _any(_to(STORING, *_OVERTAKES, do.StoreSnapshot)),
    (UNSEEN, BARRIER): _any(
        _to(LOGGING, *_OVERTAKES, do.StartLog),
        _to(STORING, *_OVERTAKES, do.StartLog, do.StoreSnapshot),
    ),
}

_DEPARTS_AFTER_THE_LAST = _any(_to(ALIGNING), _to(DEPARTING, *_FORWARDS), _to(BOTH, *_FORWARDS, do.StartLog))

_SWITCHING: Table = {
    **_ALIGNED,
    (UNSEEN, TRIGGERED): _any(_to(DEPARTING, *_FORWARDS)),
    (UNSEEN, BARRIER): _DEPARTS_AFTER_THE_LAST,
    (UNSEEN, TIMED_OUT): _any(
        _to(LOGGING, *_OVERTAKES, do.StartLog), _to(STORING, *_OVERTAKES, do.StoreSnapshot)
    ),
    (UNSEEN, NEWER_TIMED_OUT): _any(_to(UNSEEN), _to(PASSED)),
    (ALIGNING, BARRIER): _DEPARTS_AFTER_THE_LAST,
    (ALIGNING, TIMED_OUT): _any(_to(LOGGING, *_OVERTAKES, do.StartLog)),
    (ALIGNING, NEWER_TIMED_OUT): _any(_to(ALIGNING), _to(PASSED, do.DeclineCheckpoint)),
    (DEPARTING, DEPARTED): _any(_to(STORING, do.StoreSnapshot)),
    (DEPARTING, TIMED_OUT): _any(_to(STORING, do.ExpediteBarrier, do.StoreSnapshot)),
    (DEPARTING, ABORTED): _any(_to(PASSED, do.DiscardSnapshot)),
    (BOTH, BARRIER): _any(_to(BOTH), _to(DEPARTING)),
    (BOTH, NEWER_BARRIER): _any(_to(BOTH), _to(PASSED, *_DECLINES)),
    (BOTH, DEPARTED): _any(_to(LOGGING)),
    (BOTH, TIMED_OUT): _any(_to(LOGGING, do.ExpediteBarrier)),
    (BOTH, ABORTED): _any(_to(PASSED, do.DiscardSnapshot)),
}

_HALTS_WITH_THE_LAST = _any(_to(ALIGNING), _to(HALTED, do.ForwardBarrier, do.ReportQuiet))

_HALTING: Table = {
    **_NOT_CAPTURED,
    **_CAPTURED,
    (UNSEEN, TRIGGERED): _any(_to(HALTED, do.ForwardBarrier, do.ReportQuiet)),
    (UNSEEN, BARRIER): _HALTS_WITH_THE_LAST,
    (ALIGNING, BARRIER): _HALTS_WITH_THE_LAST,
    (HALTED, NEWER_BARRIER): _any(_to(HALTED), _to(PASSED)),
    (HALTED, NEWER_TRIGGERED): _any(_to(HALTED), _to(PASSED)),
    (HALTED, ABORTED): _any(_to(PASSED)),
    (HALTED, CAPTURE_ALLOWED): _any(
        _to(LOGGING, do.CaptureState, do.StartLog), _to(STORING, do.CaptureState, do.StoreSnapshot)
    ),
    (HALTED, RESUMED): _any(_to(PASSED)),
    (LOGGING, NEWER_BARRIER): _any(_to(LOGGING), _to(ANSWERED, *_DECLINES), _to(PASSED, *_DECLINES)),
    (STORING, STORED): _any(_to(ANSWERED, do.AcknowledgeSnapshot), _to(PASSED, do.AcknowledgeSnapshot)),
    (STORING, FAILED): _any(_to(ANSWERED, *_DECLINES), _to(PASSED, *_DECLINES)),
    (ANSWERED, NEWER_BARRIER): _any(_to(ANSWERED), _to(PASSED)),
    (ANSWERED, NEWER_TRIGGERED): _any(_to(ANSWERED), _to(PASSED)),
    (ANSWERED, ABORTED): _any(_to(PASSED)),
    (ANSWERED, RESUMED): _any(_to(PASSED)),
}

TRANSITIONS: Mapping[ProtocolKind, Table] = {
    "aligned": _ALIGNED,
    "unaligned": _UNALIGNED,
    "switching": _SWITCHING,
    "at-least-once": _AT_LEAST_ONCE,
    "halting": _HALTING,
}

_NEVER = frozenset({DEPARTED, TIMED_OUT, NEWER_TIMED_OUT, CAPTURE_ALLOWED, RESUMED})

IMPOSSIBLE: Mapping[ProtocolKind, frozenset[Happening]] = {
    "aligned": _NEVER,
    "unaligned": _NEVER,
    "switching": frozenset({CAPTURE_ALLOWED, RESUMED}),
    "at-least-once": _NEVER,
    "halting": frozenset({DEPARTED, TIMED_OUT, NEWER_TIMED_OUT}),
}
"""Answers to questions that a protocol never asks: they are protocol errors."""
