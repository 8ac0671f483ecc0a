"""Keyed state whose keys have slots: what its parts hold, and what may go wrong. The rest: tests/property."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NoReturn

import pytest

from crosscut.errors import InternalError, StateError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.graph.specs import AggregateSpec, CountSpec, OperatorNode
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.state.encoding import (
    MAGIC,
    Block,
    Extent,
    NewKeys,
    PartReader,
    SlotRows,
    contents,
    decode_part,
    encode_block,
    encode_new_keys,
    encode_slots,
)
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.slot_changes import Changes

NONE, N1, N2, N3 = map(CheckpointId, range(4))


def state_of(values: dict[Any, Any]) -> KeyedState:
    state = KeyedState(int, keeps_keys=True)
    change(state, values)
    return state


def change(state: KeyedState, changes: dict[Any, Any]) -> None:
    rows, values = state.to_change(list(changes))
    for row, value in zip(rows, changes.values(), strict=True):
        values[row] = value


def part_of(state: KeyedState, n: CheckpointId, since: CheckpointId = NONE) -> bytes:
    return b"".join(state.encoded(n, since))


def checkpoint(state: KeyedState, n: CheckpointId, since: CheckpointId = NONE) -> bytes:
    state.freeze(n)
    part = part_of(state, n, since)
    for _ in state.complete(n):
        pass
    return part


def loaded(*parts: bytes) -> KeyedState:
    state = KeyedState(int, keeps_keys=True)
    for _ in state.loading([(CheckpointId(n), part) for n, part in enumerate(parts, 1)], N2):
        pass
    return state


def test_a_part_of_changes_names_new_keys_and_no_others() -> None:
    state = state_of({"a": 1, "b": 2, "c": 3})
    checkpoint(state, N1)
    change(state, {"b": 5, "d": 7})
    extent, keys, rows = decode_part(checkpoint(state, N2, since=N1))
    assert extent == Extent(MAIN, 3, 4, range(0))
    assert keys == NewKeys(MAIN, 3, ["d"])
    assert isinstance(rows, SlotRows)
    assert sorted(zip(rows.slots, rows.values("abcd"), strict=True)) == [(1, 5), (3, 7)]


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([1, -(1 << 31)], "i"),
        ([1, 1 << 31], "q"),
        ([1 << 63, 1], "p"),
        ([0.5, -0.0], "d"),
        ([1, True], "p"),
        ([1, 1.0], "p"),
        ([(1, 2), (3, 4)], "p"),
    ],
)
def test_values_are_an_array_where_they_come_back_as_what_they_were(values: list[Any], form: str) -> None:
    (rows,) = decode_part(MAGIC + encode_slots(MAIN, range(2), values, "ab"))
    assert isinstance(rows, SlotRows) and rows.form == form
    assert [repr(one) for one in rows.values("ab")] == [repr(one) for one in values]


def test_numbers_are_little_endian_whoever_writes_them() -> None:
    block = encode_slots(MAIN, [2, 258], [-2, 3], [])
    head, length = struct.unpack(">QQ", block[:16])
    assert pickle.loads(block[16 : 16 + head]) == ("slots", MAIN, b"\2\0\0\0\2\1\0\0", "i")
    assert block[16 + head :] == b"\xfe\xff\xff\xff\3\0\0\0"
    assert length == 8


def test_parts_of_the_format_before_are_read_and_the_next_part_is_a_whole_one() -> None:
    def old(keys: list[Any], values: list[Any]) -> bytes:
        head, data = pickle.dumps((MAIN, False, keys), 5), pickle.dumps(values, 5)
        return b"XCS4" + struct.pack(">QQ", len(head), len(data)) + head + data

    parts = [old(["a", "b"], [1, 2]), old(["b", "c"], [3, 4])]
    assert contents(parts) == {MAIN: {"a": 1, "b": 3, "c": 4}}
    state = loaded(*parts)
    assert dict(state.items()) == {"a": 1, "b": 3, "c": 4}
    assert state.part_rows is None


def test_parts_that_do_not_follow_each_other_are_refused() -> None:
    state = state_of({"a": 1})
    whole = checkpoint(state, N1)
    change(state, {"a": 2, "b": 1})
    changes = checkpoint(state, N2, since=N1)
    with pytest.raises(StateError, match=r"key number 0 of state '', .* one of the parts has not been read"):
        loaded(changes)
    with pytest.raises(StateError, match="one of the parts has not been read"):
        contents([changes])
    with pytest.raises(StateError, match="one of the parts has not been read"):
        loaded(whole, MAGIC + encode_slots(MAIN, [1], [1], "ab"))
    with pytest.raises(StateError, match="gives other keys the slots from 0 on"):
        loaded(whole, MAGIC + encode_new_keys(MAIN, 0, ["b", "a"]))
    with pytest.raises(StateError, match="give one key two slots"):
        loaded(whole, MAGIC + encode_new_keys(MAIN, 1, ["a"]))
    assert dict(loaded(whole, changes).items()) == {"a": 2, "b": 1}


def test_parts_of_two_tasks_are_read_apart_by_readers_of_their_own_and_anew_by_one() -> None:
    parts = [checkpoint(state_of({"a": 1, "b": 2}), N1), checkpoint(state_of({"c": 3}), N1)]
    reader = PartReader()
    found = [block for part in parts for block in reader.blocks(part)]
    assert found == [Block(MAIN, False, ["a", "b"], [1, 2]), Block(MAIN, False, ["c"], [3])]


def test_state_by_slot_is_refused_where_keys_go_away() -> None:
    part = checkpoint(state_of({"a": 1}), N1)
    with pytest.raises(StateError, match="holds the state '' of keys that never go away, by slot"):
        for _ in KeyedState(int).loading([(N1, part)], N1):
            pass


def test_keys_can_not_be_taken_away() -> None:
    state = state_of({"a": 1})
    with pytest.raises(InternalError, match="'a' can't be deleted"):
        state.main.delete("a")
    deleted = MAGIC + encode_block(MAIN, ["a"], [pickle.loads(b"ccrosscut.state.encoding\nDELETED\n.")])
    with pytest.raises(StateError, match="of another operator"):
        loaded(deleted)


class Unstorable:
    def __reduce__(self) -> NoReturn:
        raise ValueError("not me")


def test_a_value_that_can_not_be_stored_is_named_by_its_key() -> None:
    state = state_of({"a": 1, "b": Unstorable()})
    state.freeze(N1)
    with pytest.raises(StateError, match=r"the state of key 'b', of type Unstorable, .* not me"):
        part_of(state, N1)
    with pytest.raises(StateError, match=r"the state of key 'b', of type Unstorable, .* not me"):
        state.to_change(["a", "b", "c"])
    assert (len(state), state.main.has("c")) == (2, False)


@pytest.mark.parametrize("key", ["a", "new"])
@pytest.mark.parametrize("is_put", [False, True])
def test_a_state_that_had_no_memory_for_a_change_can_be_rolled_back(
    key: str, is_put: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(changes: Changes, slots: Sequence[int], olds: list[Any]) -> None:
        changes.slots += slots
        raise MemoryError

    state = state_of({"a": 1})
    checkpoint(state, N1)
    change(state, {"a": 2, "b": 3})
    state.freeze(N2)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(Changes, "note", note)
        if is_put:
            state.main.put(key, 5)
        else:
            state.to_change([key])
    state.roll_back(N1)
    assert dict(state.items()) == {"a": 1}


class Refusing:
    def __setstate__(self, state: object) -> NoReturn:
        raise ValueError("too old")

    def __getstate__(self) -> dict[str, int]:
        return {"version": 1}


class Fragile:
    """A value that can be stored, and not be copied while it is `broken`."""

    broken = False

    def __init__(self) -> None:
        self.inner: list[int] = []

    def __setstate__(self, state: dict[str, Any]) -> None:
        if Fragile.broken:
            raise ValueError("not now")
        self.__dict__.update(state)


def test_values_after_one_that_can_not_be_copied_are_as_they_were_after_a_roll_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = KeyedState(Fragile, keeps_keys=True)
    state.to_change(["a", "b", "c"])
    checkpoint(state, N1)
    state.to_change(["a"])
    monkeypatch.setattr(Fragile, "broken", True)
    with pytest.raises(StateError, match="of key 'b', of type Fragile, can't be stored"):
        state.to_change(["a", "b", "c"])
    monkeypatch.setattr(Fragile, "broken", False)
    for key in "abc":
        (row,), values = state.to_change([key])
        values[row].inner.append(1)
    assert [value.inner for _, value in state.items()] == [[1], [1], [1]]
    state.freeze(N2)
    state.roll_back(N1)
    assert [value.inner for _, value in state.items()] == [[], [], []]


def test_a_value_that_can_not_be_read_is_named_by_its_table_and_key() -> None:
    part = checkpoint(state_of({"a": Refusing()}), N1)
    for read in (lambda: contents([part]), lambda: loaded(part)):
        with pytest.raises(StateError, match=r"state '' of one of the keys 'a' can't be decoded: .* too old"):
            read()


# Batches that end early.


def operator_of(spec: AggregateSpec | CountSpec) -> tuple[Operator, KeyedState]:
    node = OperatorNode("fold", spec, ())
    state = keyed_state(node)
    assert state is not None
    operator = build(node, state, None)
    assert operator is not None
    operator.time_budget.begin(100)
    return operator, state


def batches() -> Iterator[Batch]:
    yield Batch(["a1", "b1"], ["a", "b"])
    yield Batch(["c1", "b2", "d1", "c2", "e1"], ["c", "b", "d", "c", "e"])


@pytest.mark.parametrize("emit", ["updates", "final"])
def test_keys_of_records_that_are_left_for_another_slice_have_no_value_yet(emit: Any) -> None:
    def add(total: str, record: str) -> str:
        if record == "b2":
            operator.time_budget.stop()
        return total + record

    operator, state = operator_of(AggregateSpec(str, add, None, emit))
    first, second = batches()
    operator.process(first)
    operator.process(second)
    assert operator.time_budget.rest is not None
    assert operator.time_budget.rest.records == ["d1", "c2", "e1"]
    assert dict(state.items()) == {"a": "a1", "b": "b1b2", "c": "c1"}
    whole = checkpoint(state, N1)
    assert contents([whole]) == {MAIN: {"a": "a1", "b": "b1b2", "c": "c1"}}
    # The keys come in another order now, and get the slots.
    operator.process(Batch(["e1", "d1"], ["e", "d"]))
    changes = checkpoint(state, N2, since=N1)
    assert contents([whole, changes])[MAIN] == dict(state.items())
    state.roll_back(N2)
    assert dict(state.items()) == {"a": "a1", "b": "b1b2", "c": "c1", "e": "e1", "d": "d1"}


def test_a_key_whose_initial_value_fails_has_none() -> None:
    def initial() -> int:
        raise ValueError("no value")

    operator, state = operator_of(AggregateSpec(initial, lambda total, record: total, None, "updates"))
    with pytest.raises(UserCodeError, match="no value"):
        operator.process(Batch(["x"], ["x"]))
    assert (len(state), state.main.has("x")) == (0, False)


def test_the_record_whose_key_has_no_first_value_is_named() -> None:
    made = count(1)

    def initial() -> str:
        if next(made) == 3:
            raise ValueError("no third value")
        return ""

    operator, state = operator_of(AggregateSpec(initial, str.__add__, None, "updates"))
    with pytest.raises(UserCodeError, match="no third value") as raised:
        operator.process(Batch(["a1", "b1", "a2", "c1", "d1"], ["a", "b", "a", "c", "d"]))
    assert raised.value.record == "'c1'"
    assert "in initial" in raised.value.traceback
    assert not raised.value.is_first
    assert len(state) == 0


@pytest.mark.parametrize("emit", ["updates", "final"])
def test_a_slice_that_ends_while_first_values_are_made_takes_a_record_all_the_same(emit: Any) -> None:
    def initial() -> str:
        operator.time_budget.stop()
        return ""

    operator, state = operator_of(AggregateSpec(initial, str.__add__, None, emit))
    operator.process(Batch(["a1", "b1", "c1"], ["a", "b", "c"]))
    assert operator.time_budget.is_over
    taken = 3 - len(operator.time_budget.rest.records if operator.time_budget.rest is not None else [])
    assert taken > 0
    assert len(state) == taken


class Unreadable(KeyedState):
    def fetch(self, keys: Sequence[Any], *, to_change: bool = False) -> NoReturn:
        raise StateError("the disk is gone")


@pytest.mark.parametrize(
    "spec", [CountSpec("updates"), AggregateSpec(str, str.__add__, None, "updates")], ids=["count", "fold"]
)
def test_state_that_can_not_be_read_is_no_fault_of_a_record(spec: AggregateSpec | CountSpec) -> None:
    operator = build(OperatorNode("fold", spec, ()), Unreadable(str), None)
    assert operator is not None
    operator.time_budget.begin(100)
    with pytest.raises(StateError, match="the disk is gone"):
        operator.process(Batch(["a1"], ["a"]))


def test_a_count_says_each_number_of_a_key_that_comes_several_times_in_a_batch() -> None:
    operator, state = operator_of(CountSpec("updates"))
    said = operator.process(Batch(list("abaca"), list("abaca")))
    assert said.records == [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3)]
    state.freeze(N1)
    assert state.changed_rows == 3
    operator.process(Batch(list("bb"), list("bb")))
    state.freeze(N2)
    assert state.changed_rows == 4, "each changed key once a checkpoint"
