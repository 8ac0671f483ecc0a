"""The explored world: what can happen next in a state, and to which states that leads.

A state is a small tuple of numbers. Between two states, one thing happens: one task takes one item, one
message or entry arrives, one snapshot becomes durable, one process dies. Some things that nobody else
can tell apart are one step: what a worker says reaches the coordinator at
once unless `slow_control`, a halt reaches every worker at once, and a replacement registers at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from crosscut.ids import ChannelId, Epoch, Lineage
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.choosing import ProtocolKind, snapshot_protocol
from crosscut.protocol.commit import Committer, restore_permit
from crosscut.protocol.job import Coordinator, JobRules
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CheckpointCompleted,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorMessage,
    DeployTasks,
    HaltTasks,
    ResumeSources,
    ShutDown,
    StartTasks,
    TriggerCheckpoint,
    WorkerMessage,
    WorkerReady,
)
from crosscut.protocol.snapshotting import SnapshotProtocol
from crosscut.testing.explorer.bounds import Bounds, Faults
from crosscut.testing.explorer.driver import DriverTable
from crosscut.testing.explorer.graphs import Graph
from crosscut.testing.explorer.machines import MachineTable, Numbers
from crosscut.testing.explorer.store import ExploredStore
from crosscut.testing.explorer.tasks import (
    COMMIT_ATTEMPTS_MAX,
    EMPTY,
    LINEAGE,
    CommitAsked,
    Deed,
    ExploredTask,
    PartWritten,
    Place,
    Result,
    Staged,
    Step,
    TaskTable,
    ensure,
)

Side = tuple[int, ...]
"""A driver and its workers: driver, zombie workers, then tasks, inboxes and outboxes by number."""

State = tuple[int, int, int, Side, Side]
"""Store, faults left, a message that comes again, the driver that owns the job, one that did."""

ENDLESS = 8
"""So many checkpoints beyond those of the bounds, and nothing has come of any of them."""


FAILING = {"store": ("fail_to_store",), "commit": ("fail_to_commit",)}


@dataclass(frozen=True)
class Make:
    """How the parts are made; a planted bug replaces one of them."""

    protocol: Callable[[ProtocolKind, tuple[ChannelId, ...], frozenset[ChannelId]], SnapshotProtocol] = (
        snapshot_protocol
    )
    coordinator: Callable[[JobRules], Coordinator] = Coordinator
    committer: Callable[[Lineage, Epoch, int], Committer] = Committer
    task: type[ExploredTask] = ExploredTask
    commits_on_restore: bool = True


class World:
    """One graph under one protocol.

    Args:
        kind: The snapshot protocol, of all tasks.
    """

    def __init__(self, graph: Graph, kind: ProtocolKind, bounds: Bounds, make: Make | None = None) -> None:
        self.graph, self.kind, self.bounds, self.make = graph, kind, bounds, make or Make()
        self.is_exact = kind != "at-least-once"
        self.store = ExploredStore(graph, is_exact=self.is_exact)
        self.drivers = DriverTable(graph, self.make.coordinator, self.store.entries, bounds)
        self.faults: Numbers[tuple[Faults, int]] = Numbers()
        self.inboxes: Numbers[tuple[CoordinatorMessage, ...]] = Numbers()
        self.messages: Numbers[WorkerMessage] = Numbers()
        self.deeds: Numbers[tuple[Deed, ...]] = Numbers()
        self.outboxes: Numbers[tuple[int, ...]] = Numbers()
        self.zombies: Numbers[tuple[tuple[int, int, int], ...]] = Numbers()
        self.ghosts: Numbers[tuple[int, int] | None] = Numbers()
        self.deeds.number(())
        self.inboxes.number(())
        self.outboxes.number(())
        self.zombies.number(())
        self.ghosts.number(None)
        count = len(graph.tasks)
        self.count = count
        protocols, committers = MachineTable(), MachineTable()
        self._committers = committers
        self.places = [
            Place(graph, i, kind in ("unaligned", "switching"), self.is_exact, protocols, committers)
            for i in range(count)
        ]
        self.tables = [TaskTable(place, self.make.task, self.messages, self.deeds) for place in self.places]
        self._fresh_protocols = [protocols.number(self._protocol(i)) for i in range(count)]
        self.targets = tuple(target for _, target, _ in graph.channels)
        self._after: dict[tuple[int, str], int] = {}
        self._done: dict[tuple[int, int], int] = {}
        self._received: dict[tuple[int, int, int], tuple[int, Result]] = {}

    def _protocol(self, task: int) -> SnapshotProtocol:
        inputs = self.graph.inputs(task)
        back = frozenset(self.graph.channel(one) for one in inputs if self.graph.channels[one][2])
        return self.make.protocol(self.kind, tuple(map(self.graph.channel, inputs)), back)

    def first(self) -> State:
        """Return the state in which a driver has just started, for the first time."""
        faults = self.faults.number((self.bounds.faults, self.bounds.checkpoints))
        draft = _Draft(self, (self.store.empty, faults, 0, (), ()), is_zombie=False)
        draft.start_driver(1)
        return draft.state()

    def is_finished(self, state: State) -> bool:
        """Whether the job has run to its end."""
        return self.drivers.value(state[3][0]).outcome == "finished"

    # What can happen next.

    def successors(self, state: State) -> list[tuple[Step, State]]:
        """Return every step that is possible, and where it leads.

        Raises:
            Violation: Something that must never happen has.
            ProtocolError: A machine was given something impossible.
        """
        normal: list[tuple[Step, State]] = []
        faults: list[tuple[Step, State]] = []
        lazy: list[tuple[Step, Callable[[], State]]] = []
        self._side_steps(state, False, normal, faults, lazy)
        if state[4]:
            self._side_steps(state, True, normal, faults, lazy)
        for which in range(len(self.store.value(state[0]).late)):
            store = self.store.apply_late(state[0], which)
            normal.append((Step(False, -1, "late append", which), (store, *state[1:])))
        if not normal:
            normal = [(step, make()) for step, make in lazy]
        ensure(bool(normal) or self.is_finished(state), "I10: nothing can happen any more: a deadlock")
        if state[2]:
            faults.append((Step(False, -1, "repeat"), self._repeated(state)))
        return normal + faults

    def _side_steps(
        self,
        state: State,
        is_zombie: bool,
        normal: list[tuple[Step, State]],
        faults: list[tuple[Step, State]],
        lazy: list[tuple[Step, Callable[[], State]]],
    ) -> None:
        side = state[4] if is_zombie else state[3]
        left, checkpoints = self.faults.values[state[1]]
        count = self.count
        for i in range(count):
            task = side[2 + i]
            if task:
                for step, result in self.tables[i].moves(task):
                    if is_zombie:
                        step = step._replace(is_zombie=True)
                    if not (result.sends or result.messages or result.deeds):
                        changed = (*side[: 2 + i], result.task, *side[3 + i :])
                        normal.append((step, self._with_side(state, changed, is_zombie)))
                        continue
                    normal.append((step, self._moved(state, is_zombie, i, result)))
                    if left.repeats and not state[2] and result.messages:
                        again = step._replace(name=f"{step.name}, to be heard twice")
                        faults.append((again, self._moved(state, is_zombie, i, result, keeps=True)))
                    if left.failures and step.name in ("store", "commit"):
                        failing = FAILING[step.name] + step.action[1:]
                        result = self.tables[i].step(task, failing)
                        spent = self._spent(state, "failures")
                        step = Step(is_zombie, i, f"{step.name} fails", failing)
                        faults.append((step, self._moved(spent, is_zombie, i, result)))
            inbox = side[2 + count + i]
            if inbox:
                self._message_step(state, is_zombie, i, inbox, normal, lazy)
            outbox = side[2 + 2 * count + i]
            if outbox:
                draft = _Draft(self, state, is_zombie=is_zombie)
                draft.hear(i)
                normal.append((Step(is_zombie, i, "heard"), draft.state()))
        self._driver_steps(state, is_zombie, checkpoints, left, normal, faults, lazy)
        if side[1]:
            self._zombie_worker_steps(state, is_zombie, normal)
        if not is_zombie and not self.drivers.value(side[0]).outcome:
            self._crash_steps(state, left, faults)

    def _message_step(
        self,
        state: State,
        is_zombie: bool,
        i: int,
        inbox: int,
        normal: list[tuple[Step, State]],
        lazy: list[tuple[Step, Callable[[], State]]],
    ) -> None:
        message = self.inboxes.values[inbox][0]

        def received() -> State:
            draft = _Draft(self, state, is_zombie=is_zombie)
            draft.receive(i)
            return draft.state()

        step = Step(is_zombie, i, "hears", message)
        if isinstance(message, TriggerCheckpoint):
            ordinal = message.checkpoint_id % 1_000
            ensure(ordinal <= self.bounds.checkpoints + ENDLESS, "I10: checkpoints are taken for ever")
            if ordinal > self.bounds.checkpoints:
                # Else there would be no end of checkpoints that find everything as it was.
                lazy.append((step, received))
                return
        normal.append((step, received()))

    def _driver_steps(
        self,
        state: State,
        is_zombie: bool,
        checkpoints: int,
        left: Faults,
        normal: list[tuple[Step, State]],
        faults: list[tuple[Step, State]],
        lazy: list[tuple[Step, Callable[[], State]]],
    ) -> None:
        driver = state[4][0] if is_zombie else state[3][0]
        value = self.drivers.value(driver)
        if value.outcome:
            return
        if value.append is not None:
            draft = _Draft(self, state, is_zombie=is_zombie)
            draft.append("")
            normal.append((Step(is_zombie, -1, "append", value.append), draft.state()))
            for outcome in ("applied", "not applied", "applied later") if left.unknown else ():
                draft = _Draft(self, self._spent(state, "unknown"), is_zombie=is_zombie)
                draft.append(outcome)
                faults.append(
                    (Step(is_zombie, -1, f"append, unknown: {outcome}", value.append), draft.state())
                )
            is_checkpoint = isinstance(self.store.entries.values[value.append[1]], CheckpointCompleted)
            if left.failures and is_checkpoint:
                draft = _Draft(self, self._spent(state, "failures"), is_zombie=is_zombie)
                draft.append("refused")
                faults.append((Step(is_zombie, -1, "append refused", value.append), draft.state()))
        for timer in value.timers:

            def fired(timer: on.Timer = timer, state: State = state) -> State:
                draft = _Draft(self, state, is_zombie=is_zombie)
                draft.tell_driver(on.TimerFired(timer))
                return draft.state()

            step = Step(is_zombie, -1, "timer", timer)
            match timer.kind:
                case "trigger":
                    if not self.drivers.is_free(driver):
                        continue
                    if checkpoints:
                        fewer = self.faults.number((left, checkpoints - 1))
                        normal.append((step, fired(state=(state[0], fewer, *state[2:]))))
                    elif not is_zombie:
                        lazy.append((step, fired))
                case "checkpoint-timeout":
                    if left.timeouts and not is_zombie:
                        faults.append((step, fired(state=self._spent(state, "timeouts"))))
                case _:
                    normal.append((step, fired()))

    def _crash_steps(self, state: State, left: Faults, faults: list[tuple[Step, State]]) -> None:
        side = state[3]
        if left.crashes:
            for i in range(self.count):
                inbox = self.inboxes.values[side[2 + self.count + i]]
                if side[2 + i] or (inbox and isinstance(inbox[0], DeployTasks)):
                    spent = self._spent(state, "crashes")
                    draft = _Draft(self, spent, is_zombie=False)
                    draft.crash(i)
                    faults.append((Step(False, i, "crash"), draft.state()))
                    if left.zombies and side[2 + i]:
                        draft = _Draft(self, self._spent(spent, "zombies"), is_zombie=False)
                        draft.keep_zombie(i)
                        draft.crash(i)
                        faults.append((Step(False, i, "is believed dead"), draft.state()))
        if left.drivers:
            spent = self._spent(state, "drivers")
            number = 2 + self.bounds.faults.drivers - left.drivers
            append = self.drivers.value(side[0]).append
            for fate in ("lost", "applied", "applied later") if append else ("",):
                draft = _Draft(self, spent, is_zombie=False)
                draft.replace_driver(number, append, fate)
                faults.append((Step(False, -1, f"driver crash, append {fate}".rstrip()), draft.state()))
            has_claimed = self.drivers.coordinator(side[0]).epoch > 0
            if left.zombies and not state[4] and has_claimed:
                store, spent_faults, ghost, main, _ = self._spent(spent, "zombies")
                draft = _Draft(self, (store, spent_faults, ghost, main, main), is_zombie=False)
                draft.replace_driver(number, None, "")
                faults.append((Step(False, -1, "second driver"), draft.state()))

    def _zombie_worker_steps(self, state: State, is_zombie: bool, normal: list[tuple[Step, State]]) -> None:
        """What a zombie worker does to the store; nobody listens to it any more."""
        side = state[4] if is_zombie else state[3]
        zombies = self.zombies.values[side[1]]
        for which, (i, task, inbox) in enumerate(zombies):
            results = [
                (step.name, step.action, result, inbox)
                for step, result in self.tables[i].moves(task)
                if step.name in ("prepare", "store", "commit")
            ]
            messages = self.inboxes.values[inbox]
            if messages:
                result = self.tables[i].step(task, ("receive", messages[0]))
                results.append(("hears", (messages[0],), result, self.inboxes.number(messages[1:])))
            for name, action, result, rest in results:
                store = self.done(state[0], result.deeds)
                changed = (*zombies[:which], (i, result.task, rest), *zombies[which + 1 :])
                new_side = (side[0], self.zombies.number(changed), *side[2:])
                after = self._with_side((store, *state[1:]), new_side, is_zombie)
                normal.append((Step(is_zombie, i, f"zombie: {name}", action), after))

    # Small pieces.

    def _with_side(self, state: State, side: Side, is_zombie: bool) -> State:
        if is_zombie:
            return (state[0], state[1], state[2], state[3], side)
        return (state[0], state[1], state[2], side, state[4])

    def _spent(self, state: State, fault: str) -> State:
        key = (state[1], fault)
        after = self._after.get(key)
        if after is None:
            left, checkpoints = self.faults.values[state[1]]
            now = left._replace(**{fault: getattr(left, fault) - 1})
            after = self._after[key] = self.faults.number((now, checkpoints))
        return (state[0], after, state[2], state[3], state[4])

    def _moved(self, state: State, is_zombie: bool, i: int, result: Result, *, keeps: bool = False) -> State:
        if keeps:
            ghost = self.ghosts.number((i, result.messages[-1]))
            store, faults, _, main, zombie = self._spent(state, "repeats")
            state = (store, faults, ghost, main, zombie)
        draft = _Draft(self, state, is_zombie=is_zombie)
        draft.apply(i, result)
        return draft.state()

    def _repeated(self, state: State) -> State:
        ghost = self.ghosts.values[state[2]]
        draft = _Draft(self, (state[0], state[1], 0, *state[3:]), is_zombie=False)
        if ghost is not None and not self.drivers.value(state[3][0]).outcome:
            draft.say(*ghost)
        return draft.state()

    def done(self, store: int, deeds: int) -> int:
        """Return the store after the deeds of a task."""
        found = self._done.get((store, deeds))
        if found is None:
            found = store
            for deed in self.deeds.values[deeds]:
                match deed:
                    case PartWritten(path, content):
                        found = self.store.write(found, path, content)
                    case Staged(handle, records):
                        found = self.store.stage(found, handle, records)
                    case CommitAsked(effect):
                        handles = tuple(map(str, effect.handles))
                        found = self.store.commit(found, effect.permit, handles)
            self._done[store, deeds] = found
        return found

    def received(self, i: int, task: int, inbox: int) -> tuple[int, Result]:
        """Return what is left in the inbox of task `i` after it took the first message, and the result."""
        found = self._received.get((i, task, inbox))
        if found is None:
            message, *rest = self.inboxes.values[inbox]
            result = self.tables[i].step(task, ("receive", message))
            found = self._received[i, task, inbox] = (self.inboxes.number(tuple(rest)), result)
        return found

    def fresh_task(self, i: int, epoch: Epoch, content_of: object) -> Result:
        """Return task `i` restored to `content_of`."""
        committer = self._committers.number(self.make.committer(LINEAGE, epoch, COMMIT_ATTEMPTS_MAX))
        content = content_of if isinstance(content_of, type(EMPTY)) else EMPTY
        return self.tables[i].fresh(epoch, self._fresh_protocols[i], committer, content)


class _Draft:
    """One step under way: the state is taken apart, changed and put together again."""

    def __init__(self, world: World, state: State, *, is_zombie: bool) -> None:
        self._world = world
        self._store, self._faults, self._ghost, main, zombie = state
        self._is_zombie = is_zombie
        self._other = main if is_zombie else zombie
        self.side = list(zombie if is_zombie else main)
        self._events: deque[on.JobEvent] = deque()
        self._is_telling = False

    def state(self) -> State:
        """Return the state after the step."""
        side = tuple(self.side)
        if self._is_zombie and self._world.drivers.value(side[0]).outcome:
            side = ()
        main, zombie = (self._other, side) if self._is_zombie else (side, self._other)
        return (self._store, self._faults, self._ghost, main, zombie)

    # Tasks.

    def apply(self, i: int, result: Result) -> None:
        """Carry out what a step of task `i` has made."""
        world = self._world
        self.side[2 + i] = result.task
        if result.deeds:
            self._store = world.done(self._store, result.deeds)
        for channel, item in result.sends:
            target = world.targets[channel]
            number = self.side[2 + target]
            if number:
                self.apply(target, world.tables[target].step(number, ("offer", channel, item)))
        for message in result.messages:
            self._post(i, message)

    def _post(self, i: int, message: int) -> None:
        world = self._world
        if world.bounds.slow_control:
            box = 2 + 2 * world.count + i
            self.side[box] = world.outboxes.number((*world.outboxes.values[self.side[box]], message))
        else:
            self.say(i, message)

    def say(self, i: int, message: int) -> None:
        """The coordinator gets a message of worker `i`."""
        world = self._world
        self.side[0], effects = world.drivers.hear(self.side[0], i, message, world.messages.values[message])
        if effects:
            self._perform_all(effects)
            self._tell_all()

    def hear(self, i: int) -> None:
        """The oldest message of worker `i` arrives."""
        box = 2 + 2 * self._world.count + i
        message, *rest = self._world.outboxes.values[self.side[box]]
        self.side[box] = self._world.outboxes.number(tuple(rest))
        self.say(i, message)

    def receive(self, i: int) -> None:
        """Worker `i` takes the oldest message to it."""
        world, box = self._world, 2 + self._world.count + i
        message = world.inboxes.values[self.side[box]][0]
        if isinstance(message, DeployTasks):
            self.side[box] = 0
            self._restore(i, message)
            return
        self.side[box], result = world.received(i, self.side[2 + i], self.side[box])
        self.apply(i, result)

    def _restore(self, i: int, deploy: DeployTasks) -> None:
        world = self._world
        content = EMPTY
        permit = restore_permit(deploy.lineage, deploy.epoch, deploy.restore)
        for one in deploy.snapshots:
            content = world.store.content(self._store, one.snapshot)
            if permit is not None and world.make.commits_on_restore:
                handles = tuple(str(pending.handle) for pending in one.snapshot.pending)
                self._store = world.store.commit(self._store, permit, handles)
        if world.places[i].is_sink:
            vertex = world.graph.tasks[i].vertex
            self._store = world.store.abort(self._store, vertex, deploy.epoch)
        self.apply(i, world.fresh_task(i, deploy.epoch, content))
        self._post(i, world.messages.number(WorkerReady(deploy.epoch)))

    def crash(self, i: int) -> None:
        """Worker `i` dies, and Spark starts another one."""
        count = self._world.count
        for box in (2 + i, 2 + count + i, 2 + 2 * count + i):
            self.side[box] = 0
        link = self._world.drivers.links(self.side[0])[i]
        for event in self._world.drivers.lost(i, link):
            self.tell_driver(event)

    def keep_zombie(self, i: int) -> None:
        """Worker `i` goes on, unheard."""
        world = self._world
        zombies = world.zombies.values[self.side[1]]
        one = (i, self.side[2 + i], self.side[2 + world.count + i])
        self.side[1] = world.zombies.number((*zombies, one))

    # The driver.

    def start_driver(self, number: int) -> None:
        """A driver starts, without workers."""
        driver, effects = self._world.drivers.started(number)
        self.side = [driver, 0] + [0] * 3 * self._world.count
        self._perform_all(effects)
        self._tell_all()

    def replace_driver(self, number: int, append: tuple[int, int] | None, fate: str) -> None:
        """The driver is gone, its workers with it, and the next one starts."""
        store = self._world.store
        if append is not None and fate == "applied":
            self._store = store.append(self._store, *append)[0]
        elif append is not None and fate == "applied later":
            self._store = store.delay(self._store, *append)
        self.start_driver(number)

    def append(self, outcome: str) -> None:
        """The store deals with the append under way. `outcome` is what it doesn't say, or ""."""
        world = self._world
        under_way = world.drivers.value(self.side[0]).append
        if under_way is None:
            return
        index, entry = under_way
        match outcome:
            case "" | "applied":
                self._store, is_new = world.store.append(self._store, index, entry)
            case "applied later":
                self._store = world.store.delay(self._store, index, entry)
            case _:
                pass
        if outcome == "":
            self.tell_driver(on.EntryAppended(index) if is_new else on.EntryTaken(index))
        elif outcome == "refused":
            self.tell_driver(on.EntryRefused(index, "no space"))
        else:
            self.tell_driver(on.EntryUncertain(index, "time out"))

    def tell_driver(self, event: on.JobEvent) -> None:
        """The coordinator handles `event`, and what it asks for happens."""
        self._events.append(event)
        self._tell_all()

    def _tell_all(self) -> None:
        if self._is_telling:
            return
        self._is_telling = True
        while self._events:
            self.side[0], effects = self._world.drivers.step(self.side[0], self._events.popleft())
            self._perform_all(effects)
        self._is_telling = False

    def _perform_all(self, effects: tuple[do.JobEffect, ...]) -> None:
        world = self._world
        for effect in effects:
            match effect:
                case do.SendMessage(link, message):
                    self._send(link, message)
                case do.ReadLogTail(count):
                    self._events.append(on.LogTailRead(world.store.tail(self._store, count)))
                case do.ReadEntry(index):
                    log = world.store.log(self._store)
                    found = log[index - 1] if index <= len(log) else None
                    self._events.append(on.EntryRead(index, found))
                case do.DiscoverSplits():
                    self._events.append(on.SplitsDiscovered(()))
                case do.SubmitWorkers():
                    self._events += [world.drivers.registration(i, 0) for i in range(world.count)]
                case do.ListParts():
                    self._events.append(on.PartsListed(world.store.paths(self._store)))
                case do.DeleteParts(paths):
                    self._store = world.store.delete(self._store, paths)
                    self._events.append(on.PartsDeleted())
                case do.EndJob(outcome, cause):
                    is_fine = outcome == "finished" or (self._is_zombie and outcome == "fenced")
                    ensure(is_fine, f"I10: the job has {outcome}: {cause}")
                case _:
                    pass

    def _send(self, link: int, message: CoordinatorMessage) -> None:
        world = self._world
        i = (link - 1) % world.count
        if world.drivers.links(self.side[0])[i] != link and not isinstance(message, ShutDown):
            return
        task, box = 2 + i, 2 + world.count + i
        match message:
            case HaltTasks() | ShutDown():
                self.side[task] = self.side[box] = 0
            case DeployTasks():
                self.side[task] = 0
                self.side[box] = world.inboxes.number((message,))
            case StartTasks():
                self.side[task] = world.tables[i].step(self.side[task], ("start",)).task
            case (
                TriggerCheckpoint()
                | AbortCheckpoint()
                | CommitCheckpoint()
                | CloseLoops()
                | CaptureSnapshots()
                | ResumeSources()
            ):
                if self.side[task] and world.tables[i].thawed(self.side[task]).concerns(message):
                    waiting = world.inboxes.values[self.side[box]]
                    self.side[box] = world.inboxes.number((*waiting, message))
            case _:
                pass
