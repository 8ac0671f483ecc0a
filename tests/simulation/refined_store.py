"""The store of the explorer and a real one, side by side: what is done to one is done to the other."""

from __future__ import annotations

import random

from tests.proof.explorer.bounds import Cost
from tests.proof.explorer.store import ExploredStore, Stored
from tests.proof.explorer.world import State, World

from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex
from crosscut.protocol.log.entries import LogEntry
from crosscut.protocol.log.writer import Appended, Taken
from crosscut.protocol.snapshots import Part
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.testing.simulator.memory_files import MemoryFiles

TAILS = (1, 2, 3)


class StorePair:
    """What the explorer's drivers and tasks have done to the store, done to a real one in memory.

    Args:
        model: All states of the explorer's store.
    """

    def __init__(self, model: ExploredStore) -> None:
        self._model = model
        self._files = MemoryFiles()
        # A driver has a handle, which knows what it has read and appended last.
        self._handles: dict[LogIndex | None, CheckpointStore] = {}
        self._parts: dict[str, Part] = {}
        self._before = Stored()

    def follow(self, store: int) -> None:
        """Do what has led to `store`, and read all there is to read."""
        before, after = self._before, self._model.value(store)
        if after == before:
            return
        self._before = after
        # What is written is written before an entry refers to it, and deleted once none does.
        for path, _ in sorted(after.parts - before.parts, key=str):
            self._write(path)
        for index, entry in after.log[len(before.log) :]:
            self._append(index, entry)
        for index, entry in sorted(after.strays - before.strays):
            self._append(index, entry)
        there = dict(after.log)
        for index in sorted(before.deleted - after.deleted):
            self._append(index, there[index])
        gone = after.deleted - before.deleted | {index for index, _ in before.strays - after.strays}
        paths = {path for path, _ in before.parts} - {path for path, _ in after.parts}
        assert self._handle(None).delete_entries(sorted(gone)) == []
        assert self._handle(None).delete_parts(self._parts.pop(path).path for path in sorted(paths)) == []
        self._compare(store)

    def _handle(self, newest: LogIndex | None) -> CheckpointStore:
        found = self._handles.pop(newest, None) if newest is not None else None
        return found or CheckpointStore(self._files, inline_bytes=0)

    def _write(self, path: str) -> None:
        _, n, name = path.split("/")
        task = next(one for one in self._model.tasks if name.startswith(f"{one.vertex}-{one.index}-"))
        self._parts[path] = self._handle(None).write_part(
            CheckpointId(int(n)), task, Epoch(1), [path.encode()]
        )

    def _append(self, index: LogIndex, number: int) -> None:
        entry = self._model.entries.values[number]
        handle = self._handle(LogIndex(index.segment, index.number - 1) if index.number else None)
        assert handle.append(index, entry) == Appended(index), f"{index}: {entry}"
        self._handles[index] = handle

    def _compare(self, store: int) -> None:
        model, real = self._model, CheckpointStore(self._files, inline_bytes=0)
        indices, unfinished = real.list_log()
        assert (tuple(indices), unfinished) == (model.indices(store), [])
        for index in {index for index, _ in self._before.log} | {index for index, _ in self._before.strays}:
            for one in (index, LogIndex(index.segment, index.number + 1), LogIndex(index.segment + 1, 0)):
                found = real.read(one)
                assert found == model.entry(store, one), f"{one}: {found}"
                if found is not None:
                    self._try_again(store, one, found)
        for count in TAILS:
            assert tuple(real.tail(count)) == model.tail(store, count), f"the newest {count}"
        assert sorted(real.list_parts()) == sorted(part.path for part in self._parts.values())
        assert sorted(self._parts) == list(model.paths(store))
        for path, part in self._parts.items():
            assert real.read_part(part) == path.encode()

    def _try_again(self, store: int, index: LogIndex, entry: LogEntry) -> None:
        """Nobody can append where something is."""
        fresh = CheckpointStore(self._files, inline_bytes=0)
        assert fresh.append(index, entry) == Taken(index)
        assert self._model.append(store, index, self._model.entries.number(entry)) == (store, False)


def walk(world: World, seed: int, steps: int) -> State:
    """Follow one way through `world` with both stores; return where it has led."""
    dice = random.Random(seed)
    pair = StorePair(world.store)
    state = world.first()
    for _ in range(steps):
        pair.follow(state[0])
        _, following = world.successors(state)
        if not following:
            break
        # Faults are few among all that could be next.
        weights = [3 if world.budgets.after(state[1])[Cost.NOTHING] == after[1] else 4 for after in following]
        state = dice.choices(following, weights)[0]
    return state
