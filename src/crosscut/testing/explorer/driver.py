"""The driver of the explored world: the real coordinator, its timers, and its append under way."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from crosscut.ids import AttemptId, WorkerIndex
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.checkpoints import CheckpointRules
from crosscut.protocol.job import Coordinator, JobRules
from crosscut.protocol.messages import LogEntry, RegisterWorker, WorkerMessage
from crosscut.protocol.recovery import JobIdentity, RestartPolicy
from crosscut.testing.explorer.bounds import Bounds
from crosscut.testing.explorer.graphs import Graph
from crosscut.testing.explorer.machines import MachineTable, Numbers, copied
from crosscut.testing.explorer.tasks import LINEAGE

FAILURES_MAX = 100
EXPLORED_TIMERS = frozenset({"trigger", "checkpoint-timeout", "retry-append"})
"""The others limit phases that the explored world doesn't let last."""


class DriverState(NamedTuple):
    """A driver as a value; the coordinator and the entry by number."""

    coordinator: int
    timers: frozenset[on.Timer] = frozenset()
    append: tuple[int, int] | None = None
    outcome: str = ""


def rules(graph: Graph, number: int, bounds: Bounds) -> JobRules:
    """Return what the coordinator of the `number`-th driver knows."""
    tasks = graph.tasks
    return JobRules(
        identity=JobIdentity(f"driver {number}", LINEAGE, "graph", len(tasks), 8, "host"),
        tasks=frozenset(tasks),
        sources=frozenset(tasks[one] for one in graph.sources),
        sinks=frozenset(tasks[one] for one in graph.sinks),
        checkpoints=CheckpointRules(True, 1_000, 60_000, FAILURES_MAX, in_flight_max=bounds.in_flight),
        restart=RestartPolicy(FAILURES_MAX, 300_000, 0, 0, 0),
        retain=bounds.retain,
        heartbeat_timeout_ms=4_000,
        start_timeout_ms=30_000,
        has_loops=graph.has_loops,
    )


class DriverTable:
    """All that drivers ever were, and their steps as far as anybody has asked for them."""

    def __init__(
        self,
        graph: Graph,
        make: Callable[[JobRules], Coordinator],
        entries: Numbers[LogEntry],
        bounds: Bounds,
    ) -> None:
        self._graph = graph
        self._make = make
        self._entries = entries
        self._bounds = bounds
        self._machines = MachineTable()
        self._numbers: Numbers[DriverState] = Numbers()
        self._steps: dict[tuple[int, Hashable], tuple[int, tuple[do.JobEffect, ...]]] = {}
        self._links: dict[int, tuple[int, ...]] = {}
        self._free: dict[int, bool] = {}
        self._losses: dict[int, tuple[on.LinkClosed, on.MessageReceived]] = {}
        self._heard: dict[tuple[int, int, int], tuple[int, tuple[do.JobEffect, ...]]] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def value(self, driver: int) -> DriverState:
        """Return the driver with this number as a value."""
        return self._numbers.values[driver]

    def coordinator(self, driver: int) -> Coordinator:
        """Return its coordinator, to be asked, not told."""
        machine: Coordinator = self._machines.machines[self.value(driver).coordinator]
        return machine

    def links(self, driver: int) -> tuple[int, ...]:
        """Return the link of each worker, 0 where there is none."""
        number = self.value(driver).coordinator
        found = self._links.get(number)
        if found is None:
            held = self.coordinator(driver).held
            all_of_them = range(len(self._graph.tasks))
            found = tuple(held[WorkerIndex(i)].link if i in held else 0 for i in all_of_them)
            self._links[number] = found
        return found

    def registration(self, index: int, attempt: int) -> on.MessageReceived:
        """Return what the `attempt`-th process of worker `index` says first."""
        link = index + 1 + attempt * len(self._graph.tasks)
        return on.MessageReceived(
            link, RegisterWorker(WorkerIndex(index), AttemptId(link), "localhost", link, link)
        )

    def is_free(self, driver: int) -> bool:
        """Whether another checkpoint may be triggered."""
        number = self.value(driver).coordinator
        found = self._free.get(number)
        if found is None:
            coordinator = copied(self.coordinator(driver))
            effects = coordinator.handle(on.TimerFired(on.Timer("trigger", coordinator.epoch)))
            found = any(isinstance(effect, do.SendMessage) for effect in effects)
            self._free[number] = found
        return found

    def lost(self, index: int, link: int) -> tuple[on.LinkClosed, on.MessageReceived]:
        """Return what the driver sees when worker `index` dies: its link, then its replacement."""
        found = self._losses.get(link)
        if found is None:
            attempt = (link - 1) // len(self._graph.tasks)
            found = (on.LinkClosed(link, "reset"), self.registration(index, attempt + 1))
            self._losses[link] = found
        return found

    def started(self, number: int) -> tuple[int, tuple[do.JobEffect, ...]]:
        """Return the `number`-th driver as it starts, and its first effects."""
        coordinator = self._make(rules(self._graph, number, self._bounds))
        effects = coordinator.start()
        return self._performed(DriverState(self._machines.number(coordinator)), tuple(effects))

    def step(self, driver: int, event: on.JobEvent) -> tuple[int, tuple[do.JobEffect, ...]]:
        """Return the driver after `event`, and the effects that others have to carry out."""
        found = self._steps.get((driver, event))
        if found is None:
            state = self.value(driver)
            match event:
                case on.TimerFired(timer):
                    state = state._replace(timers=state.timers - {timer})
                case on.EntryAppended() | on.EntryTaken() | on.EntryUncertain() | on.EntryRefused():
                    state = state._replace(append=None)
                case _:
                    pass
            machine, effects = self._machines.step(state.coordinator, event)
            found = self._performed(state._replace(coordinator=machine), effects)
            self._steps[driver, event] = found
        return found

    def hear(
        self, driver: int, worker: int, number: int, message: WorkerMessage
    ) -> tuple[int, tuple[do.JobEffect, ...]]:
        """Return the driver after a message of the present holder of a place; `number` is the message's."""
        found = self._heard.get((driver, worker, number))
        if found is None:
            link = self.links(driver)[worker]
            found = self.step(driver, on.MessageReceived(link, message)) if link else (driver, ())
            self._heard[driver, worker, number] = found
        return found

    def _performed(
        self, state: DriverState, effects: tuple[do.JobEffect, ...]
    ) -> tuple[int, tuple[do.JobEffect, ...]]:
        timers = set(state.timers)
        left: list[do.JobEffect] = []
        for effect in effects:
            match effect:
                case do.StartTimer(timer):
                    if timer.kind in EXPLORED_TIMERS:
                        timers.add(timer)
                case do.CancelTimer(timer):
                    timers.discard(timer)
                case do.AppendEntry(index, entry):
                    state = state._replace(append=(index, self._entries.number(entry)))
                case do.EndJob(outcome):
                    state = state._replace(outcome=outcome)
                    left.append(effect)
                case _:
                    left.append(effect)
        epoch = self._machines.machines[state.coordinator].epoch
        current = frozenset(one for one in timers if one.epoch in (0, epoch))
        return self._numbers.number(state._replace(timers=current)), tuple(left)
