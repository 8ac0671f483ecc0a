"""How much memory keyed state is said to take, against what Python gives out for it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.state.keyed import KeyedState
from crosscut.state.memory import CHILDREN_SAMPLED, OBJECTS_PER_ROW, mean_bytes
from crosscut.state.named import NamedTable
from crosscut.state.rocksdb.state import RocksState
from crosscut.state.rocksdb.table import RocksTable
from crosscut.state.state_memory import EVERY_NS, ROWS_SAMPLED, StateMemory
from crosscut.state.table import Table
from crosscut.worker.backends import OnDisk

KEYS = 2_000
N1, N2 = map(CheckpointId, (1, 2))


class Slotted:
    __slots__ = ("count", "name")

    def __init__(self, i: int) -> None:
        self.count, self.name = i + 1_000, f"the name of {i}"


class Plain:
    def __init__(self, i: int) -> None:
        self.count, self.name = i + 1_000, f"the name of {i}"


VALUES: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i + 1_000,
    "tuple": lambda i: (i + 1_000, 2 * i + 1_000),
    "bytes": lambda i: i.to_bytes(100, "big"),
    "slots": Slotted,
    "attributes": Plain,
    "list": lambda i: [float(i + each) for each in range(50)],
    "dict": lambda i: {f"{each}-{i}": i + 1_000 + each for each in range(10)},
    "nested": lambda i: [(f"{i}-{each}", {"at": float(i + each)}) for each in range(4)],
}


def size_of(state: KeyedState) -> int:
    return StateMemory(state).size_bytes(0)


def filled(state: KeyedState, value: Callable[[int], Any], count: int = KEYS) -> KeyedState:
    for i in range(count):
        state.main.put(f"key-{i:08d}", value(i))
    return state


def taken(make: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `make` does, and how many bytes more there are with it."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = make()
        gc.collect()
        return found, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def checkpointed(state: KeyedState, value: Callable[[int], Any]) -> None:
    """A checkpoint is complete, another one frozen, and every third value has changed since."""
    state.freeze(N1)
    list(state.complete(N1))
    state.freeze(N2)
    for i in range(0, KEYS, 3):
        state.main.put(f"key-{i:08d}", value(i))


@pytest.mark.parametrize("shape", VALUES)
@pytest.mark.parametrize("keeps_keys", [True, pytest.param(False, marks=pytest.mark.proof)])
def test_the_estimate_is_within_a_third_of_what_the_state_takes(shape: str, keeps_keys: bool) -> None:
    value = VALUES[shape]
    state, given = taken(lambda: filled(KeyedState(int, keeps_keys=keeps_keys), value))
    assert 0.75 * given < size_of(state) < 1.33 * given
    _, more = taken(lambda: checkpointed(state, value))
    assert 0.75 * (given + more) < size_of(state) < 1.33 * (given + more)


def test_rows_of_maps_count_with_their_names() -> None:
    def made() -> KeyedState:
        table = NamedTable("counts")
        state = KeyedState(int, named=[table])
        for i in range(KEYS):
            table.put((f"key-{i % 1_000:08d}", f"name-{i}"), i + 1_000)
        return state

    state, given = taken(made)
    assert 0.7 * given < size_of(state) < 1.4 * given


def test_what_all_rows_share_counts_once() -> None:
    shared = [f"text {i}" for i in range(1_000)]
    alone = size_of(filled(KeyedState(int, keeps_keys=True), lambda _: None))
    state = filled(KeyedState(int, keeps_keys=True), lambda _: (shared,))
    assert size_of(state) < alone + 100 * KEYS


class Hostile(type):
    """Whoever asks a class or an object of it for anything gets an error."""

    def __getattribute__(cls, name: str) -> NoReturn:
        raise AssertionError(name)

    def __hash__(cls) -> NoReturn:
        raise AssertionError("hash")

    def __eq__(cls, other: object) -> NoReturn:
        raise AssertionError("equals")


def refuse(*_: Any) -> NoReturn:
    raise AssertionError("called")


METHODS = (
    *("__sizeof__", "__len__", "__iter__", "__hash__", "__eq__", "__bool__", "__getitem__", "__repr__"),
    *("__getattribute__", "__reduce_ex__", "__contains__", "keys", "items", "values"),
)


@pytest.mark.parametrize("base", [object, list, tuple, dict, set, frozenset, str, int])
def test_no_code_of_users_is_called(base: type) -> None:
    kind = Hostile("Refusing", (base,), dict.fromkeys(METHODS, refuse))
    values = [base.__new__(kind) for _ in range(20)]
    assert mean_bytes(values) > 0


def test_the_work_has_a_bound() -> None:
    """However large a value is, and however many there are."""
    looked_at = []

    class Counted(Table):
        def sample(self, count: int) -> tuple[list[Any], list[Any]]:
            looked_at.append(count)
            return super().sample(count)

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep, deep]
    assert 0 < mean_bytes([deep]) < 100 * OBJECTS_PER_ROW
    wide = [float(i) for i in range(1_000_000)]
    assert mean_bytes([wide]) == pytest.approx(8 * 1_000_000 + 32 * 1_000_000, rel=0.2)
    assert CHILDREN_SAMPLED < OBJECTS_PER_ROW
    state = KeyedState(int)
    state.tables[""] = state.main = Counted(int)
    filled(state, VALUES["int"])
    memory = StateMemory(state)
    first = memory.size_bytes(0)
    filled(state, VALUES["int"], 2 * KEYS)
    assert memory.size_bytes(EVERY_NS - 1) > 1.5 * first, "rows count at once"
    assert looked_at == [ROWS_SAMPLED]
    memory.size_bytes(EVERY_NS)
    assert looked_at == [ROWS_SAMPLED] * 2


def test_rows_that_are_gone_are_not_looked_at_and_their_last_sample_counts() -> None:
    state = filled(KeyedState(int), VALUES["bytes"], 10)
    for i in range(10):
        state.main.delete(f"key-{i:08d}")
    assert 0 < size_of(state) < 10_000
    assert size_of(KeyedState(int)) < 1_000
    assert StateMemory(None).size_bytes(0) == 0


def test_a_dict_that_is_all_gaps_is_not_searched_for_the_rows_that_are_left() -> None:
    state = filled(KeyedState(int), VALUES["int"], 200_000)
    state.freeze(N1)
    list(state.complete(N1))
    for i in range(1, 200_000):
        state.main.delete(f"key-{i:08d}")
    state.freeze(N2)
    list(state.complete(N2))
    assert len(state) == 1
    assert state.main.sample(ROWS_SAMPLED) == ([], [])
    assert size_of(state) > 1_000_000, "the dict is still there"


def test_names_are_not_searched_for_either_where_hardly_any_are_left() -> None:
    table = NamedTable("counts")
    for i in range(200_000):
        table.put((i, "name"), i)
    walked = []

    class Watched(dict[Any, Any]):
        def values(self) -> Any:
            walked.append(len(self))
            return super().values()

    table._names = Watched(table._names or {})
    assert table.held
    assert walked == [200_000]
    for i in range(1, 200_000):
        table.delete((i, "name"))
    assert table.held.structure_bytes > 1_000_000, "the dict is still there"
    assert walked == [200_000]


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[KeyedState]:
    backend = OnDisk(str(tmp_path / "state"), 8)
    yield backend.new_state(TaskId(VertexId("counts"), 0))(int)
    backend.close()


def test_of_rocksdb_only_what_is_in_memory_counts(on_disk: KeyedState) -> None:
    filled(on_disk, VALUES["bytes"])
    layers = size_of(on_disk)
    assert layers > 200 * KEYS
    on_disk.freeze(N1)
    for _ in on_disk.writing(N1):  # type: ignore[attr-defined]
        """Nobody waits."""
    on_disk.link(N1)  # type: ignore[attr-defined]
    assert size_of(on_disk) < layers / 4


@pytest.mark.parametrize("how", ["written", "rolled back"])
def test_rows_of_rocksdb_that_are_not_at_hand_any_more_do_not_count(on_disk: KeyedState, how: str) -> None:
    assert isinstance(on_disk, RocksState)
    assert isinstance(on_disk.main, RocksTable)

    def checkpoint(n: CheckpointId) -> None:
        on_disk.freeze(n)
        for _ in on_disk.writing(n):
            """Nobody waits."""
        on_disk.link(n)

    stored = on_disk.main.stored
    filled(on_disk, VALUES["bytes"], 1_000)
    checkpoint(N1)
    on_disk.fetch([f"key-{i:08d}" for i in range(1_000)])
    assert stored.memory_bytes > 100_000
    if how == "rolled back":
        on_disk.roll_back(N1)
    else:
        filled(on_disk, VALUES["bytes"], 1_000)
        checkpoint(N2)
    assert not stored.near
    assert stored.memory_bytes < 50_000, "no more than the dict itself"
