"""Timers over every backend: in order, once each, however few of them are kept in memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.foundation.keys import OwnedKeys, groups_of_task, key_group
from crosscut.operators.building import NewState
from crosscut.protocol.snapshots import Part
from crosscut.state import timers as timers_module
from crosscut.state.keyed import KeyedState
from crosscut.state.predecessor_state import PredecessorState
from crosscut.state.reading import stored_blocks
from crosscut.state.rocksdb import state as state_module
from crosscut.state.rocksdb import table as table_module
from crosscut.state.rocksdb.database import chunks_of
from crosscut.state.rocksdb.state import RocksState
from crosscut.state.rocksdb.timers import RocksTimerTable, StoredTimers
from crosscut.state.timers import Timers, TimerTable
from crosscut.worker.backends import OnDisk

GROUPS = 8
TASK = TaskId(VertexId("it"), 0)
NAME = "timers"
N1 = CheckpointId(1)

KEYS = st.sampled_from(["a", "b", ("c", 1), 4, None])
TIMES = st.integers(-6, 6)
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "set", "set", "set", "delete", "put off"]), KEYS, TIMES)
    | st.tuples(st.just("due"), st.none(), TIMES)
    | st.tuples(
        st.sampled_from(["checkpoint", "batch", "roll back", "restore", "rescale"]), st.none(), st.just(0)
    ),
    max_size=60,
)


class Site:
    """The timers of one task over its epochs, and the parts that it has stored."""

    def __init__(self, new: NewState, bytes_of: dict[str, bytes] | None = None) -> None:
        self.new = new
        self.bytes_of = {} if bytes_of is None else bytes_of
        self.n = CheckpointId(0)
        self.begin(self.empty())

    def empty(self) -> KeyedState:
        return self.new(int, named=[TimerTable(NAME, lists_names=False)])

    def begin(self, state: KeyedState) -> None:
        self.state = state
        table = state.named[NAME]
        assert isinstance(table, TimerTable)
        self.timers = Timers(table)
        for _ in self.timers.loading():
            pass

    def read(self, part: Part) -> bytes:
        return self.bytes_of[part.path]

    def written(self, n: CheckpointId, data: bytes) -> Part:
        part = Part(f"{n}/{len(self.bytes_of)}", len(data), "", "", n)
        self.bytes_of[part.path] = data
        return part

    def checkpoint(self) -> tuple[Part, ...]:
        n = self.n = CheckpointId(self.n + 1)
        state = self.state
        state.freeze(n)
        if isinstance(state, RocksState):
            for _ in state.writing(n):
                pass
            files = {path: self.written(n, b"".join(chunks_of(path))) for path in state.link(n)}
            parts = state.stored(n, self.written(n, state.head(n)), files)
        else:
            parts = (self.written(n, b"".join(state.encoded(n, CheckpointId(0)))),)
        for _ in state.complete(n):
            pass
        return parts

    def restore(self, parts: tuple[Part, ...]) -> None:
        self.state.close()
        state = self.empty()
        if isinstance(state, RocksState):
            state.restore(parts, self.read, self.n, stored_blocks)
        else:
            for _ in state.loading([(self.n, self.read(parts[0]))], self.n):
                pass
        self.begin(state)

    def inherit(self, *chains: tuple[Part, ...], owns: range = range(GROUPS)) -> None:
        """Take over what tasks of another parallelism had."""
        self.state.close()
        state = self.empty()
        predecessor_state = PredecessorState(chains, 0, OwnedKeys(owns, GROUPS))
        if isinstance(state, RocksState):
            state.inherit(predecessor_state, self.read, self.n)
        else:
            blocks = (
                block
                for position in range(len(chains))
                for block in predecessor_state.blocks(position, state, self.read, "")
            )
            for _ in state.loading_rows(blocks, self.n):
                pass
        self.begin(state)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very few timers are in memory, and layers are written soon."""
    monkeypatch.setattr(timers_module, "READ_AHEAD", 2)
    monkeypatch.setattr(timers_module, "HEAP_MAX", 5)
    monkeypatch.setattr(timers_module, "_STALE_MIN", 2)
    monkeypatch.setattr(state_module, "LAYER_ROWS_MAX", 6)
    monkeypatch.setattr(table_module, "ROWS_PER_STEP", 2)


@pytest.mark.usefixtures("few")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS)
def test_timers_are_a_sorted_list_that_every_restore_brings_back(
    new: NewState, steps: list[tuple[str, Any, int]]
) -> None:
    site = Site(new)
    # In plain words: what is set, in the order in which it was.
    expected: list[tuple[int, Any]] = []
    stored: tuple[tuple[Part, ...], list[tuple[int, Any]]] | None = None
    for step, key, time in steps:
        match step:
            case "set" | "put off":
                if step == "put off":
                    site.timers.delete(key, time)
                    expected = [one for one in expected if one != (time, key)]
                    time += 10
                assert site.timers.register(key, time) == ((time, key) not in expected)
                if (time, key) not in expected:
                    expected.append((time, key))
            case "delete":
                site.timers.delete(key, time)
                expected = [one for one in expected if one != (time, key)]
            case "due":
                due = sorted((one for one in expected if one[0] <= time), key=lambda one: one[0])
                assert list(site.timers.due(time)) == due
                expected = [one for one in expected if one[0] > time]
            case "batch":
                site.state.fetch([])
            case "checkpoint":
                stored = site.checkpoint(), list(expected)
            case _ if stored is not None:
                parts, expected = stored[0], list(stored[1])
                if step == "roll back" and site.n in site.state.at_hand:
                    site.state.roll_back(site.n)
                    site.begin(site.state)
                elif step == "rescale":
                    site.inherit(parts)
                else:
                    site.restore(parts)
        assert site.timers.next_time == min((one[0] for one in expected), default=None)
        assert len(site.timers) == len(expected)
    assert list(site.timers.due(100)) == sorted(expected, key=lambda one: one[0])
    site.state.close()


def test_timers_far_away_are_not_kept_in_memory_where_they_are_on_a_disk(
    disk: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "READ_AHEAD", 100)
    monkeypatch.setattr(timers_module, "HEAP_MAX", 400)
    monkeypatch.setattr(state_module, "LAYER_ROWS_MAX", 1_000)
    site = Site(disk.new_state(TASK))
    times = [number * 7_919 % 20_011 for number in range(20_000)]
    for number, time in enumerate(times):
        site.timers.register(f"key-{time}", time)
        if not number % 500:
            site.state.fetch([])
            assert len(site.timers._heap) <= 400
    parts = site.checkpoint()
    site.restore(parts)
    table = site.state.named[NAME]
    assert isinstance(table, RocksTimerTable)
    seen = []
    for time, key in site.timers.due(20_011):
        assert key == f"key-{time}"
        seen.append(time)
        assert len(site.timers._heap) <= 400
    assert seen == sorted(times)
    assert (len(site.timers), site.timers.next_time) == (0, None)
    # No row of the index is left behind.
    site.checkpoint()
    assert list(table.stored.upcoming((0, 0))) == []  # type: ignore[attr-defined]
    site.state.close()


def test_timers_of_several_tasks_are_each_at_one_owner_in_their_order(new: NewState) -> None:
    """Those of one time come in the order of their places; and whoever has them sets more after them."""
    keys = [f"key-{number}" for number in range(40)]
    store: dict[str, bytes] = {}
    chains = []
    for index in range(2):
        site = Site(new, store)
        for key in keys:
            if key_group(key, GROUPS) in groups_of_task(index, GROUPS, 2):
                site.timers.register(key, 7)
                site.timers.register(key, 5)
        chains.append(site.checkpoint())
        site.state.close()
    owned: list[Any] = []
    for index in range(3):
        groups = groups_of_task(index, GROUPS, 3)
        site = Site(new, store)
        site.n = N1
        site.inherit(*chains, owns=groups)
        mine = [key for key in keys if key_group(key, GROUPS) in groups]
        assert len(site.timers) == 2 * len(mine)
        site.timers.register("last", 5)
        due = list(site.timers.due(5))
        assert (sorted(key for _, key in due[:-1]), due[-1]) == (sorted(mine), (5, "last"))
        owned += [key for _, key in site.timers.due(7)]
        site.state.close()
    assert sorted(owned) == sorted(keys)


def test_a_database_from_before_there_was_an_index_gets_one(
    disk: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(disk.new_state(TASK))
    with monkeypatch.context() as before:
        before.setattr(StoredTimers, "_changes", lambda self, encoded: encoded)
        for number in range(50):
            site.timers.register("key", number * 7 % 50)
        parts = site.checkpoint()
    head = site.read(parts[0])
    assert head.startswith(b"XCR2")
    old = head.replace(b"XCR2", b"XCR1").replace(b',"next_places":{"timers":0}', b"")
    assert b"next_places" not in old
    site.bytes_of[parts[0].path] = old
    site.restore(parts)
    site.timers.register("other", 3)
    assert list(site.timers.due(100)) == [(time, key) for time in range(50) for key in _at(time)]
    site.state.close()


def _at(time: int) -> list[str]:
    return ["key", "other"] if time == 3 else ["key"]
