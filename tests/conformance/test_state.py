"""Keyed state, whatever keeps it: what operators, barriers and restores may rely on.

Each test runs over every backend. A `Keeper` does with it what a worker does, and keeps the stored parts.
"""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import crosscut as cc
import crosscut.operators.keyed as operators_keyed_module
import crosscut.state.parts as parts_module
import crosscut.state.rocksdb.state as rocksdb_state_module
import crosscut.state.rocksdb.table as rocksdb_table_module
import crosscut.state.table as table_module
from crosscut.contracts.process import declared
from crosscut.contracts.windows import CountWindow, Early, Session, Sliding, Tumbling
from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.foundation.keys import OwnedKeys, groups_of_task, key_group
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec
from crosscut.graph.specs import AggregateSpec, CountSpec, OperatorNode, OperatorSpec, ProcessSpec
from crosscut.graph.windows import AggregateFold, CountFold, WindowSpec
from crosscut.operators.building import NewState, build, keyed_state
from crosscut.operators.final_results import ordinal_of
from crosscut.protocol.snapshots import Part
from crosscut.protocol.splits.rescaling import wholly_taken
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.named import NamedTable
from crosscut.state.parts import PartChain
from crosscut.state.predecessor_state import PredecessorState
from crosscut.state.reading import is_of_database, stored_blocks, stored_contents
from crosscut.state.rocksdb.database import chunks_of
from crosscut.state.rocksdb.state import RocksState
from crosscut.state.timers import Timers, TimerTable
from crosscut.worker.backends import OnDisk

N1, N2, N3 = map(CheckpointId, (1, 2, 3))
GROUPS = 16
TASK = TaskId(VertexId("counts"), 0)
KEYS: list[Any] = [
    *range(-2, 9),
    "a",
    "",
    b"a",
    ("a", 1),
    ("a", ("b", None)),
    None,
    1 << 70,
    -(1 << 70),
    "ä\ud800",
]


def named_tables() -> list[NamedTable]:
    return [NamedTable("named"), TimerTable("timers", lists_names=False)]


class Keeper(ABC):
    """The state of one task over its epochs, and the parts that it has stored."""

    def __init__(self, new: NewState) -> None:
        self._new = new
        self.state = new(list, {"other": int}, named_tables())
        self.bytes_of: dict[str, bytes] = {}
        self.parts_of: dict[CheckpointId, tuple[Part, ...]] = {}

    def read(self, part: Part) -> bytes:
        return self.bytes_of[part.path]

    def write(self, n: CheckpointId, data: bytes) -> Part:
        part = Part(f"parts/{n}/{len(self.bytes_of)}", len(data), hashlib.sha256(data).hexdigest(), "", n)
        self.bytes_of[part.path] = data
        return part

    @abstractmethod
    def storing(self, n: CheckpointId) -> Iterator[None]:
        """Store what has just been frozen for n, in steps."""

    def checkpoint(self, n: CheckpointId) -> None:
        self.state.freeze(n)
        for _ in self.storing(n):
            pass

    @abstractmethod
    def complete(self, n: CheckpointId) -> None: ...

    @abstractmethod
    def restored(self, n: CheckpointId, owns: OwnedKeys | None = None) -> KeyedState:
        """Return fresh state with what was stored at n in it."""

    def restore(self, n: CheckpointId) -> None:
        self.state.close()
        self.state = self.restored(n)

    def contents(self, n: CheckpointId) -> dict[str, dict[Any, Any]]:
        return stored_contents(self.parts_of[n], self.read)


class MemoryKeeper(Keeper):
    def __init__(self, new: NewState) -> None:
        super().__init__(new)
        self.chain = PartChain()

    def storing(self, n: CheckpointId) -> Iterator[None]:
        since = self.state.next_base(self.chain)
        chunks = []
        for chunk in self.state.encoded(n, since):
            chunks.append(chunk)
            yield
        self.parts_of[n] = self.chain.with_part(self.write(n, b"".join(chunks)), since)

    def complete(self, n: CheckpointId) -> None:
        for _ in self.state.complete(n):
            pass
        self.chain = PartChain(n, self.parts_of[n])

    def restored(self, n: CheckpointId, owns: OwnedKeys | None = None) -> KeyedState:
        state = self._new(list, {"other": int}, named_tables())
        parts = self.parts_of[n]
        if owns is not None:
            for _ in state.loading_rows(
                PredecessorState((parts,), 0, owns).blocks(0, state, self.read, ""), n
            ):
                pass
            return state
        contents = [self.read(part) for part in parts]
        assert not is_of_database(contents)
        ids = [part.checkpoint_id for part in parts]
        for _ in state.loading(list(zip(ids, contents, strict=True)), n):
            pass
        self.chain = PartChain(n, parts)
        return state


class DiskKeeper(Keeper):
    state: RocksState

    def storing(self, n: CheckpointId) -> Iterator[None]:
        yield from self.state.writing(n)
        files = self.state.link(n)
        yield
        parts = {path: self.write(n, b"".join(chunks_of(path))) for path in files}
        self.parts_of[n] = self.state.stored(n, self.write(n, self.state.head(n)), parts)

    def complete(self, n: CheckpointId) -> None:
        for _ in self.state.complete(n):
            pass

    def restored(self, n: CheckpointId, owns: OwnedKeys | None = None) -> RocksState:
        state = self._new(list, {"other": int}, named_tables())
        assert isinstance(state, RocksState)
        if owns is None:
            state.restore(self.parts_of[n], self.read, n, stored_blocks)
        else:
            state.inherit(PredecessorState((self.parts_of[n],), 0, owns), self.read, n)
        return state


@pytest.fixture
def keeper(new: NewState) -> Iterator[Keeper]:
    made: Keeper = MemoryKeeper(new) if new is KeyedState else DiskKeeper(new)
    yield made
    made.state.close()


def rows_of(state: KeyedState, name: str = MAIN) -> dict[Any, Any]:
    return dict(state.tables[name].items())


# What operators do.


def test_every_kind_of_key_comes_back_as_it_was(keeper: Keeper) -> None:
    for number, key in enumerate(KEYS):
        keeper.state.main.put(key, [number])
        keeper.state.tables["named"].put((key, key), number)
    keeper.checkpoint(N1)
    keeper.restore(N1)
    assert rows_of(keeper.state) == {key: [number] for number, key in enumerate(KEYS)}
    assert rows_of(keeper.state, "named") == {(key, key): number for number, key in enumerate(KEYS)}
    assert len(keeper.state) == 2 * len(KEYS)
    assert all(type(key) in (int, str, bytes, tuple, type(None)) for key in rows_of(keeper.state))


def test_names_may_be_anything_that_can_be_pickled_and_are_in_one_order(keeper: Keeper) -> None:
    some: list[Any] = ["y", "x", 3, 1, (2, "t"), 1.5, b"z", frozenset({1}), 2.0]
    table = keeper.state.named["named"]
    for name in some:
        table.put(("a", name), 1)
    before = table.names("a")
    keeper.checkpoint(N1)
    keeper.restore(N1)
    table = keeper.state.named["named"]
    assert table.names("a") == before
    assert set(before) == set(some)
    table.put(("a", 2), 5)
    assert (table.get(("a", 2.0)), table.count("a"), table.count("b")) == (5, len(some), 0)


@dataclass(frozen=True)
class Route:
    start: str
    end: str


def text(value: str) -> str:
    """Return an equal object of its own."""
    return "".join(list(value))


ONE_TEXT = text("ab")


@pytest.mark.parametrize(
    ("name", "equal"),
    [
        ((ONE_TEXT, ONE_TEXT, 1.5), (text("ab"), text("ab"), 1.5)),
        (Route(ONE_TEXT, ONE_TEXT), Route(text("ab"), text("ab"))),
        # A set gives items that fall into one place in the order in which they came.
        (frozenset((0, 8)), frozenset((8, 0))),
        ((0.5, frozenset((0, 8))), (0.5, frozenset((8, 0)))),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("0.10"), Decimal("0.1")),
        (1.5, Fraction(3, 2)),
        ((1, 0.5), (1.0, Decimal("0.5"))),
    ],
)
def test_names_that_are_equal_are_one_row_though_they_are_pickled_otherwise(
    keeper: Keeper, name: Any, equal: Any
) -> None:
    assert name == equal
    assert hash(name) == hash(equal)
    keeper.state.named["named"].put(("a", name), 1)
    keeper.checkpoint(N1)
    keeper.restore(N1)
    table = keeper.state.named["named"]
    assert table.get(("a", equal)) == 1
    table.put(("a", equal), 2)
    keeper.checkpoint(N2)
    keeper.restore(N2)
    table = keeper.state.named["named"]
    assert [table.get(("a", one)) for one in (name, equal)] == [2, 2]
    assert (table.names("a"), len(table)) == ([name], 1)


def timers_of(state: KeyedState) -> Timers:
    table = state.named["timers"]
    assert isinstance(table, TimerTable)
    timers = Timers(table)
    for _ in timers.loading():
        pass
    return timers


def test_timers_come_back_in_their_order_and_none_that_has_fired(keeper: Keeper) -> None:
    timers = timers_of(keeper.state)
    for key, time in (("b", 5), ("a", 5), (("c", 1), 9), (None, 7), ("b", 1)):
        timers.register(key, time)
    assert list(timers.due(4)) == [(1, "b")]
    timers.delete(None, 7)
    keeper.checkpoint(N1)
    keeper.complete(N1)
    timers.register("d", 5)
    assert list(timers.due(5)) == [(5, "b"), (5, "a"), (5, "d")]
    keeper.restore(N1)
    timers = timers_of(keeper.state)
    assert timers.next_time == 5
    timers.register("d", 5)
    assert list(timers.due(100)) == [(5, "b"), (5, "a"), (5, "d"), (9, ("c", 1))]
    assert len(timers) == 0


def test_a_value_that_a_look_up_gave_is_the_callers_own(keeper: Keeper) -> None:
    keeper.state.main.put("a", [1])
    keeper.checkpoint(N1)
    keeper.complete(N1)
    keeper.state.fetch(["a"])
    keeper.state.main.get("a").append(2)
    assert keeper.state.main.get("a") == [1, 2]
    keeper.state.fetch(["a"])
    assert keeper.state.main.get("a") == [1, 2]
    assert keeper.contents(N1)[MAIN] == {"a": [1]}
    keeper.state.roll_back(N1)
    assert keeper.state.main.get("a") == [1]


def test_values_that_are_read_to_be_changed_are_those_that_were_stored(keeper: Keeper) -> None:
    """Some of the keys have none; and what is changed then is not the checkpoint's."""
    main = keeper.state.main
    for key in ("a", "b"):
        main.put(key, [key])
    keeper.checkpoint(N1)
    keeper.complete(N1)
    keeper.state.fetch(["a", "new", "b", "a"], to_change=True)
    for key in ("a", "new", "b", "a"):
        keeper.state.values[key].append(2)
    assert dict(keeper.state.items()) == {"a": ["a", 2, 2], "b": ["b", 2], "new": [2]}
    assert len(keeper.state) == 3
    assert keeper.contents(N1)[MAIN] == {"a": ["a"], "b": ["b"]}
    keeper.checkpoint(N2)
    assert keeper.contents(N2)[MAIN] == {"a": ["a", 2, 2], "b": ["b", 2], "new": [2]}


def test_what_a_process_gets_is_its_own_wherever_the_value_lies(keeper: Keeper) -> None:
    main = keeper.state.main
    main.put("a", [1])
    for n in (None, N1, N2):
        if n is not None:
            keeper.checkpoint(n)
        if n == N2:
            keeper.complete(N2)
            keeper.state.fetch(["a"])
        main.own("a").append(2)
        assert main.own("a") == [1]
    assert main.own("b", 7) == 7


def test_a_key_without_a_value_has_the_initial_one_of_its_table(keeper: Keeper) -> None:
    keeper.state.values["a"].append(1)
    keeper.state.tables["other"].values["a"] += 1
    assert (rows_of(keeper.state), rows_of(keeper.state, "other")) == ({"a": [1]}, {"a": 1})
    keeper.checkpoint(N1)
    keeper.complete(N1)
    keeper.state.values["a"].append(2)
    keeper.state.tables["other"].values["a"] += 1
    assert (rows_of(keeper.state), rows_of(keeper.state, "other")) == ({"a": [1, 2]}, {"a": 2})
    assert keeper.state.peek("a") == [1, 2]


# Barriers and restores.


def test_a_checkpoint_stores_what_has_changed_and_not_the_rest(keeper: Keeper) -> None:
    content = os.urandom(100).hex()
    for key in range(5_000):
        keeper.state.main.put(key, f"{key} {content}")
    keeper.checkpoint(N1)
    keeper.complete(N1)
    first = sum(part.size_bytes for part in keeper.parts_of[N1])
    keeper.state.main.put(7, "new")
    keeper.checkpoint(N2)
    keeper.complete(N2)
    again = sum(part.size_bytes for part in keeper.parts_of[N2] if part.checkpoint_id == N2)
    assert again < first / 20
    assert len(keeper.contents(N2)[MAIN]) == 5_000
    assert keeper.contents(N2)[MAIN][7] == "new"


def test_a_checkpoint_that_was_given_up_is_in_the_next_one(keeper: Keeper) -> None:
    keeper.state.main.put("a", [1])
    keeper.checkpoint(N1)
    keeper.complete(N1)
    keeper.state.main.put("b", [2])
    keeper.state.freeze(N2)
    keeper.state.abandon(N2)
    keeper.state.main.put("c", [3])
    keeper.checkpoint(N3)
    keeper.complete(N3)
    assert keeper.contents(N3)[MAIN] == {"a": [1], "b": [2], "c": [3]}
    assert keeper.state.at_hand == (N3,)


def test_what_the_next_checkpoint_builds_on_is_the_completed_one(keeper: Keeper) -> None:
    """N2 was stored and never completed: nobody keeps its parts."""
    keeper.state.main.put("a", [1])
    keeper.checkpoint(N1)
    keeper.complete(N1)
    keeper.state.main.put("b", [2])
    keeper.checkpoint(N2)
    keeper.state.main.put("c", [3])
    keeper.checkpoint(N3)
    assert {part.checkpoint_id for part in keeper.parts_of[N3]} <= {N1, N3}
    assert keeper.contents(N3)[MAIN] == {"a": [1], "b": [2], "c": [3]}


def test_a_restore_takes_only_the_keys_that_the_task_owns(keeper: Keeper) -> None:
    for key in range(100):
        keeper.state.main.put(key, [key])
        keeper.state.tables["named"].put((key, "x"), key)
    keeper.checkpoint(N1)
    for groups in (range(3, 9), range(GROUPS - 2, GROUPS), range(GROUPS), range(4, 4)):
        state = keeper.restored(N1, OwnedKeys(groups, GROUPS))
        mine = [key for key in range(100) if key_group(key, GROUPS) in groups]
        assert rows_of(state) == {key: [key] for key in mine}
        assert rows_of(state, "named") == {(key, "x"): key for key in mine}
        assert (len(state), state.at_hand) == (2 * len(mine), (N1,))
        state.close()


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (4, 1), (1, 2)])
@pytest.mark.parametrize("other", ["memory", "rocksdb"])
def test_tasks_of_another_parallelism_take_each_key_once_from_either_backend(
    before: int, after: int, other: str, new: NewState, disk: OnDisk
) -> None:
    """Rows that belong to every task come to each, of those that are the same everywhere one copy."""

    def fresh(of: NewState) -> KeyedState:
        tables = [NamedTable(name) for name in ("named", "union", "copy")]
        return of(list, {"other": int}, tables, shared=["union", "copy"], alike=["copy"])

    chains = []
    for index in range(before):
        of = KeyedState if other == "memory" else disk.new_state(TaskId(VertexId("old"), index))
        keeper: Keeper = MemoryKeeper(of) if other == "memory" else DiskKeeper(of)
        keeper.state = fresh(of)
        for key in range(60):
            if key_group(key, GROUPS) in groups_of_task(index, GROUPS, before):
                keeper.state.main.put(key, [key])
                keeper.state.named["named"].put((key, "x"), key)
        keeper.state.named["union"].put((None, index), index)
        keeper.state.named["copy"].put((None, "rule"), index)
        keeper.state.main.put(1_000, [])
        keeper.state.main.delete(1_000)
        keeper.checkpoint(N1)
        chains.append((keeper, keeper.parts_of[N1]))
    bytes_of = {
        (at, part.path): one.bytes_of[part.path] for at, (one, parts) in enumerate(chains) for part in parts
    }
    named = [
        tuple(replace(part, path=f"{at}:{part.path}") for part in parts)
        for at, (_, parts) in enumerate(chains)
    ]

    def read(part: Part) -> bytes:
        at, path = part.path.split(":", 1)
        return bytes_of[int(at), path]

    found: list[int] = []
    for index in range(after):
        groups = groups_of_task(index, GROUPS, after)
        heirs = [
            old
            for old in range(before)
            if any(group in groups for group in groups_of_task(old, GROUPS, before))
        ]
        whole = wholly_taken(index, before, after, GROUPS, len(heirs))
        predecessor_state = PredecessorState(
            tuple(named[old] for old in heirs), 0, OwnedKeys(groups, GROUPS), whole
        )
        state = fresh(new)
        if isinstance(state, RocksState):
            state.inherit(predecessor_state, read, N1)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                for place in range(len(heirs)):
                    blocks = predecessor_state.blocks(place, state, read, f"{scratch}/{place}")
                    for _ in state.loading_rows(blocks, N1):
                        pass
        mine = [key for key in range(60) if key_group(key, GROUPS) in groups]
        assert rows_of(state) == {key: [key] for key in mine}
        assert rows_of(state, "named") == {(key, "x"): key for key in mine}
        assert rows_of(state, "union") == {(None, old): old for old in heirs}
        assert rows_of(state, "copy") == {(None, "rule"): heirs[0]}
        assert len(state) == 2 * len(mine) + len(heirs) + 1
        found += mine
        state.close()
    assert sorted(found) == list(range(60))
    for keeper, _ in chains:
        keeper.state.close()


def test_a_row_that_is_put_again_after_it_was_taken_away_counts_again(keeper: Keeper) -> None:
    table = keeper.state.main
    table.put("a", 1)
    table.delete("a")
    table.put("a", 2)
    assert len(table) == 1
    keeper.checkpoint(N1)
    keeper.complete(N1)
    table.put("b", 3)
    keeper.state.roll_back(N1)
    table.put("b", 4)
    assert (len(table), dict(table.items())) == (2, {"a": 2, "b": 4})
    assert table.own("b") == 4
    keeper.state.roll_back(N1)
    table.put("b", 5)
    keeper.checkpoint(N2)
    assert keeper.contents(N2)[MAIN] == {"a": 2, "b": 5}


def test_state_that_is_not_declared_is_refused_by_name(keeper: Keeper) -> None:
    keeper.state.main.put("a", [1])
    keeper.state.tables["other"].put("a", 1)
    keeper.checkpoint(N1)
    keeper._new = _without_other(keeper._new)
    with pytest.raises(StateError, match=r"checkpoint 1 holds the state.*'other'"):
        keeper.restored(N1)


def _without_other(new: NewState) -> NewState:
    return lambda initial, others, named: new(initial, {}, named)


def test_a_value_that_cant_be_stored_is_named_with_its_key(keeper: Keeper) -> None:
    keeper.state.main.put("good", [1])
    keeper.state.main.put("bad", lambda: 1)
    keeper.state.freeze(N1)
    with pytest.raises(StateError, match="the state of key 'bad', of type function, can't be stored"):
        for _ in keeper.storing(N1):
            pass
    keeper.state.abandon(N1)
    keeper.state.main.put("bad", [2])
    keeper.checkpoint(N2)
    assert keeper.contents(N2)[MAIN] == {"good": [1], "bad": [2]}


class Color(StrEnum):
    RED = "red"


class Place(NamedTuple):
    row: int
    seat: Any


EQUAL_KEYS: list[list[Any]] = [
    [True, 1, 1.0, Decimal("1.0")],
    [0, False, 0.0, -0.0],
    [Color.RED, "red"],
    [(1, "x"), Place(1, "x"), Place(True, "x")],
]
"""Each list has keys that are one key."""
EQUAL_NAMES = [*EQUAL_KEYS, [Decimal("2.50"), 2.5, Fraction(5, 2)], [frozenset({1}), frozenset({True})]]


def exact(rows: Any) -> list[str]:
    """Return rows by what they are, which may differ where they are equal."""
    return sorted(map(repr, rows))


@pytest.mark.parametrize("equal", [*EQUAL_KEYS, *(keys[::-1] for keys in EQUAL_KEYS)], ids=repr)
def test_a_row_keeps_the_key_that_it_was_created_with(keeper: Keeper, equal: list[Any]) -> None:
    """Whichever of the equal ones changes it later, live and after every kind of restore."""
    first, *others = equal
    keeper.state.main.put(first, [1])
    keeper.state.named["named"].put((first, first), 1)
    for n, other in enumerate(others, 1):
        keeper.checkpoint(CheckpointId(n))
        keeper.complete(CheckpointId(n))
        keeper.state.fetch([other], to_change=n % 2 == 1)
        keeper.state.main.put(other, [*keeper.state.main.get(other), 2])
        row = (other, other)
        keeper.state.named["named"].put(row, keeper.state.named["named"].own(row) + 1)
        assert exact(rows_of(keeper.state)) == [repr(first)]
    last = CheckpointId(len(equal))
    keeper.checkpoint(last)
    keeper.complete(last)
    everything = OwnedKeys(range(GROUPS), GROUPS)
    for state in (keeper.state, keeper.restored(last), keeper.restored(last, everything)):
        assert exact(rows_of(state)) == [repr(first)]
        assert exact(rows_of(state, "named")) == [repr((first, first))]
        assert exact(state.named["named"].names(others[0])) == [repr(first)]
        state.close()
    assert exact(keeper.contents(last)[MAIN]) == [repr(first)]


def test_a_new_row_does_not_take_the_key_by_which_the_one_before_was_deleted(keeper: Keeper) -> None:
    """The first key that is not plain comes with the deletion."""
    main, named = keeper.state.main, keeper.state.named["named"]
    main.put(0, [1])
    named.put((0, 0), 1)
    keeper.checkpoint(N1)
    keeper.complete(N1)
    main.delete(-0.0)
    named.delete((0, -0.0))
    main.put(0, [2])
    named.put((0, 0), 2)
    assert exact(main.items()) == ["(0, [2])"]
    assert exact(named.items()) == ["((0, 0), 2)"]
    assert exact(named.names(0)) == ["0"]


def test_keys_that_keep_their_slots_keep_their_first_one() -> None:
    """Of operators that never delete a value, in memory."""
    keeper = MemoryKeeper(lambda initial, others, named: KeyedState(initial, keeps_keys=True))
    for number, equal in enumerate(zip(*(keys[:2] for keys in EQUAL_KEYS), strict=True), 1):
        keeper.state.fetch(list(equal), to_change=True)
        rows, values = keeper.state.to_change(list(equal))
        for row in rows:
            values[row] = [number]
        keeper.checkpoint(CheckpointId(number))
        keeper.complete(CheckpointId(number))
    expected = exact(keys[0] for keys in EQUAL_KEYS)
    assert exact(rows_of(keeper.state)) == expected
    assert exact(keeper.contents(N2)[MAIN]) == expected
    assert exact(rows_of(keeper.restored(N2))) == expected


def test_a_timer_calls_with_the_key_that_set_it(keeper: Keeper) -> None:
    timers = timers_of(keeper.state)
    for equal in EQUAL_KEYS:
        assert timers.register(equal[0], 5)
        assert not timers.register(equal[1], 5)
    keeper.checkpoint(N1)
    keeper.complete(N1)
    expected = [repr((5, equal[0])) for equal in EQUAL_KEYS]
    everything = OwnedKeys(range(GROUPS), GROUPS)
    for state in (keeper.restored(N1), keeper.restored(N1, everything), keeper.state):
        assert list(map(repr, timers_of(state).due(9))) == expected
        state.close()


# Operators.


class Shopping(cc.KeyedProcess[Any, Any]):
    seen = cc.ValueState[int](0)
    items = cc.ListState[int]()
    basket = cc.MapState[Any, int]()
    most = cc.ReducingState[int](max)

    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        self.seen.set(self.seen.get() + 1)
        self.items.append(record)
        self.most.add(record)
        self.basket[record % 4] = self.basket.get(record % 4, 0) + 1
        if record % 7 == 0:
            self.basket.pop(next(iter(self.basket)))
        if record % 11 == 0:
            self.items.clear()
        yield ctx.key, self.seen.get(), self.items.get(), dict(self.basket), len(self.basket), self.most.get()


def _add(total: list[int], record: int) -> list[int]:
    total.append(record)
    return total


SPECS = {
    "count": CountSpec("updates"),
    "aggregate": AggregateSpec(list, _add, tuple, "updates"),
    "process": ProcessSpec(Shopping(), tuple((name, one.kind) for name, one in declared(Shopping()).items())),
}


@pytest.mark.parametrize("name", SPECS)
def test_operators_say_the_same_over_every_backend_and_over_failures(name: str, new: NewState) -> None:
    node = OperatorNode("it", SPECS[name], ())

    def fresh(state_of: NewState) -> KeyedState:
        state = keyed_state(node, state_of)
        assert state is not None
        return state

    def run(state_of: NewState, *, fails: bool) -> list[Any]:
        keeper: Keeper = MemoryKeeper(state_of) if state_of is KeyedState else DiskKeeper(state_of)
        keeper._new = lambda *_: fresh(state_of)
        keeper.state = fresh(state_of)
        said: list[Any] = []
        kept = 0
        for n in range(1, 13):
            operator = build(node, keeper.state, None)
            assert operator is not None
            for batch in range(3):
                keys = [(n * 7 + batch + i) % 5 for i in range(10)]
                records = [n * 31 + batch * 10 + i for i in range(10)]
                said += deepcopy(operator.process(Batch(list(records), keys)).records)
                if batch == 1:
                    kept = len(said)
                    keeper.checkpoint(CheckpointId(n))
                    keeper.complete(CheckpointId(n))
            if fails:
                del said[kept:]
                if n % 2:
                    keeper.state.roll_back(CheckpointId(n))
                else:
                    keeper.restore(CheckpointId(n))
                operator = build(node, keeper.state, None)
                assert operator is not None
                keys = [(n * 7 + 2 + i) % 5 for i in range(10)]
                records = [n * 31 + 20 + i for i in range(10)]
                said += deepcopy(operator.process(Batch(list(records), keys)).records)
        keeper.state.close()
        return said

    assert run(new, fails=True) == run(KeyedState, fails=False)


def test_final_results_come_in_their_order_however_few_keys_are_put_in_order_at_a_time(
    new: NewState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators_keyed_module, "KEYS_IN_ORDER_MAX", 7)
    node = OperatorNode("it", CountSpec("final"), ())
    state = keyed_state(node, new)
    assert state is not None
    keys = list(range(100))
    operator = build(node, state, None)
    assert operator is not None
    operator.process(Batch(keys, keys))
    operator.time_budget.begin(9)
    said: list[Any] = []
    places = [""]
    for batch, place in operator.end(""):
        said += batch.records
        places.append(place)
    assert said == [(key, 1) for key in sorted(keys, key=ordinal_of)]
    # Whoever goes on from any place says the rest.
    middle = places[len(places) // 2]
    rest = [record for batch, _ in operator.end(middle) for record in batch.records]
    assert rest == [(key, 1) for key, _ in said if ordinal_of(key) > middle]
    state.close()


class Reminders(cc.KeyedProcess[int, Any]):
    """Counts until a while after the last record of a key."""

    count = cc.ValueState[int](0, ttl="9ms")
    last = cc.ValueState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[Any]:
        assert ctx.timestamp is not None
        if self.last.exists:
            ctx.delete_timer(self.last.get())
        self.last.set(ctx.timestamp + 5)
        ctx.set_timer(ctx.timestamp + 5)
        self.count.set(self.count.get() + 1)
        yield ctx.key, record, self.count.get()

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield ctx.key, time, self.count.get()
        self.last.clear()


TIMED: dict[str, OperatorSpec] = {
    "timers and a ttl": ProcessSpec(Reminders(), ()),
    "tumbling": WindowSpec(Tumbling(10), AggregateFold(list, _add, tuple, lambda one, other: one + other)),
    "sliding, early": WindowSpec(Sliding(10, 4), CountFold(), Early(3), lateness_ms=5),
    "session": WindowSpec(Session(4), AggregateFold(list, _add, tuple, lambda one, other: one + other)),
    "counted": WindowSpec(CountWindow(3), CountFold()),
    "interval join": IntervalJoinSpec(-3, 3, "outer"),
    "latest join": LatestJoinSpec("left"),
}


class TimedRun:
    """An operator with event time over its state."""

    def __init__(self, spec: OperatorSpec, new: NewState) -> None:
        self._node = OperatorNode("it", spec, ())
        self.keeper: Keeper = MemoryKeeper(new) if new is KeyedState else DiskKeeper(new)
        self.keeper._new = lambda *_: self._fresh(new)
        self.keeper.state = self._fresh(new)
        self._watermark = 0
        self.begin()

    def _fresh(self, new: NewState) -> KeyedState:
        state = keyed_state(self._node, new)
        assert state is not None
        return state

    def begin(self) -> list[Any]:
        """Begin an epoch: a restored chain tells of the watermark before anything else."""
        operator = build(self._node, self.keeper.state, None)
        assert operator is not None
        self.operator = operator
        operator.time_budget.begin(4)
        for _ in operator.loading():
            pass
        return self.advance(self._watermark) if self._watermark else []

    def advance(self, watermark: int) -> list[Any]:
        self._watermark = watermark
        said: list[Any] = []
        while (batch := self.operator.advance(watermark)) is not None:
            said += deepcopy(batch.records)
        return said

    def step(self, draw: random.Random, now: int) -> list[Any]:
        """Give it a batch of around `now`, and then a watermark."""
        count = draw.randrange(1, 8)
        records = [draw.randrange(100) for _ in range(count)]
        keys = [draw.choice(["a", "b", 3]) for _ in records]
        batch = Batch(records, keys, [max(0, now + draw.randrange(-6, 6)) for _ in records])
        batch.input = draw.randrange(2)
        return deepcopy(self.operator.process(batch).records) + self.advance(max(self._watermark, now - 4))


def bag(results: list[Any]) -> list[str]:
    """Those of one time come in another order after a restore."""
    return sorted(map(repr, results))


@pytest.mark.parametrize("name", TIMED)
def test_windows_and_joins_say_the_same_over_every_backend_and_over_failures(
    name: str, new: NewState
) -> None:
    plain, failing = TimedRun(TIMED[name], KeyedState), TimedRun(TIMED[name], new)
    for n in range(1, 17):
        expected = plain.step(random.Random(n), 3 * n)
        assert bag(failing.step(random.Random(n), 3 * n)) == bag(expected), n
        failing.keeper.checkpoint(CheckpointId(n))
        failing.keeper.complete(CheckpointId(n))
        if n % 3:
            # What comes now is undone, and comes again.
            failing.step(random.Random(-n), 3 * n + 3)
            failing._watermark = plain._watermark
            if n % 3 == 1:
                failing.keeper.state.roll_back(CheckpointId(n))
            else:
                failing.keeper.restore(CheckpointId(n))
            assert failing.begin() == []
    assert bag(failing.advance(END_OF_TIME)) == bag(plain.advance(END_OF_TIME))
    assert len(failing.keeper.state) == len(plain.keeper.state)
    failing.keeper.state.close()


# Anything, in any order, against a dict.

KEY = st.integers(0, 8) | st.sampled_from(["a", ("a", 1), None])


class World(RuleBasedStateMachine):
    """One task's state over several epochs, as the task and its runner use it."""

    def make(self) -> Keeper:
        return MemoryKeeper(KeyedState)

    @initialize()
    def begin(self) -> None:
        self.keeper = self.make()
        self.oracle: dict[Any, list[int]] = {}
        self.named: dict[Any, dict[int, int]] = {}
        self.frozen: dict[CheckpointId, Any] = {}
        self.next_id = 1
        self.completed: CheckpointId | None = None

    @rule(key=KEY, number=st.integers(0, 9))
    def append_in_place(self, key: Any, number: int) -> None:
        value = self.keeper.state.main.get(key, [])
        assert value == self.oracle.get(key, [])
        value.append(number)
        self.keeper.state.main.put(key, value)
        self.oracle.setdefault(key, []).append(number)

    @rule(keys=st.lists(KEY, max_size=6), to_change=st.booleans())
    def batch(self, keys: list[Any], to_change: bool = True) -> None:
        self.keeper.state.fetch(keys, to_change=to_change)
        for key in keys:
            self.append_in_place(key, 1)
            self.keeper.state.tables["other"].put(key, len(self.oracle[key]))

    @rule(key=KEY)
    def delete(self, key: Any) -> None:
        self.keeper.state.main.delete(key)
        self.oracle.pop(key, None)
        assert not self.keeper.state.main.has(key)

    @rule(key=KEY, name=st.integers(0, 3), number=st.integers(0, 9))
    def put_entry(self, key: Any, name: int, number: int) -> None:
        self.keeper.state.named["named"].put((key, name), number)
        self.named.setdefault(key, {})[name] = number

    @rule(key=KEY, name=st.integers(0, 3))
    def delete_entry(self, key: Any, name: int) -> None:
        self.keeper.state.named["named"].delete((key, name))
        if self.named.get(key, {}).pop(name, None) is not None and not self.named[key]:
            del self.named[key]

    @rule(
        between=st.lists(KEY, max_size=3),
        batches=st.lists(st.lists(KEY, min_size=5, max_size=9), max_size=3),
        outcome=st.sampled_from(["complete", "stored", "abandon", "broken off"]),
    )
    def checkpoint(self, between: Sequence[Any], batches: Sequence[list[Any]], outcome: str) -> None:
        n = CheckpointId(self.next_id)
        self.next_id += 1
        self.keeper.state.freeze(n)
        frozen = deepcopy((self.oracle, self.named))
        # Records go on before the background comes to it.
        for keys in batches:
            self.batch(keys)
        if outcome == "abandon":
            self.keeper.state.abandon(n)
            return
        for step, _ in enumerate(self.keeper.storing(n)):
            if step < len(between):
                self.append_in_place(between[step], step)
                self.put_entry(between[step], 1, step)
            if outcome == "broken off":
                self.keeper.state.abandon(n)
                return
        contents = self.keeper.contents(n)
        assert (contents.get(MAIN, {}), contents.get("named", {})) == frozen
        self.frozen[n] = frozen
        if outcome == "complete":
            self.keeper.complete(n)
            self.completed = n

    @precondition(lambda self: self.completed)
    @rule(is_at_hand=st.booleans())
    def fail(self, is_at_hand: bool) -> None:
        assert self.completed is not None
        if is_at_hand:
            assert self.completed in self.keeper.state.at_hand
            self.keeper.state.roll_back(self.completed)
        else:
            self.keeper.restore(self.completed)
        self.oracle, self.named = deepcopy(self.frozen[self.completed])

    @invariant()
    def the_state_is_the_dict(self) -> None:
        if not hasattr(self, "keeper"):
            return
        state = self.keeper.state
        items = list(state.main.items())
        assert dict(items) == self.oracle
        assert len(items) == len(self.oracle)
        table = state.named["named"]
        assert {key: table.names(key) for key in self.named} == {
            key: sorted(names) for key, names in self.named.items()
        }
        others = sum(1 for _ in state.tables["other"].items())
        assert len(state) == len(self.oracle) + sum(map(len, self.named.values())) + others

    def teardown(self) -> None:
        if hasattr(self, "keeper"):
            self.keeper.state.close()


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several steps for a handful of keys, so that encoding and writing can be broken off anywhere."""
    monkeypatch.setattr(table_module, "ROWS_PER_BLOCK", 2)
    monkeypatch.setattr(table_module, "FETCHES_LEFT_OUT", 1)
    monkeypatch.setattr(parts_module, "PARTS_MAX", 3)
    monkeypatch.setattr(rocksdb_table_module, "ROWS_PER_STEP", 2)
    monkeypatch.setattr(rocksdb_table_module, "NEAR_ROWS_MAX", 4)
    monkeypatch.setattr(rocksdb_state_module, "LAYER_ROWS_MAX", 4)


def test_anything_in_any_order_in_memory() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        World, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


def test_anything_in_any_order_in_rocksdb(disk: OnDisk) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    class OnDiskWorld(World):
        def make(self) -> Keeper:
            return DiskKeeper(disk.new_state(TASK))

    run_state_machine_as_test(
        OnDiskWorld, settings=settings(max_examples=40, stateful_step_count=30, deadline=None)
    )


class Keys(RuleBasedStateMachine):
    """Rows keep the keys that they were created with, whatever happens and in whatever order."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self.keeper = keeper
        self.n = 0
        self.completed: CheckpointId | None = None
        # A dict keeps the first of keys that are equal, until it is deleted.
        self.rows: dict[str, dict[Any, int]] = {MAIN: {}, "named": {}}
        self.frozen: dict[CheckpointId, dict[str, dict[Any, int]]] = {}

    some = st.tuples(
        st.sampled_from([MAIN, "named"]),
        st.sampled_from([*chain.from_iterable(EQUAL_KEYS), "z"]),
        st.sampled_from([*chain.from_iterable(EQUAL_NAMES), "z"]),
    )

    @rule(one=some, value=st.integers(0, 9), reads=st.sampled_from(["", "own", "get", "fetch"]))
    def put(self, one: tuple[str, Any, Any], value: int, reads: str) -> None:
        rows, table, row = self.rows[one[0]], self.keeper.state.tables[one[0]], _row(*one)
        if reads == "fetch":
            table.fetch([row], to_change=True)
        elif reads:
            assert getattr(table, reads)(row, None) == rows.get(row)
        table.put(row, value)
        rows[row] = value

    @rule(one=some)
    def delete(self, one: tuple[str, Any, Any]) -> None:
        self.keeper.state.tables[one[0]].delete(_row(*one))
        self.rows[one[0]].pop(_row(*one), None)

    @rule(completes=st.booleans())
    def checkpoint(self, *, completes: bool) -> None:
        self.n += 1
        n = CheckpointId(self.n)
        self.keeper.checkpoint(n)
        self.frozen[n] = deepcopy(self.rows)
        if completes:
            self.keeper.complete(n)
            self.completed = n

    @precondition(lambda self: self.completed)
    @rule(how=st.sampled_from(["restore", "roll back", "rescale"]))
    def recover(self, how: str) -> None:
        assert self.completed is not None
        self.rows = deepcopy(self.frozen[self.completed])
        if how == "roll back":
            self.keeper.state.roll_back(self.completed)
        elif how == "restore":
            self.keeper.restore(self.completed)
        else:
            self.keeper.state.close()
            self.keeper.state = self.keeper.restored(self.completed, OwnedKeys(range(GROUPS), GROUPS))
            if isinstance(self.keeper, MemoryKeeper):
                # No part can build on those that it has come from.
                self.keeper.chain = PartChain()

    @invariant()
    def has_the_keys_that_were_given(self) -> None:
        for name, rows in self.rows.items():
            assert exact(self.keeper.state.tables[name].items()) == exact(rows.items())
        for key in (equal[-1] for equal in EQUAL_KEYS):
            names = [name for other, name in self.rows["named"] if other == key]
            assert exact(self.keeper.state.named["named"].names(key)) == exact(names)
        if self.completed:
            found = self.keeper.contents(self.completed)
            assert exact(found.get(MAIN, {}).items()) == exact(self.frozen[self.completed][MAIN].items())

    def teardown(self) -> None:
        self.keeper.state.close()


def _row(table: str, key: Any, name: Any) -> Any:
    return key if table == MAIN else (key, name)


def test_keys_in_any_order_in_memory() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        lambda: Keys(MemoryKeeper(KeyedState)),
        settings=settings(max_examples=100, stateful_step_count=30, deadline=None),
    )


def test_keys_in_any_order_in_rocksdb(disk: OnDisk) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        lambda: Keys(DiskKeeper(disk.new_state(TASK))),
        settings=settings(max_examples=40, stateful_step_count=30, deadline=None),
    )
