"""How much of a world is explored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Faults(NamedTuple):
    """What may go wrong, how often each.

    Attributes:
        crashes: A worker dies; its link closes.
        zombies: A worker or driver that is believed dead goes on.
        drivers: The driver dies and another one starts.
        unknown: An append of the log has an unknown outcome: applied, not applied, or applied later.
        timeouts: A checkpoint takes too long and is aborted.
        failures: A snapshot can't be stored, a commit's answer is lost, the log refuses an entry.
        repeats: A message to the coordinator comes once more, at any later time.
    """

    crashes: int = 0
    zombies: int = 0
    drivers: int = 0
    unknown: int = 0
    timeouts: int = 0
    failures: int = 0
    repeats: int = 0


NO_FAULTS = Faults()


@dataclass(frozen=True)
class Bounds:
    """How much of the world is explored.

    Attributes:
        checkpoints: Periodic checkpoints; those that end the job come on top.
        in_flight: So many checkpoints may be under way at once.
        retain: So many completed checkpoints are kept.
        slow_control: What a worker tells the coordinator takes its time as well.
    """

    checkpoints: int = 1
    faults: Faults = NO_FAULTS
    in_flight: int = 1
    retain: int = 1
    slow_control: bool = False
