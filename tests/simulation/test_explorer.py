"""The protocols as they are: every state of small worlds is visited, and nothing ever breaks.

docs/explorer.md has the table of larger worlds, and the command that explores them.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.proof.explorer.bounds import Bounds, Faults
from tests.proof.explorer.conversation import conversation
from tests.proof.explorer.graphs import graph
from tests.proof.explorer.search import Found, explore
from tests.proof.explorer.world import World

from crosscut.protocol.snapshot.choosing import ProtocolKind

BOUNDS = frozenset({"in_flight", "retain", "segment_entries_max", "slow_control"})

WORLDS: list[tuple[str, ProtocolKind, int, int, dict[str, int]]] = [
    # Graph, protocol, records a source, periodic checkpoints, faults and other bounds.
    ("chain", "aligned", 2, 3, {}),
    ("diamond", "aligned", 2, 2, {}),
    ("join", "aligned", 2, 1, {}),
    ("loop", "aligned", 2, 1, {}),
    ("ring", "aligned", 0, 1, {}),
    ("diamond", "aligned", 2, 1, {"crashes": 1}),
    ("join", "aligned", 1, 1, {"crashes": 1}),
    ("two sinks", "aligned", 2, 1, {"crashes": 1, "zombies": 1}),
    ("loop", "aligned", 1, 1, {"crashes": 1, "zombies": 1}),
    ("edge", "aligned", 1, 1, {"crashes": 2, "zombies": 1, "unknown": 1}),
    ("edge", "aligned", 1, 1, {"drivers": 1, "zombies": 1, "unknown": 1}),
    # A driver that sleeps deploys tasks again, from a checkpoint whose parts the newest driver has deleted.
    ("edge", "aligned", 0, 1, {"drivers": 2, "zombies": 1}),
    # A segment of the log for each checkpoint, and old ones deleted, while a driver sleeps.
    ("edge", "aligned", 0, 2, {"drivers": 1, "zombies": 1, "segment_entries_max": 1}),
    ("shortcut", "aligned", 0, 2, {"timeouts": 1}),
    ("edge", "aligned", 1, 1, {"crashes": 1, "repeats": 1, "slow_control": 1}),
    ("edge", "aligned", 1, 2, {"crashes": 1, "retain": 2}),
    # A savepoint is asked for at any time: with a checkpoint under way, and when newer ones delete older.
    ("edge", "aligned", 0, 2, {"savepoints": 1}),
    ("edge", "aligned", 0, 1, {"savepoints": 1, "crashes": 1}),
    ("edge", "aligned", 0, 1, {"savepoints": 1, "in_flight": 2}),
    ("chain", "unaligned", 0, 1, {"crashes": 1}),
    ("diamond", "unaligned", 0, 1, {}),
    ("join", "unaligned", 1, 1, {}),
    ("two sinks", "unaligned", 1, 1, {}),
    ("two sinks", "unaligned", 0, 1, {"crashes": 1}),
    ("loop", "unaligned", 1, 1, {}),
    ("loop", "unaligned", 0, 1, {"crashes": 1}),
    ("ring", "unaligned", 0, 1, {}),
    ("edge", "unaligned", 2, 1, {"crashes": 1}),
    ("chain", "switching", 1, 1, {}),
    ("join", "switching", 0, 1, {}),
    ("loop", "switching", 1, 1, {}),
    ("ring", "switching", 0, 1, {}),
    ("edge", "switching", 2, 1, {"crashes": 1}),
    ("chain", "halting", 2, 1, {"crashes": 1}),
    ("diamond", "halting", 1, 1, {}),
    ("join", "halting", 1, 1, {}),
    ("loop", "halting", 1, 1, {}),
    ("loop", "halting", 0, 1, {"crashes": 1}),
    ("ring", "halting", 0, 1, {}),
    ("chain", "at-least-once", 2, 1, {"crashes": 1}),
    ("diamond", "at-least-once", 1, 1, {}),
    ("join", "at-least-once", 1, 1, {"crashes": 1}),
    ("two sinks", "at-least-once", 1, 1, {"crashes": 1}),
    ("loop", "at-least-once", 1, 1, {"crashes": 1}),
    ("ring", "at-least-once", 0, 1, {}),
    # Final results in front of a loop, between two, and out of its body.
    ("count, loop, count", "aligned", 1, 1, {"crashes": 1}),
    ("count, loop, count", "unaligned", 1, 1, {}),
    ("count, loop, count", "switching", 0, 1, {}),
    ("count, loop, count", "halting", 1, 1, {}),
    ("count, loop, count", "at-least-once", 1, 1, {}),
    ("loop, count, loop", "unaligned", 1, 1, {}),
    ("loop, count, loop", "switching", 0, 1, {}),
    ("loop, count, loop", "halting", 1, 1, {}),
    ("loop, count, loop", "at-least-once", 1, 1, {}),
    ("loop with a count", "aligned", 1, 1, {}),
    ("loop with a count", "unaligned", 0, 1, {}),
    ("loop with a count", "halting", 1, 1, {}),
    ("loop with a count", "at-least-once", 1, 1, {}),
]


LARGER: list[tuple[str, ProtocolKind, int, int, dict[str, int]]] = [
    ("join", "aligned", 0, 2, {"in_flight": 2, "retain": 2}),
    ("edge", "aligned", 1, 2, {"timeouts": 1, "failures": 1}),
    ("edge", "aligned", 0, 2, {"crashes": 1, "unknown": 1, "failures": 1, "segment_entries_max": 1}),
    ("edge", "aligned", 1, 2, {"crashes": 1, "in_flight": 2, "retain": 2}),
    ("edge", "aligned", 0, 3, {"drivers": 1, "zombies": 1, "segment_entries_max": 1}),
    ("loop, count, loop", "aligned", 1, 1, {"crashes": 1}),
    ("chain", "aligned", 2, 1, {"crashes": 2}),
    ("edge", "aligned", 0, 2, {"drivers": 1, "zombies": 1, "unknown": 1, "segment_entries_max": 1}),
    ("edge", "aligned", 2, 1, {"crashes": 2, "zombies": 1, "unknown": 1}),
    ("chain", "unaligned", 1, 1, {"crashes": 1}),
    ("two sinks", "unaligned", 1, 1, {"crashes": 1}),
    ("loop", "unaligned", 1, 1, {"crashes": 1}),
    ("join", "switching", 1, 1, {}),
    ("loop", "halting", 1, 1, {"crashes": 1}),
    ("count, loop, count", "aligned", 2, 1, {"crashes": 1}),
    ("count, loop, count", "switching", 1, 1, {}),
    ("count, loop, count", "halting", 1, 1, {"crashes": 1}),
    ("count, loop, count", "at-least-once", 1, 1, {"crashes": 1}),
    ("loop, count, loop", "at-least-once", 1, 1, {"crashes": 1}),
]
"""The largest of them, for `make prove`."""


def explored(
    name: str, kind: ProtocolKind, records: int, checkpoints: int, more: dict[str, Any]
) -> tuple[World, Found]:
    faults = Faults(**{one: count for one, count in more.items() if one not in BOUNDS})
    bounds = Bounds(checkpoints, faults, **{one: more[one] for one in more.keys() & BOUNDS})
    world = World(graph(name, records), kind, bounds)
    return world, explore(world)


@pytest.mark.parametrize(
    ("name", "kind", "records", "checkpoints", "more"),
    [*WORLDS, *(pytest.param(*one, marks=pytest.mark.proof) for one in LARGER)],
    ids=lambda one: str(one).replace(" ", ""),
)
def test_every_state_of_a_small_world_is_sound(
    name: str, kind: ProtocolKind, records: int, checkpoints: int, more: dict[str, int]
) -> None:
    world, found = explored(name, kind, records, checkpoints, more)
    assert not found.violation, conversation(world, found)
    assert found.is_complete
    assert found.finished > 0


def test_the_same_world_is_explored_in_the_same_way() -> None:
    first, second = (explored("chain", "unaligned", 1, 1, {})[1] for _ in range(2))
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, second.depth)
