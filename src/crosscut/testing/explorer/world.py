"""The explored world: what can happen next in a state, and to which states that leads.

A state is a small tuple of numbers. Between two states, one thing happens: one task takes one item, one
message or entry arrives, one snapshot becomes durable, one process dies. Some things that nobody else
can tell apart are one step: what a worker says reaches the coordinator at
once unless `slow_control`, a halt reaches every worker at once, and a replacement registers at once.

A step is computed once for all states that agree on what it reads. Most read one *side* only, a driver
and its workers: that is looked up for every store, budget and zombie that it is combined with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from crosscut.foundation.ids import ChannelId, Epoch, Lineage
from crosscut.protocol import events as on
from crosscut.protocol.job.coordinator import Coordinator, JobTerms
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CoordinatorMessage,
    DeployTasks,
    TriggerCheckpoint,
    WorkerMessage,
)
from crosscut.protocol.snapshot.choosing import ProtocolKind, snapshot_protocol
from crosscut.protocol.snapshot.commit import Committer, restore_permit
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.testing.explorer.bounds import NO_FAULTS, Bounds, Budgets, Cost
from crosscut.testing.explorer.draft import SAVEPOINT, Draft, StoreNeeded
from crosscut.testing.explorer.driver import DriverTable
from crosscut.testing.explorer.frozen import CommitAsked, Deed, PartWritten, Site, Staged
from crosscut.testing.explorer.graphs import Graph
from crosscut.testing.explorer.items import EMPTY, LINEAGE, ensure
from crosscut.testing.explorer.machines import MachineTable, Numbers
from crosscut.testing.explorer.moves import OF_THE_STORE, UNKNOWN, Move, Moves, Side, Zombie
from crosscut.testing.explorer.reduction import Eager, check_no_abort, is_reducible
from crosscut.testing.explorer.store import ExploredStore
from crosscut.testing.explorer.task_table import Result, Step, TaskTable
from crosscut.testing.explorer.tasks import COMMIT_ATTEMPTS_MAX, ExploredTask

State = tuple[int, int, int, int, int, int]
"""Store, budget, a message that comes again, zombie workers, the side that owns the job, one that did."""

ENDLESS = 8
"""So many checkpoints beyond those of the bounds, and nothing has come of any of them."""

SIDES_MAX = 200_000
"""So many sides have their moves at hand; the search hardly ever comes back to older ones."""

FAILING = {"store": ("fail_to_store",), "commit": ("fail_to_commit",)}


@dataclass(frozen=True)
class Make:
    """How the parts are made; a planted bug replaces one of them."""

    protocol: Callable[[ProtocolKind, tuple[ChannelId, ...], frozenset[ChannelId]], SnapshotProtocol] = (
        snapshot_protocol
    )
    coordinator: Callable[[JobTerms], Coordinator] = Coordinator
    committer: Callable[[Lineage, Epoch, int], Committer] = Committer
    task: type[ExploredTask] = ExploredTask
    commits_on_restore: bool = True


class World:
    """One graph under one protocol.

    Args:
        kind: The snapshot protocol, of all tasks.
        is_reduced: Leave out what differs only in the order of steps that commute.
    """

    def __init__(
        self,
        graph: Graph,
        kind: ProtocolKind,
        bounds: Bounds,
        make: Make | None = None,
        *,
        is_reduced: bool = True,
    ) -> None:
        self.graph, self.kind, self.bounds, self.make = graph, kind, bounds, make or Make()
        self.is_reduced = is_reduced
        self.is_exact = kind != "at-least-once"
        self.aborts = bounds.faults.timeouts > 0 or bounds.faults.failures > 0 or bounds.in_flight > 1
        self.store = ExploredStore(graph, is_exact=self.is_exact)
        self.words: Numbers[CoordinatorMessage] = Numbers()
        self.drivers = DriverTable(graph, self.make.coordinator, self.store.entries, self.words, bounds)
        self.sides: Numbers[Side] = Numbers()
        self.budgets = Budgets()
        self.inboxes: Numbers[tuple[int, ...]] = Numbers()
        self.messages: Numbers[WorkerMessage] = Numbers()
        self.deeds: Numbers[tuple[Deed, ...]] = Numbers()
        self.outboxes: Numbers[tuple[int, ...]] = Numbers()
        self.zombies: Numbers[tuple[Zombie, ...]] = Numbers()
        self.ghosts: Numbers[tuple[int, int] | None] = Numbers()
        self.sides.number(())
        self.deeds.number(())
        self.inboxes.number(())
        self.outboxes.number(())
        self.zombies.number(())
        self.ghosts.number(None)
        self.count = len(graph.tasks)
        protocols, committers = MachineTable(), MachineTable()
        self._committers = committers
        self.sites = [
            Site(graph, i, kind in ("unaligned", "switching"), self.is_exact, protocols, committers)
            for i in range(self.count)
        ]
        self.tables = [
            TaskTable(
                site,
                self.make.task,
                self.messages,
                self.deeds,
                is_reduced=is_reduced and is_reducible(site, kind),
                aborts=self.aborts,
                captures_by_message=kind == "halting",
            )
            for site in self.sites
        ]
        self._fresh_protocols = [protocols.number(self._protocol(i)) for i in range(self.count)]
        self.targets = tuple(target for _, target, _ in graph.channels)
        self._done: dict[tuple[int, int], int] = {}
        self._zombie_moves: dict[int, list[tuple[Step, int, int]]] = {}
        self._with_zombie: dict[tuple[int, int, int, int], int] = {}
        self._taken: dict[int, tuple[int, int]] = {}
        self._told: dict[tuple[int, int, int], int] = {}
        self._received: dict[tuple[int, int, int], Result] = {}
        self._restored: dict[tuple[int, int, int, int], tuple[int, Result]] = {}
        self._moves: tuple[dict[int, Moves], dict[int, Moves]] = ({}, {})

    def _protocol(self, task: int) -> SnapshotProtocol:
        inputs = self.graph.inputs(task)
        back = frozenset(self.graph.channel(one) for one in inputs if self.graph.channels[one][2])
        return self.make.protocol(self.kind, tuple(map(self.graph.channel, inputs)), back)

    def first(self) -> State:
        """Return the state in which a driver has just started, for the first time."""
        draft = Draft(self, (), self.store.empty, is_zombie=False)
        draft.start_driver(1)
        budget = self.budgets.number(self.bounds)
        return (draft.store, budget, 0, 0, draft.number(), 0)

    def is_finished(self, state: State) -> bool:
        """Whether the job has run to its end."""
        return self._moves_of(state[4], is_zombie=False).is_finished

    # What can happen next.

    def successors(self, state: State) -> tuple[list[Step], list[State]]:
        """Return every step that is possible and has to be explored, and where each leads.

        Raises:
            Violation: Something that must never happen has.
            ProtocolError: A machine was given something impossible.
            Unreducible: Something happened that the reduction relies on not to.
        """
        steps: list[Step] = []
        states: list[State] = []
        sides = [self._moves_of(state[4], is_zombie=False)]
        if state[5]:
            sides.append(self._moves_of(state[5], is_zombie=True))
        faults_left = self.budgets.faults(state[1])
        for moves in sides:
            eager = moves.eager
            if eager is not None and (eager.eager is Eager.ALWAYS or not faults_left.zombies):
                self._take((eager,), moves, state, steps, states)
                return steps, states
        for moves in sides:
            self._take(moves.normal or self._normal_moves(moves), moves, state, steps, states)
        for which in range(len(self.store.value(state[0]).late)):
            steps.append(Step(False, -1, "late append", which))
            states.append((self.store.apply_late(state[0], which), *state[1:]))
        if state[3]:
            self._take_zombies(state, steps, states)
        if not states:
            self._take(sides[0].lazy, sides[0], state, steps, states)
        ensure(bool(states) or sides[0].is_finished, "I10: nothing can happen any more: a deadlock")
        if faults_left != NO_FAULTS:
            for moves in sides:
                faults = self._fault_moves(moves) if moves.faults is None else moves.faults
                self._take(faults, moves, state, steps, states)
        if state[2]:
            steps.append(Step(False, -1, "repeat"))
            states.append(self._repeated(state))
        return steps, states

    def _take(
        self, moves: Iterable[Move], of: Moves, state: State, steps: list[Step], states: list[State]
    ) -> None:
        """Append what each of `moves` leads to, if the budget allows it."""
        store, budget, ghost, zombies, main, zombie = state
        after = self.budgets.after(budget)
        is_zombie = of.is_zombie
        for move in moves:
            left = after[move.cost]
            if left < 0 or (move.ghost and ghost) or (move.cost == Cost.SECOND_DRIVER and zombie):
                continue
            side = move.side
            if side == UNKNOWN:
                side = self._evaluate(move, of)
            if side == OF_THE_STORE:
                found = move.known.get(store)
                if found is None:
                    draft = Draft(self, of.side, store, is_zombie=is_zombie)
                    getattr(draft, move.call[0])(*move.call[1:])
                    found = move.known[store] = (draft.store, draft.number())
                now, side = found
            else:
                now = self.done(store, move.deeds) if move.deeds else store
            steps.append(move.step)
            if is_zombie:
                states.append((now, left, move.ghost or ghost, zombies, main, side))
            elif move.cost < Cost.ZOMBIE:
                states.append((now, left, ghost, zombies, side, zombie))
            elif move.cost == Cost.SECOND_DRIVER:
                states.append((now, left, ghost, zombies, side, main))
            elif move.zombie is not None:
                states.append((now, left, ghost, self.with_zombie(zombies, move.zombie), side, zombie))
            else:
                states.append((now, left, move.ghost or ghost, zombies, side, zombie))

    def _take_zombies(self, state: State, steps: list[Step], states: list[State]) -> None:
        """Append what zombie workers do to the store; nobody listens to them any more."""
        store, budget, ghost, zombies, main, zombie = state
        moves = self._zombie_moves.get(zombies)
        if moves is None:
            moves = self._zombie_moves[zombies] = list(self._moves_of_zombies(zombies))
        for step, deeds, after in moves:
            steps.append(step)
            states.append((self.done(store, deeds), budget, ghost, after, main, zombie))

    def _moves_of_zombies(self, number: int) -> Iterable[tuple[Step, int, int]]:
        zombies = self.zombies.values[number]
        for which, (i, task, inbox) in enumerate(zombies):
            actions = [
                (f"zombie: {name}", action, inbox)
                for name, action, _, _ in self.tables[i].moves(task)
                if name in ("prepare", "store", "commit")
            ]
            if inbox:
                word, rest = self.taken(inbox)
                actions.append(("zombie: hears", ("receive", self.words.values[word]), rest))
            others = self.zombies.number((*zombies[:which], *zombies[which + 1 :]))
            for name, action, rest in actions:
                result = self.tables[i].step(task, action)
                after = self.with_zombie(others, (i, result.task, rest))
                yield Step(True, i, name, action), result.deeds, after

    def with_zombie(self, zombies: int, zombie: Zombie) -> int:
        """Return the zombies and one more, unless nothing can come of that one."""
        i, task, inbox = zombie
        task = self.tables[i].without_data(task)
        key = (zombies, i, task, inbox)
        found = self._with_zombie.get(key)
        if found is None:
            has_more = any(one.name in ("prepare", "store", "commit") for one in self.tables[i].moves(task))
            found = zombies
            if inbox or has_more:
                all_of_them = sorted([*self.zombies.values[zombies], (i, task, inbox)])
                found = self.zombies.number(tuple(all_of_them))
            self._with_zombie[key] = found
        return found

    def _evaluate(self, move: Move, of: Moves) -> int:
        draft = Draft(self, of.side, None, is_zombie=of.is_zombie)
        try:
            getattr(draft, move.call[0])(*move.call[1:])
        except StoreNeeded:
            move.side = OF_THE_STORE
        else:
            move.side = draft.number()
            move.deeds = self.deeds.number(tuple(draft.deeds))
        return move.side

    def _moves_of(self, number: int, *, is_zombie: bool) -> Moves:
        known = self._moves[is_zombie]
        found = known.get(number)
        if found is None:
            if len(known) >= SIDES_MAX:
                known.clear()
            found = known[number] = self._new_moves(self.sides.values[number], is_zombie=is_zombie)
        return found

    def _new_moves(self, side: Side, *, is_zombie: bool) -> Moves:
        """Return what is worth knowing of every side."""
        eager = None
        for i in range(self.count):
            if side[1 + i] and self.tables[i].is_reduced:
                for name, action, result, eagerness in self.tables[i].moves(side[1 + i]):
                    if eagerness is Eager.ALWAYS or (eagerness is not Eager.NO and eager is None):
                        eager = Move(Step(is_zombie, i, name, action), "apply", i, result, eager=eagerness)
        is_finished = self.drivers.value(side[0]).outcome == "finished"
        return Moves(side, is_zombie, is_finished, eager)

    def _normal_moves(self, of: Moves) -> list[Move]:
        """Find out what can happen without a fault, and what only if nothing else does."""
        side, is_zombie = of.side, of.is_zombie
        found: list[Move] = []
        for i in range(self.count):
            if side[1 + i]:
                for name, action, result, _ in self.tables[i].moves(side[1 + i]):
                    found.append(Move(Step(is_zombie, i, name, action), "apply", i, result))
            if side[1 + self.count + i]:
                message = self.words.values[self.inboxes.values[side[1 + self.count + i]][0]]
                move = Move(Step(is_zombie, i, "hears", message), "receive", i)
                (of.lazy if self._is_extra(message) else found).append(move)
            if side[1 + 2 * self.count + i]:
                found.append(Move(Step(is_zombie, i, "heard"), "hear", i))
        driver = self.drivers.value(side[0])
        if driver.append is not None and not driver.outcome:
            found.append(Move(Step(is_zombie, -1, "append", driver.append), "append", ""))
        if driver.copying is not None and not is_zombie:
            found.append(Move(Step(False, -1, "writes the savepoint"), "write_savepoint"))
        for timer in () if driver.outcome else driver.timers:
            step = Step(is_zombie, -1, "timer", timer)
            call = ("tell_driver", on.TimerFired(timer))
            if timer.kind == "trigger":
                if self.drivers.is_free(side[0]):
                    found.append(Move(step, *call, cost=Cost.CHECKPOINT))
                    of.lazy.append(Move(step, *call))
            elif timer.kind != "checkpoint-timeout":
                found.append(Move(step, *call))
        if is_zombie:
            of.lazy.clear()
        of.normal = found
        return found

    def _is_extra(self, message: CoordinatorMessage) -> bool:
        """Whether `message` triggers a checkpoint beyond the bounds."""
        if not isinstance(message, TriggerCheckpoint):
            return False
        ordinal = message.checkpoint_id % 1_000
        ensure(ordinal <= self.bounds.checkpoints + ENDLESS, "I10: checkpoints are taken for ever")
        return ordinal > self.bounds.checkpoints + self.bounds.faults.savepoints

    def _fault_moves(self, of: Moves) -> list[Move]:
        """Find out what can go wrong, whatever the budget."""
        faults, side, is_zombie = self.bounds.faults, of.side, of.is_zombie
        found: list[Move] = []
        for i in range(self.count):
            for name, action, result, _ in self.tables[i].moves(side[1 + i]) if side[1 + i] else ():
                if faults.repeats and result.messages:
                    step = Step(is_zombie, i, f"{name}, to be heard twice", action)
                    found.append(Move(step, "apply", i, result, cost=Cost.REPEAT))
                    found[-1].ghost = self.ghosts.number((i, result.messages[-1]))
                if faults.failures and name in FAILING:
                    failing = FAILING[name] + action[1:]
                    step = Step(is_zombie, i, f"{name} fails", failing)
                    found.append(Move(step, "act", i, failing, cost=Cost.FAILURE))
        driver = self.drivers.value(side[0])
        if driver.append is not None and not driver.outcome:
            for outcome in ("applied", "not applied", "applied later") if faults.unknown else ():
                step = Step(is_zombie, -1, f"append, unknown: {outcome}", driver.append)
                found.append(Move(step, "append", outcome, cost=Cost.UNKNOWN))
            entry = self.store.entries.values[driver.append[1]]
            if faults.failures and isinstance(entry, CheckpointCompleted):
                step = Step(is_zombie, -1, "append refused", driver.append)
                found.append(Move(step, "append", "refused", cost=Cost.FAILURE))
        if not is_zombie and not driver.outcome:
            for timer in driver.timers if faults.timeouts else ():
                if timer.kind == "checkpoint-timeout":
                    step = Step(False, -1, "timer", timer)
                    found.append(Move(step, "tell_driver", on.TimerFired(timer), cost=Cost.TIMEOUT))
            if faults.savepoints:
                asked = on.CheckpointRequested(SAVEPOINT, is_savepoint=True)
                step = Step(False, -1, "is asked for a savepoint")
                found.append(Move(step, "tell_driver", asked, cost=Cost.SAVEPOINT))
            self._crash_moves(of, found)
        of.faults = found
        return found

    def _crash_moves(self, of: Moves, found: list[Move]) -> None:
        faults, side = self.bounds.faults, of.side
        for i in range(self.count) if faults.crashes else ():
            inbox = self.inboxes.values[side[1 + self.count + i]]
            if side[1 + i] or (inbox and isinstance(self.words.values[inbox[0]], DeployTasks)):
                found.append(Move(Step(False, i, "crash"), "crash", i, cost=Cost.CRASH))
                if faults.zombies and side[1 + i]:
                    step = Step(False, i, "is believed dead")
                    found.append(Move(step, "crash", i, cost=Cost.ZOMBIE))
                    found[-1].zombie = (i, side[1 + i], side[1 + self.count + i])
        if faults.drivers:
            append = self.drivers.value(side[0]).append
            number = 1 + self.drivers.number_of(side[0])
            for fate in ("lost", "applied", "applied later") if append else ("",):
                step = Step(False, -1, f"driver crash, append {fate}".rstrip())
                found.append(Move(step, "replace_driver", number, append, fate, cost=Cost.DRIVER))
            if faults.zombies and self.drivers.coordinator(side[0]).epoch > 0:
                step = Step(False, -1, "second driver")
                call = ("replace_driver", number, None, "")
                found.append(Move(step, *call, cost=Cost.SECOND_DRIVER))

    # Small pieces.

    def _repeated(self, state: State) -> State:
        ghost = self.ghosts.values[state[2]]
        draft = Draft(self, self.sides.values[state[4]], state[0], is_zombie=False)
        if ghost is not None:
            draft.say(*ghost)
        return (draft.store, state[1], 0, state[3], draft.number(), state[5])

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

    def taken(self, inbox: int) -> tuple[int, int]:
        """Return the first message of an inbox, and the rest."""
        found = self._taken.get(inbox)
        if found is None:
            words = self.inboxes.values[inbox]
            found = self._taken[inbox] = (words[0], self.inboxes.number(words[1:]))
        return found

    def told(self, i: int, inbox: int, word: int) -> int:
        """Return the inbox of task `i` with one more message, if that could make a difference to it."""
        found = self._told.get((i, inbox, word))
        if found is None:
            message = self.words.values[word]
            if self.is_reduced and isinstance(message, AbortCheckpoint):
                check_no_abort(aborts=self.aborts)
            found = inbox
            if self.sites[i].concerns(message):
                found = self.inboxes.number((*self.inboxes.values[inbox], word))
            self._told[i, inbox, word] = found
        return found

    def received(self, i: int, task: int, word: int) -> Result:
        """Return what it makes that task `i` takes a message."""
        found = self._received.get((i, task, word))
        if found is None:
            found = self.tables[i].step(task, ("receive", self.words.values[word]))
            self._received[i, task, word] = found
        return found

    def missing(self, store: int, i: int, deploy: DeployTasks) -> str:
        """Return a part that task `i` is to be restored from and that is not there, "" if all are."""
        missing = (self.store.missing(store, one.snapshot) for one in deploy.snapshots)
        return next(filter(None, missing), "")

    def restored(self, store: int, i: int, deploy: DeployTasks) -> tuple[int, Result]:
        """Return the store after task `i` has been restored, and the task."""
        key = (store, i, deploy.epoch, deploy.restore)
        found = self._restored.get(key)
        if found is None:
            found = self._restored[key] = self._restore(store, i, deploy)
        return found

    def _restore(self, store: int, i: int, deploy: DeployTasks) -> tuple[int, Result]:
        content, site = EMPTY, self.sites[i]
        permit = restore_permit(deploy.lineage, deploy.epoch, deploy.restore)
        for one in deploy.snapshots:
            content = self.store.content(store, one.snapshot)
            if permit is not None and self.make.commits_on_restore:
                handles = tuple(str(pending.handle) for pending in one.snapshot.pending)
                store = self.store.commit(store, permit, handles)
        if site.is_sink:
            store = self.store.abort(store, site.task_id.vertex, deploy.epoch)
        committer = self._committers.number(self.make.committer(LINEAGE, deploy.epoch, COMMIT_ATTEMPTS_MAX))
        fresh = self.tables[i].fresh(deploy.epoch, self._fresh_protocols[i], committer, content)
        return store, fresh
