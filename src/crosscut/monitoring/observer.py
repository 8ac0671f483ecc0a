"""Everything that is noted of a job for people: rates, traces of checkpoints and failovers, events.

Called by the driver with each event that the coordinator has handled, and the effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from crosscut import events
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.graph.specs import JobGraph
from crosscut.monitoring.latency import LatencyMeter
from crosscut.monitoring.meter import Meter
from crosscut.monitoring.query_progress import BatchTimes, progress_of, query_ids
from crosscut.monitoring.traces import (
    CheckpointTrace,
    CheckpointTraces,
    FailoverTrace,
    FailoverTraces,
)
from crosscut.protocol.effects import EndJob, JobEffect, SendMessage
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.job.restarts import ASKED
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import (
    AbortCheckpoint,
    DeployTasks,
    FailureCause,
    RecordsFlowing,
    SnapshotAcknowledged,
    TaskStatistics,
    TransactionsCommitted,
    WorkerHeartbeat,
    WorkerMessage,
)
from crosscut.protocol.telemetry import ShownDeadLetter

ERRORS_MAX = 100
PROGRESS_MAX = 100
"""As many as Structured Streaming keeps."""
DEAD_LETTERS_MAX = 100

_RUNNING = (Phase.RUNNING, Phase.FINISHING, Phase.STOPPING)


@dataclass(frozen=True, slots=True)
class SeenError:
    """A failure, and when it was noticed, in milliseconds since 1970."""

    at_ms: int
    epoch: Epoch
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class SeenDeadLetter:
    """A dead letter, and when the driver was told of it, in milliseconds since 1970."""

    at_ms: int
    epoch: Epoch
    task: TaskId
    letter: ShownDeadLetter


@dataclass(frozen=True, slots=True)
class Seen:
    """What the driver had seen of one job at one moment: nothing changes it any more.

    Attributes:
        started_ms: When the tasks first ran, in milliseconds since 1970; 0: they have not.
    """

    started_ms: int
    meter: Meter
    latencies: LatencyMeter
    checkpoints: tuple[CheckpointTrace, ...]
    failovers: tuple[FailoverTrace, ...]
    errors: tuple[SeenError, ...]
    dead_letters: tuple[SeenDeadLetter, ...]


class Watching:
    """What the driver has seen of one job.

    Args:
        wall_ms: Tells the milliseconds since 1970.
        notify: Takes the events for listeners, in order.
        driver: The token of this start.
        graph: Whose progress is told from checkpoint to checkpoint. None: somebody else does; see
            `progressed`.
    """

    def __init__(
        self,
        name: str,
        parallelism: int,
        wall_ms: Callable[[], int],
        notify: Callable[[events.JobEvent], None],
        driver: str = "",
        graph: JobGraph | None = None,
    ) -> None:
        self.progress: deque[dict[str, Any]] = deque(maxlen=PROGRESS_MAX)
        self._driver = driver
        self._graph = graph
        # What the next progress counts from: a checkpoint, and since when.
        self._before: CheckpointCompleted | None = None
        self._since_ns = 0
        self.meter = Meter()
        self.latencies = LatencyMeter()
        self.checkpoints = CheckpointTraces()
        self.failovers = FailoverTraces()
        self.errors: deque[SeenError] = deque(maxlen=ERRORS_MAX)
        self.dead_letters: deque[SeenDeadLetter] = deque(maxlen=DEAD_LETTERS_MAX)
        self._dead_letters_noted: dict[TaskId, tuple[ShownDeadLetter, ...]] = {}
        self.started_ms = 0
        self._name = name
        self._parallelism = parallelism
        self._wall_ms = wall_ms
        self._notify = notify
        self._failure: FailureCause | None = None
        self._restart_count = 0
        self._failed_count = 0
        self._rescaled_from = 0
        self._has_run = self._is_over = False
        self._phase = Phase.CLAIMING

    def seen(self) -> Seen:
        """Return what is to be told of it now. It takes little, so that others can do the rest elsewhere."""
        return Seen(
            self.started_ms,
            self.meter.copied(),
            self.latencies.copied(),
            self.checkpoints.all(),
            self.failovers.all(),
            tuple(self.errors),
            tuple(self.dead_letters),
        )

    def handled(self, now_ns: int, coordinator: Coordinator, effects: Sequence[JobEffect]) -> None:
        """The coordinator has handled an event, with `effects`."""
        self._note_failures(now_ns, coordinator)
        self._note_effects(now_ns, coordinator, effects)
        if coordinator.phase is not self._phase:
            self._note_phase(now_ns, coordinator)

    def progressed(self, epoch: Epoch, progress: dict[str, Any]) -> None:
        """Note what was done from one checkpoint to the next."""
        self.progress.append(progress)
        if not self._is_over:
            self._notify(
                events.Progressed(job=self._name, at_ms=self._wall_ms(), epoch=epoch, progress=progress)
            )

    def completed(
        self,
        now_ns: int,
        coordinator: Coordinator,
        entry: CheckpointCompleted,
        state_bytes: int,
        new_bytes: int,
    ) -> None:
        """A checkpoint is complete."""
        self.checkpoints.completed(now_ns, entry, state_bytes, new_bytes)
        trace = self.checkpoints.of(entry.checkpoint_id)
        self._notify(
            events.CheckpointCompleted(
                job=self._name,
                at_ms=self._wall_ms(),
                epoch=entry.epoch,
                checkpoint_id=entry.checkpoint_id,
                duration_ms=entry.duration_ms,
                state_bytes=state_bytes,
                new_bytes=new_bytes,
                is_final=entry.is_final,
                alignment_ms=trace.alignment_ms if trace is not None else 0.0,
                freeze_ms=trace.freeze_ms if trace is not None else 0.0,
                store_ms=trace.store_ms if trace is not None else 0.0,
                append_ms=trace.append_ms if trace is not None else 0.0,
            )
        )
        if self._graph is not None:
            self.progressed(entry.epoch, self._progress_to(now_ns, self._graph, coordinator, entry))
            self._before, self._since_ns = entry, now_ns

    def _progress_to(
        self, now_ns: int, graph: JobGraph, coordinator: Coordinator, entry: CheckpointCompleted
    ) -> dict[str, Any]:
        """Return what was done since the checkpoint before, or since the tasks have begun to run."""
        since_ns = self._since_ns or now_ns
        times = BatchTimes(
            now_ns - since_ns,
            since_ns,
            max(since_ns, now_ns - entry.duration_ms * 1_000_000),
            now_ns,
            now_ns,
        )
        return progress_of(
            graph,
            query_ids(coordinator.lineage, self._driver),
            entry.checkpoint_id,
            {one.task: one.snapshot for one in self._before.snapshots} if self._before is not None else {},
            {one.task: one.snapshot for one in entry.snapshots},
            times,
            datetime.fromtimestamp(self._wall_ms() / 1_000 - times.took_s, UTC).isoformat(),
        )

    def note_message(self, now_ns: int, epoch: Epoch, message: WorkerMessage) -> None:
        """A worker that is one of the job's has said something about its own tasks; the job is in `epoch`."""
        if self._is_over:
            # What was under way when it ended: no event comes after the last one.
            return
        match message:
            case WorkerHeartbeat() if message.epoch == epoch:
                self.meter.note(now_ns, epoch, message.tasks)
                self.latencies.note(now_ns, epoch, message.tasks)
                self._note_dead_letters(epoch, message.tasks)
            case SnapshotAcknowledged(_, n, task, snapshot, times) if message.epoch == epoch:
                self.checkpoints.acknowledged(now_ns, n, task, snapshot, times)
            case TransactionsCommitted(_, n) if message.epoch == epoch:
                self.checkpoints.committed(now_ns, n)
            case RecordsFlowing() if message.epoch == epoch:
                self._flowing(now_ns, epoch)
            case _:
                pass

    def ended(self, coordinator: Coordinator, end: EndJob) -> None:
        """The job is over."""
        self._is_over = True
        self.meter.forget()
        cause = end.cause
        if cause is not None and cause is not self._failure and end.outcome == "failed":
            self.errors.append(SeenError(self._wall_ms(), coordinator.epoch, cause))
        self._notify(self.end_event(coordinator, end))

    def end_event(self, coordinator: Coordinator, end: EndJob) -> events.Ended:
        """Return the last event of the job."""
        completed = coordinator.completed
        ids = query_ids(coordinator.lineage, self._driver)
        return events.Ended(
            job=self._name,
            at_ms=self._wall_ms(),
            epoch=coordinator.epoch,
            outcome=end.outcome,
            cause=end.cause.message if end.cause is not None else "",
            resumes_from=completed.checkpoint_id if completed is not None else None,
            query_id=ids.query,
            run_id=ids.run,
        )

    def _note_dead_letters(self, epoch: Epoch, tasks: Iterable[TaskStatistics]) -> None:
        for one in tasks:
            # What a batch has counted is said again and again until the next one has.
            if one.letters and one.letters is not self._dead_letters_noted.get(one.task):
                self._dead_letters_noted[one.task] = one.letters
                at_ms = self._wall_ms()
                self.dead_letters += [
                    SeenDeadLetter(at_ms, epoch, one.task, letter) for letter in one.letters
                ]

    def _flowing(self, now_ns: int, epoch: Epoch) -> None:
        over = self.failovers.flowing(now_ns)
        if over is not None:
            self._notify(
                events.Recovered(
                    job=self._name,
                    at_ms=self._wall_ms(),
                    epoch=epoch,
                    resumed_from=CheckpointId(over.restores) if over.restores else None,
                    seconds=(over.flowing_ms or 0.0) / 1e3,
                )
            )

    def _note_failures(self, now_ns: int, coordinator: Coordinator) -> None:
        checkpoints = coordinator.checkpoints
        if checkpoints.failed.failed_count > self._failed_count:
            self._failed_count = checkpoints.failed.failed_count
            at_ms, epoch = self._wall_ms(), coordinator.epoch
            self._notify(
                events.CheckpointFailed(
                    job=self._name, at_ms=at_ms, epoch=epoch, reason=checkpoints.failed.last_failure
                )
            )
        newest = coordinator.failures[-1] if coordinator.failures else None
        if newest is None or newest is self._failure:
            return
        self._failure = newest
        at_ms, epoch = self._wall_ms(), coordinator.epoch
        if newest.kind != ASKED:
            self.errors.append(SeenError(at_ms, epoch, newest))
        if coordinator.restart_count == self._restart_count:
            return
        self._restart_count = coordinator.restart_count
        self.meter.forget()
        self.failovers.begun(now_ns, at_ms, epoch, newest)
        self._notify(
            events.FailedOver(
                job=self._name,
                at_ms=at_ms,
                epoch=epoch,
                kind=newest.kind,
                message=newest.message,
                operator=newest.operator,
                record=newest.record,
                traceback=newest.traceback,
            )
        )

    def _note_effects(self, now_ns: int, coordinator: Coordinator, effects: Sequence[JobEffect]) -> None:
        if not effects:
            return
        sent = [one.message for one in effects if isinstance(one, SendMessage)]
        if not sent and self.failovers.under_way is None:
            return
        self.checkpoints.performed(now_ns, self._wall_ms, effects)
        self.failovers.performed(now_ns, effects)
        for message in sent:
            if isinstance(message, AbortCheckpoint):
                self.checkpoints.failed(
                    now_ns, message.checkpoint_id, coordinator.checkpoints.failed.last_failure
                )
            elif isinstance(message, DeployTasks):
                self.meter.begin(message.snapshots)
                self._rescaled_from = message.rescaled_from

    def _note_phase(self, now_ns: int, coordinator: Coordinator) -> None:
        phase, self._phase = self._phase, coordinator.phase
        if phase in _RUNNING and coordinator.phase not in _RUNNING:
            for n in self.checkpoints.under_way:
                self.checkpoints.failed(now_ns, n, "its epoch is over")
        if phase is not Phase.RESTORING or coordinator.phase not in (Phase.RUNNING, Phase.FINISHING):
            return
        # Records are counted from what the tasks go on from; what was read since, and lost, is read again.
        self._before, self._since_ns = coordinator.completed, now_ns
        at_ms, epoch, parallelism = self._wall_ms(), coordinator.epoch, self._parallelism
        if self._rescaled_from:
            before, self._rescaled_from = self._rescaled_from, 0
            self._notify(
                events.Rescaled(
                    job=self._name,
                    at_ms=at_ms,
                    epoch=epoch,
                    parallelism_before=before,
                    parallelism=parallelism,
                )
            )
        if not self._has_run:
            self._has_run, self.started_ms = True, at_ms
            completed = coordinator.completed
            resumed_from = completed.checkpoint_id if completed is not None else None
            ids = query_ids(coordinator.lineage, self._driver)
            self._notify(
                events.Started(
                    job=self._name,
                    at_ms=at_ms,
                    epoch=epoch,
                    resumed_from=resumed_from,
                    parallelism=parallelism,
                    query_id=ids.query,
                    run_id=ids.run,
                )
            )
