"""Two worlds side by side: the tasks of the explorer, and real ones. Same events in, same effects out.

A walk chooses what happens next, as a scheduler, a network and a coordinator would. Each step is taken by the
explorer's model and by the real `Task` (its queues, captures, departures, chain, state, sink and splits), and
after each step both must have said, sent, asked for and kept the same. So what the explorer proves of its
tasks holds of the real ones, as far as the walks go.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from tests.proof.explorer.frozen import Site
from tests.proof.explorer.graphs import Graph
from tests.proof.explorer.items import Content
from tests.proof.explorer.machines import MachineTable
from tests.proof.explorer.tasks import ExploredTask
from tests.simulation.refined_tasks import Pair, counts_of

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.checkpoint.termination import heads_to_close, stillness
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorMessage,
    ResumeSources,
    SnapshotAcknowledged,
    TaskFailed,
    TaskQuiet,
    TriggerCheckpoint,
    WorkerMessage,
)
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot
from crosscut.state.keyed import KeyedState
from crosscut.task.splits import splits_from_json

IN_FLIGHT_MAX = 2


class Walk:
    """One graph under one protocol: what happens next, the dice say.

    Args:
        model: Of a task; a planted bug brings its own.

    Attributes:
        bytes_of: What the real parts hold, by path.
        contents: What the model's hold.
        restored: What the tasks have begun with, both.
    """

    def __init__(
        self, graph: Graph, kind: ProtocolKind, seed: int, model: type[ExploredTask] = ExploredTask
    ) -> None:
        self.graph, self.kind, self.seed, self.model = graph, kind, seed, model
        self.dice = random.Random(f"{graph.name} {kind} {seed}")
        self.bytes_of: dict[str, bytes] = {}
        self.contents: dict[str, Content] = {}
        self.restored: dict[TaskId, tuple[Content, Snapshot]] = {}
        self.restore = CheckpointId(0)
        self.seen: dict[str, int] = {}
        self.is_final = False
        self._next_id = 1
        self._lost_answers_share = self.dice.choice((0.05, 0.8))
        self._epoch = 0
        protocols, committers = MachineTable(), MachineTable()
        self._places = [
            Site(
                graph,
                i,
                has_outboxes=kind in ("unaligned", "switching"),
                is_exact=kind != "at-least-once",
                protocols=protocols,
                committers=committers,
            )
            for i in range(len(graph.tasks))
        ]
        self._deploy()

    def _deploy(self) -> None:
        self._epoch += 1
        self._under_way: dict[CheckpointId, dict[TaskId, Snapshot]] = {}
        self._quiet: dict[CheckpointId, set[TaskId]] = {}
        self._has_failed = False
        self.pairs: list[Pair] = []
        self.pairs = [Pair(self, site, self._epoch) for site in self._places]
        self._inboxes: list[deque[CoordinatorMessage]] = [deque() for _ in self.pairs]
        for pair in self.pairs:
            pair.start()

    def run(self, steps: int) -> None:
        """Take so many steps, or fewer if everything is done."""
        for _ in range(steps):
            if self.is_final:
                return
            self._step()

    def _note(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def _step(self) -> None:
        dice = self.dice
        if self._has_failed or dice.random() < 0.01:
            self._note("failover")
            self._deploy()
            return
        choices: list[tuple[int, str, tuple[Any, ...]]] = []
        for i, pair in enumerate(self.pairs):
            choices += [(i, name, action) for name, action in pair.moves()]
            if self._inboxes[i]:
                choices.append((i, "hears", ()))
        may_trigger = len(self._under_way) < (1 if self.kind == "halting" else IN_FLIGHT_MAX)
        if may_trigger and (not choices or dice.random() < 0.1):
            self._trigger()
        elif self._under_way and dice.random() < 0.02:
            self._abort(dice.choice(sorted(self._under_way)))
        elif choices:
            i, name, action = dice.choice(choices)
            self._note(name)
            self._take(self.pairs[i], i, name, action)

    def _take(self, pair: Pair, i: int, name: str, action: tuple[Any, ...]) -> None:
        if name == "hears":
            pair.receive(self._inboxes[i].popleft())
        elif name == "run":
            pair.run()
        elif name == "store" and self.dice.random() < 0.05:
            pair.act(("fail_to_store", *action[1:]))
        elif name == "commit" and self.dice.random() < self._lost_answers_share:
            pair.act(("fail_to_commit",))
        else:
            pair.act(action)

    # The coordinator.

    def _say(self, message: CoordinatorMessage) -> None:
        for inbox in self._inboxes:
            inbox.append(message)

    def _trigger(self) -> None:
        n = CheckpointId(self._next_id)
        self._next_id += 1
        self._under_way[n] = {}
        self._quiet[n] = set()
        self._note("trigger")
        self._say(TriggerCheckpoint(Epoch(self._epoch), n))

    def _abort(self, n: CheckpointId) -> None:
        del self._under_way[n]
        self._note("abort")
        self._say(AbortCheckpoint(Epoch(self._epoch), n))

    def hear(self, message: WorkerMessage) -> None:
        """A task says something."""
        self._note(type(message).__name__)
        match message:
            case SnapshotAcknowledged(_, n, task, snapshot) if n in self._under_way:
                found = self._under_way[n]
                found[task] = snapshot
                if len(found) == len(self.pairs):
                    self._complete(n)
            case TaskQuiet(_, n, task) if n in self._under_way:
                self._quiet[n].add(task)
                if len(self._quiet[n]) == len(self.pairs):
                    self._say(CaptureSnapshots(Epoch(self._epoch), n))
            case TaskFailed():
                self._has_failed = True
            case _:
                pass

    def _complete(self, n: CheckpointId) -> None:
        found = self._under_way.pop(n)
        for older in [one for one in self._under_way if one < n]:
            self._abort(older)
        self._note("complete")
        self.restore = n
        self.restored = {task: (self._content(task, one), one) for task, one in found.items()}
        snapshots = [TaskSnapshot(task, one) for task, one in found.items()]
        self.is_final = all(one.drained for one in found.values())
        epoch = Epoch(self._epoch)
        self._say(CommitCheckpoint(epoch, n))
        if self.kind == "halting":
            self._say(ResumeSources(epoch, n))
        heads = heads_to_close(self.graph.loops, stillness(snapshots))
        if heads:
            self._say(CloseLoops(epoch, heads))

    def _content(self, task: TaskId, snapshot: Snapshot) -> Content:
        """Return what the model has stored; the real parts hold the same."""
        content = self.contents[snapshot.parts[-1].path]
        state = KeyedState(int)
        parts = [(part.checkpoint_id, self.bytes_of[part.path]) for part in snapshot.parts]
        for _ in state.loading(parts, self.restore):
            pass
        assert dict(state.items()) == counts_of(content.state, self.graph), f"{task}: {snapshot}"
        if snapshot.positions is not None:
            positions = [position for _, position in splits_from_json(snapshot.positions)]
            assert positions in ([content.position], [] if content.ended else None), f"{task}: {snapshot}"
        return content
