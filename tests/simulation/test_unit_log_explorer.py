"""The protocol of a unit's log as it is: in random walks and every state of small worlds, nothing breaks."""

from collections import Counter

import pytest
from tests.proof.explorer.search import explore
from tests.proof.unit_log.graphs import SMALL
from tests.proof.unit_log.states import UnitStates, lines
from tests.proof.unit_log.walks import WEIGHTS, walk
from tests.proof.unit_log.world import Faults, UnitWorld

WALKS, MORE_WALKS = 100, 25_000
STATES_MAX = 400_000

WORLDS = [
    (Faults(), False),
    (Faults(), True),
    (Faults(crashes=1), False),
    (Faults(unknown=1), False),
    (Faults(unknown=1), True),
    (Faults(compactions=1), False),
    (Faults(compactions=1), True),
    (Faults(cuts=1), False),
    (Faults(repeats=1), False),
    (Faults(failures=1), False),
    (Faults(failures=1), True),
]
LARGER = [
    (Faults(crashes=1), True),
    (Faults(zombies=1), False),
    (Faults(zombies=1), True),
    (Faults(crashes=1, unknown=1), False),
    (Faults(crashes=1, compactions=1), False),
    (Faults(crashes=1, cuts=1), False),
]


def no_walk_fails(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        done = walk(seed)
        assert not done.failure, f"seed {seed}: {done.failure}\n" + "\n".join(done.actions)
        seen += done.seen
    # A walk that does nothing finds nothing.
    assert set(seen) == set(WEIGHTS)


def test_no_short_list_of_walks_breaks_anything() -> None:
    no_walk_fails(range(WALKS))


@pytest.mark.proof
@pytest.mark.parametrize("part", range(10))
def test_no_walk_breaks_anything(part: int) -> None:
    no_walk_fails(range(part, MORE_WALKS, 10))


@pytest.mark.parametrize(
    ("faults", "has_files"), [*WORLDS, *(pytest.param(*one, marks=pytest.mark.proof) for one in LARGER)]
)
def test_no_state_of_a_small_world_breaks_anything(faults: Faults, has_files: bool) -> None:
    found = explore(UnitStates(UnitWorld(SMALL, faults, has_files=has_files)), STATES_MAX)
    assert found.is_complete and found.finished, lines(found)
