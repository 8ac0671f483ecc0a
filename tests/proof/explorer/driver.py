"""The driver of the explored world: the real coordinator, its timers, and its append under way."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import NamedTuple

from tests.proof.explorer.bounds import Bounds
from tests.proof.explorer.graphs import Graph
from tests.proof.explorer.items import LINEAGE
from tests.proof.explorer.machines import MachineTable, Numbers, copied

from crosscut.foundation.ids import AttemptId, LogIndex, WorkerIndex
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry
from crosscut.protocol.log.recovery import JobIdentity
from crosscut.protocol.messages import (
    CoordinatorMessage,
    DeployTasks,
    HaltTasks,
    RegisterWorker,
    ShutDown,
    StartTasks,
    WorkerMessage,
)

FAILURES_MAX = 100
EXPLORED_TIMERS = frozenset({"trigger", "pause", "checkpoint-timeout", "retry-append"})
"""The others limit phases that the explored world doesn't let last."""

NO_DIFFERENCE = (do.CloseLink, do.ReplaceWorker)


class Verb(IntEnum):
    """What is to be done with worker i, or with something else."""

    HALT = 0
    DEPLOY = 1
    START = 2
    TELL = 3
    OTHER = 4


class Order(NamedTuple):
    """An effect of the coordinator, made ready for being carried out often.

    Attributes:
        word: The message, by number.
        effect: What is no message to a worker.
    """

    verb: Verb
    worker: int = 0
    word: int = 0
    effect: do.JobEffect | None = None


Outcome = tuple[int, tuple[Order, ...]]
"""A driver after a step, and what that step asks for."""


class DriverState(NamedTuple):
    """A driver as a value; the coordinator and the entry by number."""

    coordinator: int
    timers: tuple[on.Timer, ...] = ()
    append: tuple[LogIndex, int] | None = None
    outcome: str = ""
    copying: CheckpointCompleted | None = None
    """It is being written as a savepoint."""
    number: int = 1
    """Which driver of the job this is: the first, the second, ..."""


def terms(graph: Graph, number: int, bounds: Bounds) -> CoordinatorSpec:
    """Return what the coordinator of the `number`-th driver knows."""
    tasks = graph.tasks
    return CoordinatorSpec(
        identity=JobIdentity(f"driver {number}", LINEAGE, "graph", len(tasks), 8),
        tasks=frozenset(tasks),
        sources=frozenset(tasks[one] for one in graph.sources),
        sinks=frozenset(tasks[one] for one in graph.sinks),
        checkpoints=CheckpointSpec(True, 1_000, 60_000, FAILURES_MAX, in_flight_max=bounds.in_flight),
        restart=RestartPolicy(FAILURES_MAX, 300_000, 0, 0, 0, 3),
        retain=bounds.retain,
        heartbeat_timeout_ms=4_000,
        start_timeout_ms=30_000,
        loops=graph.loops,
        segment_entries_max=bounds.segment_entries_max,
    )


class DriverTable:
    """All that drivers ever were, and their steps as far as anybody has asked for them."""

    def __init__(
        self,
        graph: Graph,
        make: Callable[[CoordinatorSpec], Coordinator],
        entries: Numbers[LogEntry],
        words: Numbers[CoordinatorMessage],
        bounds: Bounds,
    ) -> None:
        self._graph = graph
        self._make = make
        self._entries = entries
        self._words = words
        self._bounds = bounds
        self._machines = MachineTable()
        self._numbers: Numbers[DriverState] = Numbers()
        self._steps: dict[tuple[int, Hashable], Outcome] = {}
        self._links: dict[int, tuple[int, ...]] = {}
        self._free: dict[int, bool] = {}
        self._crashed: dict[tuple[int, int], tuple[Outcome, Outcome]] = {}
        self._heard: dict[tuple[int, int, int], Outcome] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def value(self, driver: int) -> DriverState:
        """Return the driver with this number as a value."""
        return self._numbers.values[driver]

    def coordinator(self, driver: int) -> Coordinator:
        """Return its coordinator, to be asked, not told."""
        machine: Coordinator = self._machines.machines[self.value(driver).coordinator]
        return machine

    def number_of(self, driver: int) -> int:
        """Return which driver of the job it is, from 1."""
        return self.value(driver).number

    def links(self, driver: int) -> tuple[int, ...]:
        """Return the link of each worker, 0 where there is none."""
        number = self.value(driver).coordinator
        found = self._links.get(number)
        if found is None:
            held = self.coordinator(driver).registry.held
            all_of_them = range(len(self._graph.tasks))
            found = tuple(held[WorkerIndex(i)].link if i in held else 0 for i in all_of_them)
            self._links[number] = found
        return found

    def registration(self, index: int) -> tuple[on.LinkOpened, on.MessageReceived]:
        """Return what a driver hears first of a process of worker `index`."""
        link = index + 1
        worker, attempt = WorkerIndex(index), AttemptId(link)
        registration = RegisterWorker(worker, attempt, "localhost", link, link)
        return on.LinkOpened(link, worker, attempt), on.MessageReceived(link, registration)

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

    def crashed(self, driver: int, worker: int) -> tuple[Outcome, Outcome]:
        """Return the driver when it finds that `worker` has died, and when its replacement has come.

        A closed link is never heard of again, so the replacement may have its name: states that would
        differ in the names of links only are one.
        """
        found = self._crashed.get((driver, worker))
        if found is None:
            link = self.links(driver)[worker]
            opened, registered = self.registration(worker)
            lost = self.step(driver, on.LinkClosed(link, "reset"))
            replaced = self.step(self.step(lost[0], opened)[0], registered)
            found = self._crashed[driver, worker] = (lost, replaced)
        return found

    def started(self, number: int) -> Outcome:
        """Return the `number`-th driver as it starts, and its first effects."""
        coordinator = self._make(terms(self._graph, number, self._bounds))
        effects = coordinator.start()
        first = DriverState(self._machines.number(coordinator), number=number)
        return self._performed(first, tuple(effects))

    def step(self, driver: int, event: on.JobEvent) -> Outcome:
        """Return the driver after `event`, and the effects that others have to carry out."""
        found = self._steps.get((driver, event))
        if found is None:
            state = self.value(driver)
            match event:
                case on.TimerFired(timer):
                    state = state._replace(timers=tuple(one for one in state.timers if one != timer))
                case on.EntryAppended() | on.EntryTaken() | on.EntryUncertain() | on.EntryRefused():
                    state = state._replace(append=None)
                case on.SavepointWritten():
                    state = state._replace(copying=None)
                case _:
                    pass
            machine, effects = self._machines.step(state.coordinator, event)
            found = self._performed(state._replace(coordinator=machine), effects)
            self._steps[driver, event] = found
        return found

    def hear(self, driver: int, worker: int, number: int, message: WorkerMessage) -> Outcome:
        """Return the driver after a message of the present holder of a place; `number` is the message's."""
        found = self._heard.get((driver, worker, number))
        if found is None:
            link = self.links(driver)[worker]
            found = self.step(driver, on.MessageReceived(link, message)) if link else (driver, ())
            self._heard[driver, worker, number] = found
        return found

    def _performed(self, state: DriverState, effects: tuple[do.JobEffect, ...]) -> Outcome:
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
                case do.AnswerRequest(_, completed):
                    state = state._replace(copying=completed)
                case do.EndJob(outcome):
                    state = state._replace(outcome=outcome)
                    left.append(effect)
                case _:
                    left.append(effect)
        epoch = self._machines.machines[state.coordinator].epoch
        current = tuple(
            sorted((one for one in timers if one.epoch in (0, epoch)), key=lambda one: (one.kind, one.number))
        )
        number = self._numbers.number(state._replace(timers=current))
        orders = (self._order(number, effect) for effect in left)
        return number, tuple(one for one in orders if one is not None)

    def _order(self, driver: int, effect: do.JobEffect) -> Order | None:
        """Return what has to be done for `effect`, None for what makes no difference here."""
        if not isinstance(effect, do.SendMessage):
            return None if isinstance(effect, NO_DIFFERENCE) else Order(Verb.OTHER, effect=effect)
        message, worker = effect.message, effect.link - 1
        if self.links(driver)[worker] != effect.link and not isinstance(message, ShutDown):
            return None
        word = self._words.number(message)
        match message:
            case HaltTasks() | ShutDown():
                return Order(Verb.HALT, worker)
            case DeployTasks():
                return Order(Verb.DEPLOY, worker, word)
            case StartTasks():
                return Order(Verb.START, worker)
            case _:
                return Order(Verb.TELL, worker, word)
