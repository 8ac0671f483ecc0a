"""A task fails while a snapshot is frozen and not complete: a hot key goes back over both layers (P11)."""

from __future__ import annotations

import pytest

from crosscut.foundation.ids import CheckpointId
from crosscut.state.keyed import KeyedState

N1, N2, N3 = CheckpointId(1), CheckpointId(2), CheckpointId(3)


def change(state: KeyedState, number: int) -> None:
    """Change the hot key in place, as a running aggregate does, and let a new key come."""
    rows, values = state.to_change(["hot", f"key {number}"])
    for row in rows:
        values[row] = number


@pytest.mark.parametrize("frozen", [(N2,), (N2, N3)])
def test_a_hot_key_has_the_value_of_the_complete_checkpoint_after_a_roll_back_over_frozen_layers(
    frozen: tuple[CheckpointId, ...],
) -> None:
    state = KeyedState(int, keeps_keys=True)
    change(state, 1)
    state.freeze(N1)
    for _ in state.complete(N1):
        pass
    for n in frozen:
        change(state, n)
        state.freeze(n)
    change(state, 9)
    state.roll_back(N1)
    assert dict(state.main.items()) == {"hot": 1, "key 1": 1}
    # As if nothing had been: what changes now is undone by the next roll-back.
    change(state, 5)
    state.roll_back(N1)
    assert dict(state.main.items()) == {"hot": 1, "key 1": 1}


def test_it_goes_back_to_a_frozen_checkpoint_that_is_complete_by_then() -> None:
    state = KeyedState(int, keeps_keys=True)
    for n in (N1, N2, N3):
        change(state, n)
        state.freeze(n)
    change(state, 9)
    # The entry of 2 became durable just before the failure; 3 never will.
    state.roll_back(N2)
    assert dict(state.main.items()) == {"hot": 2, "key 1": 1, "key 2": 2}
