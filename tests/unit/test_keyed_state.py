"""Keyed state frozen by layering, its parts as bytes, and the chain of parts."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import pytest

from crosscut.errors import StateError
from crosscut.ids import CheckpointId
from crosscut.protocol.messages import Part
from crosscut.state.encoding import MAGIC, decode_part, encode_block, owned_copy
from crosscut.state.keyed import ROWS_PER_BLOCK, KeyedState
from crosscut.state.snapshots import CHAIN_LENGTH_MAX, PartChain

NONE, N1, N2, N3, N4 = map(CheckpointId, range(5))


def state_of(values: dict[Any, Any], initial: Any = int) -> KeyedState:
    state = KeyedState(initial)
    state.values.update(values)
    return state


def part_of(state: KeyedState, checkpoint_id: CheckpointId, since: CheckpointId = NONE) -> bytes:
    return b"".join(state.encoded(checkpoint_id, since))


def content(*parts: bytes) -> dict[Any, Any]:
    """Decode parts as a restore does, with pickle and struct only."""
    found: dict[Any, Any] = {}
    for part in parts:
        assert part[:4] == b"XCS1"
        rest = part[4:]
        while rest:
            (length,) = struct.unpack(">Q", rest[:8])
            keys, values = pickle.loads(rest[8 : 8 + length])
            assert len(keys) == len(values)
            found.update(zip(keys, values, strict=True))
            rest = rest[8 + length :]
    return found


def completed(state: KeyedState, checkpoint_id: CheckpointId) -> KeyedState:
    for _ in state.complete(checkpoint_id):
        pass
    return state


def everything(_: object) -> bool:
    return True


def test_a_key_without_a_value_has_the_initial_one_and_each_key_its_own() -> None:
    state = KeyedState(list)
    state.values["a"].append(1)
    assert (state.values["a"], state.values["b"]) == ([1], [])


def test_a_full_part_is_the_state_at_the_freeze_and_nothing_later() -> None:
    state = state_of({"a": 1, "b": 2})
    state.freeze(N1)
    state.values["a"] = 3
    state.values["c"] = 4
    assert content(part_of(state, N1)) == {"a": 1, "b": 2}


def test_a_part_of_changes_holds_only_what_was_touched_since() -> None:
    state = state_of({"a": 1, "b": 2})
    state.freeze(N1)
    state.values["a"] = 3
    state.values["c"] = 4
    state.freeze(N2)
    state.values["a"] = 5
    assert content(part_of(state, N2, since=N1)) == {"a": 3, "c": 4}
    assert content(part_of(state, N2)) == {"a": 3, "b": 2, "c": 4}
    assert content(part_of(state, N1), part_of(state, N2, since=N1)) == {"a": 3, "b": 2, "c": 4}


def test_changes_before_an_aborted_checkpoint_are_in_the_next_part() -> None:
    state = state_of({"a": 1})
    state.freeze(N1)
    completed(state, N1)
    state.values["a"] = 2
    state.freeze(N2)  # Never completed.
    state.values["b"] = 3
    state.freeze(N3)
    assert content(part_of(state, N3, since=N1)) == {"a": 2, "b": 3}


def test_nothing_touched_gives_a_part_without_blocks() -> None:
    state = state_of({"a": 1})
    state.freeze(N1)
    state.freeze(N2)
    assert part_of(state, N2, since=N1) == MAGIC
    assert content(part_of(state, N2)) == {"a": 1}


def test_a_large_state_is_encoded_in_steps_of_some_rows() -> None:
    state = state_of(dict.fromkeys(range(2 * ROWS_PER_BLOCK + 1), 7))
    state.freeze(N1)
    steps = list(state.encoded(N1, NONE))
    assert len(steps) == 1 + 3
    assert content(b"".join(steps)) == dict.fromkeys(range(2 * ROWS_PER_BLOCK + 1), 7)


def test_a_mutable_value_that_is_changed_in_place_stays_as_it_was_in_every_frozen_layer() -> None:
    state = KeyedState(list)
    state.values["a"].append(1)
    state.freeze(N1)
    state.values["a"].append(2)
    state.freeze(N2)
    state.values["a"].append(3)
    assert content(part_of(state, N1)) == {"a": [1]}
    assert content(part_of(state, N2, since=N1)) == {"a": [1, 2]}
    completed(state, N2)
    state.values["a"].append(4)
    assert state.values["a"] == [1, 2, 3, 4]
    state.roll_back(N2)
    assert state.values["a"] == [1, 2]


def test_encoding_is_right_while_user_code_goes_on_between_the_steps() -> None:
    state = KeyedState(list)
    for key in range(2 * ROWS_PER_BLOCK):
        state.values[key].append(0)
    state.freeze(N1)
    steps = []
    for step in state.encoded(N1, NONE):
        steps.append(step)
        for key in range(2 * ROWS_PER_BLOCK + 10):
            state.values[key].append(1)
    assert content(b"".join(steps)) == {key: [0] for key in range(2 * ROWS_PER_BLOCK)}


def test_look_ups_are_right_between_the_steps_of_a_merge() -> None:
    size = 3 * ROWS_PER_BLOCK
    state = state_of(dict.fromkeys(range(size), 1))
    state.freeze(N1)
    completed(state, N1)
    state.values.update(dict.fromkeys(range(0, size, 2), 2))
    state.freeze(N2)
    state.values[0] = 3
    expected = {key: 2 if key % 2 == 0 else 1 for key in range(size)} | {0: 3}
    steps = 0
    for _ in state.complete(N2):
        assert {key: state.values[key] for key in range(size)} == expected
        assert dict(state.items()) == expected
        steps += 1
    assert steps >= 2
    assert dict(state.items()) == expected


def test_a_merge_that_is_broken_off_is_taken_up_by_the_next_one() -> None:
    """An epoch ends in the middle of it; the surviving worker keeps the state."""
    size = 3 * ROWS_PER_BLOCK
    state = state_of(dict.fromkeys(range(size), 1))
    state.freeze(N1)
    completed(state, N1)
    state.values.update(dict.fromkeys(range(size), 2))
    state.freeze(N2)
    next(state.complete(N2))
    assert state.at_hand == (N2,)
    state.roll_back(N2)
    assert dict(state.items()) == dict.fromkeys(range(size), 2)


def test_items_gives_every_key_once_with_its_newest_value() -> None:
    state = state_of({"a": 1, "b": 1})
    state.freeze(N1)
    completed(state, N1)
    state.values["b"] = 2
    state.freeze(N2)
    state.values["c"] = 3
    state.values["b"] = 4
    items = list(state.items())
    assert len(items) == 3
    assert dict(items) == {"a": 1, "b": 4, "c": 3}


def test_at_hand_are_the_base_and_what_was_frozen_since() -> None:
    state = state_of({"a": 1})
    assert state.at_hand == (NONE,)
    state.freeze(N1)
    state.freeze(N2)
    assert state.at_hand == (NONE, N1, N2)
    completed(state, N1)
    assert state.at_hand == (N1, N2)
    state.roll_back(N2)
    assert state.at_hand == (N2,)


def test_rolling_back_drops_everything_newer() -> None:
    state = state_of({"a": 1})
    state.freeze(N1)
    state.values["a"] = 2
    state.values["b"] = 3
    state.freeze(N2)
    state.values["a"] = 4
    state.roll_back(N1)
    assert dict(state.items()) == {"a": 1}
    assert state.values["b"] == 0


def test_completing_again_changes_nothing() -> None:
    state = state_of({"a": 1})
    state.freeze(N1)
    state.values["a"] = 2
    assert dict(completed(completed(state, N1), N1).items()) == {"a": 2}
    assert completed(state, NONE).at_hand == (N1,)


def test_load_takes_the_keys_that_the_task_owns_and_later_parts_override() -> None:
    older = MAGIC + encode_block(["a", "b"], [1, 1]) + encode_block(["c"], [1])
    newer = MAGIC + encode_block(["b", "d"], [2, 2])
    state = state_of({"gone": 1})
    state.freeze(N1)
    state.load(iter([older, newer]), N3, lambda key: key != "c")
    assert dict(state.items()) == {"a": 1, "b": 2, "d": 2}
    assert (state.at_hand, len(state)) == ((N3,), 3)


def test_a_loaded_state_goes_on_with_parts_of_changes() -> None:
    source = state_of({"a": [1]}, list)
    source.freeze(N1)
    first = part_of(source, N1)
    state = KeyedState(list)
    state.load(iter([first]), N1, everything)
    state.values["b"].append(2)
    state.freeze(N2)
    assert content(part_of(state, N2, since=N1)) == {"b": [2]}
    assert content(first, part_of(state, N2, since=N1)) == {"a": [1], "b": [2]}


# Parts as bytes.


def test_a_block_comes_back_as_it_was() -> None:
    keys, values = ["a", ("b", 1), None], [{"x": [1]}, b"y", 1.5]
    assert list(decode_part(MAGIC + encode_block(keys, values) * 2)) == [(keys, values)] * 2


@pytest.mark.parametrize("data", [b"", b"XCS", b"XCS2" + encode_block([1], [1]), b"junk"])
def test_bytes_that_are_no_part_are_refused(data: bytes) -> None:
    with pytest.raises(StateError, match="expected b'XCS1'"):
        list(decode_part(data))


@pytest.mark.parametrize("cut", [1, 5, 8, 9, 20])
def test_a_part_that_was_cut_short_is_refused(cut: int) -> None:
    data = MAGIC + encode_block(["a"], [1])
    with pytest.raises(StateError):
        list(decode_part(data[: 4 + cut]))


class Unstorable:
    def __reduce__(self) -> NoReturn:
        raise ValueError("not me")


def test_a_value_that_cannot_be_stored_is_named_by_its_key() -> None:
    with pytest.raises(StateError, match=r"state of key 'b', of type Unstorable, .* ValueError: not me"):
        encode_block(["a", "b"], [1, Unstorable()])


class Refusing:
    def __setstate__(self, state: object) -> NoReturn:
        raise ValueError("too old")

    def __getstate__(self) -> dict[str, int]:
        return {"version": 1}


def test_a_value_that_refuses_its_own_bytes_is_a_state_error() -> None:
    with pytest.raises(StateError, match="ValueError: too old"):
        list(decode_part(MAGIC + encode_block(["a"], [Refusing()])))


@pytest.mark.parametrize("value", [1, 1.5, "a", b"a", None, True, (), (1, "a"), 1j])
def test_a_value_that_nobody_can_change_is_not_copied(value: Any) -> None:
    assert owned_copy(value) is value


@pytest.mark.parametrize("value", [[1], {"a": [1]}, ([1],), {1}, bytearray(b"a"), ((1, [2]),)])
def test_a_value_that_could_be_changed_is_copied_deeply(value: Any) -> None:
    copy = owned_copy(value)
    assert copy == value
    assert copy is not value


# The chain of parts.


def part(size_bytes: int) -> Part:
    return Part(f"parts/1/a-{size_bytes}", size_bytes, "00")


def chain_after(sizes: Iterable[int]) -> Iterator[PartChain]:
    """Yield the chain after each part of `sizes`, as a task builds it."""
    chain = PartChain()
    for n, size_bytes in enumerate(sizes, 1):
        chain = PartChain(CheckpointId(n), chain.with_part(part(size_bytes), chain.increment_base))
        yield chain


def test_the_first_part_is_a_full_one() -> None:
    assert PartChain().increment_base == 0
    assert PartChain().with_part(part(5), NONE) == (part(5),)


def test_changes_follow_until_they_are_larger_than_the_full_part() -> None:
    lengths = [len(chain.parts) for chain in chain_after([100, 60, 40, 1, 100, 1])]
    assert lengths == [1, 2, 3, 4, 1, 2]


def test_a_chain_does_not_grow_without_end() -> None:
    """A restore reads it all."""
    lengths = [len(chain.parts) for chain in chain_after([1_000_000] + [1] * 30)]
    assert lengths[: CHAIN_LENGTH_MAX + 2] == [*range(1, CHAIN_LENGTH_MAX + 2), 1]
    assert max(lengths) == CHAIN_LENGTH_MAX + 1
