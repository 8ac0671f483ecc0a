"""The explored world: what can happen next in a state, and to which states that leads.

A state is a small tuple of numbers. Between two states, one thing happens: one task takes one item, one
message or entry arrives, one snapshot becomes durable, one process dies. Some things that nobody else
can tell apart are one step: what a worker says reaches the coordinator at
once unless `slow_control`, a halt reaches every worker at once, and a replacement registers at once.

A step is computed once for all states that agree on what it reads. Most read one *side* only, a driver
and its workers: that is looked up for every store, budget and zombie that it is combined with.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.proof.explorer.bounds import NO_FAULTS, Bounds, Cost
from tests.proof.explorer.draft import SAVEPOINT, Draft, StoreNeeded
from tests.proof.explorer.graphs import Graph
from tests.proof.explorer.items import ensure
from tests.proof.explorer.moves import OF_THE_STORE, UNKNOWN, Move, Moves, Side, Zombie
from tests.proof.explorer.reduction import Eager
from tests.proof.explorer.task_table import Step
from tests.proof.explorer.world_tables import Make, WorldTables

from crosscut.protocol import events as on
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import (
    CoordinatorMessage,
    DeployTasks,
    TriggerCheckpoint,
)
from crosscut.protocol.snapshot.choosing import ProtocolKind

State = tuple[int, int, int, int, int, int]
"""Store, budget, a message that comes again, zombie workers, the side that owns the job, one that did."""

ENDLESS = 8
"""So many checkpoints beyond those of the bounds, and nothing has come of any of them."""

SIDES_MAX = 200_000
"""So many sides have their moves at hand; the search hardly ever comes back to older ones."""

FAILING = {"store": ("fail_to_store",), "commit": ("fail_to_commit",)}


class World(WorldTables):
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
        super().__init__(graph, kind, bounds, make, is_reduced=is_reduced)
        self._zombie_moves: dict[int, list[tuple[Step, int, int]]] = {}
        self._with_zombie: dict[tuple[int, int, int, int], int] = {}
        self._moves: tuple[dict[int, Moves], dict[int, Moves]] = ({}, {})

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
