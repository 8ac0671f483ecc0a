"""How much of a world is explored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tests.proof.explorer.machines import Numbers


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
        savepoints: Somebody asks for a savepoint, at any time; 1 at most.
    """

    crashes: int = 0
    zombies: int = 0
    drivers: int = 0
    unknown: int = 0
    timeouts: int = 0
    failures: int = 0
    repeats: int = 0
    savepoints: int = 0


NO_FAULTS = Faults()


@dataclass(frozen=True)
class Bounds:
    """How much of the world is explored.

    Attributes:
        checkpoints: Periodic checkpoints; those that end the job come on top.
        in_flight: So many checkpoints may be under way at once.
        retain: So many completed checkpoints are kept.
        segment_entries_max: After so many entries the log goes on in a new segment.
        slow_control: What a worker tells the coordinator takes its time as well.
    """

    checkpoints: int = 1
    faults: Faults = NO_FAULTS
    in_flight: int = 1
    retain: int = 1
    slow_control: bool = False
    segment_entries_max: int = 1_000


class Cost(IntEnum):
    """What a step takes out of the budget."""

    NOTHING = 0
    CHECKPOINT = 1
    CRASH = 2
    ZOMBIE = 3
    DRIVER = 4
    SECOND_DRIVER = 5
    UNKNOWN = 6
    TIMEOUT = 7
    FAILURE = 8
    REPEAT = 9
    SAVEPOINT = 10


SPENT: dict[Cost, tuple[str, ...]] = {
    Cost.NOTHING: (),
    Cost.CHECKPOINT: ("checkpoints",),
    Cost.CRASH: ("crashes",),
    Cost.ZOMBIE: ("crashes", "zombies"),
    Cost.DRIVER: ("drivers",),
    Cost.SECOND_DRIVER: ("drivers", "zombies"),
    Cost.UNKNOWN: ("unknown",),
    Cost.TIMEOUT: ("timeouts",),
    Cost.FAILURE: ("failures",),
    Cost.REPEAT: ("repeats",),
    Cost.SAVEPOINT: ("savepoints",),
}


class Budgets:
    """What is left of the bounds, by number."""

    def __init__(self) -> None:
        self._budgets: Numbers[tuple[Faults, int]] = Numbers()
        self._after: list[list[int]] = []

    def number(self, bounds: Bounds) -> int:
        """Return the whole budget."""
        return self._budgets.number((bounds.faults, bounds.checkpoints))

    def faults(self, budget: int) -> Faults:
        """Return what may still go wrong."""
        return self._budgets.values[budget][0]

    def after(self, budget: int) -> list[int]:
        """Return what is left of a budget by what is taken out of it, -1 if it does not allow that."""
        known = self._after
        while len(known) <= budget:
            faults, checkpoints = self._budgets.values[len(known)]
            row: list[int] = []
            known.append(row)
            for cost in Cost:
                left = {**faults._asdict(), "checkpoints": checkpoints}
                for name in SPENT[cost]:
                    left[name] -= 1
                if min(left.values()) < 0:
                    row.append(-1)
                else:
                    fewer = left.pop("checkpoints")
                    row.append(self._budgets.number((Faults(**left), fewer)))
        return known[budget]
