"""The workers of the micro-batch engine, as the coordinator sees them: one for each index, on the driver.

They have no process. What the coordinator tells them becomes events of the batches, whose effects are Spark
jobs, commits, and what they say to the coordinator. So a job under this engine has the log, the claims, the
restarts, the savepoints and the end of one under the other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from crosscut.contracts.engines import TriggerName
from crosscut.errors import InternalError
from crosscut.foundation.ids import AttemptId, CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.graph.global_commit import sinks_together
from crosscut.graph.specs import JobGraph
from crosscut.graph.stages import stages_of
from crosscut.host.calls import Calls, StartThread, call_on, start_thread
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints, Plan
from crosscut.microbatch.batch_output import BatchOutput
from crosscut.microbatch.host_cache import remove_host_cache
from crosscut.microbatch.newest import NewestBatch
from crosscut.microbatch.ports import BatchLink, Host, Jobs, RunOutcome
from crosscut.microbatch.shuffle import decoded_result
from crosscut.microbatch.stage import StageOrder
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.query_progress import query_ids
from crosscut.net.causes import failure_cause
from crosscut.protocol.events import (
    CancelRequested,
    CheckpointRequested,
    PartsDiscarded,
    StopRequested,
    SweepRequested,
    WorkersEnded,
)
from crosscut.protocol.messages import (
    AbortCheckpoint,
    AssignSplits,
    CommitCheckpoint,
    CoordinatorHeartbeat,
    CoordinatorMessage,
    DeployTasks,
    FailureCause,
    HaltTasks,
    RegisterWorker,
    ShutDown,
    SnapshotAcknowledged,
    SourceDrained,
    StartTasks,
    TaskFailed,
    TaskStatistics,
    TransactionsCommitted,
    TriggerCheckpoint,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)
from crosscut.protocol.microbatch import effects as do
from crosscut.protocol.microbatch import events as on
from crosscut.protocol.microbatch.attempts import Attempt, Partition
from crosscut.protocol.microbatch.batch_scheduling import NextStep, next_step
from crosscut.protocol.microbatch.batches import Batches
from crosscut.protocol.microbatch.combining import may_combine
from crosscut.protocol.microbatch.discovered_splits import DiscoveredSplits
from crosscut.protocol.microbatch.reading import records_of_batch
from crosscut.protocol.microbatch.retry_policy import given_up
from crosscut.protocol.snapshots import Snapshot
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.worker.deployment import TaskSettings

_LOOK_S = 0.02
_SYSTEM_CLOCK = SystemClock()


class BatchWorkers:
    """All workers of one job. See `WorkerSupply`. Called on the driver's loop.

    Args:
        jobs: Runs the batches.
        records_max: Of all sources together, in one batch.
        trigger: When the job stops by itself; see `MicroBatch`.
        plan: What is armed in the attempts.
        failpoints: Those of this process; None: what `plan` says.
        start_thread: Starts the threads in which sinks are called.
        remove_cache: Removes what this host keeps for the job; gets the URL of the store and `state_dir`.
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        name: str,
        graph: JobGraph,
        store: CheckpointStore,
        store_url: str,
        terms: TaskSettings,
        records_max: int,
        trigger: TriggerName,
        plan: Plan | None,
        failpoints: Failpoints | None = None,
        clock: Clock = _SYSTEM_CLOCK,
        start_thread: StartThread = start_thread,
        remove_cache: Callable[[str, str | None], None] = remove_host_cache,
    ) -> None:
        self._jobs = jobs
        self._name = name
        self._graph = graph
        self._store_url = store_url
        self._terms = terms
        self._plan = plan
        self._failpoints = failpoints or Failpoints(plan, None)
        self._remove_cache = remove_cache
        self._stages = stages_of(graph)
        self._sources = [
            TaskId(VertexId(one.vertex_id), index)
            for one in graph.vertices
            if one.source is not None
            for index in range(graph.parallelism)
        ]
        self._records_max = max(1, records_max // max(1, len(self._sources)))
        self._batches = Batches(
            len(self._stages), graph.parallelism, terms.commit_attempts, sinks_together(graph)
        )
        self._found = DiscoveredSplits()
        self._host: Host | None = None
        self._loop = asyncio.get_running_loop()
        self._links: list[BatchLink] = []
        self._deploys: dict[int, DeployTasks] = {}
        # What the next batch begins with, and what the one before has begun with.
        self._base: tuple[DeployTasks, ...] = ()
        self._began: tuple[DeployTasks, ...] = ()
        self._output = BatchOutput(
            name, graph, store, self._failpoints, self._handle, self._output_failed, start_thread
        )
        self._threads = Calls("crosscut-host-cache", start_thread)
        self._statistics: dict[int, tuple[TaskStatistics, ...]] = {}
        self._requests = 0
        self._trigger = trigger
        self.newest = NewestBatch(graph, self._sources, clock)
        """What batches have come to."""
        self._overdue: asyncio.TimerHandle | None = None
        # To stop when all has been read, if a source has still to say whether there is more.
        self._looking: asyncio.TimerHandle | None = None
        self._is_over = False
        self._waiting: list[on.BatchEvent] = []
        self._is_handling = False

    def provide(self, host: Host) -> None:
        """Say who speaks for the coordinator; before the first `submit`."""
        self._host = host

    # As a supply of workers.

    def submit(self) -> None:
        """Let all workers register."""
        host = self._speaker
        for index in range(self._graph.parallelism):
            link = BatchLink(index, self._receive)
            link.number = host.link_opened(link, WorkerIndex(index), AttemptId(index))
            self._links.append(link)
            self._report(
                index, RegisterWorker(WorkerIndex(index), AttemptId(index), "driver", os.getpid(), 0)
            )

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        """There is no other process here that could be silent."""

    def give_up(self) -> None:
        """The job is over: what a run still brings counts for nothing."""
        self._is_over = True

    async def close(self, timeout_s: float) -> None:
        """Close the writers, once no run can use them any more."""
        self._is_over = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._output.close()
        except TimeoutError:
            LOGGER.warning("job %r: a sink has not returned, so it is not closed", self._name)
        finally:
            await self._cache_removed(timeout_s)

    async def _cache_removed(self, timeout_s: float) -> None:
        """Remove the cache of this host; another host does so when it is used again."""
        removed = self._threads.start(self._remove_cache, self._store_url, self._terms.state_dir)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wrap_future(removed)
        except TimeoutError:
            LOGGER.warning(
                "job %r: the state cache of this host has not been removed within %g s; a later job removes "
                "the rest",
                self._name,
                timeout_s,
            )

    @property
    def _speaker(self) -> Host:
        if self._host is None:
            raise InternalError("workers submitted before anybody listens to them")
        return self._host

    def _output_failed(self, cause: FailureCause) -> None:
        """Take a failure that no event tells of: the coordinator would wait for an answer in vain."""
        self._speaker.post(CancelRequested(cause))

    def _begin(self) -> None:
        """The tasks are to run: one batch only, if that is asked for, which a stop ends with."""
        if self._trigger == "once":
            self._speaker.post(StopRequested())

    def _report(self, index: int, message: WorkerMessage) -> None:
        self._speaker.link_message(self._links[index], message)

    # What the coordinator says.

    def _receive(self, index: int, message: CoordinatorMessage) -> None:
        match message:
            case DeployTasks():
                self._deploys[index] = message
                of_epoch = [one for one in self._deploys.values() if one.epoch == message.epoch]
                if len(of_epoch) == self._graph.parallelism:
                    self._base = tuple(self._deploys[each] for each in range(len(of_epoch)))
                    self._found.begin(message.epoch)
                    self._handle(on.TasksDeployed(message.epoch, message.restore))
            case AssignSplits():
                self._found.assigned(message)
            case TriggerCheckpoint(epoch, n) if index == 0:
                self._handle(on.BatchTriggered(epoch, n))
            case AbortCheckpoint(epoch, n) if index == 0:
                self._handle(on.BatchAborted(epoch, n))
            case CommitCheckpoint(epoch, n) if index == 0:
                self._handle(on.BatchCompleted(epoch, n))
            case StartTasks() if index == 0:
                self._begin()
            case HaltTasks(epoch) if index == 0:
                self._look_no_more()
                self._handle(on.EpochHalted(epoch))
            case ShutDown() if index == 0:
                self._look_no_more()
                self._is_over = True
                self._handle(on.EpochHalted(self._batches.epoch))
            case CoordinatorHeartbeat(epoch):
                self._report(index, WorkerHeartbeat(epoch, self._statistics.get(index, ())))
            case _:
                """The same word to another worker, or one that is about records on their way."""

    # Batches.

    def _post(self, event: on.BatchEvent) -> None:
        """Take an event from another thread."""
        call_on(self._loop, self._handle, event)

    def _handle(self, event: on.BatchEvent) -> None:
        # An effect may cause an event at once; it waits its turn.
        self._waiting.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._waiting:
                for effect in self._batches.handle(self._waiting.pop(0)):
                    self._perform(effect)
        except Exception as error:
            # The event loop would only log it: the coordinator would wait for a word that never comes.
            self._waiting.clear()
            self._speaker.post(CancelRequested(failure_cause(error)))
            raise
        finally:
            self._is_handling = False

    def _perform(self, effect: do.BatchEffect) -> None:
        match effect:
            case do.RecoverOutput(epoch):
                self._output.recover(epoch, self._base)
            case do.ReportReady(epoch):
                for index in range(self._graph.parallelism):
                    self._report(index, WorkerReady(epoch))
            case do.RunBatch():
                self._start(effect)
            case do.CancelRun(epoch, n, run):
                self._jobs.cancel(f"{epoch}-{n}-{run}")
            case do.AcknowledgeBatch(epoch, n, taken):
                self._acknowledge(epoch, n, taken)
            case do.CommitBatch(_, _, _, delay_ms):
                self._loop.call_later(delay_ms / 1_000, self._commit_soon, effect)
            case do.FailJob(cause):
                self._speaker.post(CancelRequested(cause))
            case do.ReportCommitted(epoch, n):
                self._in_time()
                self._report_committed(epoch, n)
            case do.AbortAttempts(_, attempts):
                self._output.abort(attempts)
            case do.DiscardParts(_, paths):
                self._speaker.post(PartsDiscarded(paths))
            case do.SweepParts():
                self._speaker.post(SweepRequested())
            case do.SweepOutput():
                self._output.sweep()
            case do.FailEpoch(epoch, task, cause):
                blamed = task or TaskId(VertexId(self._stages[0][0]), 0)
                self._report(blamed.index, TaskFailed(epoch, blamed, cause))
            case _:
                assert_never(effect)

    def _acknowledge(self, epoch: Epoch, n: CheckpointId, taken: tuple[Attempt, ...]) -> None:
        self.newest.returned()
        found = [one for attempt in taken for one in attempt.snapshots]
        for index in range(self._graph.parallelism):
            self._statistics[index] = tuple(
                one for attempt in taken if attempt.partition.index == index for one in attempt.statistics
            )
        drained = {one.task for one in found if one.snapshot.drained}
        for task in self._sources:
            if task in drained:
                self._report(task.index, SourceDrained(epoch, task))
        for one in found:
            self._report(one.task.index, SnapshotAcknowledged(epoch, n, one.task, one.snapshot))

    def _in_time(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _commit_soon(self, effect: do.CommitBatch) -> None:
        # One that was to be tried again, in an epoch that has ended since, is committed by the next one: here
        # it would only have the next batch begin with what is long gone by.
        if self._is_over or effect.epoch != self._batches.epoch:
            return
        self._in_time()
        if effect.checkpoint_id > self._base[0].restore:
            # Not when it is tried again.
            self._complete(effect)
        self._output.commit(effect)
        overdue = on.CommitOverdue(effect.epoch, effect.checkpoint_id)
        self._overdue = self._loop.call_later(self._terms.sink_timeout_ms / 1_000, self._handle, overdue)

    def _complete(self, effect: do.CommitBatch) -> None:
        """From here on the next batch may begin with this one, as soon as its output is visible."""
        self.newest.completed(effect.taken)
        self._found.completed(effect.checkpoint_id)
        self._began = self._base
        snapshots = [one for attempt in effect.taken for one in attempt.snapshots]
        self._base = tuple(
            replace(
                deploy,
                restore=effect.checkpoint_id,
                # The batch at which processes have died was the first one.
                deaths=0,
                snapshots=tuple(one for one in snapshots if one.task.index == index),
                splits=(),
                rescaled_from=0,
                retired=(),
            )
            for index, deploy in enumerate(self._base)
        )

    def _report_committed(self, epoch: Epoch, n: CheckpointId) -> None:
        job = self._base[0]
        ids = query_ids(job.lineage, job.driver)
        before, after = _snapshots_of(self._began), _snapshots_of(self._base)
        self._speaker.progressed(epoch, self.newest.committed(n, ids, before, after))
        for task in self._output.tasks:
            self._report(task.index, TransactionsCommitted(epoch, n, task))
        self._go_on(self._speaker.asked)

    def _go_on(self, asked: frozenset[tuple[VertexId, int]]) -> None:
        """Do what comes after a batch; `asked` were the calls under way when it was over."""
        self._look_no_more()
        asked &= self._speaker.asked
        step = next_step(
            is_full=self.newest.is_full,
            stops_when_read=self._trigger == "available_now",
            splits_have_come=self._found.have_come,
            is_asked=bool(asked),
            splits_are_coming=self._speaker.awaits_splits,
        )
        match step:
            case NextStep.BATCH_AT_ONCE:
                self._requests -= 1
                self._speaker.post(CheckpointRequested(self._requests))
            case NextStep.WAIT_FOR_ANSWERS:
                self._looking = self._loop.call_later(_LOOK_S, self._go_on, asked)
            case NextStep.STOP:
                self._speaker.post(StopRequested())
            case NextStep.WAIT_FOR_TIME:
                pass
            case _:
                assert_never(step)

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    # Runs.

    def _start(self, effect: do.RunBatch) -> None:
        # Asked again when this batch is over.
        self._look_no_more()
        if effect.run == 1:
            self.newest.started()
        begins_with = [one for deploy in self._base for one in deploy.snapshots]
        combines = may_combine(begins_with)
        is_rescaled = bool(self._base[0].rescaled_from)
        records_max = records_of_batch(self._records_max, begins_with, is_rescaled=is_rescaled)
        orders = [
            [
                self._order(effect, stage, index, records_max, combines=combines)
                for index in range(self._graph.parallelism)
            ]
            for stage in range(len(self._stages))
        ]
        n, run = effect.checkpoint_id, effect.run
        again = f", run {run}" if run > 1 else ""
        self._failpoints("batch.planned")
        self._jobs.run(
            f"{effect.epoch}-{n}-{run}",
            orders,
            f"{self._name}: batch {n}{again} ({' > '.join(map(', '.join, self._stages))})",
            partial(self._returned, effect),
            partial(self._run_ended, effect),
        )

    def _order(
        self, effect: do.RunBatch, stage: int, index: int, records_max: int, *, combines: bool
    ) -> StageOrder:
        members = frozenset(self._stages[stage])
        deploy = self._base[index]
        return StageOrder(
            stages=self._stages,
            partition=Partition(stage, index),
            checkpoint_id=effect.checkpoint_id,
            deploy=replace(
                deploy,
                snapshots=tuple(one for one in deploy.snapshots if one.task.vertex in members),
                splits=tuple(one for one in deploy.splits if one.task.vertex in members),
                peers=(),
                retired=(),
            ),
            terms=self._terms,
            store_url=self._store_url,
            records_max=records_max,
            combines=combines,
            found=self._found.of_batch(effect.checkpoint_id, members, index),
            failpoints=self._plan,
        )

    # On any thread.

    def _returned(self, effect: do.RunBatch, data: bytes) -> None:
        epoch, n, run = effect.epoch, effect.checkpoint_id, effect.run
        result = decoded_result(data)
        if (failure := result.failure) is not None:
            self._post(on.AttemptFailed(epoch, n, run, failure.task, failure.cause))
        else:
            self._post(on.PartitionReturned(epoch, n, run, result.index, result.brought))

    def _run_ended(self, effect: do.RunBatch, outcome: RunOutcome) -> None:
        epoch, n, run = effect.epoch, effect.checkpoint_id, effect.run
        if not outcome.error:
            self._failpoints("batch.returned")
            self._post(on.RunEnded(epoch, n, run))
            return
        if self._is_over:
            return
        if outcome.lost:
            call_on(self._loop, self._speaker.post, WorkersEnded(outcome.lost, is_final=True))
            return
        text = "\n".join(outcome.error.splitlines()[:4])[:2_000]
        self._post(on.RunEnded(epoch, n, run, given_up(text)))


def _snapshots_of(deploys: Sequence[DeployTasks]) -> dict[TaskId, Snapshot]:
    return {one.task: one.snapshot for deploy in deploys for one in deploy.snapshots}
