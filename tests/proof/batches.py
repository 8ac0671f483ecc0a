"""Batches without Spark: attempts of the micro-batch engine in this process, and what Spark may do to them.

What runs is what ships: `crosscut.microbatch.stage` and all below it. Only the scheduler is modelled: it
gives a partition to any process, tries one twice, loses what one has written after some have read it, and
gives a run up.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from random import Random

from crosscut.contracts.settings import BackendName, Settings
from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.job_spec import assignments, batch_task_settings, committed_output, coordinator_spec
from crosscut.graph.shipping import pack_graph, unpack_graph
from crosscut.graph.specs import JobGraph
from crosscut.host.calls import Calls
from crosscut.host.failpoints import Failpoints, Plan
from crosscut.microbatch.driver_workers import BatchWorkers
from crosscut.microbatch.host_cache import host_cache
from crosscut.microbatch.ports import Routed, RunOutcome
from crosscut.microbatch.shuffle import ShuffleBlock, encoded_result
from crosscut.microbatch.stage import StageOrder, Surroundings, run_stage
from crosscut.microbatch.state_cache import StateCache
from crosscut.net.connections import Credentials
from crosscut.protocol.effects import EndJob
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.task.discovery import found_in
from crosscut.wire.handshake import JOB_BYTES, SECRET_BYTES
from crosscut.worker.backends import backend


class LostError(Exception):
    """A run was given up, as by Spark when an executor dies once too often."""


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """How likely it is, for each attempt, that something happens to it.

    Attributes:
        doubled: It is made twice; either may be read, and of the last stage both return.
        torn: Of two, some read the one, and some the other.
        lost: For each run: it is given up after some attempts.
    """

    doubled: float = 0.0
    torn: float = 0.0
    lost: float = 0.0


class LocalJobs:
    """Runs batches, each in the thread that asks for it.

    Args:
        processes: That Spark has; each keeps state of its own between batches.
    """

    def __init__(
        self,
        graph: JobGraph,
        store_url: str,
        random: Random,
        fault_profile: FaultProfile,
        state_backend: BackendName = "memory",
        processes: int = 2,
        failpoints: type[Failpoints] = Failpoints,
    ) -> None:
        packed = pack_graph(graph)
        self._random = random
        self._fault_profile = fault_profile
        self._processes = [
            Surroundings(
                unpack_graph(packed),
                host_cache(open_store(store_url), store_url, None),
                StateCache(backend(state_backend, None, graph.max_parallelism)),
                {},
                failpoints=failpoints,
            )
            for _ in range(processes)
        ]
        self.seen: Counter[str] = Counter()

    def run(self, name: str, orders: Sequence[Sequence[StageOrder]], description: str) -> Iterator[bytes]:
        """Run the stages one after the other."""
        self.seen["runs"] += 1
        is_lost = self._random.random() < self._fault_profile.lost
        written: list[list[list[Routed]]] = []
        for stage, of_stage in enumerate(orders):
            if is_lost and stage == len(orders) - 1:
                self.seen["lost"] += 1
                raise LostError(f"{description} was given up")
            written = [self._attempts(order, self._read(written, order)) for order in of_stage]
        returned = [one for attempts in written for attempt in attempts for one in attempt]
        self._random.shuffle(returned)
        yield from (encoded_result(index, shuffle_block) for index, shuffle_block in returned)

    def _read(self, written: list[list[list[Routed]]], order: StageOrder) -> list[ShuffleBlock]:
        """Return what a partition reads: one attempt of each partition before, in any order."""
        shuffle_blocks = []
        for attempts in written:
            is_torn = len(attempts) > 1 and self._random.random() < self._fault_profile.torn
            self.seen["torn"] += is_torn
            chosen = self._random.choice(attempts) if is_torn else attempts[0]
            shuffle_blocks += [
                shuffle_block for target, shuffle_block in chosen if target == order.partition.index
            ]
        self._random.shuffle(shuffle_blocks)
        return shuffle_blocks

    def _attempts(self, order: StageOrder, shuffle_blocks: list[ShuffleBlock]) -> list[list[Routed]]:
        count = 1 + (self._random.random() < self._fault_profile.doubled)
        self.seen["doubled"] += count - 1
        return [self._attempt(order, shuffle_blocks) for _ in range(count)]

    def _attempt(self, order: StageOrder, shuffle_blocks: list[ShuffleBlock]) -> list[Routed]:
        process = self._random.choice(self._processes)
        # As they come through a shuffle: nothing is shared.
        read = (pickle.loads(pickle.dumps(one)) for one in shuffle_blocks)
        mine: StageOrder = pickle.loads(pickle.dumps(order))
        return list(run_stage(mine, process, read))

    @property
    def advanced_count(self) -> int:
        """How often a process has read only what had changed in the state that it had."""
        return sum(one.states.advanced_count for one in self._processes)

    def close(self) -> None:
        """Give the states back."""
        for one in self._processes:
            one.states.close()


class JobsInThreads:
    """See `Jobs`: each run in a thread."""

    def __init__(self, jobs: LocalJobs) -> None:
        self._jobs = jobs
        self._calls = Calls("crosscut-batch")

    def run(
        self,
        name: str,
        orders: Sequence[Sequence[StageOrder]],
        description: str,
        returned: Callable[[bytes], None],
        ended: Callable[[RunOutcome], None],
    ) -> None:
        """Run the stages one after the other."""

        def work() -> None:
            try:
                for data in self._jobs.run(name, orders, description):
                    returned(data)
            except Exception as error:  # noqa: BLE001 - whatever it is, the batches have to know
                ended(RunOutcome(str(error)))
            else:
                ended(RunOutcome())

        self._calls.start(work)

    def cancel(self, name: str) -> None:
        """A run comes to its end by itself."""

    def end(self, timeout_s: float) -> None:
        """Wait for the runs, and give back what they have used. Blocks."""
        wait(self._calls.under_way, timeout_s)
        self._jobs.close()


def run_batches(
    graph: JobGraph,
    settings: Settings,
    make_jobs: Callable[[JobGraph, str], LocalJobs],
    until: Callable[[CoordinatorDriver], bool] = lambda driver: False,
    failpoints: Plan | None = None,
) -> tuple[EndJob | None, LocalJobs]:
    """Run a job in batches in this process, to its end or until the driver is to be left as if it had died.

    Args:
        make_jobs: Makes what runs the batches, of the graph and the URL of the store.
        until: Asked after each event; once it is true nothing more is done.
        failpoints: Where this process, which is driver and executors in one, has to die.

    Returns:
        How it has ended; None: it has been left.
    """
    url = settings.store_of(graph.name)
    jobs = make_jobs(graph, url)
    end = asyncio.run(_driven(graph, settings, open_store(url), url, jobs, until, failpoints))
    return end, jobs


async def _driven(
    graph: JobGraph,
    settings: Settings,
    store: CheckpointStore,
    url: str,
    jobs: LocalJobs,
    until: Callable[[CoordinatorDriver], bool],
    failpoints: Plan | None,
) -> EndJob | None:
    in_threads = JobsInThreads(jobs)
    workers = BatchWorkers(
        in_threads,
        name=graph.name,
        graph=graph,
        store=store,
        store_url=url,
        terms=batch_task_settings(settings),
        records_max=settings.micro_batch.records_max,
        trigger=settings.micro_batch.trigger,
        plan=failpoints,
    )
    terms: CoordinatorSpec = coordinator_spec(graph, settings, None, awaits_verdict=False)
    driver = CoordinatorDriver(
        name=graph.name,
        terms=terms,
        store=store,
        credentials=Credentials(bytes(SECRET_BYTES), bytes(JOB_BYTES), None, 10_000, seals_frames=False),
        supply=workers,
        discover=lambda epoch: assignments(graph),
        look=lambda: committed_output(graph),
        find=lambda source, known: found_in(graph, source, known),
        failpoints=Failpoints(failpoints, None),
    )
    workers.provide(driver)
    driver.start()
    while not driver.ended.done() and not until(driver):
        await asyncio.sleep(0.001)
    end = driver.ended.result() if driver.ended.done() else None
    workers.give_up()
    await asyncio.get_running_loop().run_in_executor(None, in_threads.end, 60.0)
    await workers.close(60.0)
    await driver.close()
    return end
