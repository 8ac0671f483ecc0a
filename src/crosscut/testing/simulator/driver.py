"""A virtual process with the real driver of the coordinator in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, get_args

from crosscut.driver.driver import CoordinatorDriver, Link
from crosscut.errors import CheckpointError
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.graph.specs import JobGraph
from crosscut.microbatch.ports import BatchLink
from crosscut.net.control import CoordinatorLink
from crosscut.protocol.effects import EndJob, JobEffect, SendMessage
from crosscut.protocol.events import CancelRequested, JobEvent, RestartRequested, StopRequested, Timer
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import (
    CoordinatorHeartbeat,
    DeployTasks,
    FailureCause,
    SnapshotAcknowledged,
    TaskFailed,
    TriggerCheckpoint,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)
from crosscut.protocol.splits.rescaling import read_final_progress
from crosscut.task.discovery import found_in
from crosscut.testing.simulator.network import VirtualTransport
from crosscut.testing.simulator.processes import Process
from crosscut.testing.simulator.promises import Promises
from crosscut.testing.simulator.scheduler import Spark
from crosscut.testing.simulator.worker import Moments, WorkerMessageType, WorkerProcess

if TYPE_CHECKING:
    from crosscut.testing.simulator.world import World

WORKERS_END_US = 50_000
AT_ONCE_US = 10_000
"""Between two things of which one follows the other at once."""
MESSAGE_TYPES = get_args(WorkerMessageType)


class WatchedDriver(CoordinatorDriver):
    """The real one. What comes in and what goes out is noted.

    Args:
        given: The arguments of the real one.
    """

    def __init__(self, process: DriverProcess, **given: Any) -> None:
        super().__init__(**given)
        world = process.world
        self._world = world
        self._process = process
        self._phase = self._coordinator.phase
        self._begun = CheckpointId(0)
        self._completed_us = -AT_ONCE_US
        self._promises = Promises(self._terms, self._coordinator)

    @property
    def epoch(self) -> int:
        """The epoch that this driver owns or has owned."""
        return self._coordinator.epoch

    @property
    def completed(self) -> CheckpointCompleted | None:
        """The newest checkpoint that it knows to be complete."""
        return self._coordinator.completed

    @property
    def failures(self) -> tuple[FailureCause, ...]:
        """Those that count against the limit of the job."""
        return self._coordinator.failures

    def is_under_way(self, checkpoint_id: CheckpointId) -> bool:
        """Whether a checkpoint is not decided."""
        return self._coordinator.checkpoints.is_under_way(checkpoint_id)

    def link_message(self, link: Link, message: WorkerMessage) -> None:
        worker = self._worker_at(link)
        if worker is not None and not isinstance(message, WorkerHeartbeat):
            worker.note_sent(message)
            text = f"{self._process.name} hears {type(message).__name__} of {worker.name}"
            self._world.note(text, message)
            if isinstance(message, TaskFailed):
                self._world.task_failed(message)
            elif isinstance(message, WorkerReady):
                self._world.watch_tasks(worker)
            elif isinstance(message, SnapshotAcknowledged):
                self._world.checkers.acknowledged(message.snapshot)
        elif isinstance(link, BatchLink) and not isinstance(message, WorkerHeartbeat):
            text = f"{self._process.name} hears {type(message).__name__} of batches, index {link.index}"
            self._world.note(text, message)
            if isinstance(message, TaskFailed):
                self._world.task_failed(message)
            elif isinstance(message, SnapshotAcknowledged):
                self._world.checkers.acknowledged(message.snapshot)
        super().link_message(link, message)

    def _observe(
        self, event: JobEvent, effects: list[JobEffect], completed_before: CheckpointCompleted | None
    ) -> None:
        world, phase = self._world, self._coordinator.phase
        if phase is not self._phase:
            self._phase = phase
            world.seen[f"phase: {phase.name}"] += 1
            if phase in (Phase.RESTORING, Phase.ENDED):
                # The machines of another epoch.
                world.drops.watch(self._coordinator)
        if self._coordinator.completed is not completed_before:
            self._completed_us = world.clock.now_us
        for effect in effects:
            world.seen[f"effect: {type(effect).__name__}"] += 1
            if isinstance(effect, SendMessage) and isinstance(effect.message, TriggerCheckpoint):
                self._note_checkpoint(effect.message.checkpoint_id)
            if isinstance(effect, SendMessage) and not isinstance(effect.message, CoordinatorHeartbeat):
                link = self._links.get(effect.link)
                worker = self._worker_at(link) if link is not None else None
                if link is not None and worker is not None and isinstance(effect.message, MESSAGE_TYPES):
                    worker.received.append((link, effect.message))
                receiver = worker.name if worker is not None else None
                text = f"{self._process.name} tells {receiver} {type(effect.message).__name__}"
                world.note(text, effect.message)
                if isinstance(effect.message, DeployTasks):
                    self._note_rescaling(effect.message)
        self._promises.note(event, effects)
        super()._observe(event, effects, completed_before)

    def _note_checkpoint(self, n: CheckpointId) -> None:
        """A checkpoint begins; each source is told of it."""
        seen, now_us = self._world.seen, self._world.clock.now_us
        if n != self._begun:
            self._begun = n
            seen["checkpoint begun"] += 1
            seen["checkpoint begun as the one before completes"] += now_us - self._completed_us < AT_ONCE_US

    def _note_rescaling(self, deploy: DeployTasks) -> None:
        seen = self._world.seen
        if deploy.retired:
            seen["rescaled: logical sink tasks retired"] += 1
            if any(one.snapshot.pending for one in deploy.retired):
                seen["rescaled: transactions of retired tasks"] += 1
        if deploy.rescaled_from:
            seen["rescaled"] += 1
            if any(one.snapshot.watermark is not None for one in deploy.snapshots):
                seen["rescaled: event time"] += 1
                seen["rescaled: event time, records on their way"] += any(
                    one.snapshot.log for one in deploy.snapshots
                )
            for one in deploy.snapshots:
                seen["rescaled: records on their way"] += bool(one.snapshot.log)
                seen["rescaled: final results half said"] += bool(read_final_progress(one.snapshot.said)[1])

    def _perform(self, effects: list[JobEffect]) -> None:
        super()._perform(effects)
        if self._coordinator.phase is not Phase.STOPPING:
            return
        retry = self._timers.get(Timer("trigger", self._coordinator.epoch))
        retry_ms = round((retry.when() - self._loop.time()) * 1_000) if retry is not None else None
        self._promises.check_wait(retry_ms)

    def _worker_at(self, link: Link) -> WorkerProcess | None:
        end = link.transport if isinstance(link, CoordinatorLink) else None
        if not isinstance(end, VirtualTransport) or end.peer is None:
            return None
        process = end.peer.process
        return process if isinstance(process, WorkerProcess) else None


class DriverProcess(Process):
    """The process with the coordinator."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"driver {number}", f"driver-host-{number}")
        self.world = world
        self.number = number
        self.port = 0
        self._spark = Spark(
            world,
            self,
            world.parallelism_of(number),
            lambda: world.plan(self),
            lambda: world.graph_of_process(number),
            self.post,
        )
        self.end: EndJob | None = None
        self.driver: WatchedDriver | None = None
        self.run(self._drive)

    @property
    def is_running(self) -> bool:
        """Whether this driver still drives the job."""
        return self.is_alive and self.end is None

    @property
    def spark(self) -> Spark | None:
        """The Spark job with its workers; None: it has none now."""
        return self._spark

    @property
    def graph(self) -> JobGraph:
        """What it runs."""
        return self.world.graph_of(self.number)

    @property
    def failures(self) -> tuple[FailureCause, ...]:
        """What has failed, as far as this driver knows."""
        return self.driver.failures if self.driver is not None else ()

    async def _drive(self) -> None:
        world = self.world
        driver = self.driver = WatchedDriver(
            self,
            name="simulated",
            terms=world.terms(self.number),
            store=world.store_of(self),
            credentials=world.credentials,
            supply=self._spark,
            discover=lambda epoch: world.assignments(self.number),
            look=world.resource.outputs,
            find=lambda source, known: found_in(world.graph, source, known),
            failpoints=Moments(world, self),
            clock=self,
            start_thread=self.start_thread,
        )
        self.port = await driver.listen(self.host)
        driver.start()
        self.end = await driver.ended
        world.note(f"{self}: the job has {self.end.outcome}", self.end)
        world.job_ended(self, self.end)
        # Workers that were told to end do so by themselves; Spark ends the others.
        await asyncio.sleep(world.below(WORKERS_END_US) / 1e6)
        self._spark.stop()
        await driver.close()

    def is_under_way(self, epoch: Epoch, checkpoint_id: CheckpointId) -> bool:
        """Whether the checkpoint is wanted here."""
        if not self.is_running or self.driver is None or self.driver.epoch != epoch:
            return False
        return self.driver.is_under_way(checkpoint_id)

    # What people and Spark ask of it, in its own time.

    def end_spark_job(self, reason: str) -> None:
        """Spark gives up what it runs for the job."""
        self._spark.end_job(reason)

    def post(self, event: JobEvent) -> None:
        """Hand an event in."""
        self.do(lambda: self.driver.post(event) if self.driver is not None else None)

    def stop(self) -> None:
        """As `Job.stop`."""
        self.post(StopRequested())

    def restart(self) -> None:
        """As `Job.restart`."""
        self.world.seen["restart requested"] += 1
        self.post(RestartRequested())

    def cancel(self) -> None:
        """As `Job.cancel`."""
        self.post(CancelRequested())

    def ask_for_checkpoint(self) -> None:
        """As `Job.checkpoint`."""

        async def ask() -> None:
            if self.driver is None:
                return
            try:
                await self.driver.checkpoint()
            except CheckpointError:
                self.world.seen["checkpoint refused"] += 1
            else:
                self.world.seen["checkpoint given"] += 1

        self.do(lambda: self.loop.create_task(ask()))
