"""A job seen from outside: one frozen value, which progress, command line and pages read."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, WorkerIndex
from crosscut.monitoring.silent_sources import Silences, SilentSource
from crosscut.monitoring.slow_discovery import DiscoveryStatus, SplitSearches
from crosscut.monitoring.stalled_watermarks import StillWatermark, StillWatermarks
from crosscut.monitoring.state_growth import GrowingState, Growths
from crosscut.protocol.effects import EndJob
from crosscut.protocol.job.coordinator import Coordinator, Phase
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import TaskStatistics, WorkerHeartbeat
from crosscut.protocol.snapshots import TaskSnapshot
from crosscut.protocol.splits.rescaling import parallelism_of

RATE_WINDOW_S = 2.0
RATE_EVERY_S = 0.05
RATE_LEAST_S = 0.2
"""Heartbeats of several workers come together: a rate between two of them would say nothing."""


@dataclass(frozen=True, slots=True)
class InvariantStatus:
    """The record of one invariant in this run of the driver.

    Attributes:
        evaluated: Cuts on which it was evaluated.
        skipped: Cuts that were passed over: newer ones were there before their turn came, or their parts
            were deleted while they were being read.
        broken: Cuts on which it did not hold.
        broken_at: The first of those; None: it has always held.
        message: The fault.
    """

    name: str
    evaluated: int = 0
    skipped: int = 0
    broken: int = 0
    broken_at: CheckpointId | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One admitted worker; `epoch` is the newest one it has reported from."""

    index: int
    host: str
    pid: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """One completed checkpoint.

    Attributes:
        state_bytes: A restore reads so many.
        new_bytes: This checkpoint added so many to the store.
        freeze_us: The longest that any task stood still for it.
    """

    checkpoint_id: int
    epoch: int
    duration_ms: int
    state_bytes: int
    new_bytes: int
    freeze_us: int
    is_final: bool
    wall_clock: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """One failover: from noticing the failure to the first records of the next epoch."""

    epoch: int
    cause: str
    noticed_ns: int
    flowing_ns: int

    @property
    def seconds(self) -> float:
        """From noticing to flowing."""
        return (self.flowing_ns - self.noticed_ns) / 1e9


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Everything at one moment.

    Attributes:
        records_read: By the sources, since the job's beginning: a failover takes it back to the checkpoint,
            a resumed job goes on from there. When the job is over, it is what the newest checkpoint covers.
        tasks: Counters of each task, which go back and on in the same way.
        state_keys: Rows of keyed state in all tasks: one for each key that has a value; in a process one for
            each of its states in which the key has one, and for each entry of a map.
        state_memory_bytes: Memory that keyed state takes in all tasks, by a sample of its rows; see
            `crosscut.state.memory`. 0: no task has said.
        dropped: Messages that came late or again, and therefore had no effect, by reason. Harmless; after
            a failover there are always some.
        last_failure: Why the job went to a new epoch the last time, "" if that is long ago.
        first_flow_ns: When the first records ever flowed, on this process's monotonic clock; 0: not yet.
        termination: How near the end of the input is: "open", "drained", "quiet" or "final"; see
            `crosscut.protocol.checkpoint.termination.Termination`.
        invariants: In the order of the flow.
        spilled_bytes: What channels have written to disk, so that their senders need not wait.
        late_records: Records that came too late for a window or join, since the job's beginning; as
            `records_read`.
        longest_freeze_us: The longest that any task stood still for a checkpoint, of those completed since
            the driver started.
        growing_states: Vertices whose keyed state has grown without a pause for some minutes.
        watermarks: By vertex, the lowest of its tasks that wait for any: no older record will leave it.
        still_watermarks: Those that have not moved for a while though records came, and who holds them up.
        held_splits: By vertex, how many splits wait now for slower ones (`align_within`).
        silent_sources: Source tasks whose reader has given nothing but empty lists for a while.
        searches: Of each dynamic source, how far the search for splits is.
        refused_peers: Connections to the driver and to its present workers that did not prove the job's
            secret, by reason.
        takeover: Whom this driver has taken the job over from, and where it goes on; "" at a first start.
        resumes_from: The newest completed checkpoint: a failover or the next start goes on from there; None:
            from the beginning.
        cause: Why the job has ended as it has, or what it has left undone: what failed, or that it has
            stopped without a last checkpoint; "" while it runs, and if there is nothing to say.
        uncommitted: Completed checkpoints that not all sinks have committed yet.
        sink_behind: Which sink can't keep up, so that checkpoints and sources wait for it; "" if all can.
    """

    name: str
    phase: str
    epoch: int
    workers: tuple[WorkerStatus, ...]
    checkpoints: tuple[CheckpointStatus, ...]
    checkpoints_completed: int
    checkpoints_failed: int
    checkpoint_under_way: int | None
    restarts: int
    last_failure: str
    recoveries: tuple[Recovery, ...]
    first_flow_ns: int
    records_read: int
    records_per_second: float
    state_keys: int
    queued_records: int
    tasks: tuple[TaskStatistics, ...]
    dropped: dict[str, int]
    termination: str = "open"
    invariants: tuple[InvariantStatus, ...] = ()
    spilled_bytes: int = 0
    late_records: int = 0
    longest_freeze_us: int = 0
    silent_sources: tuple[SilentSource, ...] = ()
    watermarks: dict[str, int | None] = field(default_factory=dict)
    still_watermarks: tuple[StillWatermark, ...] = ()
    held_splits: dict[str, int] = field(default_factory=dict)
    growing_states: tuple[GrowingState, ...] = ()
    searches: tuple[DiscoveryStatus, ...] = ()
    takeover: str = ""
    refused_peers: dict[str, int] = field(default_factory=dict)
    resumes_from: int | None = None
    cause: str = ""
    state_memory_bytes: int = 0
    uncommitted: int = 0
    sink_behind: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON-like data."""
        return asdict(self)


@dataclass(slots=True)
class Observations:
    """Events that the driver has seen, with the time of its own monotonic clock."""

    workers: dict[WorkerIndex, tuple[Epoch, tuple[TaskStatistics, ...]]] = field(default_factory=dict)
    rates: deque[tuple[int, int]] = field(default_factory=deque)
    checkpoints: deque[CheckpointStatus] = field(default_factory=lambda: deque(maxlen=1_000))
    completed_count: int = 0
    longest_freeze_us: int = 0
    recoveries: deque[Recovery] = field(default_factory=lambda: deque(maxlen=1_000))
    failed_ns: int = 0
    failed_cause: str = ""
    first_flow_ns: int = 0
    invariants: tuple[InvariantStatus, ...] = ()
    refused: dict[WorkerIndex | None, Mapping[str, int]] = field(default_factory=dict)
    """By worker; None: the driver itself."""
    silences: Silences = field(default_factory=Silences)
    watermarks: StillWatermarks = field(default_factory=StillWatermarks)
    growths: Growths = field(default_factory=Growths)
    searches: SplitSearches = field(default_factory=SplitSearches)
    now_ns: int = 0
    """When something was last seen."""
    restarts_before: int = 0
    """Of drivers that have run the job before, in this process."""

    def carried_on(self, restarts: int) -> Observations:
        """Return what stays of it when another driver goes on; the job has had so many restarts."""
        return Observations(
            checkpoints=self.checkpoints,
            completed_count=self.completed_count,
            longest_freeze_us=self.longest_freeze_us,
            recoveries=self.recoveries,
            first_flow_ns=self.first_flow_ns,
            restarts_before=restarts,
        )

    def note_completed(self, entry: CheckpointCompleted) -> CheckpointStatus:
        """Note a checkpoint that is complete; return what there is to say of it."""
        one = checkpoint_status(entry)
        self.checkpoints.append(one)
        self.completed_count += 1
        self.longest_freeze_us = max(self.longest_freeze_us, one.freeze_us)
        return one

    def statistics(self, coordinator: Coordinator) -> tuple[TaskStatistics, ...]:
        """Return the counters of every task of which something is known.

        While the job runs, from what the workers have said in this epoch; before that, from the checkpoint
        that it goes back to; and once it is over, from the one that the next start would go on from.

        At another parallelism its tasks are not those of the checkpoint, and it is unknown how many rows each
        takes over: of a vertex they count together, until all that it has now have said something.
        """
        reported: dict[TaskId, TaskStatistics] = {}
        if coordinator.phase is not Phase.ENDED:
            for _, (epoch, tasks) in sorted(self.workers.items()):
                if epoch == coordinator.epoch:
                    reported |= {one.task: one for one in tasks}
        completed = coordinator.completed
        if completed is None:
            return tuple(reported.values())
        kept = {one.task: _counted(one) for one in completed.snapshots}
        parallelism = coordinator.registry.parallelism
        if parallelism != parallelism_of(completed):
            counts = Counter(one.vertex for one in reported)
            reported = {task: one for task, one in reported.items() if counts[task.vertex] == parallelism}
            kept = {task: one for task, one in kept.items() if counts[task.vertex] != parallelism}
        return tuple((kept | reported).values())

    def note_message(
        self,
        worker: WorkerIndex,
        message: WorkerHeartbeat,
        now_ns: int,
        coordinator: Coordinator,
        sources: frozenset[TaskId],
    ) -> list[str]:
        """Note what a worker says of itself; return what people are to be warned of."""
        self.workers[worker] = (message.epoch, message.tasks)
        self.refused[worker] = message.refused
        self.now_ns = now_ns
        warnings = [
            *self.silences.note(now_ns, message.tasks),
            *self.watermarks.note(now_ns, message.tasks),
            *self.searches.note(now_ns, coordinator.searches),
        ]
        if self.is_rate_due(now_ns):
            tasks = self.statistics(coordinator)
            self.note_rate(now_ns, records_read(tasks, sources))
            warnings += self.growths.note(now_ns, tasks)
        return warnings

    def note_failure(self, now_ns: int, cause: str) -> None:
        """Note that the job begins to fail over."""
        self.failed_ns, self.failed_cause = now_ns, cause

    def note_flow(self, now_ns: int, epoch: Epoch) -> None:
        """Note that records flow in this epoch."""
        self.first_flow_ns = self.first_flow_ns or now_ns
        if self.failed_ns:
            self.recoveries.append(Recovery(epoch, self.failed_cause, self.failed_ns, now_ns))
            self.failed_ns = 0

    def is_rate_due(self, now_ns: int) -> bool:
        """Whether to note another reading: it adds up all tasks, and every worker's heartbeat asks."""
        return not self.rates or now_ns - self.rates[-1][0] >= RATE_EVERY_S * 1e9

    def note_rate(self, now_ns: int, records: int) -> None:
        """Note a reading of `records_read`."""
        if self.rates and records < self.rates[-1][1]:
            self.rates.clear()
        self.rates.append((now_ns, records))
        while self.rates[0][0] < now_ns - RATE_WINDOW_S * 1e9 and len(self.rates) > 2:
            self.rates.popleft()

    def rate(self) -> float:
        """Return records a second over the last readings."""
        if len(self.rates) < 2 or self.rates[-1][0] - self.rates[0][0] < RATE_LEAST_S * 1e9:
            return 0.0
        (then_ns, before), (now_ns, after) = self.rates[0], self.rates[-1]
        return (after - before) / ((now_ns - then_ns) / 1e9)


def _counted(one: TaskSnapshot) -> TaskStatistics:
    snapshot = one.snapshot
    return TaskStatistics(
        one.task,
        snapshot.records_in,
        snapshot.records_out,
        snapshot.state_keys,
        late_records=snapshot.late_records,
    )


def records_read(tasks: Iterable[TaskStatistics], sources: frozenset[TaskId]) -> int:
    """Return how many records the sources have read."""
    # Tasks of another parallelism are among them: the vertex counts.
    vertices = {one.vertex for one in sources}
    return sum(one.records_in for one in tasks if one.task.vertex in vertices)


def checkpoint_status(entry: CheckpointCompleted) -> CheckpointStatus:
    """Return what there is to say of a completed checkpoint."""
    own = f"parts/{entry.checkpoint_id}/"
    parts = [part for one in entry.snapshots for part in (*one.snapshot.parts, *one.snapshot.log)]
    parts += [held for one in entry.snapshots for each in one.snapshot.pending if (held := each.held)]
    return CheckpointStatus(
        checkpoint_id=entry.checkpoint_id,
        epoch=entry.epoch,
        duration_ms=entry.duration_ms,
        state_bytes=sum(part.size_bytes for part in parts),
        new_bytes=sum(part.size_bytes for part in parts if part.path.startswith(own) or not part.path),
        freeze_us=max((one.snapshot.freeze_us for one in entry.snapshots), default=0),
        is_final=entry.is_final,
        wall_clock=entry.wall_clock,
    )


def finished_status(
    name: str, epoch: Epoch, completed: CheckpointCompleted | None, sources: frozenset[TaskId]
) -> JobStatus:
    """Return the status of a job that had finished, in `epoch`, before anybody started it again."""
    tasks = tuple(map(_counted, completed.snapshots)) if completed is not None else ()
    return JobStatus(
        name=name,
        phase=Phase.ENDED.name.lower(),
        epoch=epoch,
        workers=(),
        checkpoints=(),
        checkpoints_completed=0,
        checkpoints_failed=0,
        checkpoint_under_way=None,
        restarts=0,
        last_failure="",
        recoveries=(),
        first_flow_ns=0,
        records_read=records_read(tasks, sources),
        records_per_second=0.0,
        state_keys=sum(one.state_keys for one in tasks),
        queued_records=0,
        tasks=tasks,
        dropped={},
        termination="final",
    )


def build_status(
    name: str,
    coordinator: Coordinator,
    seen: Observations,
    sources: frozenset[TaskId],
    end: EndJob | None = None,
) -> JobStatus:
    """Return the status of a job; `end`: how it has ended, if it has."""
    completed = coordinator.completed
    tasks = seen.statistics(coordinator)
    under_way: CheckpointId | None = coordinator.checkpoints.under_way
    return JobStatus(
        name=name,
        phase=coordinator.phase.name.lower(),
        epoch=coordinator.epoch,
        workers=_workers(coordinator, seen.workers),
        checkpoints=tuple(seen.checkpoints),
        checkpoints_completed=seen.completed_count,
        checkpoints_failed=coordinator.checkpoints.failed.failed_count,
        checkpoint_under_way=under_way,
        restarts=seen.restarts_before + coordinator.restart_count,
        last_failure=coordinator.failures[-1].message if coordinator.failures else "",
        recoveries=tuple(seen.recoveries),
        first_flow_ns=seen.first_flow_ns,
        records_read=records_read(tasks, sources),
        records_per_second=seen.rate() if coordinator.phase is Phase.RUNNING else 0.0,
        state_keys=sum(one.state_keys for one in tasks),
        state_memory_bytes=sum(one.state_memory_bytes for one in tasks),
        queued_records=sum(one.queued_records for one in tasks),
        spilled_bytes=sum(one.spilled_bytes for one in tasks),
        late_records=sum(one.late_records for one in tasks),
        longest_freeze_us=seen.longest_freeze_us,
        tasks=tasks,
        dropped=dict(coordinator.dropped),
        termination=coordinator.termination.name.lower(),
        invariants=seen.invariants,
        silent_sources=seen.silences.status(seen.now_ns),
        watermarks=_watermarks(tasks),
        still_watermarks=seen.watermarks.status(seen.now_ns),
        held_splits=_held_splits(tasks),
        growing_states=seen.growths.status(),
        searches=seen.searches.status(seen.now_ns),
        takeover=coordinator.takeover,
        refused_peers=dict(sum((Counter(one) for one in seen.refused.values()), Counter[str]())),
        resumes_from=completed.checkpoint_id if completed is not None else None,
        cause=end.cause.message if end is not None and end.cause is not None else "",
        uncommitted=coordinator.commits.waiting_count,
        sink_behind=coordinator.commits.shown,
    )


def _watermarks(tasks: Iterable[TaskStatistics]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for one in tasks:
        if not one.held_up_by:
            continue
        known = found.get(one.task.vertex, one.watermark)
        is_known = known is not None and one.watermark is not None
        found[one.task.vertex] = min(known, one.watermark) if is_known else None  # type: ignore[type-var]
    return found


def _held_splits(tasks: Iterable[TaskStatistics]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for one in tasks:
        if one.held_splits:
            found[one.task.vertex] += one.held_splits
    return dict(found)


def _workers(
    coordinator: Coordinator, seen: Mapping[WorkerIndex, tuple[Epoch, tuple[TaskStatistics, ...]]]
) -> tuple[WorkerStatus, ...]:
    nothing: tuple[Epoch, tuple[TaskStatistics, ...]] = (Epoch(0), ())
    return tuple(
        WorkerStatus(index, place.registration.host, place.registration.pid, seen.get(index, nothing)[0])
        for index, place in sorted(coordinator.registry.held.items())
    )
