"""A virtual process with the real stage code in it: it runs attempts at partitions of batches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crosscut.foundation.ids import TaskId
from crosscut.microbatch.host_cache import HostCache
from crosscut.microbatch.ports import Routed
from crosscut.microbatch.shuffle import ShuffleBlock
from crosscut.microbatch.stage import StageAttempt, StageOrder, Surroundings
from crosscut.microbatch.state_cache import StateCache
from crosscut.testing.simulator.drawn_batch_sizer import DrawnBatchSizer
from crosscut.testing.simulator.processes import Process
from crosscut.testing.simulator.spilling import VirtualSpaces
from crosscut.testing.simulator.worker import HalfWay, Moments
from crosscut.worker.backends import MEMORY
from crosscut.worker.batch_sizer import BatchSizer

if TYPE_CHECKING:
    from crosscut.testing.simulator.virtual_batches import Attempt, VirtualBatches
    from crosscut.testing.simulator.world import World

NAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class Work:
    """An attempt, and what it has read of the shuffle."""

    attempt: Attempt
    order: StageOrder
    shuffle_blocks: list[ShuffleBlock]


class Executor(Process):
    """A process of Spark's, which runs one attempt at a time and keeps states between them.

    Args:
        batches: Whose attempts it runs.

    Attributes:
        work: What it runs; None: it waits.
    """

    def __init__(self, world: World, batches: VirtualBatches, number: int) -> None:
        super().__init__(world, f"executor {number}", f"executor-host-{number}")
        self.world = world
        self.batches = batches
        self.work: Work | None = None
        self._given: asyncio.Queue[Work] = asyncio.Queue()
        self.run(self._serve)

    def give(self, work: Work) -> None:
        """Have an attempt run, in the time of the process."""
        self.work = work
        self.do(lambda: self._given.put_nowait(work))

    async def _serve(self) -> None:
        world = self.world
        batch_sizers: dict[TaskId, BatchSizer] = {}
        ports = Surroundings(
            self.batches.graph(),
            HostCache(world.store_of(self), None),
            StateCache(MEMORY),
            batch_sizers,
            copies=HalfWay(world.clock),
            clock=self,
            start_thread=self.start_thread,
            new_batch_sizer=lambda rows: DrawnBatchSizer(rows, world.below),
            new_name=lambda: world.draw_bytes(NAME_BYTES).hex(),
            new_spaces=lambda terms: VirtualSpaces(terms.spill_bytes),
            failpoints=lambda plan, index: Moments(world, self),
            weighs_state=False,
        )
        while True:
            work = await self._given.get()
            sent = await self._attempted(ports, work)
            self.work = None
            self.batches.attempt_ended(self, work.attempt, sent)

    async def _attempted(self, ports: Surroundings, work: Work) -> list[Routed]:
        sent: list[Routed] = []
        attempt = StageAttempt(replace(work.order, deaths=work.attempt.deaths), ports)
        try:
            await attempt.begin()
            for shuffle_block in work.shuffle_blocks:
                await attempt.take(shuffle_block)
                sent += attempt.sent()
            await attempt.end()
            sent += attempt.sent()
        finally:
            await attempt.close()
        return sent
