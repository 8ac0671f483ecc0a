"""A virtual Spark: starts attempts, replaces those that end, kills best effort, loses sight of some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from crosscut.graph.specs import JobGraph
from crosscut.protocol.events import WorkersEnded
from crosscut.worker.worker import WorkerPlan

if TYPE_CHECKING:
    from crosscut.testing.simulator.driver import DriverProcess
    from crosscut.testing.simulator.worker import WorkerProcess
    from crosscut.testing.simulator.world import World


class Spark:
    """The Spark job with the workers of one driver.

    Args:
        driver: Whose job it is.
        plan: Returns what its workers know.
        graph: Returns the graph for one more of them.
        ended: Is told when Spark gives the job up.
    """

    def __init__(
        self,
        world: World,
        driver: DriverProcess,
        parallelism: int,
        plan: Callable[[], WorkerPlan],
        graph: Callable[[], JobGraph],
        ended: Callable[[WorkersEnded], None],
    ) -> None:
        self._world = world
        self.driver = driver
        self.parallelism = parallelism
        self.plan = plan
        self.graph = graph
        self._ended = ended
        self._is_submitted = False
        # Attempts that Spark believes to be alive, by worker index.
        self._known: dict[int, set[int]] = {}
        self._starting: dict[int, int] = {}
        self._failures: Counter[int] = Counter()

    def submit(self) -> None:
        """Start one attempt for each worker."""
        self._is_submitted = True
        parallelism = self.parallelism
        self._known = {index: set() for index in range(parallelism)}
        self._starting = dict.fromkeys(range(parallelism), 0)
        self._failures.clear()
        for index in range(parallelism):
            self.launch(index)

    def launch(self, index: int) -> None:
        """Start an attempt, also if there is one: speculation does."""
        if not self._is_submitted:
            return
        self._starting[index] += 1
        delay_us = 1_000 * (1 + self._world.below(self._world.options.spark_start_ms))
        self._world.clock.after(delay_us, lambda: self._started(index))

    def replace(self, index: int, attempt: int) -> None:
        """Kill an attempt, best effort: it may live on as a zombie."""
        worker = self._world.workers[attempt]
        if worker.is_alive and self._world.coin():
            worker.die("killed by Spark", loses=True)
        else:
            self._world.seen["zombie left by Spark"] += 1
            self.exited(worker)

    def exited(self, worker: WorkerProcess) -> None:
        """An attempt has ended, or Spark believes so."""
        known = self._known.get(worker.index, set())
        if worker.attempt not in known:
            return
        known.remove(worker.attempt)
        # As `spark.task.maxFailures`: counted for each of its tasks, and never forgotten.
        self._failures[worker.index] += 1
        if self._failures[worker.index] >= self._world.options.spark_attempts_max:
            self._world.seen["Spark gave the job up"] += 1
            self._world.clock.after(self._world.latency_us(), lambda: self.end_job("too many failures"))
        elif not known and not self._starting[worker.index]:
            self.launch(worker.index)

    def end_job(self, reason: str) -> None:
        """Spark gives the whole job up; some attempts outlive it."""
        if self._is_submitted:
            self.stop()
            self._ended(WorkersEnded(reason))

    def stop(self) -> None:
        """The job is over: kill everybody, best effort."""
        self._is_submitted = False
        known, self._known = self._known, {}
        for attempts in known.values():
            for attempt in sorted(attempts):
                if self._world.coin():
                    self._world.workers[attempt].die("killed with its job", loses=True)

    def _started(self, index: int) -> None:
        if not self._is_submitted or not self._starting.get(index):
            return
        self._starting[index] -= 1
        if self.driver.is_running:
            worker = self._world.launch(self, index)
            self._known[index].add(worker.attempt)
