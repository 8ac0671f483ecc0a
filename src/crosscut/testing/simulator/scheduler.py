"""A virtual Spark: starts attempts, replaces those that end, kills best effort, loses sight of some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crosscut.protocol.events import WorkersEnded

if TYPE_CHECKING:
    from crosscut.testing.simulator.driver import VirtualDriver
    from crosscut.testing.simulator.worker import VirtualWorker
    from crosscut.testing.simulator.world import World

START_US = (2_000, 200_000)
"""How long it takes until a new attempt runs."""


class Spark:
    """The Spark job with the workers of one driver."""

    def __init__(self, world: World, driver: VirtualDriver) -> None:
        self._world = world
        self._driver = driver
        self._is_submitted = False
        # What Spark believes to be alive, by worker index.
        self._known: dict[int, set[int]] = {}
        self._starting: dict[int, int] = {}

    def submit(self) -> None:
        """Start one attempt for each worker."""
        self._is_submitted = True
        parallelism = self._world.options.parallelism
        self._known = {index: set() for index in range(parallelism)}
        self._starting = dict.fromkeys(range(parallelism), 0)
        for index in range(parallelism):
            self.launch(index)

    def launch(self, index: int) -> None:
        """Start an attempt, also if there is one: speculation does."""
        if not self._is_submitted:
            return
        self._starting[index] += 1
        self._world.clock.after(self._world.dice.randint(*START_US), lambda: self._started(index))

    def replace(self, index: int, attempt: int) -> None:
        """Kill an attempt, best effort: it may live on as a zombie."""
        worker = self._world.workers[attempt]
        if worker.is_alive and self._world.coin():
            worker.exit("killed by Spark", loses=True)
        else:
            self._world.seen["zombie left by Spark"] += 1
            self.exited(worker)

    def exited(self, worker: VirtualWorker) -> None:
        """An attempt has ended, or Spark believes so."""
        known = self._known.get(worker.index, set())
        if worker.attempt in known:
            known.remove(worker.attempt)
            if not known and not self._starting[worker.index]:
                self.launch(worker.index)

    def end_job(self) -> None:
        """Spark gives the whole job up; some attempts outlive it."""
        if self._is_submitted:
            self.stop()
            self._driver.handle(WorkersEnded("too many failures"))

    def stop(self) -> None:
        """The job is over: kill everybody, best effort."""
        self._is_submitted = False
        known, self._known = self._known, {}
        for attempts in known.values():
            for attempt in sorted(attempts):
                if self._world.coin():
                    self._world.workers[attempt].exit("killed with its job", loses=True)

    def _started(self, index: int) -> None:
        if not self._is_submitted or not self._starting.get(index):
            return
        self._starting[index] -= 1
        if self._driver.is_running:
            worker = self._world.launch(self._driver, index)
            self._known[index].add(worker.attempt)
