"""The tables of the snapshot protocols are what the machines do: every state, every event, nothing else."""

from typing import get_args

import pytest
from tests.simulation.barrier_walk import walk

from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshot.snapshotting import SnapshotState
from crosscut.protocol.snapshot.transitions import IMPOSSIBLE, TRANSITIONS, Happening, Outcome


@pytest.mark.parametrize("kind", get_args(ProtocolKind))
def test_a_table_says_of_every_state_and_happening_what_the_machine_does(kind: ProtocolKind) -> None:
    table, found = TRANSITIONS[kind], walk(kind)
    states = {state for state, _ in found}
    assert states >= {state for state, _ in table}, "a state of the table that no machine comes to"
    assert {happening for _, happening in found} == set(Happening)
    for state in sorted(states, key=list(SnapshotState).index):
        for happening in Happening:
            seen = found.get((state, happening), frozenset())
            possible = {one for one in seen if one is not None}
            what = f"{kind}: {happening.value} in {state.name}"
            if happening in IMPOSSIBLE[kind]:
                assert not possible, f"{what} is called impossible"
            else:
                # Of a task that is no source, say, a trigger is impossible in any state.
                expected = table.get((state, happening), frozenset({Outcome(state)}))
                assert possible in (expected, set()), what
                assert possible or (state, happening) not in table, f"{what} never happens"
