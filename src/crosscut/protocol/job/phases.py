"""The phases of a job, the turns from one to the next, and where one job is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from crosscut.errors import invariant
from crosscut.foundation.ids import Epoch
from crosscut.protocol.events import ClockRead


class Phase(Enum):
    """Where the job is."""

    CLAIMING = "claiming the epoch in the job log"
    GATHERING = "waiting for Spark to start workers"
    RESTORING = "workers restore their tasks and connect"
    RUNNING = "records flow"
    FINISHING = "the final checkpoint is complete and being committed"
    STOPPING = "the last checkpoint before a stop"
    WAITING = "a task or worker failed; the next epoch is claimed after a delay"
    ENDED = "the job has ended for this driver"


DEPLOYED = frozenset({Phase.RESTORING, Phase.RUNNING, Phase.FINISHING, Phase.STOPPING})
"""Phases in which the workers have tasks, so that losing one is a failure."""

CHECKPOINTED = frozenset({Phase.RUNNING, Phase.STOPPING})
"""Phases in which checkpoints are taken."""


class Turn(Enum):
    """What takes a job from one phase to the next."""

    CLAIMED = "the claim of the epoch is durable"
    GATHERED = "all workers have registered"
    READY = "all workers are ready"
    READY_AT_THE_END = "all are ready, and the restored checkpoint is final"
    FINAL = "a final checkpoint is complete"
    STOP = "stop"
    FAILURE = "a failure that a restart may fix"
    RESTART = "the restart delay is over"
    END = "the job ends for this driver"


TRANSITIONS: Mapping[tuple[Phase, Turn], Phase] = {
    (Phase.CLAIMING, Turn.CLAIMED): Phase.GATHERING,
    (Phase.GATHERING, Turn.GATHERED): Phase.RESTORING,
    (Phase.RESTORING, Turn.READY): Phase.RUNNING,
    (Phase.RESTORING, Turn.READY_AT_THE_END): Phase.FINISHING,
    (Phase.RUNNING, Turn.FINAL): Phase.FINISHING,
    (Phase.RUNNING, Turn.STOP): Phase.STOPPING,
    (Phase.STOPPING, Turn.FINAL): Phase.FINISHING,
    # Another one, which was being appended already.
    (Phase.FINISHING, Turn.FINAL): Phase.FINISHING,
    # Spark has ended the workers.
    (Phase.GATHERING, Turn.FAILURE): Phase.WAITING,
    (Phase.RESTORING, Turn.FAILURE): Phase.WAITING,
    (Phase.RUNNING, Turn.FAILURE): Phase.WAITING,
    (Phase.FINISHING, Turn.FAILURE): Phase.WAITING,
    (Phase.WAITING, Turn.RESTART): Phase.CLAIMING,
    **{(phase, Turn.END): Phase.ENDED for phase in Phase if phase is not Phase.ENDED},
}
"""Every transition there is: the coordinator takes no other. docs/protocol.md draws it."""


def after(phase: Phase, turn: Turn) -> Phase:
    """Return the phase that follows `phase` at `turn`."""
    found = TRANSITIONS.get((phase, turn))
    invariant(found is not None, f"no way leads from {phase.name} at {turn.name}")
    return found or phase


@dataclass(slots=True)
class JobState:
    """Where a job is. The coordinator changes it; its parts read it.

    Attributes:
        epoch: The newest that this driver has claimed.
        now: What time it is.
        since_ms: When the phase began; None: before the time was told.
    """

    phase: Phase = Phase.CLAIMING
    epoch: Epoch = Epoch(0)
    now: ClockRead = field(default_factory=partial(ClockRead, 0, ""))
    since_ms: int | None = None

    @property
    def in_phase_ms(self) -> int:
        """How long the job has been in its phase."""
        return 0 if self.since_ms is None else self.now.now_ms - self.since_ms

    def read_clock(self, now: ClockRead) -> None:
        """Note what time it is."""
        self.now = now
        if self.since_ms is None:
            self.since_ms = now.now_ms

    def go(self, turn: Turn) -> None:
        """Take `turn`."""
        self.phase, self.since_ms = after(self.phase, turn), self.now.now_ms


# Which event takes the turn? What an event is: the class of a message, the name of a timer, or its own class.

Moves = Mapping[Phase, frozenset[Phase]]
"""Which phases may follow, by the phase before; it may also stay the same. Others never follow."""

_OVER = frozenset({Phase.ENDED})
_RESTART_OR_OVER = frozenset({Phase.WAITING, Phase.ENDED})


def _ends(*phases: Phase) -> Moves:
    return dict.fromkeys(phases, _OVER)


_ALL_BUT_ENDED = tuple(phase for phase in Phase if phase is not Phase.ENDED)
_FAILURE: Moves = {
    **dict.fromkeys((Phase.RESTORING, Phase.RUNNING, Phase.FINISHING), _RESTART_OR_OVER),
    Phase.STOPPING: _OVER,
}
_LOG_GIVEN_UP = _ends(Phase.CLAIMING, Phase.RUNNING, Phase.STOPPING, Phase.FINISHING)
_TOO_MANY_CHECKPOINTS_FAILED: Moves = {Phase.RUNNING: _RESTART_OR_OVER, Phase.STOPPING: _OVER}
_DURABLE: Moves = {
    # At once on to RESTORING if all workers are still there; over, if it was claimed to call the job damaged.
    Phase.CLAIMING: frozenset({Phase.GATHERING, Phase.RESTORING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.FINISHING}),
    Phase.STOPPING: frozenset({Phase.FINISHING}),
    Phase.FINISHING: _OVER,
}

MOVES: Mapping[str, Moves] = {
    "CancelRequested": _ends(*_ALL_BUT_ENDED),
    "StopRequested": {
        **_ends(Phase.CLAIMING, Phase.GATHERING, Phase.RESTORING, Phase.WAITING),
        Phase.RUNNING: frozenset({Phase.STOPPING}),
    },
    "RestartRequested": {Phase.RUNNING: frozenset({Phase.WAITING})},
    "CutJudged": _ends(*_ALL_BUT_ENDED),
    "LogTailRead": _ends(Phase.CLAIMING),
    "EntryAppended": _DURABLE,
    "EntryRead": {
        Phase.CLAIMING: frozenset({Phase.GATHERING, Phase.RESTORING, Phase.ENDED}),
        Phase.RUNNING: frozenset({Phase.FINISHING, Phase.ENDED}),
        Phase.STOPPING: frozenset({Phase.FINISHING, Phase.ENDED}),
        Phase.FINISHING: _OVER,
    },
    "EntryRefused": {**_LOG_GIVEN_UP, Phase.RUNNING: _RESTART_OR_OVER},
    "EntryUncertain": _LOG_GIVEN_UP,
    "timer log-call": _LOG_GIVEN_UP,
    "RegisterWorker": {Phase.GATHERING: frozenset({Phase.RESTORING})},
    "WorkerReady": {Phase.RESTORING: frozenset({Phase.RUNNING, Phase.FINISHING})},
    "WorkerFailed": _ends(Phase.CLAIMING, Phase.GATHERING),
    "TaskFailed": _FAILURE,
    "LinkClosed": _FAILURE,
    "timer liveness": _FAILURE,
    "WorkersEnded": {
        **_ends(Phase.CLAIMING, Phase.WAITING),
        **_FAILURE,
        Phase.GATHERING: _RESTART_OR_OVER,
    },
    "SnapshotAcknowledged": _TOO_MANY_CHECKPOINTS_FAILED,
    "SnapshotDeclined": _TOO_MANY_CHECKPOINTS_FAILED,
    "timer checkpoint-timeout": _TOO_MANY_CHECKPOINTS_FAILED,
    "TransactionsCommitted": _ends(Phase.STOPPING),
    "UnitFinished": _ends(Phase.STOPPING),
    "timer read-log": _ends(Phase.CLAIMING),
    "timer discover": _ends(Phase.CLAIMING),
    "timer gather": {Phase.GATHERING: _RESTART_OR_OVER},
    "timer restore": {Phase.RESTORING: _RESTART_OR_OVER},
    "DiscoveryFailed": {Phase.RUNNING: _RESTART_OR_OVER},
    "timer find-timeout": {Phase.RUNNING: _RESTART_OR_OVER},
    "timer restart": {Phase.WAITING: frozenset({Phase.CLAIMING})},
    "timer finish": {Phase.FINISHING: _RESTART_OR_OVER},
    "timer stop": _ends(Phase.STOPPING),
}
"""Every event that may take a job to another phase. No other does, wherever the job is."""
