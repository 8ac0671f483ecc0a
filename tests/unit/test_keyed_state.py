"""Keyed state frozen by layering, its parts as bytes, and the chain of parts."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from crosscut.errors import StateError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.snapshots import Part
from crosscut.state.encoding import (
    DELETED,
    MAGIC,
    PartReader,
    contents,
    decode_part,
    encode_block,
    owned_copy,
)
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.layers import ROWS_PER_BLOCK
from crosscut.state.named import NamedTable
from crosscut.state.parts import PARTS_MAX, PartChain, kept, merged_count

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
        assert part[:4] == MAGIC
        rest = part[4:]
        while rest:
            head, length = struct.unpack(">QQ", rest[:16])
            _, _, _, keys = pickle.loads(rest[16 : 16 + head])
            values = pickle.loads(rest[16 + head : 16 + head + length])
            assert len(keys) == len(values)
            found.update(zip(keys, values, strict=True))
            rest = rest[16 + head + length :]
    return found


def completed(state: KeyedState, checkpoint_id: CheckpointId) -> KeyedState:
    for _ in state.complete(checkpoint_id):
        pass
    return state


def loaded(state: KeyedState, *parts: tuple[CheckpointId, bytes], owns: Any = None) -> KeyedState:
    if owns is None:
        steps = state.loading(parts, parts[-1][0])
    else:
        blocks = (block for _, part in parts for block in PartReader().blocks(part))
        steps = state.loading_rows(blocks, parts[-1][0], owns)
    for _ in steps:
        pass
    return state


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


def test_a_restore_takes_the_keys_that_the_task_owns_and_later_parts_override() -> None:
    older = MAGIC + encode_block(MAIN, ["a", "b"], [1, 1]) + encode_block(MAIN, ["c"], [1])
    newer = MAGIC + encode_block(MAIN, ["b", "d"], [2, 2])
    state = loaded(KeyedState(int), (N1, older), (N3, newer), owns=lambda key: key != "c")
    assert dict(state.items()) == {"a": 1, "b": 2, "d": 2}
    assert (state.at_hand, len(state)) == ((N3,), 3)
    assert state.part_rows is None, "a later part would build on keys that are not its own"


def test_a_restored_state_goes_on_with_parts_of_changes() -> None:
    source = state_of({"a": [1]}, list)
    source.freeze(N1)
    first = part_of(source, N1)
    state = loaded(KeyedState(list), (N1, first))
    state.values["b"].append(2)
    state.freeze(N2)
    assert content(part_of(state, N2, since=N1)) == {"b": [2]}
    assert content(first, part_of(state, N2, since=N1)) == {"a": [1], "b": [2]}


def test_a_part_with_state_that_is_not_declared_is_refused_by_name() -> None:
    with pytest.raises(StateError, match=r"checkpoint 1 holds the state 'seen', which is not declared"):
        loaded(KeyedState(int), (N1, MAGIC + encode_block("seen", ["a"], [1])))


# Values that come and go.


def test_a_deleted_value_is_gone_from_everything_but_older_checkpoints() -> None:
    state = KeyedState(int)
    for key in "abc":
        state.main.put(key, 1)
    state.freeze(N1)
    completed(state, N1)
    state.main.delete("a")
    state.main.delete("nobody")
    assert (state.main.get("a", "none"), state.main.has("a"), len(state)) == ("none", False, 2)
    state.freeze(N2)
    assert dict(state.items()) == {"b": 1, "c": 1}
    assert content(part_of(state, N2, since=N1)) == {"a": DELETED}
    assert contents([part_of(state, N2)]) == {MAIN: {"b": 1, "c": 1}}
    completed(state, N2)
    assert dict(state.items()) == {"b": 1, "c": 1}
    assert state.values["a"] == 0
    assert len(state) == 3
    state.roll_back(N2)
    assert dict(state.items()) == {"b": 1, "c": 1}


def test_a_deleted_value_may_come_again() -> None:
    state = KeyedState(int)
    state.main.put("a", 1)
    state.freeze(N1)
    state.main.delete("a")
    state.freeze(N2)
    state.main.put("a", 2)
    assert (state.main.get("a"), len(state)) == (2, 1)
    state.freeze(N3)
    completed(state, N3)
    assert (dict(state.items()), len(state)) == ({"a": 2}, 1)


def test_a_look_up_of_what_nobody_can_change_is_no_change() -> None:
    """So a key that is only read is not written again with each checkpoint."""
    state = KeyedState(int)
    state.main.put("number", 1)
    state.main.put("list", [1])
    state.freeze(N1)
    assert (state.main.get("number"), state.main.get("list")) == (1, [1])
    state.freeze(N2)
    assert content(part_of(state, N2, since=N1)) == {"list": [1]}


def _batch(state: KeyedState, keys: list[str]) -> None:
    """What an operator does with a batch."""
    state.fetch(keys, to_change=True)
    for key in keys:
        state.values[key] += 1


def test_where_most_keys_of_a_batch_are_in_older_layers_those_of_the_next_one_are_brought_up_at_once() -> (
    None
):
    state = KeyedState(int)
    keys = [f"{number}" for number in range(100)]
    _batch(state, keys)
    state.freeze(N1)
    completed(state, N1)
    _batch(state, keys[:20])
    state.main.delete("20")
    state.freeze(N2)
    _batch(state, keys[30:40])
    state.fetch([*keys[10:30], "new"], to_change=True)
    assert dict(state.values) == {**dict.fromkeys(keys[30:40], 2), **dict.fromkeys(keys[10:20], 2)} | (
        dict.fromkeys(keys[21:30], 1)
    )
    assert len(state) == 99, "what has no value is left to whoever looks it up"
    _batch(state, keys[10:20])
    state.fetch(keys[50:60], to_change=True)
    assert not set(keys[50:60]) & set(state.values), "most of the last batch were in the newest layer"


def test_where_most_keys_are_new_the_next_batches_are_not_looked_for() -> None:
    state = KeyedState(int)
    for number in range(1_000):
        _batch(state, [f"{number}"])
    state.freeze(N1)
    _batch(state, ["a"])
    _batch(state, ["b"])
    state.fetch(["1"], to_change=True)
    assert "1" not in state.values


def test_a_value_that_cant_be_copied_is_told_by_whoever_asks_for_it() -> None:
    state = KeyedState(list)
    for key in "abc":
        state.main.put(key, [key])
    state.main.put("bad", lambda: 1)
    state.freeze(N1)
    state.fetch(["a"], to_change=True)
    state.values["a"].append("more")
    state.fetch(["b", "bad"], to_change=True)
    assert state.values["b"] == ["b"]
    # The second since Python 3.14.
    with pytest.raises((AttributeError, pickle.PicklingError), match="Can't pickle"):
        state.values["bad"]


def test_a_value_is_told_from_a_deletion_without_asking_it() -> None:
    class Peculiar:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

    tables = contents(
        [MAGIC + encode_block(MAIN, ["a", "b"], [1, 2]), MAGIC + encode_block(MAIN, ["b"], [DELETED])]
    )
    assert tables == {MAIN: {"a": 1}}
    state = KeyedState(int)
    state.main.put("a", Peculiar())
    state.freeze(N1)
    completed(state, N1)
    state.main.put("b", Peculiar())
    state.freeze(N2)
    completed(state, N2)
    assert len(list(state.items())) == 2


def test_tables_of_one_task_are_frozen_and_stored_as_one() -> None:
    state = KeyedState(int, {"seen": list})
    state.values["a"] += 1
    state.tables["seen"].values["a"].append("x")
    state.freeze(N1)
    state.tables["seen"].values["a"].append("y")
    part = part_of(state, N1)
    assert contents([part]) == {MAIN: {"a": 1}, "seen": {"a": ["x"]}}
    restored = loaded(KeyedState(int, {"seen": list}), (N1, part))
    assert (dict(restored.tables["seen"].items()), len(restored)) == ({"a": ["x"]}, 2)
    restored.roll_back(N1)
    assert dict(restored.items()) == {"a": 1}


def test_between_the_steps_of_a_merge_all_tables_have_the_same_parts() -> None:
    state = KeyedState(int, {"seen": int})
    for n in (N1, N2):
        for table in state.tables.values():
            for key in range(2 * ROWS_PER_BLOCK):
                table.put(key, 1)
        state.freeze(n)
        part_of(state, n, since=CheckpointId(n - 1))
        for _ in state.complete(n):
            assert state.part_rows is not None
            assert len(state.part_rows) == n


# Named rows: several values a key.


def entries_of(rows: dict[tuple[Any, Any], Any] | None = None) -> tuple[KeyedState, NamedTable]:
    table = NamedTable("entries")
    for row, value in (rows or {}).items():
        table.put(row, value)
    return KeyedState(int, named=[table]), table


def test_a_change_of_one_row_stores_that_row_alone() -> None:
    state, table = entries_of({("a", name): [name] for name in range(100)} | {("b", "x"): [0]})
    state.freeze(N1)
    table.get(("a", 7)).append("more")
    table.delete(("b", "x"))
    state.freeze(N2)
    assert content(part_of(state, N2, since=N1)) == {("a", 7): [7, "more"], ("b", "x"): DELETED}
    both = [part_of(state, N1), part_of(state, N2, since=N1)]
    assert contents(both) == {
        "entries": {"a": {name: [name, "more"] if name == 7 else [name] for name in range(100)}}
    }


def test_names_are_in_the_same_order_before_and_after_a_restore() -> None:
    some: list[Any] = ["y", "x", 3, 1, (2, "t"), 1.5, b"z"]
    state, table = entries_of({("a", name): 1 for name in some})
    state.freeze(N1)
    other, loaded_table = entries_of()
    loaded(other, (N1, part_of(state, N1)))
    assert loaded_table.names("a") == table.names("a")
    assert set(table.names("a")) == set(some)
    assert (table.count("a"), table.names("b"), table.count("b")) == (len(some), [], 0)


def test_a_restore_takes_the_rows_whose_key_the_task_owns() -> None:
    state, _ = entries_of({("a", 1): 1, ("b", 1): 2, ("a", 2): 3})
    state.freeze(N1)
    other, table = entries_of()
    loaded(other, (N1, part_of(state, N1)), owns=lambda key: key == "a")
    assert dict(table.items()) == {("a", 1): 1, ("a", 2): 3}
    assert (table.names("a"), table.names("b")) == ([1, 2], [])


def test_a_roll_back_brings_the_names_back_too() -> None:
    state, table = entries_of({("a", 1): 1, ("a", 2): 2})
    state.freeze(N1)
    table.delete(("a", 1))
    table.put(("b", 1), 1)
    state.freeze(N2)
    table.put(("a", 3), 3)
    table.put(("a", 1), 4)
    table.delete(("a", 2))
    assert (table.names("a"), table.names("b")) == ([1, 3], [1])
    state.roll_back(N1)
    assert (table.names("a"), table.names("b")) == ([1, 2], [])
    assert dict(table.items()) == {("a", 1): 1, ("a", 2): 2}


def test_state_of_another_form_than_the_declared_one_is_refused_by_name() -> None:
    part = MAGIC + encode_block("entries", ["a"], [{"x": 1}])
    with pytest.raises(StateError, match="'entries' as one value a key: it is declared as named rows here"):
        loaded(entries_of()[0], (N1, part))


# Parts as bytes.


def test_a_block_comes_back_as_it_was() -> None:
    keys, values = ["a", ("b", 1), None], [{"x": [1]}, b"y", 1.5]
    assert (
        list(decode_part(MAGIC + encode_block(MAIN, keys, values) * 2)) == [(MAIN, False, keys, values)] * 2
    )


@pytest.mark.parametrize("data", [b"", b"XCS", b"XCS1" + encode_block(MAIN, [1], [1]), b"junk"])
def test_bytes_that_are_no_part_are_refused(data: bytes) -> None:
    with pytest.raises(StateError, match="expected b'XCS6'"):
        list(decode_part(data))


@pytest.mark.parametrize("cut", [1, 5, 8, 9, 20])
def test_a_part_that_was_cut_short_is_refused(cut: int) -> None:
    data = MAGIC + encode_block(MAIN, ["a"], [1])
    with pytest.raises(StateError):
        list(decode_part(data[: 4 + cut]))


class Unstorable:
    def __reduce__(self) -> NoReturn:
        raise ValueError("not me")


def test_a_value_that_cannot_be_stored_is_named_by_its_key() -> None:
    with pytest.raises(StateError, match=r"state of key 'b', of type Unstorable, .* ValueError: not me"):
        encode_block(MAIN, ["a", "b"], [1, Unstorable()])


class Refusing:
    def __setstate__(self, state: object) -> NoReturn:
        raise ValueError("too old")

    def __getstate__(self) -> dict[str, int]:
        return {"version": 1}


def test_a_value_that_refuses_its_own_bytes_is_a_state_error() -> None:
    with pytest.raises(StateError, match="ValueError: too old"):
        list(decode_part(MAGIC + encode_block(MAIN, ["a"], [Refusing()])))


@pytest.mark.parametrize("value", [1, 1.5, "a", b"a", None, True, (), (1, "a"), 1j])
def test_a_value_that_nobody_can_change_is_not_copied(value: Any) -> None:
    assert owned_copy(value) is value


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, {"a": [1]}, {("a", 1): 2}, ([1],), {1}, bytearray(b"a"), ((1, [2]),), [[1]]]
)
def test_a_value_that_could_be_changed_is_copied_deeply(value: Any) -> None:
    copy = owned_copy(value)
    assert copy == value
    assert copy is not value


@dataclass
class Session:
    pages: Any = 0


@dataclass(slots=True)
class Slotted:
    pages: Any = 0


class Counted(dict[str, int]):
    pages: Any = 0


@dataclass
class Reopened:
    """Leaves something out of its pickle, and makes it anew."""

    pages: Any = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"saved": self.pages}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pages = state["saved"]
        self.connection = "open"


@pytest.mark.parametrize("kind", [Session, Slotted, Counted, Reopened])
def test_an_object_is_copied_as_pickle_does(kind: Callable[[], Any]) -> None:
    for pages in (5, [1, 2]):
        one = kind()
        one.pages = pages
        copy, pickled = owned_copy(one), pickle.loads(pickle.dumps(one))
        assert type(copy) is type(one)
        assert copy == pickled
        assert getattr(copy, "__dict__", None) == getattr(pickled, "__dict__", None)
        copy.pages = copy.pages * 2
        if isinstance(pages, list):
            owned_copy(one).pages.append(3)
        assert one.pages == pages == ([1, 2] if isinstance(pages, list) else 5)


# The chain of parts.


def part(checkpoint_id: int) -> Part:
    return Part(f"parts/{checkpoint_id}/a", 1, "00", "", CheckpointId(checkpoint_id))


def test_the_first_part_is_a_full_one() -> None:
    assert PartChain().next_base([], 5) == 0
    assert PartChain().with_part(part(1), NONE) == (part(1),)


def test_a_part_replaces_those_whose_changes_it_holds() -> None:
    parts = [part(n) for n in (1, 3, 4, 7)]
    assert [kept(parts, CheckpointId(since)) for since in (0, 1, 3, 4, 7)] == [
        [],
        parts[:1],
        parts[:2],
        parts[:3],
        parts,
    ]
    # Changes since 6 are a part of the last one, which holds those since 4.
    assert kept(parts, CheckpointId(6)) == parts


@pytest.mark.parametrize(
    ("rows", "new", "merged"),
    [
        ([], 5, 0),
        ([100], 100, 0),
        ([100, 60], 40, 0),
        ([100, 60], 41, 2),
        ([100, 50, 40], 20, 3),
        ([10**6, *[1] * (PARTS_MAX - 2)], 1, 0),
        ([10**6, *[1] * (PARTS_MAX - 1)], 1, PARTS_MAX - 1),
        ([10**6, 10**5, 10**4, *[1] * (PARTS_MAX - 3)], 1, PARTS_MAX - 3),
        ([10**6, *(10**5 // 3**n for n in range(PARTS_MAX - 1))], 1, 1),
    ],
)
def test_how_many_parts_the_next_one_replaces(rows: list[int], new: int, merged: int) -> None:
    assert merged_count(rows, new) == merged


def parts_of(changes: Iterable[Iterable[int]]) -> Iterator[tuple[list[int], int]]:
    """Run a state through checkpoints; yield the rows of its parts, and those written for the last."""
    state, chain = KeyedState(int), PartChain()
    for n, keys in enumerate(changes, 1):
        for key in keys:
            state.values[key] += 1
        state.freeze(CheckpointId(n))
        since = state.next_base(chain)
        written = content(part_of(state, CheckpointId(n), since))
        chain = PartChain(CheckpointId(n), chain.with_part(part(n), since))
        completed(state, CheckpointId(n))
        assert state.part_rows is not None
        assert len(state.part_rows) == len(chain.parts)
        yield state.part_rows, len(written)


def test_a_small_change_of_a_large_state_never_has_all_of_it_written_again() -> None:
    found = list(parts_of([range(10_000), *[range(10)] * 3_000]))
    assert max(written for _, written in found[1:]) == 10
    assert max(len(rows) for rows, _ in found) <= PARTS_MAX


def test_a_chain_is_never_long_and_hardly_larger_than_the_state() -> None:
    """A restore reads it all."""
    changes = [range(n * 37 % 1_000, n * 37 % 1_000 + 100) for n in range(300)]
    for rows, _ in parts_of([range(1_100), *changes]):
        assert len(rows) <= PARTS_MAX
        assert sum(rows) <= 2 * 1_100 + 100
