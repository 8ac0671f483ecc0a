"""A virtual process with the real worker in it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from crosscut.errors import WorkersError
from crosscut.host.failpoints import Failpoints
from crosscut.ids import AttemptId, WorkerIndex
from crosscut.net.channels import IncomingChannel
from crosscut.net.control import CoordinatorLink
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorMessage,
    DeployTasks,
    HaltTasks,
    ResumeSources,
    StartTasks,
    TriggerCheckpoint,
    WorkerMessage,
)
from crosscut.testing.simulator.options import MOMENTS, Moment
from crosscut.testing.simulator.pace import DrawnPace
from crosscut.testing.simulator.processes import Process
from crosscut.testing.simulator.spilling import VirtualSpaces
from crosscut.testing.simulator.violation import ensure
from crosscut.wire.handshake import Proven, Verdict
from crosscut.worker.worker import Surroundings, Worker, WorkerPlan

if TYPE_CHECKING:
    from crosscut.testing.simulator.driver import DriverProcess
    from crosscut.testing.simulator.world import World

Word = (
    DeployTasks
    | HaltTasks
    | StartTasks
    | TriggerCheckpoint
    | AbortCheckpoint
    | CommitCheckpoint
    | CaptureSnapshots
    | ResumeSources
    | CloseLoops
)
_MOMENT_OF: dict[str, Moment] = {one: one for one in MOMENTS}


class Moments(Failpoints):
    """The failpoints of one process: where faults wait for it."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(None, None)
        self.is_armed = True
        self._world = world
        self._process = process

    def __call__(self, name: str) -> None:
        moment = _MOMENT_OF.get(name)
        if moment is not None and self._process.is_alive:
            self._world.passed(self._process, moment)


class WatchedWorker(Worker):
    """The real one. What it decides about its peers is counted."""

    def __init__(self, process: WorkerProcess, plan: WorkerPlan, surroundings: Surroundings) -> None:
        super().__init__(plan, WorkerIndex(process.index), AttemptId(process.attempt), surroundings)
        self._seen = process.world.seen

    def channel_proven(self, proven: Proven, end: IncomingChannel) -> Verdict | None:
        verdict = super().channel_proven(proven, end)
        if verdict is not None:
            self._seen[f"channel: {verdict.name}"] += 1
        return verdict


class WorkerProcess(Process):
    """One attempt of one Spark task.

    Attributes:
        said: What the driver has heard from it, to be said again.
        told: What it was told, by which link.
    """

    may_raise = (WorkersError,)

    def __init__(self, world: World, driver: DriverProcess, index: int, attempt: int) -> None:
        super().__init__(world, f"worker {index} (attempt {attempt})", f"host-{attempt}")
        self.world = world
        self.index = index
        self.attempt = attempt
        self.driver = driver
        self.worker: WatchedWorker | None = None
        self.said: deque[WorkerMessage] = deque(maxlen=20)
        self.told: deque[tuple[CoordinatorLink, CoordinatorMessage]] = deque(maxlen=20)
        self.run(self._work)

    async def _work(self) -> None:
        world = self.world
        surroundings = Surroundings(
            world.graph_of_process(),
            world.store_of(self),
            Moments(world, self),
            self,
            self,
            self.start_thread,
            lambda: DrawnPace(world.options.batch_rows, world.below),
            lambda: VirtualSpaces(world.options.spill_bytes),
        )
        self.worker = WatchedWorker(self, world.plan(self.driver), surroundings)
        await self.worker.run()

    def idle(self) -> None:
        """All that was ready is done: is there a task that could go on, and nobody will wake it?"""
        pool = self.worker._pool if self.worker is not None else None
        if pool is None or not self.is_alive or pool.is_over or not pool._is_running or pool._is_scheduled:
            return
        now_ns = self.monotonic_ns()
        if pool._timer is not None and pool._timer_due_ns <= now_ns:
            return
        for runner in pool._runners:
            ensure(
                not runner.can_run(now_ns),
                f"I12: task {runner.task.task_id} of {self} could go on, and nobody wakes it",
            )

    def say_again(self, message: WorkerMessage) -> None:
        """Say what was said before: no TCP connection repeats anything, and the machines bear it."""
        link = self.worker._link if self.worker is not None else None
        if link is not None:
            self.do(lambda: link.say(message))
