"""What the log of a worker has of keyed state: a snapshot and the changes after it are the state.

The law is checked over drawn operations, for each backend: after each group another state is made from
the newest snapshot and the groups after it, in the same backend, in the other one, or at another parallelism.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from tests.conformance.test_state import (
    EQUAL_KEYS,
    EQUAL_NAMES,
    SPECS,
    TIMED,
    DiskKeeper,
    Keeper,
    MemoryKeeper,
    TimedRun,
    exact,
    named_tables,
    timers_of,
)

import crosscut.state.keyed as keyed_module
import crosscut.state.rocksdb.state as rocksdb_state_module
import crosscut.state.rocksdb.table as rocksdb_table_module
import crosscut.state.slots as slots_module
import crosscut.state.table as table_module
from crosscut.contracts.windows import Tumbling
from crosscut.errors import StateError
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.foundation.keys import OwnedKeys
from crosscut.graph.specs import OperatorSpec
from crosscut.graph.windows import CountFold, WindowSpec
from crosscut.operators.building import NewState
from crosscut.operators.keyed import nothing_yet
from crosscut.state.encoding import DELETED, Block, PartReader, decode_part, take_in
from crosscut.state.expiry import ExpiryInMemory
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.reading import is_of_database, stored_blocks
from crosscut.state.table import Table
from crosscut.worker.backends import OnDisk

GROUPS = 16
TASK = TaskId(VertexId("counts"), 0)
N1, N2 = CheckpointId(1), CheckpointId(2)
TTL_MS = 40


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks and layers for a handful of keys."""
    monkeypatch.setattr(table_module, "ROWS_PER_BLOCK", 2)
    monkeypatch.setattr(keyed_module, "ROWS_PER_BLOCK", 2)
    monkeypatch.setattr(slots_module, "SLOTS_PER_BLOCK", 2)
    monkeypatch.setattr(rocksdb_table_module, "ROWS_PER_STEP", 2)
    monkeypatch.setattr(rocksdb_table_module, "NEAR_ROWS_MAX", 4)
    monkeypatch.setattr(rocksdb_state_module, "LAYER_ROWS_MAX", 4)


def with_timed(new: NewState) -> NewState:
    """Return what makes state of every kind of table: one value a key, named rows, timers, time to live."""

    def made(*_: Any) -> KeyedState:
        state = new(list, {"other": int, "timed": nothing_yet}, named_tables())
        state.tables["timed"].expire_after(TTL_MS)
        return state

    return made


def by_slot(*_: Any) -> KeyedState:
    return KeyedState(list, keeps_keys=True)


def view(state: KeyedState) -> dict[str, list[str]]:
    """Return all rows by what they are, and the names of keys."""
    found = {name: exact(table.items()) for name, table in state.tables.items()}
    if "named" in state.named:
        table = state.named["named"]
        found["names"] = exact(table.names(key) for key in {key for (key, _), _ in table.items()})
    found["count"] = [str(len(state))]
    return found


def together(views: Sequence[dict[str, list[str]]]) -> dict[str, list[str]]:
    found = {name: sorted(row for view in views for row in view[name]) for name in views[0]}
    return found | {"count": [str(sum(int(one["count"][0]) for one in views))]}


def replayed(state: KeyedState, log: Sequence[bytes], owns: OwnedKeys | None = None) -> KeyedState:
    for changes in log:
        for _ in state.replaying(changes, owns):
            pass
    return state


class Grouped(RuleBasedStateMachine):
    """One task's state in a unit: groups, snapshots of them, and incarnations.

    Args:
        new_keeper: Makes the state, and what stores it.
        others: Make empty states of other backends.
    """

    def __init__(self, new_keeper: Callable[[], Keeper], others: Sequence[NewState] = ()) -> None:
        super().__init__()
        self.new_keeper = new_keeper
        self.keeper = new_keeper()
        self.others = others
        self.n = 0
        self.now = 0
        # The newest snapshot, and the groups after it.
        self.base: CheckpointId | None = None
        self.log: list[bytes] = []
        self.at_end = view(self.keeper.state)
        self.begin()

    def begin(self) -> None:
        """An incarnation begins."""
        self.keeper.state.record_changes()

    @property
    def state(self) -> KeyedState:
        return self.keeper.state

    # Groups.

    @rule(how=st.sampled_from(["", "same", "other", "rescaled", "parts"]))
    def end_group(self, how: str = "") -> None:
        changes = self.state.changes()
        assert self.state.recorded_rows == 0
        assert self.state.changes() == b"", "the same changes were returned twice"
        self.log.append(changes)
        self.at_end = view(self.state)
        self.check(how)

    def check(self, how: str) -> None:
        """Compare the state with what the log says, read in this way."""
        made: list[KeyedState] = []
        if how == "same":
            made = [replayed(self.restored(), self.log)]
        elif how == "rescaled":
            for groups in (range(5), range(5, GROUPS)):
                owns = OwnedKeys(groups, GROUPS)
                made.append(replayed(self.restored(owns), self.log, owns))
        elif how == "other":
            for new in self.others:
                made = [replayed(self.taken_over(new), self.log)]
        elif how == "parts" and not self.is_in_files:
            parts = [self.keeper.read(part) for part in self.keeper.parts_of[self.base]] if self.base else []
            reader, tables = PartReader(), dict[str, dict[Any, Any]]()
            for part in [*parts, *filter(None, self.log)]:
                for block in reader.blocks(part):
                    take_in(tables.setdefault(block.table, {}), block.keys, block.values)
            reader.end()
            for name, table in self.state.tables.items():
                assert exact(tables.get(name, {}).items()) == exact(table.items())
        if made:
            assert together([view(one) for one in made]) == self.at_end
            for one in made:
                self.check_expiry(one)
                one.close()

    def check_expiry(self, state: KeyedState) -> None:
        """Each row that expires is found."""
        timed = state.tables.get("timed")
        if timed is not None and isinstance(timed.expiry, ExpiryInMemory):
            assert {row for row, _ in timed.items()} <= set(timed.expiry.due(10**6, 10**6))

    @property
    def is_in_files(self) -> bool:
        parts = self.keeper.parts_of[self.base] if self.base else ()
        return is_of_database([self.keeper.read(part) for part in parts[:1]])

    def restored(self, owns: OwnedKeys | None = None) -> KeyedState:
        """Return fresh state with the newest snapshot in it."""
        if self.base is None:
            return self.keeper._new(list, {"other": int}, named_tables())
        chain = getattr(self.keeper, "chain", None)
        state = self.keeper.restored(self.base, owns)
        if isinstance(self.keeper, MemoryKeeper) and chain is not None:
            self.keeper.chain = chain
        return state

    def taken_over(self, new: NewState) -> KeyedState:
        """Return state of another backend with the newest snapshot in it."""
        state = new()
        if self.base is None:
            return state
        parts = self.keeper.parts_of[self.base]
        if isinstance(self.keeper, DiskKeeper):
            scratch = self.keeper.state._new_directory("read")
            for _ in state.loading_rows(stored_blocks(parts, self.keeper.read, scratch), self.base):
                pass
        else:
            state.restore(parts, self.keeper.read, self.base, stored_blocks)  # type: ignore[attr-defined]
        return state

    # Snapshots and failures.

    @rule(data=st.data(), outcome=st.sampled_from(["complete", "complete", "abandon", "crash"]))
    def compact(self, data: st.DataObject, outcome: str) -> None:
        """A snapshot at the end of a group, stored while further groups come."""
        self.end_group()
        self.n += 1
        n = CheckpointId(self.n)
        self.state.freeze(n)
        after: list[bytes] = []
        before = len(self.log)
        if outcome == "abandon":
            self.state.abandon(n)
            return
        for _ in self.keeper.storing(n):
            self.change(data)
            if data.draw(st.booleans()):
                self.end_group(data.draw(st.sampled_from(["", "same"])))
            if outcome == "crash":
                self.state.abandon(n)
                self.crash(is_at_hand=False)
                return
        after = self.log[before:]
        self.keeper.complete(n)
        self.base, self.log = n, after

    @rule(is_at_hand=st.booleans())
    def crash(self, is_at_hand: bool) -> None:
        """The next incarnation begins with what the log says; the group that grew is lost."""
        if is_at_hand and self.base is not None:
            assert self.base in self.state.at_hand
            self.state.roll_back(self.base)
        elif self.base is not None:
            self.keeper.restore(self.base)
        else:
            self.state.close()
            self.keeper = self.new_keeper()
        replayed(self.state, self.log)
        assert view(self.state) == self.at_end
        self.begin()

    def change(self, data: st.DataObject) -> None:
        """Change something."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.end_group("same")
        self.state.close()


KEY = st.sampled_from([0, 1, 2, 3, 4, "a", "b", ("a", 1), None])
KEY_OF_ANY_KIND = KEY | st.sampled_from([key for keys in EQUAL_KEYS for key in keys])
NAME = st.sampled_from([0, 1, "x", *(name for names in EQUAL_NAMES for name in names)])


class Tables(Grouped):
    """Every kind of table that forgets keys."""

    def begin(self) -> None:
        super().begin()
        self.timers = timers_of(self.state)

    def change(self, data: st.DataObject) -> None:
        key = data.draw(KEY)
        kind = data.draw(st.integers(0, 4))
        if kind == 0:
            self.batch([key, *data.draw(st.lists(KEY, max_size=3))], 1)
        elif kind == 1:
            self.delete(key)
        elif kind == 2:
            self.put_named(key, data.draw(NAME), 5)
        elif kind == 3:
            self.set_timer(key, data.draw(st.integers(-2, 9)))
        else:
            self.put_timed(key, 3)

    @rule(keys=st.lists(KEY, max_size=6), number=st.integers(0, 9))
    def batch(self, keys: list[Any], number: int) -> None:
        """As `Aggregate` does."""
        self.state.fetch(keys, to_change=True)
        rows, values = self.state.to_change([key for key in keys if self.state.main.has(key)])
        for row in rows:
            values[row].append(number)

    @rule(key=KEY_OF_ANY_KIND, number=st.integers(0, 9), puts=st.booleans())
    def append_in_place(self, key: Any, number: int, puts: bool) -> None:
        """As a process does with a value that it has got."""
        value = self.state.main.get(key, None)
        if value is None:
            self.state.main.put(key, [number])
        else:
            value.append(number)
            if puts:
                self.state.main.put(key, value)

    @rule(key=KEY_OF_ANY_KIND, number=st.integers(0, 9))
    def replace(self, key: Any, number: int) -> None:
        self.state.main.own(key)
        self.state.main.put(key, [number])
        self.state.tables["other"].put(key, number)

    @rule(key=KEY_OF_ANY_KIND)
    def delete(self, key: Any) -> None:
        self.state.main.delete(key)

    @rule(key=KEY_OF_ANY_KIND, again=KEY_OF_ANY_KIND)
    def make_again(self, key: Any, again: Any) -> None:
        """Perhaps with another key that is equal."""
        self.state.main.delete(key)
        self.state.main.put(again, ["again"])

    @rule(key=KEY_OF_ANY_KIND)
    def read(self, key: Any) -> None:
        self.state.fetch([key])
        self.state.main.get(key)
        self.state.main.has(key)
        self.state.named["named"].get((key, 0))

    @rule(key=KEY_OF_ANY_KIND, name=NAME, number=st.integers(0, 9))
    def put_named(self, key: Any, name: Any, number: int) -> None:
        self.state.named["named"].put((key, name), number)

    @rule(key=KEY, name=NAME)
    def delete_named(self, key: Any, name: Any) -> None:
        self.state.named["named"].delete((key, name))

    @rule(key=KEY)
    def clear(self, key: Any) -> None:
        table = self.state.named["named"]
        for name in table.names(key):
            table.delete((key, name))

    @rule(key=KEY, time=st.integers(-2, 9))
    def set_timer(self, key: Any, time: int) -> None:
        self.timers.register(key, time)
        table = self.state.named["timers"]
        places = [value if isinstance(value, int) else value[0] for _, value in table.items()]
        assert len(set(places)) == len(places), "two timers have one place"

    @rule(key=KEY, time=st.integers(-2, 9), undone=st.booleans())
    def delete_timer(self, key: Any, time: int, undone: bool) -> None:
        value = self.timers.delete(key, time)
        if value is not None and undone:
            self.timers.put_back(key, time, value)

    @rule(up_to=st.integers(-2, 9), count=st.integers(0, 3))
    def fire(self, up_to: int, count: int) -> None:
        for _, _ in zip(range(count), self.timers.due(up_to), strict=False):
            pass

    @rule(key=KEY, number=st.integers(0, 9))
    def put_timed(self, key: Any, number: int) -> None:
        table = self.state.tables["timed"]
        table.put(key, (self.now, number))
        assert table.expiry is not None
        table.expiry.note(key, self.now)

    @rule(passed=st.integers(0, 60))
    def expire(self, passed: int) -> None:
        """As `TimedCells` does."""
        self.now += passed
        table = self.state.tables["timed"]
        assert table.expiry is not None
        for row in table.expiry.due(self.now, 10):
            if table.has(row) and table.peek(row)[0] + TTL_MS <= self.now:
                table.delete(row)


class Slots(Grouped):
    """Keys that never go away."""

    def change(self, data: st.DataObject) -> None:
        self.batch(data.draw(st.lists(KEY, min_size=1, max_size=4)), 1, data.draw(st.integers(0, 2)))

    @rule(keys=st.lists(KEY_OF_ANY_KIND, max_size=6), number=st.integers(0, 9), left=st.integers(0, 3))
    def batch(self, keys: list[Any], number: int, left: int) -> None:
        """As `Aggregate` does: the slice may be over before the last records."""
        rows, values = self.state.to_change(keys)
        taken = rows[: max(0, len(rows) - left)]
        for row in taken:
            values[row] = [*values[row], number]
        if left:
            self.state.main.changed_only(taken)

    @rule(key=KEY_OF_ANY_KIND, number=st.integers(0, 9))
    def append_in_place(self, key: Any, number: int) -> None:
        value = self.state.main.get(key)
        if value is not None:
            value.append(number)

    @rule(key=KEY_OF_ANY_KIND, number=st.integers(0, 9))
    def put(self, key: Any, number: int) -> None:
        self.state.main.put(key, [number])

    @precondition(lambda self: self.base)
    @rule()
    def take_over_rows(self) -> None:
        """Its slots are not those of the incarnation before, whose changes it replays."""
        self.keeper.state = replayed(self.restored(OwnedKeys(range(GROUPS), GROUPS)), self.log)
        assert view(self.state) == self.at_end
        # A part by slot can't be added to those that it has come from.
        self.n += 1
        n = CheckpointId(self.n)
        self.state.freeze(n)
        self.keeper.chain = type(self.keeper.chain)()  # type: ignore[attr-defined]
        for _ in self.keeper.storing(n):
            pass
        self.keeper.complete(n)
        self.base, self.log = n, []
        self.begin()


LAW = settings(max_examples=100, stateful_step_count=30, deadline=None)
ON_DISK = settings(LAW, max_examples=40)


def test_the_law_in_memory(disk: OnDisk) -> None:
    memory, on_disk = with_timed(KeyedState), with_timed(disk.new_state(TASK))
    run_state_machine_as_test(lambda: Tables(lambda: MemoryKeeper(memory), [on_disk]), settings=LAW)


def test_the_law_by_slot() -> None:
    run_state_machine_as_test(lambda: Slots(lambda: MemoryKeeper(by_slot)), settings=LAW)


def test_the_law_in_rocksdb(disk: OnDisk) -> None:
    memory, on_disk = with_timed(KeyedState), with_timed(disk.new_state(TASK))
    run_state_machine_as_test(lambda: Tables(lambda: DiskKeeper(on_disk), [memory]), settings=ON_DISK)


# The law finds what breaks it.


def changed_in_place_unrecorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_module, "can_be_changed", lambda values: False)


def batch_unrecorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Table, "to_change", lambda self, keys: (keys, self.values))


def deletion_unrecorded(patch: pytest.MonkeyPatch) -> None:
    delete = Table.delete

    def deletes(self: Table, key: Any) -> None:
        recorded = dict(self._recorded or {})
        delete(self, key)
        if self._recorded is not None:
            self._recorded = recorded

    patch.setattr(Table, "delete", deletes)


def key_as_it_was_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Table, "_are_unusual", lambda self, keys: False)


def rows_kept_that_were_deleted(patch: pytest.MonkeyPatch) -> None:
    replay = Table.replay

    def replays(self: Table, rows: list[Any], values: list[Any]) -> None:
        kept = [(row, value) for row, value in zip(rows, values, strict=True) if value is not DELETED]
        replay(self, [row for row, _ in kept], [value for _, value in kept])

    patch.setattr(Table, "replay", replays)


def expiry_forgotten(patch: pytest.MonkeyPatch) -> None:
    replay = Table.replay

    def replays(self: Table, rows: list[Any], values: list[Any]) -> None:
        expiry, self.expiry = self.expiry, None
        replay(self, rows, values)
        self.expiry = expiry

    patch.setattr(Table, "replay", replays)


def group_returned_once_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Table, "take_changed", lambda self: None)


@pytest.mark.parametrize(
    "plant",
    [
        changed_in_place_unrecorded,
        batch_unrecorded,
        deletion_unrecorded,
        key_as_it_was_asked_for,
        rows_kept_that_were_deleted,
        expiry_forgotten,
        group_returned_once_more,
    ],
)
def test_the_law_finds_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = with_timed(KeyedState)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            lambda: Tables(lambda: MemoryKeeper(memory)),
            settings=settings(LAW, max_examples=500, phases=[Phase.generate], print_blob=False),
        )


def test_the_law_finds_slots_that_were_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "can_be_changed", lambda values: False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            lambda: Slots(lambda: MemoryKeeper(by_slot)),
            settings=settings(LAW, max_examples=500, phases=[Phase.generate], print_blob=False),
        )


# What operators do with their state.


@pytest.mark.parametrize("name", [*SPECS, *TIMED, "tumbling count"])
def test_the_changes_of_operators_add_up_to_their_state(name: str, new: NewState) -> None:
    more: dict[str, OperatorSpec] = {"tumbling count": WindowSpec(Tumbling(10), CountFold())}
    run = TimedRun({**SPECS, **TIMED, **more}[name], new)
    keeper = run.keeper
    keeper.state.record_changes()
    base: CheckpointId | None = None
    log: list[bytes] = []
    for n in range(1, 25):
        run.step(random.Random(n), 3 * n)
        log.append(keeper.state.changes())
        chain = getattr(keeper, "chain", None)
        copy = keeper.restored(base) if base else keeper._new()
        if isinstance(keeper, MemoryKeeper) and chain is not None:
            keeper.chain = chain
        assert view(replayed(copy, log)) == view(keeper.state), n
        copy.close()
        if not n % 5:
            keeper.checkpoint(CheckpointId(n))
            keeper.complete(CheckpointId(n))
            base, log = CheckpointId(n), []
    assert any(map(any, log))
    keeper.state.close()


# In particular.


def test_nothing_is_remembered_unless_somebody_asks(new: NewState) -> None:
    state = new(list, {"other": int}, named_tables())
    state.main.put("a", [1])
    state.named["named"].put(("a", 1), 1)
    state.to_change(["b"])
    assert (state.recorded_rows, state.changes()) == (0, b"")
    state.record_changes()
    assert (state.recorded_rows, state.changes()) == (0, b"")
    state.close()


def test_changes_hold_each_row_once_with_its_newest_value_and_are_blocks_of_rows(new: NewState) -> None:
    state = new(list, {"other": int}, named_tables())
    state.main.put("a", [1])
    state.record_changes()
    state.main.put("b", [1])
    state.main.get("a").append(2)
    state.main.put("b", [2])
    state.main.put("c", [3])
    state.main.delete("c")
    state.named["named"].put(("a", 1), 5)
    assert state.recorded_rows == 4
    assert list(decode_part(state.changes())) == [
        Block(MAIN, False, ["b", "a"], [[2], [1, 2]]),
        Block(MAIN, False, ["c"], [DELETED]),
        Block("named", True, [("a", 1)], [5]),
    ]
    state.close()


def test_a_value_that_cant_be_stored_is_named_and_the_changes_are_still_there(new: NewState) -> None:
    state = new(list, {"other": int}, named_tables())
    state.record_changes()
    state.main.put("a", [1])
    state.main.put("b", lambda: 1)
    with pytest.raises(StateError, match="state of key 'b'"):
        state.changes()
    state.main.put("b", [2])
    assert list(decode_part(state.changes())) == [Block(MAIN, False, ["a", "b"], [[1], [2]])]
    state.close()


def test_replayed_changes_are_in_the_next_part(new: NewState) -> None:
    keeper: Keeper = MemoryKeeper(new) if new is KeyedState else DiskKeeper(new)
    keeper.state.main.put("a", [1])
    keeper.checkpoint(N1)
    keeper.complete(N1)
    keeper.state.record_changes()
    keeper.state.main.put("b", [2])
    changes = keeper.state.changes()
    keeper.restore(N1)
    replayed(keeper.state, [changes])
    keeper.checkpoint(N2)
    keeper.complete(N2)
    assert keeper.contents(N2)[MAIN] == {"a": [1], "b": [2]}
    keeper.state.close()


def test_changes_of_a_state_that_is_not_declared_are_refused_by_name(new: NewState) -> None:
    other = KeyedState(list, {"elsewhere": int})
    other.record_changes()
    other.tables["elsewhere"].put("a", 1)
    state = new(list, {"other": int}, named_tables())
    with pytest.raises(StateError, match="'elsewhere', which is not declared"):
        replayed(state, [other.changes()])
    state.close()
