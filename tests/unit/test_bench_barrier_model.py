"""The model of the barrier's way, against the real protocol machines on real channels, event by event."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from bench.barrier_model import Costs, barrier_latency_us

from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.protocol.effects import CaptureState, ForwardBarrier
from crosscut.protocol.events import BarrierArrived, CheckpointTriggered
from crosscut.protocol.snapshot.aligned import AlignedBarriers

N1 = CheckpointId(1)

FAR = Costs(hop_us=500, trigger_us=12, start_us=30, send_us=8, handle_us=11)
"""The network is slower than the coordinator is at telling all workers."""

NEAR = Costs(hop_us=5, trigger_us=40, start_us=30, send_us=8, handle_us=11)
"""The first worker's barriers are there before the last worker has heard of the checkpoint."""


class Chain:
    """A chain of shuffles: one machine a task, one channel for each pair of neighbours, a thread a worker."""

    def __init__(self, parallelism: int, shuffles: int, costs: Costs) -> None:
        self.parallelism, self.shuffles, self.costs = parallelism, shuffles, costs
        self.machines = {task: AlignedBarriers(self.inputs(task)) for task in self.tasks()}
        self.captured: dict[TaskId, float] = {}
        # (time, sequence number, worker, the message); a worker takes one when its thread is free.
        self.events: list[tuple[float, int, int, TaskId, ChannelId | None]] = []
        self.sequence = 0
        self.free = [0.0] * parallelism

    def tasks(self) -> list[TaskId]:
        return [self.task(at, index) for at in range(self.shuffles + 1) for index in range(self.parallelism)]

    def task(self, at: int, index: int) -> TaskId:
        return TaskId(VertexId(f"v{at}"), index)

    def inputs(self, task: TaskId) -> tuple[ChannelId, ...]:
        at = int(task.vertex[1:])
        sources = range(self.parallelism) if at else ()
        return tuple(ChannelId(at - 1, self.task(at - 1, index), task) for index in sources)

    def arrives(self, at_us: float, task: TaskId, channel: ChannelId | None) -> None:
        self.sequence += 1
        heappush(self.events, (at_us, self.sequence, task.index, task, channel))

    def run(self) -> float:
        """Return when the last task has captured."""
        costs = self.costs
        for index in range(self.parallelism):
            self.arrives((index + 1) * costs.trigger_us + costs.hop_us, self.task(0, index), None)
        while self.events:
            now_us, _, worker, task, channel = heappop(self.events)
            if self.free[worker] > now_us:
                # Its thread is busy: the message waits, behind those that came before it.
                self.sequence += 1
                heappush(self.events, (self.free[worker], self.sequence, worker, task, channel))
                continue
            self.handle(now_us, task, channel)
        return max(self.captured.values())

    def handle(self, now_us: float, task: TaskId, channel: ChannelId | None) -> None:
        costs, machine = self.costs, self.machines[task]
        if channel is None:
            at_us = now_us + costs.start_us
            effects = machine.handle(CheckpointTriggered(N1))
        else:
            at_us = now_us + costs.handle_us
            effects = machine.handle(BarrierArrived(channel, N1))
        if any(isinstance(effect, CaptureState) for effect in effects):
            self.captured[task] = at_us
        if any(isinstance(effect, ForwardBarrier) for effect in effects):
            stage = int(task.vertex[1:])
            for target in range(self.parallelism) if stage < self.shuffles else ():
                at_us += costs.send_us
                to = self.task(stage + 1, target)
                self.arrives(at_us + costs.hop_us, to, ChannelId(stage, task, to))
        self.free[task.index] = at_us


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("shuffles", [1, 3])
def test_the_model_is_what_the_real_machines_take_where_the_network_is_the_slowest(
    parallelism: int, shuffles: int
) -> None:
    chain = Chain(parallelism, shuffles, FAR)
    assert barrier_latency_us(parallelism, shuffles, FAR) == pytest.approx(chain.run())
    assert len(chain.captured) == parallelism * (shuffles + 1)


@pytest.mark.parametrize("parallelism", [2, 7, 20])
def test_the_model_is_near_the_real_machines_where_the_network_is_fast(parallelism: int) -> None:
    """Barriers of two vertices mix at a worker then, and the model takes them one vertex after the other."""
    found = Chain(parallelism, 3, NEAR).run()
    assert barrier_latency_us(parallelism, 3, NEAR) == pytest.approx(found, rel=0.1)


def test_the_way_of_a_lonely_barrier_is_the_sum_of_its_steps() -> None:
    costs = Costs(hop_us=100, trigger_us=1, start_us=2, send_us=3, handle_us=4)
    assert barrier_latency_us(1, 0, costs) == 1 + 100 + 2
    assert barrier_latency_us(1, 1, costs) == 1 + 100 + 2 + 3 + 100 + 4
