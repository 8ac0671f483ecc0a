"""One step of a side under way: a driver and its workers are taken apart, changed, and put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.proof.explorer.driver import Order, Verb
from tests.proof.explorer.frozen import Deed
from tests.proof.explorer.items import ensure
from tests.proof.explorer.task_table import Result
from tests.proof.explorer.world_tables import WorldTables

from crosscut.foundation.ids import LogIndex
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.messages import DeployTasks, FailureCause, TaskFailed, WorkerReady

if TYPE_CHECKING:
    from tests.proof.explorer.moves import Side

SAVEPOINT = 1
"""The request for a savepoint."""


class StoreNeeded(Exception):
    """The step depends on what the store holds."""


class Draft:
    """A side that changes.

    Args:
        store: The store by number; None to find out whether the step depends on it: then what it
            does to the store is collected in `deeds`.
    """

    __slots__ = ("_events", "_is_telling", "_is_zombie", "_store", "_world", "deeds", "side")

    def __init__(self, world: WorldTables, side: Side, store: int | None, *, is_zombie: bool) -> None:
        self._world = world
        self._store = store
        self._is_zombie = is_zombie
        self.deeds: list[Deed] = []
        self.side = list(side)
        self._events: list[on.JobEvent] = []
        self._is_telling = False

    @property
    def store(self) -> int:
        """The store by number.

        Raises:
            StoreNeeded: It was not given.
        """
        if self._store is None:
            raise StoreNeeded
        return self._store

    def number(self) -> int:
        """Return the side after the step; 0 if it is a zombie driver's and has ended."""
        if self._is_zombie and self._world.drivers.value(self.side[0]).outcome:
            return 0
        return self._world.sides.number(tuple(self.side))

    # Tasks.

    def apply(self, i: int, result: Result) -> None:
        """Carry out what a step of task `i` has made."""
        world = self._world
        self.side[1 + i] = result.task
        if result.deeds:
            self._do(result.deeds)
        for channel, item in result.sends:
            target = world.targets[channel]
            number = self.side[1 + target]
            if number:
                self.apply(target, world.tables[target].step(number, ("offer", channel, item)))
        for message in result.messages:
            self._post(i, message)

    def act(self, i: int, action: tuple[object, ...]) -> None:
        """Task `i` does something."""
        self.apply(i, self._world.tables[i].step(self.side[1 + i], action))

    def _do(self, deeds: int) -> None:
        if self._store is None:
            self.deeds += self._world.deeds.values[deeds]
        else:
            self._store = self._world.done(self._store, deeds)

    def _post(self, i: int, message: int) -> None:
        world = self._world
        if world.bounds.slow_control:
            box = 1 + 2 * world.count + i
            self.side[box] = world.outboxes.number((*world.outboxes.values[self.side[box]], message))
        else:
            self.say(i, message)

    def say(self, i: int, message: int) -> None:
        """The coordinator gets a message of worker `i`, unless it is at its end."""
        world = self._world
        if world.drivers.value(self.side[0]).outcome:
            return
        self.side[0], effects = world.drivers.hear(self.side[0], i, message, world.messages.values[message])
        if effects:
            self._perform_all(effects)
            self._tell_all()

    def hear(self, i: int) -> None:
        """The oldest message of worker `i` arrives."""
        box = 1 + 2 * self._world.count + i
        message, *rest = self._world.outboxes.values[self.side[box]]
        self.side[box] = self._world.outboxes.number(tuple(rest))
        self.say(i, message)

    def receive(self, i: int) -> None:
        """Worker `i` takes the oldest message to it."""
        world, box = self._world, 1 + self._world.count + i
        word, self.side[box] = world.taken(self.side[box])
        message = world.words.values[word]
        if isinstance(message, DeployTasks):
            if self._is_zombie and (path := world.missing(self.store, i, message)):
                # Whoever owns the job has deleted it, as it may. In an owner's side it breaks I8.
                cause = FailureCause("StoreError", f"{path} is missing", is_final=True)
                failed = TaskFailed(message.epoch, world.sites[i].task_id, cause)
                self._post(i, world.messages.number(failed))
                return
            self._store, result = world.restored(self.store, i, message)
            self.apply(i, result)
            self._post(i, world.messages.number(WorkerReady(message.epoch)))
        else:
            self.apply(i, world.received(i, self.side[1 + i], word))

    def crash(self, i: int) -> None:
        """Worker `i` dies, and Spark starts another one."""
        count = self._world.count
        for box in (1 + i, 1 + count + i, 1 + 2 * count + i):
            self.side[box] = 0
        for driver, orders in self._world.drivers.crashed(self.side[0], i):
            ensure(not self._events, "a lost link makes the coordinator ask something")
            self.side[0] = driver
            self._perform_all(orders)
        self._tell_all()

    # The driver.

    def start_driver(self, number: int) -> None:
        """A driver starts, without workers."""
        driver, effects = self._world.drivers.started(number)
        self.side = [driver] + [0] * 3 * self._world.count
        self._perform_all(effects)
        self._tell_all()

    def replace_driver(self, number: int, append: tuple[LogIndex, int] | None, fate: str) -> None:
        """The driver is gone, its workers with it, and the next one starts."""
        store = self._world.store
        if append is not None and fate == "applied":
            self._store = store.append(self.store, *append)[0]
        elif append is not None and fate == "applied later":
            self._store = store.delay(self.store, *append)
        self.start_driver(number)

    def append(self, outcome: str) -> None:
        """The store deals with the append under way. `outcome` is what it doesn't say, or ""."""
        world = self._world
        under_way = world.drivers.value(self.side[0]).append
        if under_way is None:
            return
        index, entry = under_way
        is_new = True
        match outcome:
            case "" | "applied":
                self._store, is_new = world.store.append(self.store, index, entry)
            case "applied later":
                self._store = world.store.delay(self.store, index, entry)
            case _:
                pass
        if outcome == "":
            self.tell_driver(on.EntryAppended(index) if is_new else on.EntryTaken(index))
        elif outcome == "refused":
            self.tell_driver(on.EntryRefused(index, "no space"))
        else:
            self.tell_driver(on.EntryUncertain(index, "time out"))

    def write_savepoint(self) -> None:
        """The checkpoint that somebody has asked for is copied, as a whole."""
        copied = self._world.drivers.value(self.side[0]).copying
        if copied is not None:
            self._world.store.check_savepoint(self.store, copied)
            self.tell_driver(on.SavepointWritten(SAVEPOINT))

    def tell_driver(self, event: on.JobEvent) -> None:
        """The coordinator handles `event`, and what it asks for happens."""
        self._events.append(event)
        self._tell_all()

    def _tell_all(self) -> None:
        if self._is_telling:
            return
        self._is_telling = True
        while self._events:
            self.side[0], effects = self._world.drivers.step(self.side[0], self._events.pop(0))
            self._perform_all(effects)
        self._is_telling = False

    def _perform_all(self, orders: tuple[Order, ...]) -> None:
        world, side = self._world, self.side
        for verb, i, word, effect in orders:
            task, box = 1 + i, 1 + world.count + i
            if verb == Verb.HALT:
                side[task] = side[box] = 0
            elif verb == Verb.TELL:
                if side[task]:
                    side[box] = world.told(i, side[box], word)
            elif verb == Verb.DEPLOY:
                side[task] = 0
                side[box] = world.inboxes.number((word,))
            elif verb == Verb.START:
                ensure(
                    bool(side[task]), f"I7: {world.graph.tasks[i]} is to start before it has been restored"
                )
                self.apply(i, world.tables[i].step(side[task], ("start",)))
            else:
                self._perform(effect)

    def _perform(self, effect: do.JobEffect | None) -> None:
        world = self._world
        match effect:
            case do.ReadLogTail(count):
                tail, outputs = world.store.tail(self.store, count), world.store.outputs(self.store)
                self._events.append(on.LogTailRead(tail, outputs))
            case do.ReadEntry(index):
                self._events.append(on.EntryRead(index, world.store.entry(self.store, index)))
            case do.DiscoverSplits():
                self._events.append(on.SplitsDiscovered(()))
            case do.SubmitWorkers():
                for i in range(world.count):
                    self._events += world.drivers.registration(i)
            case do.ListParts():
                parts, entries = world.store.paths(self.store), world.store.indices(self.store)
                self._events.append(on.PartsListed(parts, entries))
            case do.DeleteParts(paths, entries):
                self._store = world.store.delete(self.store, paths, entries)
                self._events.append(on.PartsDeleted())
            case do.EndJob(outcome, cause):
                is_fine = outcome == "finished" or (self._is_zombie and outcome == "fenced")
                ensure(is_fine, f"I10: the job has {outcome}: {cause}")
            case _:
                ensure(False, f"nobody carries out {effect!r}")
