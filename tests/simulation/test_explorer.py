"""The protocols as they are: every state of small worlds is visited, and nothing ever breaks."""

from __future__ import annotations

from typing import Any

import pytest

from crosscut.protocol.choosing import ProtocolKind
from crosscut.testing.explorer.bounds import Bounds, Faults
from crosscut.testing.explorer.conversation import conversation
from crosscut.testing.explorer.graphs import graph
from crosscut.testing.explorer.search import Found, explore
from crosscut.testing.explorer.world import World

WORLDS: list[tuple[str, ProtocolKind, int, int, dict[str, int]]] = [
    # Graph, protocol, records a source, periodic checkpoints, faults.
    ("chain", "aligned", 2, 1, {}),
    ("chain", "aligned", 1, 1, {"crashes": 1}),
    ("join", "aligned", 1, 1, {}),
    ("diamond", "aligned", 0, 2, {"timeouts": 1}),
    ("two sinks", "aligned", 1, 1, {"crashes": 1}),
    ("loop", "aligned", 1, 1, {"crashes": 1}),
    ("ring", "aligned", 1, 1, {}),
    ("edge", "aligned", 1, 1, {"crashes": 1, "zombies": 1}),
    ("edge", "aligned", 1, 1, {"unknown": 1, "drivers": 1}),
    ("edge", "aligned", 1, 1, {"failures": 1, "timeouts": 1}),
    ("edge", "unaligned", 2, 1, {"crashes": 1}),
    ("chain", "unaligned", 1, 1, {}),
    ("loop", "unaligned", 1, 1, {}),
    ("edge", "switching", 2, 1, {"crashes": 1}),
    ("loop", "switching", 1, 1, {}),
    ("chain", "halting", 1, 1, {"crashes": 1}),
    ("join", "at-least-once", 1, 1, {"crashes": 1}),
    ("loop", "at-least-once", 1, 1, {"crashes": 1}),
]


def explored(
    name: str, kind: ProtocolKind, records: int, checkpoints: int, **faults: Any
) -> tuple[World, Found]:
    world = World(graph(name, records), kind, Bounds(checkpoints, Faults(**faults)))
    return world, explore(world)


@pytest.mark.parametrize(
    ("name", "kind", "records", "checkpoints", "faults"), WORLDS, ids=lambda one: str(one).replace(" ", "")
)
def test_every_state_of_a_small_world_is_sound(
    name: str, kind: ProtocolKind, records: int, checkpoints: int, faults: dict[str, int]
) -> None:
    world, found = explored(name, kind, records, checkpoints, **faults)
    assert not found.violation, conversation(world, found)
    assert found.is_complete
    assert found.finished > 0


def test_several_checkpoints_in_flight_are_sound() -> None:
    world = World(graph("join", 0), "aligned", Bounds(2, in_flight=2))
    found = explore(world)
    assert found.is_complete, conversation(world, found)


def test_the_same_world_is_explored_in_the_same_way() -> None:
    first, second = (explored("chain", "unaligned", 1, 1)[1] for _ in range(2))
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, second.depth)
