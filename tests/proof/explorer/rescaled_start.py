"""How a small job begins, with what its tasks take over; see `tests.proof.explorer.rescaling`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.proof.explorer.machines import MachineTable, Numbers
from tests.proof.explorer.rescaled_checks import check_restored
from tests.proof.explorer.rescaled_state import (
    KEYED,
    LINKS,
    MAX_PARALLELISM,
    READ,
    TIMES,
    Bounds,
    Complete,
    Content,
    Item,
    Keeper,
    Reader,
    Record,
    Rows,
    State,
)

from crosscut.contracts.connectors import JSON
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId
from crosscut.foundation.keys import OwnedKeys, groups_of_task, key_group, owner_of_group
from crosscut.graph.specs import Edge, JobGraph
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshot.choosing import ProtocolKind, snapshot_protocol
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot
from crosscut.protocol.splits import rescaling
from crosscut.task import rerouting
from crosscut.task.items import LoggedBatch
from crosscut.wire.batches import decode_batch, encode_batch

Owns = Callable[[int, int], Callable[[Any], bool]]


def owned_by(index: int, parallelism: int) -> Callable[[Any], bool]:
    """Return what tells the keys of a task, as a worker does."""
    return OwnedKeys(groups_of_task(index, MAX_PARALLELISM, parallelism), MAX_PARALLELISM)


class RestoredJobs:
    """Jobs as they begin: anew, from a checkpoint at this or another parallelism, from a savepoint.

    Args:
        owns: Which keys a task takes out of the parts of others.
    """

    def __init__(self, kind: ProtocolKind, bounds: Bounds, owns: Owns = owned_by) -> None:
        self.kind, self.bounds, self._owns = kind, bounds, owns
        self.records = tuple(
            Record(f"s{split}", time, key)
            for split, keys in enumerate(bounds.records)
            for time, key in enumerate(keys, 1)
        )
        self.by_split = {
            f"s{split}": tuple(i for i, one in enumerate(self.records) if one.split == f"s{split}")
            for split in range(len(bounds.records))
        }
        self.protocols = MachineTable()
        self.contents: list[Content] = []
        self._numbers: Numbers[tuple[Any, ...]] = Numbers()
        self.completes: Numbers[tuple[int, ...]] = Numbers()
        self.completes.number(())
        self.restores = 0

    # Names.

    def channel(self, source: int, target: int) -> ChannelId:
        """Return the id of the channel between two tasks."""
        return ChannelId(0, TaskId(READ, source), TaskId(KEYED, target))

    def queue(self, parallelism: int, source: int, target: int) -> int:
        return source * parallelism + target

    def _protocol(self, inputs: tuple[ChannelId, ...]) -> int:
        return self.protocols.number(snapshot_protocol(self.kind, inputs, frozenset()))

    # Beginnings.

    def first(self) -> State:
        """Return the state in which nothing has been read."""
        parallelism, *to_come = self.bounds.parallelisms
        return self.begun(parallelism, tuple(to_come), 0, (), self.bounds.checkpoints, 0, None)

    def begun(
        self,
        parallelism: int,
        to_come: tuple[int, ...],
        complete: int,
        visible: tuple[int, ...],
        checkpoints: int,
        triggered: int,
        savepoint: tuple[int, tuple[int, ...]] | None,
        savepoints: int = -1,
    ) -> State:
        """Return the state in which the tasks have just been restored."""
        restored = self.restored(complete)
        inherited = rescaling.inheritance(
            restored.entry if restored else None, parallelism, MAX_PARALLELISM, 0, (), LINKS
        )
        snapshots = {one.task: one.snapshot for one in inherited.snapshots}
        rows: list[JSON] = [[name, 0, None, 1, 0] for name in self.by_split]
        dealt = rescaling.deal(rows, parallelism)
        readers = tuple(
            self._reader(dealt[i], None) if restored is None else self._reader(one.positions, one.assigned)
            for i in range(parallelism)
            for one in [snapshots.get(TaskId(READ, i), Snapshot())]
        )
        before = inherited.rescaled_from
        keepers = tuple(
            self._keeper(i, parallelism, before, snapshots.get(TaskId(KEYED, i)), restored)
            for i in range(parallelism)
        )
        queues: list[tuple[Item, ...]] = [()] * parallelism**2
        if restored is not None and not before:
            for content in restored.contents:
                for source, record in content.log:
                    queues[self.queue(parallelism, source, content.task.index)] += (("record", record),)
        state = State(
            parallelism, readers, keepers, tuple(queues), triggered, (), complete, visible, savepoint,
            to_come, checkpoints, self.bounds.savepoints if savepoints < 0 else savepoints,
        )  # fmt: skip
        if restored is not None:
            self.restores += 1
            check_restored(state, restored, self.records)
        return state

    def _reader(self, positions: JSON, assigned: JSON) -> Reader:
        rows: Any = positions or []
        times = self.times([row[0] for row in rows], assigned)
        held = tuple((str(row[0]), int(row[4])) for row in rows)
        return Reader(self._protocol(()), held, self.kept(times))

    def times(self, splits: list[str], assigned: JSON) -> AssignTimestamps:
        times = AssignTimestamps(TIMES, lambda record: self.records[record].time, 0)
        saved: Any = assigned or {}
        times.begin(splits, saved.get(TIMES))
        return times

    def kept(self, times: AssignTimestamps) -> str:
        return repr(times.saved)

    def _keeper(
        self, index: int, parallelism: int, before: int, snapshot: Snapshot | None, restored: Complete | None
    ) -> Keeper:
        inputs = tuple(self.channel(source, index) for source in range(parallelism))
        watermark = snapshot.watermark if snapshot is not None else None
        rows = Rows()
        replay: tuple[Item, ...] = ()
        if snapshot is not None and restored is not None:
            by_path = {part.path: one for one in restored.contents for part in one.snapshot.parts}
            read = [by_path[part.path].rows for part in snapshot.parts]
            owns = self._owns(index, parallelism) if before else lambda key: True
            rows = Rows(
                *(
                    frozenset(one for some in read for one in some[which] if owns(self.records[one].key))
                    for which in (0, 1)
                )
            )
            replay = self._replay(index, parallelism, before, snapshot, restored) if before else ()
        sides = tuple((source, watermark) for source in range(parallelism))
        return Keeper(self._protocol(inputs), rows, watermark, sides, None if replay else watermark, replay)

    def _replay(
        self, index: int, parallelism: int, before: int, snapshot: Snapshot, restored: Complete
    ) -> tuple[Item, ...]:
        """Return what was on its way and is for a task, as the worker puts it into its inputs."""
        graph = JobGraph("", (), (Edge(0, READ, KEYED, "hash"),), parallelism, MAX_PARALLELISM, "")
        logs = [
            [
                LoggedBatch(
                    self.channel(source, one.task.index),
                    encode_batch(Batch([record], [self.records[record].key], [self.records[record].time])),
                    1,
                    by_sender=False,
                )
                for source, record in one.log
            ]
            for one in restored.contents
        ]
        found: list[Item] = []
        for floor, batches in rerouting.rerouted(
            logs,
            TaskId(KEYED, index),
            graph,
            lambda key: owner_of_group(key_group(key, MAX_PARALLELISM), MAX_PARALLELISM, parallelism),
            before,
            snapshot.floors,
        ):
            found += [("watermark", floor)] if floor is not None else []
            found += [("record", one) for batch in batches for one in decode_batch(batch.data).records]
        if found and snapshot.watermark is not None:
            found.append(("watermark", snapshot.watermark))
        return tuple(found)

    # Complete checkpoints.

    def number_of(self, content: Content) -> int:
        """Return the number of what a captured task was."""
        snapshot = content.snapshot
        said = (repr(snapshot.positions), repr(snapshot.assigned), snapshot.watermark)
        known = (content.n, content.task, *said, content.rows, content.heard, content.log, content.out)
        number = self._numbers.number(known)
        if number == len(self.contents):
            self.contents.append(content)
        return number

    def restored(self, number: int) -> Complete | None:
        """Return a complete checkpoint by its number; None for 0."""
        contents = [self.contents[one] for one in self.completes.values[number]]
        if not contents:
            return None
        contents.sort(key=lambda one: (one.task.vertex, one.task.index))
        snapshots = tuple(TaskSnapshot(one.task, one.snapshot) for one in contents)
        entry = CheckpointCompleted(Epoch(1), CheckpointId(contents[0].n), snapshots, False)
        return Complete(entry, tuple(contents))
