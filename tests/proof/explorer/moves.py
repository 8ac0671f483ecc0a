"""What can happen on one side of the explored world, and what came of it when it first did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.proof.explorer.bounds import Cost
from tests.proof.explorer.reduction import Eager
from tests.proof.explorer.task_table import Step

Side = tuple[int, ...]
"""A driver and its workers: driver, then tasks, inboxes and outboxes by number."""

Zombie = tuple[int, int, int]
"""A worker that is believed dead: its place, its task and what it has yet to hear, by number."""

UNKNOWN, OF_THE_STORE = -1, -2
"""Instead of the side that a step leads to: nobody has asked yet; it depends on the store."""


class Move:
    """A step of a side: a method of `Draft`, called when the step is first taken."""

    __slots__ = ("call", "cost", "deeds", "eager", "ghost", "known", "side", "step", "zombie")

    def __init__(self, step: Step, *call: Any, cost: Cost = Cost.NOTHING, eager: Eager = Eager.NO) -> None:
        self.step = step
        self.call = call
        self.cost = cost
        self.eager = eager
        self.ghost = 0
        """A message that comes again at some time, because of this."""
        self.zombie: Zombie | None = None
        """A worker that goes on after this, believed dead."""
        self.side = UNKNOWN
        """The side afterwards, or one of the two numbers above."""
        self.deeds = 0
        self.known: dict[int, tuple[int, int]] = {}
        """Store and side after, by the store before."""


@dataclass(slots=True)
class Moves:
    """What can happen on one side; None as long as nobody has asked.

    Attributes:
        eager: A step that it is enough to explore alone; see `tests.proof.explorer.reduction`.
        lazy: Only if nothing else can: there would be no end of checkpoints that find everything as it was.
    """

    side: Side
    is_zombie: bool
    is_finished: bool
    eager: Move | None
    normal: list[Move] | None = None
    lazy: list[Move] = field(default_factory=list)
    faults: list[Move] | None = None
