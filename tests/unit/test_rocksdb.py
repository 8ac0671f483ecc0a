"""State in RocksDB where something is missing, damaged or full. The rest is in tests/conformance."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

import crosscut as cc
from crosscut.contracts.windows import Session, Tumbling
from crosscut.driver.job_spec import task_settings
from crosscut.errors import SettingsError, StateError, StoreError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.foundation.keys import decoded_key, encoded_key
from crosscut.graph.specs import CountSpec, OperatorNode, OperatorSpec, ProcessSpec
from crosscut.graph.windows import CountFold, WindowSpec
from crosscut.operators.building import build, keyed_state
from crosscut.protocol.snapshots import Part
from crosscut.state.keyed import KeyedState
from crosscut.state.named import NamedTable
from crosscut.state.reading import stored_blocks, stored_contents
from crosscut.state.rocksdb import database
from crosscut.state.rocksdb import state as state_module
from crosscut.state.rocksdb import table as table_module
from crosscut.state.rocksdb.database import Database, Options, chunks_of, copied, table_files
from crosscut.state.rocksdb.gate import Gate
from crosscut.state.rocksdb.state import RocksState
from crosscut.state.rocksdb.table import RocksTable
from crosscut.worker import backends
from crosscut.worker.backends import OnDisk
from crosscut.worker.local_state_cache import LocalStateCache

N1, N2 = CheckpointId(1), CheckpointId(2)
TASK = TaskId(VertexId("counts"), 0)
OTHER = TaskId(VertexId("others"), 0)
P = ParamSpec("P")
R = TypeVar("R")


class Site:
    """The state of one task, and the parts that it has stored."""

    def __init__(self, backend: OnDisk) -> None:
        self.new = backend.new_state(TASK)
        self.state = self.fresh()
        self.bytes_of: dict[str, bytes] = {}

    def fresh(self) -> RocksState:
        state = self.new(int)
        assert isinstance(state, RocksState)
        return state

    def read(self, part: Part) -> bytes:
        if part.path not in self.bytes_of:
            raise StoreError(f"part {part.path} is damaged: it is missing", damaged=True)
        return self.bytes_of[part.path]

    def write(self, n: CheckpointId, data: bytes) -> Part:
        part = Part(f"parts/{n}/{len(self.bytes_of)}", len(data), "", "", n)
        self.bytes_of[part.path] = data
        return part

    def checkpoint(self, n: CheckpointId) -> tuple[Part, ...]:
        self.state.freeze(n)
        for _ in self.state.writing(n):
            pass
        files = {path: self.write(n, b"".join(chunks_of(path))) for path in self.state.link(n)}
        parts = self.state.stored(n, self.write(n, self.state.head(n)), files)
        for _ in self.state.complete(n):
            pass
        return parts

    def restored(self, parts: tuple[Part, ...]) -> RocksState:
        state = self.fresh()
        state.restore(parts, self.read, N1, stored_blocks)
        return state


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[OnDisk]:
    made = OnDisk(str(tmp_path / "state"), 16)
    yield made
    made.close()


@pytest.fixture
def site(backend: OnDisk) -> Iterator[Site]:
    made = Site(backend)
    yield made
    made.state.close()


def test_what_comes_after_a_barrier_is_not_in_its_checkpoint_however_much_it_is(
    backend: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the layers are to hold is written at once, but not past what a barrier has put aside."""
    monkeypatch.setattr(state_module, "LAYER_ROWS_MAX", 4)
    monkeypatch.setattr(table_module, "ROWS_PER_STEP", 1)
    site = Site(backend)
    state = site.state = backend.new_state(TASK)(int, {"other": int})
    for key in range(20):
        state.main.put(key, 1)
        state.tables["other"].put(key, 1)
    state.fetch([])
    state.freeze(N1)
    for key in range(20, 40):
        state.main.put(key, 2)
        state.tables["other"].put(key, 2)
    for _ in range(100):
        state.fetch([])
    for _ in state.writing(N1):
        pass
    files = {path: site.write(N1, b"".join(chunks_of(path))) for path in state.link(N1)}
    parts = state.stored(N1, site.write(N1, state.head(N1)), files)
    before = dict.fromkeys(range(20), 1)
    assert stored_contents(parts, site.read) == {"": before, "other": before}
    assert dict(state.items()) == before | dict.fromkeys(range(20, 40), 2)
    state.close()


def test_what_is_kept_in_memory_is_bounded_by_bytes_as_well(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "LAYER_BYTES_MAX", 20_000)
    monkeypatch.setattr(table_module, "NEAR_BYTES_MAX", 5_000)
    state, table = site.state, site.state.main
    assert isinstance(table, RocksTable)
    for key in range(100):
        table.put(key, "x" * 1_000)
        state.fetch([key])
    for _ in range(10):
        state.fetch([])
    assert (table.row_count >= 70, len(table.values) <= 30, len(state)) == (True, True, 100)
    site.checkpoint(N1)
    for first in range(0, 100, 5):
        state.fetch(list(range(first, first + 5)))
        assert len(table.stored.near) <= 10
    assert [table.get(key) for key in range(100)] == ["x" * 1_000] * 100


def test_names_are_known_at_any_step_of_writing_several_layers(
    backend: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that two layers have is written once, with the second one."""
    monkeypatch.setattr(table_module, "ROWS_PER_STEP", 1)
    state = backend.new_state(TASK)(int, named=[NamedTable("entries")])
    assert isinstance(state, RocksState)
    entries = state.named["entries"]
    for number in range(3):
        entries.put(("key", number), 1)
    state.freeze(N1)
    state.abandon(N1)
    for number in range(3):
        entries.put(("key", number), entries.get(("key", number)) + 1)
    state.freeze(N2)
    for _ in state.writing(N2):
        assert entries.names("key") == [0, 1, 2]
        assert [entries.get(("key", number)) for number in range(3)] == [2, 2, 2]
    state.link(N2)
    entries.delete(("key", 1))
    assert entries.names("key") == [0, 2]
    state.close()


def test_a_value_that_cant_be_measured_is_left_to_the_checkpoint(site: Site) -> None:
    for key in range(50):
        site.state.main.put(key, lambda: key)  # noqa: B023 - never called
    site.state.fetch([1])
    site.state.freeze(N1)
    with pytest.raises(StateError, match="the state of key"):
        for _ in site.state.writing(N1):
            pass


class Unloadable:
    def __reduce__(self) -> Any:
        return _refused, ()


def _refused() -> Any:
    raise ValueError("from an older version")


def test_a_value_that_cant_be_loaded_is_named_with_its_key_by_whoever_asks_for_it(site: Site) -> None:
    site.state.main.put("good", 1)
    site.state.main.put("bad", Unloadable())
    site.checkpoint(N1)
    site.state.fetch(["good", "bad", "none"], to_change=True)
    assert site.state.values["good"] == 1
    with pytest.raises(StateError, match="of key 'bad' can't be decoded: ValueError: from an older version"):
        site.state.values["bad"]


class Fields(cc.KeyedProcess[int, Any]):
    total = cc.ValueState(0)
    fields = cc.MapState[str, int]()

    def on_record(self, record: int, ctx: cc.Context) -> list[Any]:
        self.total.set(self.total.get() + record)
        self.fields["last"] = self.fields.get("last", 0) + record
        return [(ctx.key, self.total.get(), self.fields["last"])]


TUMBLING = WindowSpec(Tumbling(10), CountFold())
SESSION = WindowSpec(Session(5), CountFold())


@pytest.mark.parametrize(
    "spec",
    [CountSpec("updates"), ProcessSpec(Fields(), ()), TUMBLING, SESSION],
    ids=["count", "process", "tumbling", "session"],
)
def test_what_a_batch_needs_is_read_at_once(
    spec: OperatorSpec, backend: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of all its keys, of value and map states, and of windows: none is read by itself."""
    node = OperatorNode("it", spec, ())
    state = keyed_state(node, backend.new_state(TASK))
    assert isinstance(state, RocksState)
    operator = build(node, state, None)
    assert operator is not None
    keys = [f"key-{number}" for number in range(50)]

    def say(times: int) -> list[Any]:
        return operator.process(Batch([times] * 50, list(keys), [times] * 50)).records

    site = Site(backend)
    site.state = state
    for n in (1, 2):
        # The second time it is known under which names the map state is asked.
        say(n)
        site.checkpoint(CheckpointId(n))
    singles: list[bytes] = []
    read = Database.get

    def noted(database: Database, key: bytes) -> bytes | None:
        singles.append(key)
        return read(database, key)

    monkeypatch.setattr(Database, "get", noted)
    said = say(3)
    assert singles == []
    if said:
        assert said[7] == ("key-7", 3) or said[7] == ("key-7", 6, 6)
    assert len(state) in (50, 100)
    state.close()


class Reminding(cc.KeyedProcess[int, Any]):
    total = cc.ValueState(0)

    def on_record(self, record: int, ctx: cc.Context) -> None:
        self.total.set(self.total.get() + record)
        ctx.set_timer(record)

    def on_timer(self, time: int, ctx: cc.Context) -> list[Any]:
        return [(ctx.key, self.total.get())]


def test_what_timers_need_is_read_at_once(backend: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """They themselves, after a restore, and the values of their keys."""
    node = OperatorNode("it", ProcessSpec(Reminding(), ()), ())
    state = keyed_state(node, backend.new_state(TASK))
    assert isinstance(state, RocksState)
    site = Site(backend)
    site.state = state
    operator = build(node, state, None)
    assert operator is not None
    times = [7 * number % 50 for number in range(50)]
    operator.process(Batch(times, [f"key-{time}" for time in times], times))
    site.checkpoint(N1)
    state.roll_back(N1)
    operator = build(node, state, None)
    assert operator is not None
    for _ in operator.loading():
        pass
    singles: list[bytes] = []
    read = Database.get

    def noted(database: Database, key: bytes) -> bytes | None:
        singles.append(key)
        return read(database, key)

    monkeypatch.setattr(Database, "get", noted)
    operator.time_budget.begin(100)
    said = operator.advance(49)
    assert said is not None
    assert said.records == [(f"key-{time}", time) for time in range(50)]
    assert singles == []
    state.close()


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(
        SettingsError, match=r"state_backend='rocksdb' needs rocksdict.*'crosscut\[rocksdb\]'"
    ):
        cc.Settings(state_backend="rocksdb")
    with pytest.raises(
        StateError, match=r"can't be imported.*pip install 'crosscut\[rocksdb\]', on the workers"
    ):
        Options()
    assert cc.Settings(state_backend="memory").state_backend == "memory"


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"state_backend='disk': expected one of 'memory', 'rocksdb'"):
        cc.Settings(state_backend="disk")  # type: ignore[arg-type]


def test_a_directory_that_cant_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"can't keep state in .*/file: .*set state_dir"):
        OnDisk(str(tmp_path / "file"), 16)


def test_a_worker_removes_what_a_killed_one_has_left_and_nothing_else(tmp_path: Path) -> None:
    program = (
        "import os, sys; from crosscut.worker.backends import OnDisk\n"
        f"print(OnDisk({str(tmp_path)!r}, 16).directory, flush=True); os.kill(os.getpid(), 9)"
    )
    left = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip()
    (tmp_path / "others").mkdir()
    (tmp_path / "crosscut-state-without-a-lock").mkdir()
    living = OnDisk(str(tmp_path), 16)
    assert os.path.basename(left).startswith("crosscut-state-")
    assert not os.path.exists(left)
    second = OnDisk(str(tmp_path), 16)
    assert os.path.exists(living.directory)
    living.close()
    second.close()
    assert sorted(os.listdir(tmp_path)) == ["crosscut-state-without-a-lock", "others"]


def test_a_lock_is_held_as_long_as_the_backend_is_used(backend: OnDisk) -> None:
    with open(os.path.join(backend.directory, "lock"), "r+") as file, pytest.raises(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_was_damaged_here_is_noticed_and_read_from_the_store_instead(site: Site) -> None:
    for key in range(1_000):
        site.state.main.put(key, key)
    parts = site.checkpoint(N1)
    directory = site.state._opened().directory
    (table,) = [name for name in os.listdir(directory) if name.endswith(".sst")]
    with open(os.path.join(directory, table), "r+b") as file:
        file.seek(200)
        file.write(b"\0" * 1_000)
    assert site.state.at_hand == (N1,)
    with pytest.raises(
        StateError, match=r"can't read keyed state in .*Corruption.*read from the checkpoint again"
    ):
        site.state.fetch(range(1_000))
    assert site.state.at_hand == ()
    restored = site.restored(parts)
    assert dict(restored.items()) == {key: key for key in range(1_000)}
    restored.close()


def test_a_file_that_is_gone_here_is_noticed_when_the_state_goes_back(site: Site) -> None:
    site.state.main.put("a", 1)
    site.checkpoint(N1)
    (link,) = site.state._links.values()
    os.remove(os.path.join(link.directory, link.files[0]))
    with pytest.raises(StateError, match="can't go back to keyed state in"):
        site.state.roll_back(N1)
    assert site.state.at_hand == ()


def test_a_part_that_is_missing_from_the_store_is_named(site: Site) -> None:
    site.state.main.put("a", 1)
    parts = site.checkpoint(N1)
    del site.bytes_of[parts[1].path]
    with pytest.raises(StoreError, match=parts[1].path):
        site.restored(parts)


class Host:
    """Runs at once what a pool runs in a thread."""

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    async def pause(self) -> None: ...

    def add(self, *_: Any) -> None: ...


def test_a_restore_that_fails_leaves_nothing_on_the_disk(backend: OnDisk, site: Site) -> None:
    """Else each attempt to restore onto a disk that is full would make it fuller."""
    site.state.main.put("a", 1)
    parts = site.checkpoint(N1)
    at_hand = LocalStateCache(backend)
    is_lost = True

    def read(part: Part) -> bytes:
        if is_lost and part == parts[-1]:
            raise StoreError("the store does not answer", damaged=False)
        return site.read(part)

    def restored(n: CheckpointId) -> KeyedState:
        return asyncio.run(at_hand.restored(OTHER, backend.new_state(OTHER)(int), n, parts, read, Host()))

    def directories() -> list[str]:
        return [name for name in os.listdir(backend.directory) if name.startswith("others")]

    # What is at hand, of another checkpoint, is given up first.
    restored(CheckpointId(0)).freeze(N2)
    for _ in range(5):
        with pytest.raises(StoreError, match="does not answer"):
            restored(N1)
        assert len(directories()) <= 1
    is_lost = False
    state = restored(N1)
    assert dict(state.items()) == {"a": 1}
    assert len(directories()) == 1
    assert restored(N1) is state, "it is at hand now"


def test_parts_that_are_not_those_of_the_head_are_refused(site: Site) -> None:
    site.state.main.put("a", 1)
    parts = site.checkpoint(N1)
    with pytest.raises(StateError, match="has 0 table files of RocksDB: its head names 1"):
        site.restored(parts[:1])
    site.bytes_of[parts[0].path] = b"XCR1{}"
    with pytest.raises(StateError, match="the head of a checkpoint in RocksDB can't be read"):
        site.restored(parts)


def test_parts_of_the_other_backend_are_taken_as_rows(site: Site, backend: OnDisk) -> None:
    from crosscut.state.keyed import KeyedState

    memory = KeyedState(int)
    memory.values.update({key: key for key in range(100)})
    memory.freeze(N1)
    part = site.write(N1, b"".join(memory.encoded(N1, CheckpointId(0))))
    state = site.restored((part,))
    assert dict(state.items()) == {key: key for key in range(100)}
    assert (len(state), state.at_hand) == (100, (N1,))
    site.state = state
    parts = site.checkpoint(N2)
    again = KeyedState(int)
    for _ in again.loading_rows(stored_blocks(parts, site.read, os.path.join(backend.directory, "x")), N2):
        pass
    assert dict(again.items()) == {key: key for key in range(100)}


OPENS = """
import os, re, resource, sys
from crosscut.state.rocksdb.database import Database, Options

options = Options()
database = Database(sys.argv[1], options)
for number in range(20):
    database.write([(b"%d" % number, b"x")])
    database._db.flush(wait=True)
database.close()
taken = int(re.search(r"VmData:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (taken + 20_000_000,) * 2)
found = Database(sys.argv[1], options).get(b"7")
print(found, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and limits memory as Linux does")
def test_a_database_that_an_earlier_release_has_merged_by_levels_is_gone_on_with(tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = {b"%05d" % number: draw.randbytes(100) for number in range(2_000)}
    by_levels = Options()
    by_levels.options.set_compaction_style(by_levels.rocksdict.DBCompactionStyle.level())
    by_levels.options.set_target_file_size_base(20_000)
    old = Database(str(tmp_path / "state"), by_levels)
    for first in range(4):
        old.write(list(rows.items())[first::4])
        old._db.flush(wait=True)
    old._db.compact_range(None, None)
    old.link(str(tmp_path / "link"))
    old.close()
    assert len(table_files(str(tmp_path / "link"))) > 4
    copied(str(tmp_path / "link"), str(tmp_path / "again"))
    database = Database(str(tmp_path / "again"), Options())
    for number in range(0, 2_000, 100):
        rows[b"%05d" % number] = b"new"
        database.write([(b"%05d" % number, b"new")])
        database._db.flush(wait=True)
    database._db.compact_range(None, None)
    assert dict(database.scan()) == rows
    assert database.get_many(list(rows)) == list(rows.values())
    database.close()


def test_a_database_that_is_opened_again_has_its_cache_and_filters(tmp_path: Path) -> None:
    """As after a failure and a restore. Else the library reads its options from the files of the database."""
    options = Options(5 << 20)

    def as_opened(directory: Path) -> tuple[str, str]:
        newest = max(directory.glob("OPTIONS-*"))
        filters = next(line.strip() for line in newest.read_text().splitlines() if "filter_policy=" in line)
        return one._db.property_value("rocksdb.block-cache-capacity"), filters

    one = Database(str(tmp_path / "state"), options)
    expected = (str(5 << 20), "filter_policy=bloomfilter")
    assert as_opened(tmp_path / "state") == expected
    one.write([(b"key", b"value")])
    one.link(str(tmp_path / "link"))
    one.close()
    one = Database(str(tmp_path / "state"), options)
    assert as_opened(tmp_path / "state") == expected
    one.close()
    copied(str(tmp_path / "link"), str(tmp_path / "copy"))
    one = Database(str(tmp_path / "copy"), options)
    assert as_opened(tmp_path / "copy") == expected
    one.close()


def test_the_cache_is_as_large_as_the_settings_say(tmp_path: Path) -> None:
    assert task_settings(cc.Settings()).state_cache_bytes == database.BLOCK_CACHE_BYTES
    terms = task_settings(cc.Settings(state_backend="rocksdb", state_dir=tmp_path, state_cache_bytes=5 << 20))
    made = backends.backend(terms.state_backend, terms.state_dir, 16, terms.state_cache_bytes)
    state = made.new_state(TASK)(int)
    assert isinstance(state, RocksState)
    assert state._opened()._db.property_value("rocksdb.block-cache-capacity") == str(5 << 20)
    state.close()
    made.close()
    with pytest.raises(SettingsError, match="state_cache_bytes=-1"):
        cc.Settings(state_cache_bytes=-1)


def test_there_is_no_cache_for_blocks_unless_one_is_asked_for(tmp_path: Path) -> None:
    one = Database(str(tmp_path / "state"), Options())
    assert one._db.property_value("rocksdb.block-cache-capacity") is None
    one.close()


def test_rows_that_came_into_a_layer_in_several_ways_are_written_under_their_own_bytes(
    backend: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of those that were read at once are known, in the order in which these came."""
    monkeypatch.setattr(table_module, "ROWS_PER_STEP", 3)
    site = Site(backend)
    table = site.state.main
    assert isinstance(table, RocksTable)
    expected = {key: key for key in range(100)}
    for key, value in expected.items():
        table.put(key, value)
    site.checkpoint(N1)
    for turn in range(6):
        at = 10 * turn
        # Some of them are in no database, others in a layer that waits to be written.
        keys = [*range(at, at + 12), *range(200 + at, 204 + at)]
        random.Random(turn).shuffle(keys)
        site.state.fetch(keys, to_change=True)
        table.put(1_000 + turn, turn)
        expected[1_000 + turn] = turn
        for key in keys:
            table.values[key] += 1_000
            expected[key] = expected.get(key, 0) + 1_000
        table.delete(at + 5)
        del expected[at + 5]
        if turn % 2:
            table.freeze(CheckpointId(0))
    assert any(table._ids[0]), "the bytes of some rows are known"
    parts = site.checkpoint(N2)
    assert stored_contents(parts, site.read) == {"": expected}


def test_the_bytes_of_rows_that_a_failure_has_taken_away_are_those_of_no_later_ones(site: Site) -> None:
    for key in range(20):
        site.state.main.put(key, key)
    site.checkpoint(N1)
    site.state.fetch(range(20), to_change=True)
    site.state.roll_back(N1)
    for key in range(10, 30):
        site.state.main.put(key, -key)
    later = site.checkpoint(N2)
    expected = {key: key for key in range(10)} | {key: -key for key in range(10, 30)}
    assert stored_contents(later, site.read) == {"": expected}
    assert dict(site.state.main.items()) == expected


def test_a_value_that_can_not_be_read_leaves_those_before_it_under_their_own_keys(site: Site) -> None:
    """Whoever asks for it gets the error; a slice may be over before anybody does."""
    table = site.state.main
    assert isinstance(table, RocksTable)
    for key in range(20):
        table.put(key, key)
    site.checkpoint(N1)
    ids = table.stored.ids
    last = max(range(20), key=ids.encoded)
    site.state._opened().write([(ids.encoded(last), b"no pickle")])
    site.state.fetch(range(20), to_change=True)
    assert 0 < len(table.values) < 20
    for key in list(table.values):
        table.values[key] += 100
    for key in range(100, 105):
        table.put(key, key)
    with pytest.raises(StateError, match=f"of key {last} can't be decoded"):
        table.get(last)
    changed = dict(table.values)
    site.state._opened().write([(ids.encoded(last), pickle.dumps(last))])
    expected = {key: key for key in range(20)} | changed
    assert stored_contents(site.checkpoint(N2), site.read) == {"": expected}


def test_keys_are_read_in_the_order_in_which_they_are_stored(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in range(300):
        site.state.main.put(key, key)
    site.checkpoint(N1)
    asked: list[list[bytes]] = []
    read = Database.get_many

    def watched(one: Database, keys: list[bytes]) -> list[bytes | None]:
        asked.append(keys)
        return read(one, keys)

    monkeypatch.setattr(Database, "get_many", watched)
    site.state.fetch(range(300), to_change=True)
    assert [len(keys) for keys in asked] == [300]
    assert asked == [sorted(keys) for keys in asked]
    assert site.state.main.values == {key: key for key in range(300)}


def test_a_database_is_opened_where_memory_is_scarce(tmp_path: Path) -> None:
    """It has many files; a thread for each could not be started, which ended the process."""
    command = [sys.executable, "-c", OPENS, str(tmp_path / "database")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.stdout, result.returncode) == ("b'x'\n", 0), result.stderr


ENDING = """
import sys, threading
from crosscut.state.rocksdb.database import Database, Options
database = Database(sys.argv[1], Options())
rows = [(b"%08d" % number, bytes(200)) for number in range(20_000)]
database.write(rows)
has_begun = threading.Event()

def work():
    for number in range(1_000_000):
        database.get_many([key for key, _ in rows[:2_000]])
        database.write(rows[:100])
        database.link(f"{sys.argv[1]}-{number}")
        has_begun.set()

# Whether it is heard at all is left to chance.
threading.excepthook = lambda raised: None
threading.Thread(target=work, daemon=True).start()
has_begun.wait()
"""


def test_a_process_ends_as_it_should_while_a_thread_of_it_is_inside_the_library(tmp_path: Path) -> None:
    """It would be ended by SIGABRT: the library's frames can't be unwound."""
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "database")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_declines_the_checkpoint_and_the_next_one_has_everything(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True)
    if done.returncode:
        pytest.skip("may not mount")
    try:
        backend = OnDisk(str(disk), 16)
        site = Site(backend)
        site.state.main.put("a", 1)
        site.checkpoint(N1)
        ballast = disk / "ballast"
        with pytest.raises(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(os.urandom(64 * 1024))
        for key in range(2_000):
            site.state.main.put(key, key)
        site.state.freeze(N2)
        with pytest.raises(StateError, match=r"can't write keyed state in .*No space left.*make room there"):
            for _ in site.state.writing(N2):
                pass
            site.state.link(N2)
        site.state.abandon(N2)
        ballast.unlink()
        site.state.roll_back(N1)
        assert dict(site.state.items()) == {"a": 1}
        for key in range(2_000):
            site.state.main.put(key, key)
        parts = site.checkpoint(CheckpointId(3))
        restored = site.restored(parts)
        assert len(restored) == 2_001
        restored.close()
        site.state.close()
        backend.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("where", [0.0, 0.5])
def test_a_scan_does_not_take_a_damaged_file_for_the_end_of_the_rows(tmp_path: Path, where: float) -> None:
    directory = tmp_path / "database"
    made = Database(str(directory), Options())
    rows = [(b"%06d" % number, b"value") for number in range(20_000)]
    made.write(rows)
    made.link(str(tmp_path / "link"))
    assert list(made.scan()) == rows
    made.close()
    (table,) = directory.glob("*.sst")
    content = bytearray(table.read_bytes())
    middle = int(where * len(content) * 0.9)
    content[middle : middle + 100] = bytes(100)
    table.unlink()
    table.write_bytes(content)
    damaged = Database(str(directory), Options())
    for read in (
        lambda: list(damaged.scan()),
        lambda: list(damaged.scan(b"0")),
        lambda: list(damaged.between(b"000000", b"9")),
        lambda: damaged.count(b""),
    ):
        with pytest.raises(StateError, match=r"can't read keyed state in .*Corruption"):
            read()
    assert damaged.is_damaged


def test_rows_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    base = Database(str(tmp_path / "db"), Options())
    rows = {b"\xff\xff": b"1", b"\xff\xffa": b"2", b"\xff": b"3", b"a": b"4", b"ab": b"5", b"b": b"6"}
    base.write(rows.items())
    for prefix in (b"", b"a", b"\xff", b"\xff\xff", b"c"):
        expected = {key: value for key, value in rows.items() if key.startswith(prefix)}
        assert dict(base.scan(prefix)) == expected
    base.close()


def test_a_key_comes_back_from_its_bytes() -> None:
    for key in (0, -1, 255, 256, 1 << 80, "", "ä", b"", b"\0", None, (), (1, ("a", None)), ((), b"x")):
        data = b"xx" + encoded_key(key) + b"more"
        assert decoded_key(data, 2) == (key, len(data) - 4)


def test_the_library_is_not_imported_before_it_is_needed() -> None:
    program = "import sys, crosscut, crosscut.worker.worker; print('rocksdict' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert database.library().__name__ == "rocksdict"


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    gate = Gate()
    gate.__enter__()
    gate.forget()
    gate.shut()
    with pytest.raises(StateError, match="at its end"):
        gate.__enter__()
