"""The reduction leaves nothing out: with and without it, a small world ends in the same states."""

from __future__ import annotations

from typing import Any

import pytest
from tests.proof.explorer.bounds import Bounds, Faults
from tests.proof.explorer.graphs import graph
from tests.proof.explorer.search import Found, explore
from tests.proof.explorer.world import State, World
from tests.proof.explorer.world_tables import Make

from crosscut.foundation.ids import ChannelId
from crosscut.protocol import effects as do
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.choosing import ProtocolKind

WORLDS: list[tuple[str, ProtocolKind, int, int, dict[str, int]]] = [
    ("chain", "aligned", 2, 1, {}),
    ("chain", "aligned", 1, 1, {"crashes": 1}),
    ("chain", "at-least-once", 1, 1, {}),
    ("chain", "halting", 1, 1, {}),
    ("join", "aligned", 1, 1, {}),
    ("diamond", "aligned", 0, 1, {}),
    ("two sinks", "aligned", 1, 1, {}),
    ("edge", "aligned", 1, 1, {"crashes": 1, "zombies": 1}),
    ("edge", "aligned", 1, 1, {"drivers": 1, "zombies": 1}),
    ("edge", "aligned", 1, 1, {"failures": 1, "timeouts": 1}),
    ("loop", "aligned", 1, 1, {}),
    # Nothing is left out here, and nothing may be.
    ("edge", "unaligned", 1, 1, {}),
    ("edge", "switching", 1, 1, {}),
]

LARGER: list[tuple[str, ProtocolKind, int, int, dict[str, int]]] = [
    ("chain", "at-least-once", 1, 1, {"crashes": 1}),
    ("chain", "halting", 1, 1, {"crashes": 1}),
    ("join", "aligned", 0, 1, {"timeouts": 1}),
    ("loop", "switching", 1, 1, {}),
]
"""The largest of them, for `make prove`."""


def ends_of(world: World) -> tuple[Found, set[object]]:
    """Explore `world`; return what was found, and all states in which nothing is left to happen."""
    ends: set[object] = set()

    def visit(state: State) -> None:
        if world.is_finished(state) and not world.successors(state)[1]:
            store, budget, _, zombies, side, _ = state
            assert not zombies and not any(world.sides.values[side][1:]), "something could still act"
            # The log as it reads, not as this search has numbered it.
            stored = world.store.value(store)._replace(log=())
            ends.add((stored, world.store.log(store), world.budgets.faults(budget)))

    return explore(world, visit=visit), ends


@pytest.mark.parametrize(
    ("name", "kind", "records", "checkpoints", "faults"),
    [*WORLDS, *(pytest.param(*one, marks=pytest.mark.proof) for one in LARGER)],
    ids=lambda one: str(one).replace(" ", ""),
)
def test_a_reduced_search_ends_in_the_same_states(
    name: str, kind: ProtocolKind, records: int, checkpoints: int, faults: dict[str, int]
) -> None:
    bounds = Bounds(checkpoints, Faults(**faults))
    worlds = [
        World(graph(name, records), kind, bounds, is_reduced=is_reduced) for is_reduced in (True, False)
    ]
    (reduced, some), (whole, every) = map(ends_of, worlds)
    assert reduced.is_complete and whole.is_complete
    assert some == every
    assert reduced.states <= whole.states


def test_the_reduction_pays() -> None:
    bounds = Bounds(1)
    reduced, whole = (
        explore(World(graph("chain", 2), "aligned", bounds, is_reduced=is_reduced))
        for is_reduced in (True, False)
    )
    assert reduced.states * 2 < whole.states


class CapturesAtTheFirstBarrier(AlignedBarriers):
    """Breaks what the reduction relies on."""

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: Any) -> list[do.TaskEffect]:
        regular, self._regular = self._regular, frozenset({channel})
        effects = super()._barrier_arrived(channel, checkpoint_id)
        self._regular = regular
        return effects


def test_a_protocol_that_the_reduction_does_not_fit_is_explored_without_it() -> None:
    make = Make(protocol=lambda _, inputs, back_edges: CapturesAtTheFirstBarrier(inputs, back_edges))
    found = explore(World(graph("join", 1), "aligned", Bounds(1), make))
    assert not found.is_reduced
    assert "I4" in found.violation
