"""Random walks through worlds of units.

Each walk has habits of its own: what is rare in one is frequent in another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.proof.explorer.items import Violation
from tests.proof.unit_log.graphs import LOOP, PAIR, UnitGraph
from tests.proof.unit_log.world import MANY, Action, UnitWorld

from crosscut.errors import ProtocolError
from crosscut.protocol.unit_log.effects import AppendUnitEntry

STEPS_MAX = 260
SETTLING_STEPS_MAX = 4_000
STEPS_BETWEEN_CUTS = 5

WEIGHTS = {
    "crash": 0.12, "launch": 0.25, "repeat": 0.1, "no answer": 0.4, "done, no answer": 0.4, "never": 0.15,
    "poll": 1.5, "compact": 0.5, "refuse": 0.2, "connect": 1.0, "deliver": 1.0, "take": 1.0, "take one": 0.5,
    "end group": 1.0, "done": 1.0, "timer": 1.0,
}  # fmt: skip

SLOW = (
    "nothing", "AppendUnitEntry", "AuthoriseCommit", "StoreUnitSnapshot", "DeleteGroups", "ReadUnitTail",
    "SealLooked", "SealSegment", "ReadNewestHead", "head",
)  # fmt: skip


@dataclass
class Walk:
    """What one walk did.

    Attributes:
        failure: What broke, or "".
        actions: In order, for people.
    """

    failure: str = ""
    seen: Counter[str] = field(default_factory=Counter)
    actions: list[str] = field(default_factory=list)


class Habits(NamedTuple):
    """What a walk does more often than others.

    Attributes:
        graph: None: drawn.
        has_files: Likewise.
        slow: The operations that take long; "nothing" for none of them; "": drawn.
        liked: Actions.
    """

    graph: UnitGraph | None = None
    has_files: bool | None = None
    slow: str = ""
    liked: tuple[str, ...] = ()


ANY = Habits()


def walk(seed: int, make: Callable[..., UnitWorld] = UnitWorld, habits: Habits = ANY) -> Walk:
    """Walk through the world of `seed`, and on to its end without faults."""
    chance = random.Random(seed)
    graph = habits.graph or (LOOP, PAIR)[seed % 2]
    has_files = seed % 4 > 1 if habits.has_files is None else habits.has_files
    done = Walk()
    try:
        world = make(graph, MANY, has_files=has_files)
        _wander(world, chance, habits, done)
        _settle(world, chance, done)
    except (Violation, ProtocolError) as error:
        done.failure = str(error)
    return done


def _wander(world: UnitWorld, chance: random.Random, habits: Habits, done: Walk) -> None:
    weights = {kind: weight * chance.choice((0.2, 1, 1, 5)) for kind, weight in WEIGHTS.items()}
    slow = habits.slow or chance.choice(SLOW)
    for kind in habits.liked:
        weights[kind] *= 5

    def liking(action: Action) -> float:
        weight = weights[str(action[0])]
        if isinstance(action[1], int) and str(action[0]).startswith("done"):
            asked = world.operations[action[1]].asked
            kind = type(asked).__name__
            is_head = isinstance(asked, AppendUnitEntry) and asked.index.number == 0
            if kind == slow or (slow == "head" and is_head):
                return weight * 0.05
        return weight

    for _ in range(chance.randrange(STEPS_MAX // 4, STEPS_MAX)):
        actions = world.actions()
        if not actions:
            break
        _take(world, chance.choices(actions, [liking(one) for one in actions])[0], done)


def _settle(world: UnitWorld, chance: random.Random, done: Walk) -> None:
    world.end_faults()
    for _ in range(SETTLING_STEPS_MAX):
        actions = world.progress()
        if not actions:
            break
        _take(world, chance.choice(actions), done)
    else:
        raise Violation(f"U8: not at its end after {SETTLING_STEPS_MAX} steps")
    world.check_end()


def _take(world: UnitWorld, action: Action, done: Walk) -> None:
    done.seen[str(action[0])] += 1
    done.actions.append(described(world, action))
    world.handle(action)
    if sum(done.seen.values()) % STEPS_BETWEEN_CUTS == 0:
        world.check_cut()


def described(world: UnitWorld, action: Action) -> str:
    """Return `action` as people read it."""
    kind, *about = action
    if str(kind) in ("done", "done, no answer", "no answer", "never", "refuse") and isinstance(about[0], int):
        process, asked, _ = world.operations[about[0]]
        return f"{kind}: {process[0]}{process[1]} {asked}"
    return f"{kind}: {' '.join(map(str, about))}"
