"""The pool of a worker: who waits for whom, what is spilled, and what goes on while snapshots are stored."""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import pytest

import crosscut as cc
from crosscut.errors import StoreError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.host.watch import Unwatched
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import FlatMap, Map
from crosscut.protocol.messages import SnapshotAcknowledged, SnapshotDeclined, TaskFailed, WorkerMessage
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshot.switching import AlignedThenUnaligned
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers
from crosscut.protocol.snapshots import Part
from crosscut.state.keyed import KeyedState
from crosscut.task.flow_control import LOCAL_ITEMS_MAX, Credit
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, Item
from crosscut.task.outputs import build_output
from crosscut.task.plan import TaskPlan
from crosscut.task.splits import SplitQueue
from crosscut.task.task import Task
from crosscut.worker.lines import SPEAKING
from crosscut.worker.pool import TURNS_IF_BEHIND, TaskPool
from crosscut.worker.spill_files import DiskSpace

JOIN, SENDER = TaskId(VertexId("join"), 0), TaskId(VertexId("sender"), 0)
A, B, INTO = (
    *(ChannelId(0, TaskId(VertexId("remote"), index), JOIN) for index in range(2)),
    ChannelId(1, TaskId(VertexId("remote"), 0), SENDER),
)
LOCAL = ChannelId(2, SENDER, JOIN)
N1 = CheckpointId(1)
CHANNEL_BYTES = 1_000_000
DEADLINE_S = 100.0


@dataclass
class HeldStore:
    """A store whose writes return when they are let go."""

    is_open: threading.Event = field(default_factory=threading.Event)
    writing: threading.Event = field(default_factory=threading.Event)
    written: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    fails_at: int | None = None

    def write_part(
        self, checkpoint_id: CheckpointId, task: TaskId, epoch: Epoch, chunks: list[bytes]
    ) -> Part:
        self.writing.set()
        assert self.is_open.wait(DEADLINE_S)
        if self.fails_at == len(self.written):
            raise StoreError("no space")
        path = f"parts/{checkpoint_id}/{task.vertex}-{len(self.written)}"
        self.written.append(path)
        return Part(path, sum(map(len, chunks)), "")

    def delete_parts(self, paths: Iterable[str]) -> list[str]:
        self.deleted += paths
        return []


class Site:
    """A pool with a join of two inputs from elsewhere, or of one and of a local sender."""

    def __init__(
        self,
        *operators: Operator,
        protocol: type[SnapshotProtocol] = AlignedBarriers,
        spill_bytes: int = 0,
        is_local: bool = False,
        state: KeyedState | None = None,
        clock: Clock | None = None,
        weighs_state: bool = True,
    ) -> None:
        self.store = HeldStore()
        self.said: list[WorkerMessage] = []
        self.credit: dict[ChannelId, int] = {}
        self.seen: list[Any] = []
        self.space = DiskSpace(bytes_max=spill_bytes)
        self.pool = TaskPool(
            epoch=Epoch(1),
            store=self.store,
            batch_rows=100,
            linger_ms=0,
            alignment_timeout_ms=1,
            sink_timeout_ms=60_000,
            failpoints=Failpoints(None, None),
            report=self.said.append,
            give_credit=self.credited,
            clock=clock or SystemClock(),
            weighs_state=weighs_state,
        )
        if is_local:
            out = build_output(
                "forward", (LOCAL,), batch_rows=1, router=KeyRouter(1, 1), key_by_uid="", task_index=0
            )
            self.sender = self.add(SENDER, (INTO,), (), protocol, spill_bytes, outputs=[out])
        chain = operators or (Map("seen", self.see),)
        self.inputs = (LOCAL, B) if is_local else (A, B)
        self.join = self.add(JOIN, self.inputs, chain, protocol, spill_bytes, state=state)
        self.pool.connect({})
        self.pool.start()

    def add(
        self,
        task_id: TaskId,
        inputs: tuple[ChannelId, ...],
        chain: Iterable[Operator],
        protocol: type[SnapshotProtocol],
        spill_bytes: int,
        outputs: Any = (),
        state: KeyedState | None = None,
    ) -> Task:
        task = Task(
            TaskPlan(
                task_id=task_id,
                epoch=Epoch(1),
                protocol=protocol(inputs),
                inputs={one: InputQueue(one, self.space) for one in inputs},
                spills_blocked=spill_bytes > 0,
                chain=tuple(chain),
                outputs=outputs,
                batch_rows=100,
                channel_bytes=CHANNEL_BYTES,
                state=state,
            )
        )
        self.pool.add(task, state, None)
        return task

    def see(self, record: Any) -> Any:
        self.seen.append(record)
        return record

    def credited(self, channel: ChannelId, credit: Credit) -> None:
        if credit.size_bytes:
            self.credit[channel] = self.credit.get(channel, 0) + credit.size_bytes

    def receive(self, channel: ChannelId, item: Item | list[Any], size_bytes: int = 0) -> None:
        self.pool.received(channel, Batch(item) if isinstance(item, list) else item, size_bytes)

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        ends_s = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < ends_s, f"waited too long for {what}; said: {self.said}"
            await asyncio.sleep(0)

    async def block(self, channel: ChannelId) -> None:
        """Let barrier 1 be delivered from `channel`, and only from there."""
        self.receive(channel, Barrier(N1))
        await self.until(lambda: self.join.snapshots.are_aligning, "the alignment")

    async def acknowledged(self) -> SnapshotAcknowledged:
        def found() -> list[SnapshotAcknowledged]:
            return [one for one in self.said if isinstance(one, SnapshotAcknowledged) and one.task == JOIN]

        await self.until(lambda: bool(found()), "the acknowledgement")
        return found()[0]

    async def close(self) -> None:
        self.store.is_open.set()
        await self.pool.close()


def scene(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def played(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return played


# Waking up.


@scene
async def test_what_an_alignment_timeout_unblocks_is_processed_though_nothing_else_happens() -> None:
    """The other input is silent for good, and nobody sends, so only the timeout can wake the scheduler."""
    site = Site(protocol=AlignedThenUnaligned)
    await site.block(A)
    site.receive(A, [1, 2])
    await site.until(lambda: site.seen == [1, 2], "the records behind the barrier")
    await site.close()


class BrokenClock(SystemClock):
    """Breaks when it is told to."""

    is_broken = False

    def monotonic_ns(self) -> int:  # type: ignore[override]
        if self.is_broken:
            raise ValueError("no hands")
        return time.monotonic_ns()


@scene
async def test_a_mistake_outside_of_all_tasks_is_reported_and_does_not_stop_them_in_silence() -> None:
    clock = BrokenClock()
    site = Site(clock=clock)
    await asyncio.sleep(0)
    clock.is_broken = True
    site.pool.schedule()
    await site.until(lambda: any(isinstance(one, TaskFailed) for one in site.said), "the report")
    (failed,) = [one for one in site.said if isinstance(one, TaskFailed)]
    assert "no hands" in failed.cause.message
    await site.close()


class Told(cc.SplitReader[int]):
    """Has to be waited for an hour, but for what somebody puts there, who then wakes the task up."""

    def __init__(self) -> None:
        self.wakes: list[Callable[[], None]] = []
        self.waits = 0
        self._read = 0
        self._come: list[int] = []

    @property
    def position(self) -> cc.JSON:
        return self._read

    def wake_by(self, wake: Callable[[], None]) -> None:
        self.wakes.append(wake)

    def read(self, limit: int) -> list[int] | cc.Wait:
        found, self._come = self._come, []
        self._read += len(found)
        self.waits += not found
        return found or cc.Wait(3_600_000)

    def come(self, record: int) -> None:
        self._come.append(record)
        (wake,) = self.wakes
        waker = threading.Thread(target=wake)
        waker.start()
        waker.join()


class OneSplit(cc.Source[int]):
    def __init__(self, reader: Told) -> None:
        self._reader = reader

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split("a", 0)]

    def reader(self, split: cc.Split, position: cc.JSON) -> Told:
        return self._reader


@scene
async def test_a_reader_that_waits_is_asked_again_when_its_thread_says_so_and_not_once_it_is_over() -> None:
    seen: list[int] = []
    reader = Told()
    source = OneSplit(reader)
    pool = TaskPool(
        epoch=Epoch(1),
        store=HeldStore(),
        batch_rows=100,
        linger_ms=0,
        alignment_timeout_ms=1,
        sink_timeout_ms=60_000,
        failpoints=Failpoints(None, None),
        report=lambda message: None,
        give_credit=lambda channel, size_bytes: None,
    )
    task = Task(
        TaskPlan(
            task_id=SENDER,
            epoch=Epoch(1),
            protocol=AlignedBarriers(()),
            inputs={},
            chain=(Map("seen", seen.append),),
            outputs=(),
            batch_rows=100,
            channel_bytes=CHANNEL_BYTES,
            splits=SplitQueue(source, [(one, one.start) for one in source.splits(1)]),
        )
    )
    pool.add(task, None, None)
    pool.connect({})
    pool.start()
    deadline_s = time.monotonic() + DEADLINE_S
    for record in (1, 2):
        while reader.waits < record:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0)
        reader.come(record)
        while len(seen) < record:
            assert time.monotonic() < deadline_s, "nobody was woken up"
            await asyncio.sleep(0)
    await pool.close()
    (wake,) = reader.wakes
    wake()
    await asyncio.sleep(0)
    assert seen == [1, 2]


# Who speaks.


@scene
async def test_a_task_speaks_while_it_runs_and_says_the_newest_checkpoint_that_has_its_state() -> None:
    told: list[Any] = []

    def speak(record: Any) -> Any:
        speaking = SPEAKING.get()
        assert speaking is not None
        assert speaking.at is not None
        told.append((record, speaking.task, speaking.epoch, speaking.at.newest_captured))
        return record

    site = Site(Map("speaks", speak), is_local=True)
    # The sender hands it over within its own turn.
    site.receive(INTO, [1])
    await site.until(lambda: len(told) == 1, "a record")
    for channel in (INTO, B):
        site.receive(channel, Barrier(N1))
    await site.until(lambda: bool(site.join.snapshots.newest_captured), "the barrier")
    site.receive(B, [2])
    await site.until(lambda: len(told) == 2, "another record")
    assert told == [(1, JOIN, Epoch(1), 0), (2, JOIN, Epoch(1), N1)]
    assert SPEAKING.get() is None
    await site.close()


# Blocked channels from other workers.


@scene
async def test_a_blocked_channel_gives_no_credit_back_unless_it_may_spill() -> None:
    site = Site()
    await site.block(A)
    for number in range(10):
        site.receive(A, [number], 200_000)
    assert site.credit == {}
    site.receive(B, Barrier(N1))
    # All but less than a quarter, for which nobody waits.
    await site.until(lambda: site.credit.get(A, 0) > 2_000_000 - CHANNEL_BYTES // 4, "credit")
    assert site.seen == list(range(10))
    await site.close()


@scene
async def test_credit_goes_on_for_a_blocked_channel_that_may_spill_and_memory_stays_bounded() -> None:
    """64 times as much as the channel may hold in memory comes in while it is blocked."""
    site = Site(spill_bytes=1 << 30)
    await site.block(A)
    record_bytes, count = 100_000, 640
    under_way_max = 0
    tracemalloc.start()
    try:
        for number in range(count):
            site.receive(A, [bytes([number % 256]) * record_bytes], record_bytes)
            under_way_max = max(under_way_max, record_bytes * (number + 1) - site.credit.get(A, 0))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert under_way_max < CHANNEL_BYTES, "the sender would have had to stop"
    assert peak_bytes < 2 * CHANNEL_BYTES
    (statistics,) = (task.statistics() for task in site.pool.tasks)
    assert statistics.spilled_bytes > (count - 10) * record_bytes
    assert statistics.queued_records == count
    site.receive(B, Barrier(N1))
    await site.until(lambda: len(site.seen) == count, "everything that was spilled")
    assert [one[0] for one in site.seen] == [number % 256 for number in range(count)]
    assert site.space.taken_bytes == 0
    assert site.credit == {A: count * record_bytes}
    await site.close()


@scene
async def test_what_waited_when_the_channel_was_blocked_is_spilled_as_well() -> None:
    """Else a sender that has used its credit up just before would wait for the whole alignment."""
    site = Site(spill_bytes=1 << 30)
    site.receive(A, Barrier(N1))
    for number in range(10):
        site.receive(A, [number], 100_000)
    assert site.credit == {}
    await site.until(lambda: site.credit == {A: 1_000_000}, "credit")
    assert site.join.snapshots.are_aligning
    assert site.seen == []
    await site.close()


@scene
async def test_beyond_the_disk_that_it_may_use_a_blocked_channel_waits_as_ever() -> None:
    site = Site(spill_bytes=1_500_000)
    await site.block(A)
    for _ in range(30):
        site.receive(A, [bytes(100_000)], 100_000)
    assert site.credit == {A: 1_500_000}
    assert site.space.taken_bytes < 1_500_000 + CHANNEL_BYTES
    site.receive(B, Barrier(N1))
    await site.until(lambda: len(site.seen) == 30, "all records")
    # The last of it goes back with the next records, once it is a quarter of all.
    assert site.credit[A] > 3_000_000 - CHANNEL_BYTES // 4
    await site.close()


@scene
async def test_no_channel_spills_once_it_is_unblocked() -> None:
    """Else a task that is too slow for its input would fill the disk."""
    site = Site(Map("seen", lambda record: record), spill_bytes=1 << 30)
    await site.block(A)
    site.receive(A, [1], 600_000)
    spilled_bytes = site.join.statistics().spilled_bytes
    assert spilled_bytes > 0
    site.receive(B, Barrier(N1))
    await site.until(lambda: not site.join.snapshots.are_aligning, "the capture")
    for _ in range(10):
        site.receive(A, [2], 600_000)
    assert site.join.statistics().spilled_bytes == spilled_bytes
    await site.close()


@scene
async def test_unaligned_snapshots_block_nothing_and_spill_nothing() -> None:
    site = Site(protocol=UnalignedBarriers, spill_bytes=1 << 30)
    site.receive(A, Barrier(N1))
    site.receive(A, [1], CHANNEL_BYTES)
    assert site.join.statistics().spilled_bytes == 0
    await site.until(lambda: site.credit == {A: CHANNEL_BYTES}, "credit")
    await site.close()


@scene
async def test_a_disk_that_is_full_fails_the_task_and_says_where() -> None:
    site = Site(spill_bytes=1 << 30)
    site.space.directory = "/no/such/directory"
    await site.block(A)
    site.receive(A, [1], CHANNEL_BYTES)
    (failed,) = (one for one in site.said if isinstance(one, TaskFailed))
    assert (failed.task, failed.cause.kind) == (JOIN, "SpillError")
    assert "/no/such/directory" in failed.cause.message
    await site.close()


# Channels inside the worker.


@pytest.mark.parametrize("spill_bytes", [0, 1 << 30])
@scene
async def test_a_local_sender_waits_for_a_blocked_input_unless_that_may_spill(spill_bytes: int) -> None:
    site = Site(spill_bytes=spill_bytes, is_local=True)
    site.receive(INTO, [0])
    site.receive(INTO, Barrier(N1))
    await site.until(lambda: site.join.snapshots.are_aligning, "the alignment")
    for number in range(1, 40):
        site.receive(INTO, [number])
    if spill_bytes:
        await site.until(lambda: not site.sender.has_work, "the sender")
        assert site.join.input_gate.ends[LOCAL].queue.in_memory <= LOCAL_ITEMS_MAX
        assert site.join.statistics().spilled_bytes > 0
    else:
        await site.until(
            lambda: site.join.input_gate.ends[LOCAL].queue.in_memory > LOCAL_ITEMS_MAX, "a full channel"
        )
        assert site.sender.has_work
    assert site.seen == [0]
    site.receive(B, Barrier(N1))
    await site.until(lambda: site.seen == list(range(40)), "everything, in order")
    await site.close()


@scene
async def test_a_local_sender_that_waits_when_its_channel_is_blocked_waits_no_longer() -> None:
    site = Site(spill_bytes=1 << 30, is_local=True)
    for number in range(LOCAL_ITEMS_MAX):
        site.join.offer(LOCAL, Barrier(N1) if number == 0 else Batch([number]))
    site.receive(INTO, [4])
    site.receive(INTO, [5])
    await site.until(lambda: site.join.snapshots.are_aligning and not site.sender.has_work, "both")
    await site.close()


# While a snapshot is stored.


@scene
async def test_records_flow_while_state_is_encoded_and_a_slow_store_writes_it() -> None:
    state = KeyedState(int)
    for key in range(5_000):
        state.values[key] = 1
    site = Site(state=state)
    site.receive(A, Barrier(N1))
    site.receive(B, Barrier(N1))
    await site.until(lambda: not site.join.snapshots.are_aligning and not site.join.has_work, "the capture")
    site.receive(A, ["while it is encoded"])
    await site.until(lambda: "while it is encoded" in site.seen, "the record")
    assert not site.store.writing.is_set()
    await site.until(site.store.writing.is_set, "the store")
    site.receive(B, ["while it is written"])
    await site.until(lambda: "while it is written" in site.seen, "the record")
    assert site.store.written == []
    assert not [one for one in site.said if isinstance(one, SnapshotAcknowledged)]
    site.store.is_open.set()
    assert (await site.acknowledged()).snapshot.parts[0].path == site.store.written[0]
    await site.close()


class StandingClock(SystemClock):
    """A clock that stands still unless it is told to go on; there is one for all."""

    now_ns = 0

    @classmethod
    def advance(cls, milliseconds: int) -> None:
        cls.now_ns += milliseconds * 1_000_000

    @staticmethod
    def monotonic_ns() -> int:
        return StandingClock.now_ns


class SlowToLog:
    """Takes 7 ms to be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        StandingClock.advance(7)
        return SlowToLog, ()


@scene
async def test_the_pause_of_a_checkpoint_is_its_synchronous_part_and_nothing_else() -> None:
    """Capture and log are in it, whatever call they happen in; encoding and storing are not."""
    site = Site(protocol=UnalignedBarriers, state=KeyedState(int), clock=StandingClock())
    site.receive(A, [SlowToLog()])
    site.receive(B, Barrier(N1))
    StandingClock.advance(100)
    site.receive(A, Barrier(N1))
    await site.until(site.store.writing.is_set, "the store")
    StandingClock.advance(1_000)
    site.store.is_open.set()
    assert (await site.acknowledged()).snapshot.freeze_us == 7_000
    await site.close()


# What is written of a checkpoint that is given up.


def with_state(keys: int = 3) -> KeyedState:
    state = KeyedState(int)
    state.values.update(dict.fromkeys(range(keys), 1))
    return state


async def storing(site: Site) -> None:
    """Let the store begin to write the snapshot of checkpoint 1."""
    site.receive(A, Barrier(N1))
    site.receive(B, Barrier(N1))
    await site.until(site.store.writing.is_set, "the store")


@scene
async def test_a_part_that_is_written_when_its_checkpoint_is_given_up_is_deleted_by_its_writer() -> None:
    site = Site(state=with_state())
    await storing(site)
    site.pool.abort(N1)
    site.store.is_open.set()
    await site.until(lambda: bool(site.store.deleted), "the deletion")
    assert site.store.deleted == site.store.written
    await site.close()


@scene
async def test_a_part_that_is_written_when_the_epoch_ends_is_deleted_by_its_writer() -> None:
    site = Site(state=with_state())
    await storing(site)
    await site.close()
    assert site.store.deleted == site.store.written != []


@scene
async def test_the_part_that_was_written_before_the_log_could_not_be_is_deleted() -> None:
    site = Site(protocol=UnalignedBarriers, state=with_state())
    site.store.fails_at = 1
    site.receive(A, ["in the log"])
    site.receive(B, Barrier(N1))
    site.receive(A, Barrier(N1))
    site.store.is_open.set()
    await site.until(lambda: bool(site.store.deleted), "the deletion")
    assert site.store.deleted == site.store.written != []
    assert [one.reason for one in site.said if isinstance(one, SnapshotDeclined)] == ["no space"]
    await site.close()


@scene
async def test_a_part_that_is_acknowledged_stays() -> None:
    site = Site(state=with_state())
    site.store.is_open.set()
    await storing(site)
    await site.acknowledged()
    site.pool.abort(N1)
    await site.close()
    assert site.store.deleted == []


# An epoch that is over.


@scene
async def test_after_a_failure_in_the_middle_of_a_batch_nothing_reaches_the_task() -> None:
    """Half a batch is in its state: the alignment timer, which is due now, must not have that captured."""

    def fails_at_the_second(record: Any) -> Any:
        if record == "second":
            raise ValueError("no")
        return record

    site = Site(Map("fails", fails_at_the_second), protocol=AlignedThenUnaligned, state=with_state())
    site.store.is_open.set()
    await site.block(A)
    assert site.pool._background, "the timer waits"
    site.receive(B, ["first", "second", "third"])
    await site.until(lambda: site.pool.is_over, "the failure")
    await site.until(lambda: not site.pool._background, "the end of timers and background work")
    reached: list[Task] = []
    (runner,) = site.pool._runners
    runner.post(reached.append)
    site.receive(A, ["later"])
    site.receive(B, Barrier(N1))
    site.pool.trigger(N1)
    site.pool.capture(N1)
    site.pool.completed(N1)
    runner.post(lambda task: task.snapshots.alignment_timed_out(N1))
    site.pool._round()
    assert reached == []
    assert site.join._captures._frozen == {}
    assert not site.store.writing.is_set()
    assert isinstance(site.said[-1], TaskFailed)
    assert not [one for one in site.said if isinstance(one, SnapshotAcknowledged)]
    await site.close()


# A task that sends to itself.

LOOP, OUT = ChannelId(1, JOIN, JOIN), ChannelId(0, JOIN, TaskId(VertexId("remote"), 0))


class Connection:
    """A channel to another worker: what is sent there."""

    def __init__(self, size_bytes: int = 0) -> None:
        self.sent: list[Item] = []
        self._size_bytes = size_bytes

    def send_item(self, item: Item) -> int:
        self.sent.append(item)
        return self._size_bytes


@scene
async def test_a_barrier_that_waits_in_one_output_has_not_left_because_another_leads_back() -> None:
    """Else the snapshot is taken for whole, and nothing moves the barrier ahead when its time is over."""
    store, said, connection = HeldStore(), list[WorkerMessage](), Connection()
    pool = TaskPool(
        epoch=Epoch(1),
        store=store,
        batch_rows=100,
        linger_ms=60_000,
        alignment_timeout_ms=1,
        sink_timeout_ms=60_000,
        failpoints=Failpoints(None, None),
        report=said.append,
        give_credit=lambda channel, size_bytes: None,
    )
    inputs, closing = (A, LOOP), frozenset({LOOP})
    output = build_output(
        "broadcast", (LOOP, OUT), batch_rows=100, router=KeyRouter(1, 1), key_by_uid="", task_index=0
    )
    task = Task(
        TaskPlan(
            task_id=JOIN,
            epoch=Epoch(1),
            protocol=AlignedThenUnaligned(inputs, closing),
            inputs={one: InputQueue(one) for one in inputs},
            back_edges=closing,
            chain=(FlatMap("once round", lambda n: [n + 10] if n < 10 else []),),
            outputs=[output],
            batch_rows=100,
            channel_bytes=0,
        )
    )
    pool.add(task, None, None)
    pool.connect({OUT: connection})  # type: ignore[dict-item]
    task.offer(A, Batch([1]))
    task.offer(A, Barrier(N1))
    pool.start()
    deadline_s = time.monotonic() + DEADLINE_S
    while not store.writing.is_set():
        assert time.monotonic() < deadline_s, said
        await asyncio.sleep(0)
    # It has overtaken the record, which is in the snapshot instead.
    assert connection.sent == [Barrier(N1)]
    assert [len(item) for item in task.output_buffers.ends[OUT].waiting if isinstance(item, Batch)] == [1]
    store.is_open.set()
    while not any(isinstance(one, SnapshotAcknowledged) for one in said):
        assert time.monotonic() < deadline_s, said
        await asyncio.sleep(0)
    (snapshot,) = (one.snapshot for one in said if isinstance(one, SnapshotAcknowledged))
    assert snapshot.in_flight == 2, "what goes round, and what the barrier has overtaken"
    await pool.close()


class RecordByRecord(Operator):
    """Ends the slice after each record."""

    def process(self, batch: Batch) -> Batch:
        taken = []
        for record in self.time_budget.through(batch):
            taken.append(record)
            self.time_budget.stop()
        return Batch(taken)


@scene
async def test_a_pool_that_settles_runs_tasks_that_are_within_a_batch_and_no_others() -> None:
    """Also one whose output takes no more: it may wait for what is going to happen after that."""
    pool = TaskPool(
        epoch=Epoch(1),
        store=HeldStore(),
        batch_rows=100,
        linger_ms=0,
        alignment_timeout_ms=1,
        sink_timeout_ms=60_000,
        failpoints=Failpoints(None, None),
        report=lambda message: None,
        give_credit=lambda channel, credit: None,
    )
    output = build_output(
        "broadcast", (OUT,), batch_rows=1, router=KeyRouter(1, 1), key_by_uid="", task_index=0
    )
    task = Task(
        TaskPlan(
            task_id=JOIN,
            epoch=Epoch(1),
            protocol=AlignedBarriers((A,), frozenset()),
            inputs={A: InputQueue(A)},
            back_edges=frozenset(),
            chain=(Map("same", lambda n: n), RecordByRecord("one by one")),
            outputs=[output],
            batch_rows=100,
            channel_bytes=1,
        )
    )
    rounds: list[bool] = []
    pool.add(task, None, None)
    pool.after_round = rounds.append
    # Its receiver gives no credit back.
    connection = Connection(size_bytes=1)
    pool.connect({OUT: connection})  # type: ignore[dict-item]
    task.offer(A, Batch([1, 2, 3, 4]))
    task.offer(A, Batch([5, 6]))
    pool.start()

    async def until_asleep() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not pool.is_asleep:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0)

    await until_asleep()
    sent = task.output_buffers.ends[OUT].waiting
    assert task.output_buffers.clogged and task.chain.is_halfway and not pool.is_settled
    before = len(sent)
    pool.settle()
    await until_asleep()
    assert pool.is_settled and before < len(sent) and task.input_gate.queued_rows > 0
    assert rounds[-1] is False
    pool.go_on()
    await until_asleep()
    assert pool.is_settled, "its output takes no more"
    await pool.close()


# What tasks do with their time.


@dataclass
class WorkedClock:
    """A clock that goes when work says so."""

    now_ns: int = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


@scene
async def test_a_task_reports_how_long_it_ran() -> None:
    clock = WorkedClock()

    def work(record: Any) -> Any:
        clock.now_ns += 40_000_000
        return record

    site = Site(Map("work", work), clock=clock)
    clock.now_ns += 60_000_000
    site.receive(A, [1])
    await site.until(lambda: site.join.records_in == 1, "the record")
    clock.now_ns += 100_000_000
    (report,) = site.pool.statistics()
    assert (report.running_us, report.busy_us, report.blocked_us) == (200_000, 40_000, 0)
    await site.close()


@scene
async def test_a_task_whose_output_takes_no_more_is_blocked_until_it_does() -> None:
    clock = WorkedClock()
    site = Site(clock=clock, is_local=True)
    await site.block(LOCAL)
    for number in range(LOCAL_ITEMS_MAX + 2):
        site.receive(INTO, [number], 1)
    await site.until(lambda: bool(site.sender.output_buffers.clogged), "back pressure")
    await site.until(lambda: site.pool.is_asleep, "rest")
    clock.now_ns += 70_000_000

    def of_sender() -> Any:
        return next(one for one in site.pool.statistics() if one.task == SENDER)

    assert of_sender().blocked_us == 70_000, "it still is"
    site.receive(B, Barrier(N1))
    await site.until(lambda: len(site.seen) == LOCAL_ITEMS_MAX + 2, "the rest of the records")
    await site.until(lambda: site.pool.is_asleep, "rest")
    clock.now_ns += 50_000_000
    assert (of_sender().blocked_us, of_sender().running_us) == (70_000, 120_000)
    assert of_sender().sent == (LOCAL_ITEMS_MAX + 2,)
    await site.close()


@scene
async def test_a_snapshot_says_how_long_it_was_aligned_and_stored() -> None:
    clock = WorkedClock()
    site = Site(clock=clock, state=KeyedState(int))
    await site.block(A)
    clock.now_ns += 30_000_000
    site.receive(B, Barrier(N1))
    await site.until(site.store.writing.is_set, "the store")
    clock.now_ns += 8_000_000
    site.store.is_open.set()
    times = (await site.acknowledged()).times
    assert (times.alignment_us, times.prepare_us, times.store_us) == (30_000, 0, 8_000)
    await site.close()


@scene
async def test_a_task_says_how_much_memory_its_state_takes() -> None:
    state = KeyedState(int)
    for number in range(1_000):
        state.main.put(f"key {number}", number)
    sizes = []
    for weighs_state in (True, False):
        site = Site(state=state, weighs_state=weighs_state)
        (said,) = [one for one in site.pool.statistics() if one.task == JOIN]
        sizes.append((said.state_keys, said.state_memory_bytes > 50_000))
        await site.close()
    assert sizes == [(1_000, True), (1_000, False)]


class CountedSlices(Unwatched):
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def end_slice(self) -> None:
        self.count += 1


@scene
async def test_a_task_that_is_behind_with_what_other_workers_send_takes_several_slices_a_round() -> None:
    """Else a source in its own worker, which takes one a round, keeps it behind as far as credit goes."""
    site = Site(clock=WorkedClock())
    site.pool.slices = slices = CountedSlices()
    for _ in range(30):
        site.receive(A, [0] * 100)
    rounds = []
    while site.join.has_work:
        before = slices.count
        await asyncio.sleep(0)
        rounds.append(slices.count - before)
    assert max(rounds) == TURNS_IF_BEHIND
    # As many as may wait for it from a sender in its worker are no reason.
    assert rounds[-LOCAL_ITEMS_MAX:] == [1] * LOCAL_ITEMS_MAX
    assert len(site.seen) == 3_000
    await site.close()


@scene
async def test_a_task_that_is_behind_takes_no_other_slice_after_a_long_one() -> None:
    """A call may take most of the heartbeat timeout: several in a row would be taken for a dead worker."""
    clock = WorkedClock()

    def work(record: Any) -> Any:
        clock.now_ns += 3_000_000_000
        return record

    site = Site(Map("work", work), clock=clock)
    for _ in range(30):
        site.receive(A, [0] * 100)
    longest_ns = 0
    while site.join.records_in < 50:
        before_ns = clock.now_ns
        await asyncio.sleep(0)
        longest_ns = max(longest_ns, clock.now_ns - before_ns)
    assert longest_ns == 3_000_000_000
    await site.close()
