"""Every state of a small world of units, for the search of the explorer."""

from __future__ import annotations

from collections.abc import Sequence

from tests.proof.explorer.machines import MachineTable, copied
from tests.proof.explorer.search import Found
from tests.proof.unit_log.world import Action, UnitWorld


class UnitStates:
    """The states that `world` can come to, by number."""

    is_reduced = False

    def __init__(self, world: UnitWorld) -> None:
        self._table = MachineTable()
        self._first = self._table.number(world)

    def first(self) -> int:
        """Return the state in which everything begins."""
        return self._first

    def successors(self, state: int) -> tuple[Sequence[Action], Sequence[int]]:
        """Return what can happen in `state`, and the state after each of these steps.

        Raises:
            Violation: Something that must hold doesn't, in `state` or after a step.
        """
        if self.is_finished(state):
            self._table.machines[state].check_end()
        actions = self._table.machines[state].actions()
        return actions, [self._table.step(state, one)[0] for one in actions]

    def is_finished(self, state: int) -> bool:
        """Whether nothing happens in `state` any more unless something fails."""
        world = self._table.machines[state]
        if not world.is_quiet:
            return False
        rest = copied(world)
        rest.end_faults()
        return not rest.progress()


def lines(found: Found) -> str:
    """Return how a search came to what broke, a line a step, or "" if nothing did."""
    if not found.violation:
        return ""
    told = [f"{number:4} {' '.join(map(str, step))}" for number, step in enumerate(found.steps, 1)]
    return "\n".join([*told, f"then: {found.violation}"])
