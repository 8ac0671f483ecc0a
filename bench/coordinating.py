"""The real coordinator of a job as large as wanted, without its workers: what it hears, says and costs.

Every message goes through the real codec, as on the control links, and every log entry through the
store's. Nothing is sent or stored, so the processor time is the coordinator's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from crosscut.contracts.connectors import JSON
from crosscut.foundation.ids import AttemptId, CheckpointId, Lineage, TaskId, VertexId, WorkerIndex
from crosscut.protocol.effects import AppendEntry, JobEffect, SendMessage
from crosscut.protocol.events import (
    EntryAppended,
    JobEvent,
    LinkClosed,
    LinkOpened,
    LogTailRead,
    MessageReceived,
    SplitsDiscovered,
    Timer,
    TimerFired,
)
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec, Phase
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.recovery import JobIdentity
from crosscut.protocol.messages import (
    CoordinatorMessage,
    RegisterWorker,
    SnapshotAcknowledged,
    TaskStatistics,
    TransactionsCommitted,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)
from crosscut.protocol.snapshots import Part, PendingTransaction, Snapshot
from crosscut.store.log import StoredLog
from crosscut.testing.simulator.memory_files import MemoryFiles
from crosscut.wire.control import WORKER_MESSAGES, decode_control, encode_control

T = TypeVar("T")

VERTICES = ("numbers", "count-1", "count-2", "count-3")
"""A chain of three shuffles: a source and three keyed operators, the last chained with the sink."""

PARTS_PER_TASK = 4
"""Of a keyed task: a full part and three increments. There are 1 to 13, depending on what changes."""

RETAIN = 3


@dataclass(slots=True)
class Work:
    """What a part of the conversation cost the coordinator's one thread."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    codec_s: float = 0.0
    machine_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        return self.codec_s + self.machine_s


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """One checkpoint.

    Attributes:
        trigger: From the timer to the last TriggerCheckpoint.
        acknowledgements: From the first to the last.
        completion: The durable entry, the words to the sinks, and their answers.
        entry_s: Encoding the log entry, which the driver does in a thread of its own.
    """

    trigger: Work
    acknowledgements: Work
    completion: Work
    entry_bytes: int
    entry_s: float

    @property
    def messages(self) -> int:
        return sum(one.messages_in + one.messages_out for one in self._works)

    @property
    def cpu_s(self) -> float:
        return sum(one.cpu_s for one in self._works)

    @property
    def machine_s(self) -> float:
        return sum(one.machine_s for one in self._works)

    @property
    def _works(self) -> tuple[Work, ...]:
        return self.trigger, self.acknowledgements, self.completion


class LargeJob:
    """A coordinator with `parallelism` workers, each with a task of every vertex; deployed and running.

    Attributes:
        deployed: What the first deployment has cost, from the last registration on.
        parallelism: How many workers.
        tasks: All tasks, vertex by vertex.
    """

    def __init__(self, parallelism: int) -> None:
        self.tasks = [TaskId(VertexId(vertex), index) for vertex in VERTICES for index in range(parallelism)]
        self.parallelism = parallelism
        self._sinks = self.tasks[-parallelism:]
        self._coordinator = Coordinator(_terms(self.tasks, parallelism))
        self._links = list(range(parallelism))
        self._attempts = parallelism
        self.deployed = Work()
        self._files = MemoryFiles()
        self._log = StoredLog(self._files)
        self._deploy()

    def checkpoint(self) -> Checkpointed:
        """Take one checkpoint, from the timer to the last sink's answer."""
        epoch = self._coordinator.epoch
        trigger, acknowledgements, completion = Work(), Work(), Work()
        self._handle([TimerFired(Timer("trigger", epoch))], trigger)
        n = self._coordinator.checkpoints.under_way
        if n is None:
            raise RuntimeError("expected a checkpoint under way after its timer")
        said = [SnapshotAcknowledged(epoch, n, task, snapshot_of(task, n)) for task in self.tasks]
        append = _appended(self._hear(self._links_of(self.tasks), said, acknowledgements))
        entry_bytes, entry_s = timed(lambda: self._append(append))
        self._handle([EntryAppended(append.index)], completion)
        answers = [TransactionsCommitted(epoch, n, task) for task in self._sinks]
        self._hear(self._links_of(self._sinks), answers, completion)
        return Checkpointed(trigger, acknowledgements, completion, entry_bytes, entry_s)

    def heartbeats(self) -> Work:
        """Hear one heartbeat of each worker."""
        work = Work()
        beats = [
            WorkerHeartbeat(
                self._coordinator.epoch,
                tuple(
                    TaskStatistics(task, 10**9, 10**9, 10**4, 10**3)
                    for task in self.tasks[index :: self.parallelism]
                ),
            )
            for index in range(self.parallelism)
        ]
        self._hear(self._links, beats, work)
        return work

    def failover(self) -> Work:
        """Lose the worker in the middle, and deploy all tasks anew from the newest checkpoint."""
        work, index = Work(), self.parallelism // 2
        append = _appended(self._handle([LinkClosed(self._links[index], "reset")], work))
        self._append(append)
        self._handle([EntryAppended(append.index)], work)
        self._register(index, work)
        self._hear(self._links, [WorkerReady(self._coordinator.epoch)] * self.parallelism, work)
        self._check_running()
        return work

    def _register(self, index: int, work: Work) -> None:
        """Another process takes the place of worker `index`."""
        link = self._links[index] = self._attempts
        attempt = AttemptId(self._attempts)
        self._attempts += 1
        self._handle([LinkOpened(link, WorkerIndex(index), attempt)], work)
        self._hear([link], [_registration(index, attempt)], work)

    def _deploy(self) -> None:
        self._coordinator.start()
        self._coordinator.handle(LogTailRead(()))
        claim = _appended(self._coordinator.handle(SplitsDiscovered(())))
        self._append(claim)
        self._coordinator.handle(EntryAppended(claim.index))
        for index in range(self.parallelism):
            # The last one has all of them deployed.
            self.deployed = Work()
            self._register(index, self.deployed)
        ready = [WorkerReady(self._coordinator.epoch)] * self.parallelism
        self._hear(self._links, ready, self.deployed)
        self._check_running()

    def _links_of(self, tasks: Sequence[TaskId]) -> list[int]:
        return [self._links[task.index] for task in tasks]

    def _append(self, append: AppendEntry) -> int:
        """Write an entry as a store does; return its size."""
        self._log.append(append.index, append.entry, append.since)
        return len(next(reversed(self._files.content.values())))

    def _check_running(self) -> None:
        phase = self._coordinator.phase
        if phase is not Phase.RUNNING:
            raise RuntimeError(f"expected a running job, found one in phase {phase.name}: {phase.value}")

    def _hear(self, links: Sequence[int], messages: Sequence[WorkerMessage], work: Work) -> list[JobEffect]:
        """Let message i come in on link i."""
        frames = [encode_control(message) for message in messages]
        heard, seconds = timed(lambda: [decode_control(frame, WORKER_MESSAGES) for frame in frames])
        work.codec_s += seconds
        work.messages_in += len(heard)
        return self._handle([MessageReceived(*one) for one in zip(links, heard, strict=True)], work)

    def _handle(self, events: Sequence[JobEvent], work: Work) -> list[JobEffect]:
        # Timed as a whole: a clock of its own for each message would cost as much as the message.
        handle = self._coordinator.handle
        effects, seconds = timed(lambda: [effect for event in events for effect in handle(event)])
        work.machine_s += seconds
        said = [effect.message for effect in effects if isinstance(effect, SendMessage)]
        work.bytes_out += self._say(said, work)
        return effects

    def _say(self, messages: Sequence[CoordinatorMessage], work: Work) -> int:
        work.messages_out += len(messages)
        size_bytes, seconds = timed(lambda: sum(len(encode_control(message)) for message in messages))
        work.codec_s += seconds
        return size_bytes


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result and the processor time it took."""
    begun_s = time.process_time()
    result = work()
    return result, time.process_time() - begun_s


def snapshot_of(task: TaskId, n: CheckpointId) -> Snapshot:
    """Return a snapshot as a task acknowledges it: positions of a source, parts of what has state."""
    if task.vertex == VERTICES[0]:
        name = f"{task.index}-of-1"
        split: JSON = {"id": name, "start": 0, "detail": {"index": task.index, "of": 1}, "weight": 1}
        return Snapshot(positions={name: {"split": split, "position": n * 1_000_000}})
    first = max(1, n - PARTS_PER_TASK + 1)
    parts = tuple(
        Part(f"parts/{m}/{task.vertex}-{task.index}-1-{m:08x}", 180_246, f"{m:02x}" * 32)
        for m in range(first, n + 1)
    )
    is_sink = task.vertex == VERTICES[-1]
    handle: JSON = {"files": [f"out/.stage/{n}-{task.index}.jsonl"]}
    return Snapshot(parts=parts, pending=(PendingTransaction(n, handle),) if is_sink else (), freeze_us=100)


def _registration(index: int, attempt: AttemptId) -> RegisterWorker:
    host = f"10.{index // 65_536}.{index // 256 % 256}.{index % 256}"
    return RegisterWorker(WorkerIndex(index), attempt, host, 4_000 + attempt, 40_000)


def _appended(effects: Sequence[JobEffect]) -> AppendEntry:
    appends = [effect for effect in effects if isinstance(effect, AppendEntry)]
    if len(appends) != 1:
        raise RuntimeError(f"expected one log entry, found {len(appends)}")
    return appends[0]


def _terms(tasks: Sequence[TaskId], parallelism: int) -> CoordinatorSpec:
    return CoordinatorSpec(
        identity=JobIdentity("driver", Lineage("lineage"), "fingerprint", parallelism, 32_768),
        tasks=frozenset(tasks),
        sources=frozenset(tasks[:parallelism]),
        sinks=frozenset(tasks[-parallelism:]),
        checkpoints=CheckpointSpec(periodic=True, interval_ms=1_000, timeout_ms=60_000, failures_max=10),
        restart=RestartPolicy(10, 300_000, 0, 100, 10_000, 3),
        retain=RETAIN,
        heartbeat_timeout_ms=10_000,
        start_timeout_ms=60_000,
    )
