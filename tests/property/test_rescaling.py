"""A job goes on at any parallelism, over either backend, through savepoints too: everything has one owner."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.examples import examples

import crosscut as cc
from crosscut.contracts.settings import BackendName
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.foundation.keys import key_group, owner_of_group
from crosscut.graph.channels import inputs_of
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import JobGraph
from crosscut.operators.building import keyed_state
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.protocol.splits import rescaling
from crosscut.protocol.splits.rescaling import chains_of, copies_from, rescaled
from crosscut.savepoints.manifest import opened
from crosscut.savepoints.starting import begin_with
from crosscut.savepoints.writing import write_savepoint
from crosscut.state.keyed import KeyedState
from crosscut.state.predecessor_state import PredecessorState
from crosscut.state.rocksdb.database import chunks_of
from crosscut.state.rocksdb.state import RocksState
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.task import rerouting
from crosscut.task.channel_log import decoded_log, encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.task.rerouting import rerouted
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.worker.backends import backend
from crosscut.worker.local_state_cache import LocalStateCache

T = TypeVar("T")
STATEFUL = {"visits": ("last", "pages"), "limited": ("count", "processing timers")}
KEYS = st.sampled_from([*range(6), "a", "b", ("a", 1), None])


class Visits(cc.KeyedProcess[Any, Any]):
    last = cc.ValueState[int]()
    pages = cc.MapState[int, int]()

    def on_record(self, record: Any, ctx: cc.Context) -> None: ...


class Limited(cc.ConnectedProcess[Any, Any, Any]):
    count = cc.ValueState[int]()
    limits = cc.BroadcastState[int, int]()

    def on_record(self, record: Any, ctx: cc.Context) -> None: ...

    def on_other(self, record: Any, ctx: cc.Context) -> None: ...

    def on_processing_timer(self, time: int, ctx: cc.Context) -> None: ...


def around(loop: Any) -> Any:
    visits = loop.key_by(lambda record: record).process(Visits()).named("visits")
    return visits.rebalance().map(lambda record: record).named("again"), visits


def graph_of(parallelism: int, groups: int) -> JobGraph:
    """Return a graph with an edge of each kind, a back edge among them."""
    flow = cc.Flow("any-parallelism")
    rules = flow.source(cc.items([])).named("rules")
    left = flow.source(cc.items([])).named("seeds").iterate(around)
    limited = left.key_by(lambda record: record).connect(rules.broadcast()).process(Limited())
    limited.named("limited").sink(cc.collect()).named("out")
    return flow.compile(parallelism, groups)


class Here:
    """Where a worker would restore its tasks."""

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def pause(self) -> None: ...


class Job:
    """The tasks of a job from one parallelism to the next, and what they should have."""

    def __init__(self, directory: Path, parallelism: int, groups: int) -> None:
        # Of files in memory nobody waits until they are on a disk.
        self.url = f"memory://{secrets.token_hex(8)}"
        self.directory, self.groups = directory, groups
        self.graph = graph_of(parallelism, groups)
        self.n = CheckpointId(0)
        self.store: CheckpointStore = open_store(f"{self.url}/store")
        self.rows: dict[tuple[str, str], dict[Any, Any]] = {
            (uid, table): {} for uid, tables in STATEFUL.items() for table in tables
        }
        # Of what is broadcast each task has had its own.
        self.limits: list[dict[int, int]] = [{} for _ in range(parallelism)]
        self.on_their_way: Counter[int] = Counter()
        self.copies: list[Counter[int]] = [Counter() for _ in range(parallelism)]
        self.logs: dict[TaskId, list[LoggedBatch]] = {}
        self.record = 0
        self.states: dict[TaskId, KeyedState] = {}
        self.at_hand = LocalStateCache(backend("memory", None, groups))
        for task, empty in self._empty("memory"):
            self.states[task] = empty

    @property
    def parallelism(self) -> int:
        return self.graph.parallelism

    def owner(self, key: Any) -> int:
        return owner_of_group(key_group(key, self.groups), self.groups, self.parallelism)

    def put(self, uid: str, table: str, key: Any, name: int, value: int | None) -> None:
        state = self.states[TaskId(VertexId(uid), self.owner(key))].tables[table]
        row = (key, name) if table in ("pages", "processing timers") else key
        if value is None and row in self.rows[uid, table]:
            state.delete(row)
            del self.rows[uid, table][row]
        elif value is not None:
            state.put(row, value)
            self.rows[uid, table][row] = value

    def limit(self, index: int, name: int, value: int) -> None:
        index %= self.parallelism
        self.states[TaskId(VertexId("limited"), index)].tables["limits"].put((None, name), value)
        self.limits[index][name] = value

    def send(self, place: int, source: int, target: int, keys: list[Any], *, by_sender: bool) -> None:
        """Let records be on their way in a channel of any kind when the next checkpoint is taken."""
        edge = self.graph.edges[place % len(self.graph.edges)]
        source, target = source % self.parallelism, target % self.parallelism
        if edge.partitioning == "forward":
            target = source
        if edge.partitioning == "hash":
            keys = [key for key in keys if self.owner(key) == target]
        records = []
        for _ in keys:
            self.record += 1
            records.append(self.record)
            (self.copies[target] if edge.partitioning == "broadcast" else self.on_their_way)[self.record] += 1
        channel = ChannelId(edge.input, task_of(edge.source, source), task_of(edge.target, target))
        batch = Batch(records, keys if edge.partitioning == "hash" else None)
        holder = channel.source if by_sender else channel.target
        logged = LoggedBatch(channel, encode_batch(batch), len(records), by_sender=by_sender)
        self.logs.setdefault(holder, []).append(logged)

    def go_on(self, parallelism: int, kept: BackendName, *, through_savepoint: bool) -> None:
        """Take a checkpoint, and go on from it with so many tasks."""
        self.n = CheckpointId(self.n + 1)
        checkpoint = CheckpointCompleted(Epoch(1), self.n, tuple(self._snapshots()))
        if through_savepoint:
            checkpoint = self._through_savepoint(checkpoint)
        before, self.graph = self.parallelism, graph_of(parallelism, self.groups)
        for state in self.states.values():
            state.close()
        snapshots = checkpoint.snapshots
        if parallelism != before:
            links = [
                (VertexId(edge.source), VertexId(edge.target), edge.partitioning == "hash")
                for edge in self.graph.edges
            ]
            snapshots = rescaled(checkpoint, parallelism, self.groups, links)
            self.limits = [self.limits[copies_from(index, before)] for index in range(parallelism)]
            self.limits = [dict(limits) for limits in self.limits]
            self.copies = [Counter(self.copies[copies_from(index, before)]) for index in range(parallelism)]
        of_task = {one.task: one.snapshot for one in snapshots}
        self.at_hand.close()
        self.at_hand = LocalStateCache(backend(kept, str(self.directory), self.groups))
        for task, empty in self._empty(kept):
            self.states[task] = self._restored(task, empty, of_task[task], before)
        self.logs = self._taken_over(of_task, before)

    def check(self) -> None:
        """Raise AssertionError unless everything is there once, and where it belongs."""
        for (uid, table), expected in self.rows.items():
            found: list[Any] = []
            for index in range(self.parallelism):
                rows = dict(self.states[task_of(uid, index)].tables[table].items())
                keys = [row[0] if table in ("pages", "processing timers") else row for row in rows]
                assert all(self.owner(key) == index for key in keys)
                found += rows.items()
            assert len(found) == len(expected) and dict(found) == expected
        for index, limits in enumerate(self.limits):
            rows = dict(self.states[task_of("limited", index)].tables["limits"].items())
            assert rows == {(None, name): value for name, value in limits.items()}
        kinds = {(edge.target, edge.input): edge.partitioning for edge in self.graph.edges}
        on_their_way: Counter[int] = Counter()
        copies: list[Counter[int]] = [Counter() for _ in range(self.parallelism)]
        for log in self.logs.values():
            for one in log:
                # A sender may have it still: at this parallelism it sends it there.
                batch, target = decode_batch(one.data), one.channel.target
                kind = kinds[target.vertex, one.channel.input]
                (copies[target.index] if kind == "broadcast" else on_their_way).update(batch.records)
                assert kind != "hash" or all(self.owner(key) == target.index for key in batch.keys or ())
        assert on_their_way == self.on_their_way
        assert copies == self.copies

    def close(self) -> None:
        for state in self.states.values():
            state.close()
        self.at_hand.close()
        files = MemoryFileSystem()
        if files.exists(self.url):
            files.rm(self.url, recursive=True)

    def _empty(self, kept: BackendName) -> Iterator[tuple[TaskId, KeyedState]]:
        self.states = {}
        for vertex in self.graph.vertices:
            for node in vertex.chain:
                for index in range(self.parallelism if node.uid in STATEFUL else 0):
                    task = task_of(vertex.vertex_id, index)
                    made = keyed_state(node, self.at_hand.new_state(task))
                    assert made is not None
                    yield task, made

    def _snapshots(self) -> Iterator[TaskSnapshot]:
        for vertex in self.graph.vertices:
            for index in range(self.parallelism):
                task = task_of(vertex.vertex_id, index)
                log = self.logs.get(task, [])
                yield TaskSnapshot(
                    task,
                    Snapshot(
                        parts=self._stored(task, self.states[task]) if task in self.states else (),
                        positions=[] if vertex.source is not None else None,
                        log=(self._part(task, encoded_log(log)),) if log else (),
                        in_flight=sum(one.rows for one in log),
                    ),
                )

    def _stored(self, task: TaskId, state: KeyedState) -> tuple[Part, ...]:
        state.freeze(self.n)
        if not isinstance(state, RocksState):
            return (self._part(task, state.encoded(self.n, CheckpointId(0))),)
        for _ in state.writing(self.n):
            pass
        files = {path: self._part(task, chunks_of(path)) for path in state.link(self.n)}
        return state.stored(self.n, self._part(task, [state.head(self.n)]), files)

    def _part(self, task: TaskId, chunks: Iterable[bytes]) -> Part:
        return self.store.write_part(self.n, task, Epoch(1), chunks)

    def _through_savepoint(self, checkpoint: CheckpointCompleted) -> CheckpointCompleted:
        graph, path = self.graph, f"{self.url}/savepoint-{self.n}"
        claim = EpochClaimed(
            Epoch(1), Lineage(f"job-{self.n}"), "driver", graph.fingerprint, graph.parallelism,
            graph.max_parallelism, CheckpointId(1), identity_of(graph),
        )  # fmt: skip
        write_savepoint(path, checkpoint, claim, self.store.read_part)
        self.store = open_store(f"{self.url}/store-{self.n}")
        begin_with(opened(path), self.store, graph, discover=lambda graph: (), look=list)
        (begun,) = (one for _, one in self.store.tail(1) if isinstance(one, CheckpointCompleted))
        self.n = begun.checkpoint_id
        return begun

    def _restored(self, task: TaskId, empty: KeyedState, snapshot: Snapshot, before: int) -> KeyedState:
        predecessor_state = None
        if self.parallelism != before:
            chains = chains_of(snapshot)
            predecessor_state = PredecessorState(
                chains, copies_from(task.index, len(chains)), lambda key: self.owner(key) == task.index
            )
        read, here = self.store.read_part, Here()
        restoring = self.at_hand.restored(task, empty, self.n, snapshot.parts, read, here, predecessor_state)  # type: ignore[arg-type]
        return asyncio.run(restoring)

    def _taken_over(self, snapshots: dict[TaskId, Snapshot], before: int) -> dict[TaskId, list[LoggedBatch]]:
        if self.parallelism == before:
            return {
                task: log
                for task, one in snapshots.items()
                if (log := [logged for part in one.log for logged in decoded_log(self.store.read_part(part))])
            }
        found = {}
        for task, one in snapshots.items():
            logs = (decoded_log(self.store.read_part(part)) for part in one.log)
            log = [
                in_its_own_channel(logged, task, self.graph)
                for _, batches in rerouted(logs, task, self.graph, self.owner, before)
                for logged in batches
            ]
            if log:
                found[task] = log
        return found


def task_of(vertex: str, index: int) -> TaskId:
    return TaskId(VertexId(vertex), index)


def in_its_own_channel(logged: LoggedBatch, task: TaskId, graph: JobGraph) -> LoggedBatch:
    """Return what a task has taken over as it stands in its inputs."""
    channel = next(one for one in inputs_of(graph, task) if one.input == logged.channel.input)
    return LoggedBatch(channel, logged.data, logged.rows, by_sender=False)


INDEX = st.integers(0, 3)
PUT = st.tuples(
    st.just("put"),
    st.sampled_from([(uid, table) for uid, tables in STATEFUL.items() for table in tables]),
    KEYS,
    st.integers(0, 2),
    st.none() | st.integers(0, 99),
)
LIMIT = st.tuples(st.just("limit"), INDEX, st.integers(0, 2), st.integers(0, 99))
SEND = st.tuples(
    st.just("send"), st.integers(0, 20), INDEX, INDEX, st.lists(KEYS, min_size=1, max_size=4), st.booleans()
)
BACKEND = st.sampled_from(["memory", "memory", "rocksdb"])
GO_ON = st.tuples(st.just("go on"), st.integers(1, 4), BACKEND, st.sampled_from([False, False, True]))
STEPS = st.lists(st.one_of(PUT, PUT, LIMIT, SEND, GO_ON), min_size=4, max_size=24)


def lived(parallelism: int, groups: int, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        job = Job(Path(directory), parallelism, groups)
        try:
            for step in [*steps, ("go on", 3, "memory", False), ("go on", 1, "memory", True)]:
                match step:
                    case ("put", (uid, table), key, name, value):
                        job.put(uid, table, key, name, value)
                    case ("limit", index, name, value):
                        job.limit(index, name, value)
                    case ("send", place, source, target, keys, by_sender):
                        job.send(place, source, target, keys, by_sender=by_sender)
                    case ("go on", parallelism, kept, through_savepoint):
                        job.go_on(parallelism, kept, through_savepoint=through_savepoint)
                        job.check()
        finally:
            job.close()


@settings(max_examples=examples(20, few=8), deadline=None)
@given(st.integers(1, 4), st.sampled_from([4, 7, 16]), STEPS)
def test_everything_has_one_owner_wherever_a_job_goes_on(
    parallelism: int, groups: int, steps: list[Any]
) -> None:
    """H1: keyed state, timers, what is broadcast, and records on their way in channels and loops."""
    lived(parallelism, groups, steps)


SOME = [
    *(("put", ("visits", "pages"), key, 1, 7) for key in range(6)),
    *(("put", ("limited", "processing timers"), key, 5, 0) for key in range(6)),
    ("limit", 0, 1, 3),
    *(("send", place, 1, index, [0, 1, 2, 3, "a"], False) for place in range(12) for index in range(2)),
]


def test_what_the_planted_bugs_below_break_holds_without_them() -> None:
    lived(2, 7, [*SOME, ("go on", 3, "rocksdb", False), *SOME, ("go on", 2, "memory", True)])


def with_one_heir(patch: pytest.MonkeyPatch) -> None:
    plain = rescaling._with_groups_of
    patch.setattr(rescaling, "_with_groups_of", lambda *arguments: plain(*arguments)[:1])


def with_parts_of_all(patch: pytest.MonkeyPatch) -> None:
    """Every task takes every key."""
    plain = KeyedState.owned_rows
    patch.setattr(KeyedState, "owned_rows", lambda self, block, owns: plain(self, block, None))


def with_records_for_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rerouting, "_with_keys_of", lambda batch, index, owner_of: batch)


def with_records_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rerouting, "taken_over_by", lambda index, parallelism: -1)


def with_copies_of_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rerouting, "copies_from", lambda index, before: 0)


@pytest.mark.parametrize(
    "plant",
    [
        with_one_heir,
        with_parts_of_all,
        with_records_for_everybody,
        with_records_for_nobody,
        with_copies_of_the_first,
    ],
)
def test_what_has_two_owners_or_none_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        lived(2, 7, [*SOME, ("go on", 3, "memory", False)])
