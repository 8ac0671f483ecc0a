"""A virtual Spark for batches: stages of attempts in executors, and a shuffle between them.

It may make a second attempt at a partition, and have some read the one and some the other. What an executor
has written for the shuffle goes with it; then Spark makes it anew, which gives other attempts to read. It
gives a run up after too many failures, and forgets attempts that go on.
"""

from __future__ import annotations

import pickle  # noqa: S403 - what the world itself has written
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from crosscut.graph.specs import JobGraph
from crosscut.microbatch.ports import Routed, RunOutcome
from crosscut.microbatch.shuffle import ShuffleBlock, encoded_result
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.microbatch import retry_policy
from crosscut.testing.simulator.executor import Executor, Work

if TYPE_CHECKING:
    from crosscut.testing.simulator.driver import DriverProcess
    from crosscut.testing.simulator.world import World

DIED = "ExecutorLostFailure: a task has failed too often"
SPARE = 1
"""Executors beyond the parallelism, so that a second attempt finds one."""

Callback = Callable[..., None]
"""Has the driver called, in order: with a callback and its arguments."""


@dataclass(eq=False, slots=True)
class Attempt:
    """One attempt at a partition.

    Attributes:
        number: Spark counts those at a partition from 0 on.
        is_second: Made while another one runs.
    """

    run: _Run
    stage: int
    index: int
    number: int
    is_second: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Of its partition."""
        return self.stage, self.index

    @property
    def deaths(self) -> int:
        """See `StageOrder.deaths`."""
        return retry_policy.deaths_before(self.number, self.run.tries)


@dataclass(eq=False, slots=True)
class _Written:
    """What an attempt has sent to the next stage."""

    executor: Executor
    sent: list[Routed]


@dataclass(eq=False, slots=True)
class _Run:
    """One run of a batch.

    Attributes:
        written: By stage and index, what the next stage reads; the last stage writes nothing.
        returned: Indices of the last stage of which one attempt has returned.
        under_way: Attempts that wait for an executor, or run in one.
        numbers: How many attempts there have been at each partition.
    """

    name: str
    orders: list[list[StageOrder]]
    tries: int
    on_returned: Callable[[bytes], None]
    on_ended: Callable[[RunOutcome], None]
    written: list[dict[int, _Written]]
    returned: set[int] = field(default_factory=set)
    under_way: list[Attempt] = field(default_factory=list)
    numbers: Counter[tuple[int, int]] = field(default_factory=Counter)
    failures: Counter[tuple[int, int]] = field(default_factory=Counter)
    is_over: bool = False

    @property
    def last(self) -> int:
        return len(self.orders) - 1

    def missing(self) -> tuple[int, list[int]]:
        """Return the first stage of which something is missing, and the indices."""
        for stage, orders in enumerate(self.orders):
            there = self.returned if stage == self.last else self.written[stage]
            if missing := [index for index in range(len(orders)) if index not in there]:
                return stage, missing
        return self.last, []


class VirtualBatches:
    """What Spark runs in batches for one engine run.

    Args:
        graph: Returns the graph for one more process.
    """

    def __init__(
        self,
        world: World,
        driver: DriverProcess,
        parallelism: int,
        graph: Callable[[], JobGraph],
        call_back: Callback,
    ) -> None:
        self._world = world
        self.driver = driver
        self.graph = graph
        self._call_back = call_back
        self._executors_max = parallelism + SPARE
        self._executors: list[Executor] = []
        self._starting = 0
        self._runs: dict[str, _Run] = {}
        self._waiting: deque[Attempt] = deque()
        self._is_over = False

    # Calls of the cluster.

    def run(
        self,
        name: str,
        orders: Sequence[Sequence[StageOrder]],
        returned: Callable[[bytes], None],
        ended: Callable[[RunOutcome], None],
    ) -> None:
        """See `Cluster.run_batch`."""
        # As they travel: nothing is shared with the driver.
        packed = pickle.dumps([list(one) for one in orders])
        copied: list[list[StageOrder]] = pickle.loads(packed)  # noqa: S301 - likewise
        tries = retry_policy.tries(
            speculates=self._world.options.speculation > 0,
            failures_max=self._world.options.spark_attempts_max,
        )
        run = self._runs[name] = _Run(name, copied, tries, returned, ended, [{} for _ in copied])
        self._soon(partial(self._advance, run))

    def cancel(self, name: str) -> None:
        """See `Cluster.cancel`."""
        if name in self._runs:
            self._soon(partial(self._end_run, self._runs[name], RunOutcome("cancelled")))

    def give_up(self, reason: str) -> None:
        """End all runs, as Spark does when it has had enough."""
        for run in list(self._runs.values()):
            self._end_run(run, RunOutcome(reason))

    def end(self) -> None:
        """The engine run is over: end everything, best effort."""
        self._is_over = True
        self.give_up("cancelled")
        for one in self._executors:
            if one.is_alive and (one.work is None or self._world.coin()):
                one.die("killed with its job", loses=True)

    def driver_gone(self) -> None:
        """The process of the driver has ended: nobody starts anything here any more."""
        self._is_over = True
        for run in self._runs.values():
            run.is_over = True
        self._runs.clear()
        for one in self._executors:
            if one.is_alive and (one.work is None or self._world.coin()):
                one.die("killed with its driver", loses=True)

    # What processes tell.

    def attempt_ended(self, executor: Executor, attempt: Attempt, sent: list[Routed]) -> None:
        """An attempt has come to its end, well or not."""
        self._soon(partial(self._ended, executor, attempt, sent))

    def lost(self, executor: Executor) -> None:
        """An executor is gone, or taken for gone, with all that it had written."""
        self._soon(partial(self._lost, executor))

    # Faults.

    def speculate(self, choice: int) -> bool:
        """Make a second attempt at a partition; return whether there was a first one."""
        running = [
            one
            for run in self._runs.values()
            for one in run.under_way
            if len([other for other in run.under_way if other.place == one.place]) == 1
        ]
        if not running:
            return False
        one = running[choice % len(running)]
        self._make(one.run, one.stage, one.index, is_second=True)
        self._place()
        return True

    def lose_blocks(self, choice: int) -> bool:
        """Let go of what one executor has written for the shuffle; return whether there was anything."""
        holders = [
            written.executor
            for run in self._runs.values()
            for stage in run.written
            for written in stage.values()
        ]
        if not holders:
            return False
        self._lose_written(holders[choice % len(holders)])
        return True

    # The scheduler.

    def _soon(self, action: Callable[[], None]) -> None:
        self._world.clock.after(self._world.latency_us(), action)

    def _advance(self, run: _Run) -> None:
        """Make the attempts that a run needs now."""
        if run.is_over:
            return
        stage, missing = run.missing()
        if not missing:
            self._end_run(run, RunOutcome())
            return
        under_way = {one.place for one in run.under_way}
        for index in missing:
            if (stage, index) not in under_way:
                self._make(run, stage, index)
        self._place()

    def _make(self, run: _Run, stage: int, index: int, *, is_second: bool = False) -> None:
        number = run.numbers[stage, index]
        run.numbers[stage, index] += 1
        attempt = Attempt(run, stage, index, number, is_second)
        run.under_way.append(attempt)
        self._waiting.append(attempt)
        self._world.seen["attempt at a partition"] += 1
        self._world.seen["second attempt at a partition"] += is_second

    def _place(self) -> None:
        """Give the attempts that wait to executors that have nothing to do."""
        for _ in range(len(self._waiting)):
            attempt = self._waiting.popleft()
            if attempt not in attempt.run.under_way:
                continue
            if attempt.stage and len(attempt.run.written[attempt.stage - 1]) < len(attempt.run.orders[0]):
                # A fetch failure: what it was to read is made anew first.
                self._world.seen["fetch failure"] += 1
                attempt.run.under_way.remove(attempt)
                self._soon(partial(self._advance, attempt.run))
                continue
            idle = [one for one in self._executors if one.is_alive and one.work is None]
            if not idle:
                self._waiting.append(attempt)
                self._start_executor()
                continue
            self._begin(idle[self._world.below(len(idle))], attempt)

    def _start_executor(self) -> None:
        if len(self._executors) + self._starting >= self._executors_max:
            return
        self._starting += 1
        delay_us = 1_000 * (1 + self._world.below(self._world.options.spark_start_ms))
        self._world.clock.after(delay_us, self._started)

    def _started(self) -> None:
        self._starting -= 1
        if not self._is_over:
            self._executors.append(self._world.start_executor(self))
            self._place()

    def _begin(self, executor: Executor, attempt: Attempt) -> None:
        run = attempt.run
        read: list[ShuffleBlock] = []
        if attempt.stage:
            for written in run.written[attempt.stage - 1].values():
                read += [block for target, block in written.sent if target == attempt.index]
            # A shuffle promises no order.
            self._world.dice.shuffle(read)
        executor.give(Work(attempt, run.orders[attempt.stage][attempt.index], read))
        if not attempt.is_second and self._world.dice.random() < self._world.options.speculation:
            self._world.clock.after(self._world.below(20_000), partial(self._speculated, attempt))

    def _speculated(self, first: Attempt) -> None:
        if first in first.run.under_way and not first.run.is_over:
            self._make(first.run, first.stage, first.index, is_second=True)
            self._place()

    def _ended(self, executor: Executor, attempt: Attempt, sent: list[Routed]) -> None:
        run = attempt.run
        if self._is_over:
            # It has outlived its engine run.
            executor.die("its job is over")
            return
        if attempt in run.under_way:
            run.under_way.remove(attempt)
        if run.is_over:
            self._world.seen["attempt that outlived its run"] += 1
        elif self._goes_back(attempt, sent):
            self._failed(run, attempt)
        elif attempt.stage == run.last:
            self._take_result(run, attempt, sent)
        elif attempt.index not in run.written[attempt.stage] or self._world.coin():
            # As they travel: nothing is shared with another process.
            self._world.seen["shuffle written twice"] += attempt.index in run.written[attempt.stage]
            copied = pickle.loads(pickle.dumps(sent))  # noqa: S301 - likewise
            run.written[attempt.stage][attempt.index] = _Written(executor, copied)
        if not run.is_over:
            self._advance(run)
        self._place()

    def _goes_back(self, attempt: Attempt, sent: list[Routed]) -> bool:
        own = attempt.run.orders[attempt.stage][attempt.index].vertices
        failure = next((block.failure for _, block in sent if block.failure is not None), None)
        return failure is not None and retry_policy.goes_back(
            failure.task, own, attempt.number, attempt.run.tries
        )

    def _take_result(self, run: _Run, attempt: Attempt, sent: list[Routed]) -> None:
        is_second = attempt.index in run.returned
        if is_second and self._world.coin():
            return
        self._world.seen["second result of a partition"] += is_second
        run.returned.add(attempt.index)
        for index, block in sent:
            self._call_back(run.on_returned, encoded_result(index, block))

    def _failed(self, run: _Run, attempt: Attempt) -> None:
        """An attempt has failed without a report."""
        run.failures[attempt.place] += 1
        if run.failures[attempt.place] >= self._world.options.spark_attempts_max:
            self._world.seen["Spark gave a batch up"] += 1
            self._end_run(run, RunOutcome(DIED))

    def _lost(self, executor: Executor) -> None:
        if executor not in self._executors:
            return
        self._executors.remove(executor)
        if self._is_over:
            return
        work = executor.work
        if work is not None and work.attempt in work.attempt.run.under_way:
            run = work.attempt.run
            run.under_way.remove(work.attempt)
            self._failed(run, work.attempt)
        self._lose_written(executor)
        for run in list(self._runs.values()):
            self._advance(run)
        self._place()

    def _lose_written(self, executor: Executor) -> None:
        for run in self._runs.values():
            for stage in run.written:
                for index in [index for index, one in stage.items() if one.executor is executor]:
                    self._world.seen["shuffle blocks lost"] += 1
                    del stage[index]
            self._soon(partial(self._advance, run))

    def _end_run(self, run: _Run, outcome: RunOutcome) -> None:
        if run.is_over:
            return
        run.is_over = True
        self._runs.pop(run.name, None)
        run.under_way.clear()
        if outcome.error:
            for one in self._executors:
                is_its = one.work is not None and one.work.attempt.run is run
                if is_its and one.is_alive and self._world.coin():
                    one.die("killed with its run", loses=True)
        self._call_back(run.on_ended, outcome)
