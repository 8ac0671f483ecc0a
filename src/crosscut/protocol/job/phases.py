"""The phases of a job, and which may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Phase(Enum):
    """Where the job is."""

    CLAIMING = "claiming the epoch in the job log"
    GATHERING = "waiting for Spark to start workers"
    RESTORING = "workers restore their tasks and connect"
    RUNNING = "records flow"
    FINISHING = "the final checkpoint is complete and being committed"
    STOPPING = "a last checkpoint is taken before the job stops"
    WAITING = "a failure happened; the next epoch is claimed after a delay"
    ENDED = "over, for this driver"


DEPLOYED = frozenset({Phase.RESTORING, Phase.RUNNING, Phase.FINISHING, Phase.STOPPING})
"""Phases in which the workers have tasks, so that losing one is a failure."""

CHECKPOINTED = frozenset({Phase.RUNNING, Phase.STOPPING})
"""Phases in which checkpoints are taken."""

NEXT_PHASES: Mapping[Phase, frozenset[Phase]] = {
    Phase.CLAIMING: frozenset({Phase.GATHERING, Phase.ENDED}),
    Phase.GATHERING: frozenset({Phase.RESTORING, Phase.WAITING, Phase.ENDED}),
    Phase.RESTORING: frozenset({Phase.RUNNING, Phase.FINISHING, Phase.WAITING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.FINISHING, Phase.STOPPING, Phase.WAITING, Phase.ENDED}),
    Phase.FINISHING: frozenset({Phase.FINISHING, Phase.WAITING, Phase.ENDED}),
    Phase.STOPPING: frozenset({Phase.FINISHING, Phase.ENDED}),
    Phase.WAITING: frozenset({Phase.CLAIMING, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
"""Every transition there is; docs/protocol.md draws it."""
