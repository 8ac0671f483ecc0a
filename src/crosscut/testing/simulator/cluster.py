"""A virtual cluster: workers and batches in virtual processes, behind the port that Spark is behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from crosscut.driver.cluster import ClusterRun
from crosscut.errors import WorkersError
from crosscut.foundation.ids import AttemptId, Epoch, WorkerIndex
from crosscut.graph.specs import JobGraph
from crosscut.microbatch.ports import RunOutcome
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.events import WorkersEnded
from crosscut.protocol.messages import SplitAssignment
from crosscut.testing.simulator.job import assignments_of
from crosscut.testing.simulator.loop import Killed
from crosscut.testing.simulator.scheduler import Spark
from crosscut.testing.simulator.violation import ensure
from crosscut.testing.simulator.virtual_batches import VirtualBatches
from crosscut.testing.simulator.worker import WorkerProcess
from crosscut.worker.worker import WorkerPlan

if TYPE_CHECKING:
    from crosscut.testing.simulator.driver import DriverProcess
    from crosscut.testing.simulator.world import World

RETURNED = "every worker returned"


class VirtualWorkers(Spark):
    """The Spark job with the workers of one engine run, which ends when all have returned."""

    def exited(self, worker: WorkerProcess) -> None:
        known = self._known.get(worker.index, set())
        if not worker.has_exited or worker.attempt not in known:
            super().exited(worker)
            return
        known.remove(worker.attempt)
        if not any(self._known.values()) and not any(self._starting.values()):
            self.end_job(RETURNED)


class VirtualCluster:
    """See `Cluster`. It is the cluster of one driver.

    Attributes:
        workers: Those of the newest submission; None: there was none, or its engine run is over.
        batches: Those of the engine run; likewise.
    """

    def __init__(self, world: World, driver: DriverProcess) -> None:
        self._world = world
        self._driver = driver
        self._ended = 0
        self._newest_us = 0
        self.workers: VirtualWorkers | None = None
        self.batches: VirtualBatches | None = None

    # As `Cluster` has it.

    @property
    def slots(self) -> int | None:
        return None

    def discover(self, run: ClusterRun, graph: JobGraph, epoch: Epoch) -> tuple[SplitAssignment, ...]:
        self._check(run)
        return assignments_of(graph)

    def submit(self, run: ClusterRun, plan: WorkerPlan, ended: Callable[[WorkersEnded], None]) -> None:
        self._check(run)
        self.workers = VirtualWorkers(
            self._world,
            self._driver,
            run.parallelism,
            lambda: plan,
            self._graphs(run),
            lambda event: self._call_back(ended, event),
        )
        self.workers.submit()

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        if self.workers is not None:
            self.workers.replace(worker, attempt)

    def run_batch(
        self,
        run: ClusterRun,
        batch: str,
        orders: Sequence[Sequence[StageOrder]],
        description: str,
        returned: Callable[[bytes], None],
        ended: Callable[[RunOutcome], None],
    ) -> None:
        self._check(run)
        self._world.note(f"{self._driver} runs batch {batch}")
        if self.batches is None:
            self.batches = VirtualBatches(
                self._world, self._driver, run.parallelism, self._graphs(run), self._call_back
            )
        self.batches.run(batch, orders, returned, ended)

    def cancel(self, run: ClusterRun, batch: str) -> None:
        if self.batches is not None:
            self.batches.cancel(batch)

    def end(self, run: ClusterRun, ended: Callable[[], None]) -> None:
        self._ended = max(self._ended, run.number)
        if self.workers is not None:
            self.workers.stop()
        if self.batches is not None:
            self.batches.end()
        self.workers = self.batches = None
        self._call_back(ended)

    # Calls of the world.

    def driver_gone(self) -> None:
        """The driver's process has ended; workers find out by themselves."""
        if self.batches is not None:
            self.batches.driver_gone()

    def give_up(self, reason: str) -> None:
        """Spark gives up what it runs."""
        if self.workers is not None:
            self.workers.end_job(reason)
        if self.batches is not None:
            self.batches.give_up(reason)

    def speculate(self, choice: int) -> bool:
        """See `VirtualBatches`."""
        return self.batches is not None and self.batches.speculate(choice)

    def lose_blocks(self, choice: int) -> bool:
        """See `VirtualBatches`."""
        return self.batches is not None and self.batches.lose_blocks(choice)

    def _check(self, run: ClusterRun) -> None:
        if run.number <= self._ended:
            raise WorkersError(f"the cluster is asked for engine run {run.number}, which has ended")
        ensure(
            run.number == self._ended + 1,
            f"B3: engine run {run.number} starts something, and run {run.number - 1} has not been closed",
        )

    def _graphs(self, run: ClusterRun) -> Callable[[], JobGraph]:
        return lambda: self._world.graph_of_process(self._driver.number, run.parallelism)

    def _call_back(self, callback: Callable[..., None], *args: object) -> None:
        """Call the driver some time, in a thread of its process, after what was told before."""
        world = self._world
        self._newest_us = max(self._newest_us, world.clock.now_us + world.latency_us())
        world.clock.after(self._newest_us - world.clock.now_us, partial(self._call, callback, *args))

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        process = self._driver
        if not process.is_alive:
            return
        if process.is_paused:
            process.when_resumed(partial(self._call, callback, *args))
            return
        with process:
            try:
                callback(*args)
            except Killed:
                # It has passed a point where it was to die.
                return
