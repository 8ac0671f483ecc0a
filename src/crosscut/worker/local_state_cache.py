"""Keyed state between epochs: kept by who survives, else read from the parts of a checkpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, Protocol, TypeVar

from crosscut.foundation.ids import CheckpointId, TaskId
from crosscut.operators.building import NewState
from crosscut.protocol.log.recovery import FromMemory, FromNothing, restore_from
from crosscut.protocol.snapshots import Part
from crosscut.state.encoding import Block
from crosscut.state.keyed import KeyedState
from crosscut.state.predecessor_state import PredecessorState
from crosscut.state.reading import ReadPart, is_of_database, stored_blocks
from crosscut.state.rocksdb.state import RocksState
from crosscut.worker.backends import MEMORY, StateBackend

P = ParamSpec("P")
R = TypeVar("R")


class Patient(Protocol):
    """Does other things while state is read."""

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function`, which may block."""

    async def pause(self) -> None:
        """Let others run for a moment."""


class LocalStateCache:
    """Keyed state that a surviving worker keeps between epochs, by task.

    Args:
        backend: Where it is kept.
    """

    def __init__(self, backend: StateBackend = MEMORY) -> None:
        self._backend = backend
        self._states: dict[TaskId, KeyedState] = {}

    async def restored(
        self,
        task: TaskId,
        empty: KeyedState,
        restore: CheckpointId,
        parts: Sequence[Part],
        read_part: ReadPart,
        host: Patient,
        predecessor_state: PredecessorState | None = None,
    ) -> KeyedState:
        """Return the state of `task` at checkpoint `restore`: the one at hand, or `empty`, filled.

        Args:
            predecessor_state: The parts are of several tasks, of another parallelism; None: of this one.

        Raises:
            StoreError: A part is missing or damaged.
            StateError: A part can't be decoded.
        """
        state = self._states.get(task)
        match restore_from(restore, state.at_hand if state is not None else ()):
            case FromMemory(checkpoint_id) if state is not None:
                if isinstance(state, RocksState):
                    await host.in_thread(state.roll_back, checkpoint_id)
                else:
                    state.roll_back(checkpoint_id)
                return state
            case source:
                # First, or both would take room at a time.
                if state is not None:
                    await host.in_thread(state.close)
                # What is filled only halfway is closed by the next attempt.
                self._states[task] = empty
        if not isinstance(source, FromNothing):
            await _fill(empty, restore, parts, read_part, host, predecessor_state)
        return empty

    def new_state(self, task: TaskId) -> NewState:
        """Return what makes empty state for `task`."""
        return self._backend.new_state(task)

    def forget(self, task: TaskId) -> None:
        """What is kept of `task` is of no use."""
        state = self._states.pop(task, None)
        if state is not None:
            state.close()

    def advance(
        self,
        task: TaskId,
        kept: CheckpointId,
        parts: Sequence[Part],
        restore: CheckpointId,
        read_part: ReadPart,
    ) -> bool:
        """Make of the state that is kept of `task` a later one; return whether that was possible. Blocks.

        Args:
            kept: The checkpoint to begin with, whose parts come before `parts`.
            parts: All that has changed since then.
            restore: The checkpoint that they lead to.

        Raises:
            StoreError: A part is missing or damaged.
            StateError: A part can't be decoded.
        """
        state = self._states.get(task)
        if state is None or isinstance(state, RocksState) or kept not in state.at_hand:
            return False
        contents = [read_part(part) for part in parts]
        if is_of_database(contents):
            return False
        state.roll_back(kept)
        for _ in state.loading(
            [(part.checkpoint_id, data) for part, data in zip(parts, contents, strict=True)], restore
        ):
            pass  # It is read in slices, and there is nothing to do between them.
        return True

    def close(self) -> None:
        """Give back what the states take outside of memory."""
        # An attempt that comes to nothing may still be putting one there.
        while self._states:
            _, state = self._states.popitem()
            state.close()
        self._backend.close()


async def _fill(
    state: KeyedState,
    restore: CheckpointId,
    parts: Sequence[Part],
    read_part: ReadPart,
    host: Patient,
    predecessor_state: PredecessorState | None,
) -> None:
    if predecessor_state is not None:
        await _inherit(state, restore, read_part, host, predecessor_state)
    elif isinstance(state, RocksState):
        await host.in_thread(state.restore, parts, read_part, restore, stored_blocks)
    else:
        await _load(state, restore, parts, read_part, host)


async def _inherit(
    state: KeyedState,
    restore: CheckpointId,
    read_part: ReadPart,
    host: Patient,
    predecessor_state: PredecessorState,
) -> None:
    """Take what belongs to a task out of the parts of several."""
    if isinstance(state, RocksState):
        await host.in_thread(state.inherit, predecessor_state, read_part, restore)
        return

    def blocks(scratch: str) -> Iterator[Block]:
        for position in range(len(predecessor_state.chains)):
            yield from predecessor_state.blocks(position, state, read_part, f"{scratch}-{position}")

    with tempfile.TemporaryDirectory(prefix="crosscut-read-") as directory:
        found = await host.in_thread(lambda: list(blocks(os.path.join(directory, "database"))))
    for _ in state.loading_rows(found, restore):
        await host.pause()


async def _load(
    state: KeyedState, restore: CheckpointId, parts: Sequence[Part], read_part: ReadPart, host: Patient
) -> None:
    contents = await host.in_thread(lambda: [read_part(part) for part in parts])
    if is_of_database(contents):
        # What another backend has stored.
        by_part = dict(zip(parts, contents, strict=True))
        with tempfile.TemporaryDirectory(prefix="crosscut-read-") as directory:
            scratch = os.path.join(directory, "database")
            blocks = await host.in_thread(lambda: list(stored_blocks(parts, by_part.__getitem__, scratch)))
        steps = state.loading_rows(blocks, restore)
    else:
        ids = [part.checkpoint_id for part in parts]
        steps = state.loading(list(zip(ids, contents, strict=True)), restore)
    for _ in steps:
        # Heartbeats go on, however much there is to load.
        await host.pause()
