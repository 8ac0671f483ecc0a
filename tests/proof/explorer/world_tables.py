"""What the explored world has numbered and looked up, and single steps of its tasks over that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.proof.explorer.bounds import Bounds, Budgets
from tests.proof.explorer.driver import DriverTable
from tests.proof.explorer.frozen import CommitAsked, Deed, PartWritten, Site, Staged
from tests.proof.explorer.graphs import Graph
from tests.proof.explorer.items import EMPTY, LINEAGE
from tests.proof.explorer.machines import MachineTable, Numbers
from tests.proof.explorer.moves import Side, Zombie
from tests.proof.explorer.reduction import check_no_abort, is_reducible
from tests.proof.explorer.store import ExploredStore
from tests.proof.explorer.task_table import Result, TaskTable
from tests.proof.explorer.tasks import COMMIT_ATTEMPTS_MAX, ExploredTask

from crosscut.foundation.ids import ChannelId, Epoch, Lineage
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CoordinatorMessage,
    DeployTasks,
    WorkerMessage,
)
from crosscut.protocol.snapshot.choosing import ProtocolKind, snapshot_protocol
from crosscut.protocol.snapshot.commit import Committer, restore_permit
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol


@dataclass(frozen=True)
class Make:
    """How the parts are made; a planted bug replaces one of them."""

    protocol: Callable[[ProtocolKind, tuple[ChannelId, ...], frozenset[ChannelId]], SnapshotProtocol] = (
        snapshot_protocol
    )
    coordinator: Callable[[CoordinatorSpec], Coordinator] = Coordinator
    committer: Callable[[Lineage, Epoch, int], Committer] = Committer
    task: type[ExploredTask] = ExploredTask
    commits_on_restore: bool = True


class WorldTables:
    """What the moves of a world, and the drafts of its sides, read and number.

    The arguments are those of `World`.
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
        self._taken: dict[int, tuple[int, int]] = {}
        self._told: dict[tuple[int, int, int], int] = {}
        self._received: dict[tuple[int, int, int], Result] = {}
        self._restored: dict[tuple[int, int, int, int], tuple[int, Result]] = {}

    def _protocol(self, task: int) -> SnapshotProtocol:
        inputs = self.graph.inputs(task)
        back = frozenset(self.graph.channel(one) for one in inputs if self.graph.channels[one][2])
        return self.make.protocol(self.kind, tuple(map(self.graph.channel, inputs)), back)

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
