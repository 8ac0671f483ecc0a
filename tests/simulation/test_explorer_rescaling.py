"""H1: in every state of a small job with another parallelism, or a savepoint, everything has one owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.explorer.rescaled_start import RestoredJobs
from tests.proof.explorer.rescaled_state import READ, Bounds, Keeper
from tests.proof.explorer.rescaling import RescaledWorld, explore

from crosscut.foundation.ids import TaskId
from crosscut.foundation.keys import OwnedKeys
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshots import TaskSnapshot
from crosscut.protocol.splits import rescaling
from crosscut.task import rerouting

TWO_SPLITS = ((0,), (1,))
"""Of the two keys, each belongs to another one of two tasks."""
ONE_SPLIT = ((0, 1),)

WORLDS: list[tuple[ProtocolKind, Bounds]] = [
    ("aligned", Bounds((1, 2), TWO_SPLITS)),
    ("aligned", Bounds((2, 1), TWO_SPLITS)),
    ("unaligned", Bounds((1, 2), TWO_SPLITS)),
    ("unaligned", Bounds((2, 1), ONE_SPLIT)),
    ("aligned", Bounds((1, 2, 1), ONE_SPLIT)),
    # One checkpoint under way when the other becomes a savepoint, and both when a job begins with it.
    ("aligned", Bounds((1, 2), ((1,),), checkpoints=2, in_flight=2, savepoints=1)),
    ("unaligned", Bounds((2, 1), ((1,),), checkpoints=2, in_flight=2, savepoints=1)),
]


@pytest.mark.parametrize(("kind", "bounds"), WORLDS, ids=str)
def test_every_state_of_a_job_that_changes_its_parallelism_is_sound(
    kind: ProtocolKind, bounds: Bounds
) -> None:
    world = RescaledWorld(kind, bounds)
    found = explore(world)
    assert not found.violation, (found.violation, found.steps)
    assert found.finished > 0
    assert world.restores > 10


# Planted bugs.


def changed(change: Callable[[TaskSnapshot], TaskSnapshot]) -> Callable[..., Any]:
    plain = rescaling.rescaled
    return lambda *arguments: tuple(map(change, plain(*arguments)))


def two_owners(patch: pytest.MonkeyPatch) -> None:
    """A task keeps all keys of the parts that it reads."""
    patch.setattr(OwnedKeys, "__call__", lambda self, key: True)


def no_owner(patch: pytest.MonkeyPatch) -> None:
    """A task reads the parts of one that had its groups, not of all of them."""
    plain = rescaling._with_groups_of
    patch.setattr(rescaling, "_with_groups_of", lambda *arguments: plain(*arguments)[:1])


def watermark_of_the_slowest(patch: pytest.MonkeyPatch) -> None:
    """Of tasks behind a shuffle, as where nothing is on its way."""

    def lower(one: TaskSnapshot) -> TaskSnapshot:
        floors = [floor for floor in one.snapshot.floors if floor is not None]
        known = one.snapshot.watermark if None not in one.snapshot.floors else None
        return replace(one, snapshot=replace(one.snapshot, watermark=known and min(floors)))

    patch.setattr(rescaling, "rescaled", changed(lower))


def sources_forget(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rescaling, "_assigned", lambda saved: None)


def timers_lost(patch: pytest.MonkeyPatch) -> None:
    plain = RestoredJobs._keeper

    def keeper(self: RestoredJobs, index: int, parallelism: int, before: int, *others: Any) -> Keeper:
        found = plain(self, index, parallelism, before, *others)
        return found._replace(rows=found.rows._replace(waiting=frozenset())) if before else found

    patch.setattr(RestoredJobs, "_keeper", keeper)


def splits_dealt_to_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rescaling, "deal", lambda rows, parallelism: [list(rows)] * parallelism)


def splits_dropped(patch: pytest.MonkeyPatch) -> None:
    plain = rescaling.rescaled

    def rescaled(*arguments: Any) -> tuple[TaskSnapshot, ...]:
        return tuple(
            replace(one, snapshot=replace(one.snapshot, positions=[]))
            if one.task.vertex == READ and one.task.index
            else one
            for one in plain(*arguments)
        )

    patch.setattr(rescaling, "rescaled", rescaled)


def on_their_way_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rerouting, "_with_keys_of", lambda batch, index, owner_of: batch)


def on_their_way_by_place(patch: pytest.MonkeyPatch) -> None:
    """What was on its way to a task that is there no more goes to nobody."""
    plain = rerouting.rerouted

    def rerouted(logs: Any, task: TaskId, *arguments: Any) -> Iterator[Any]:
        mine = ([one for one in log if one.channel.target.index == task.index] for log in logs)
        return plain(mine, task, *arguments)

    patch.setattr(rerouting, "rerouted", rerouted)


def on_their_way_at_the_newest_watermark(patch: pytest.MonkeyPatch) -> None:
    """Records that were punctual for the task that they were on their way to are late."""
    plain = rerouting.rerouted

    def rerouted(
        logs: Any, task: TaskId, graph: Any, owner_of: Any, before: int, floors: Any
    ) -> Iterator[Any]:
        known = [floor for floor in floors if floor is not None]
        return plain(logs, task, graph, owner_of, before, [max(known, default=None)] * before)

    patch.setattr(rerouting, "rerouted", rerouted)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], tuple[ProtocolKind, Bounds, str]] = {
    two_owners: ("aligned", Bounds((1, 2), TWO_SPLITS), "I4: state of"),
    no_owner: ("aligned", Bounds((2, 1), TWO_SPLITS), "I4: state of"),
    watermark_of_the_slowest: ("aligned", Bounds((2, 1), ONE_SPLIT), "I14: keyed"),
    sources_forget: ("aligned", Bounds((1, 2), TWO_SPLITS), "I14: read"),
    timers_lost: ("aligned", Bounds((1, 2), TWO_SPLITS), "I4: timer of"),
    splits_dealt_to_all: ("aligned", Bounds((1, 2), TWO_SPLITS), "I"),
    splits_dropped: ("aligned", Bounds((1, 2), TWO_SPLITS), "I4: split"),
    on_their_way_for_all: ("unaligned", Bounds((1, 2), TWO_SPLITS), "I4: record"),
    on_their_way_by_place: ("unaligned", Bounds((2, 1), TWO_SPLITS), "I4: record"),
    on_their_way_at_the_newest_watermark: ("unaligned", Bounds((2, 1), ONE_SPLIT), "I14: Record"),
}


@pytest.mark.parametrize("plant", BUGS, ids=lambda one: one.__name__)
def test_finds_the_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, bounds, invariant = BUGS[plant]
    plant(monkeypatch)
    found = explore(RescaledWorld(kind, bounds))
    assert found.violation.startswith(invariant), (found.violation, found.steps, found.states)
    assert found.steps
