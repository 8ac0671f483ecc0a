"""Rows of a savepoint as the state of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from crosscut.errors import FlowError, StateError
from crosscut.foundation.data_pickles import only_data
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.foundation.keys import encoded_key, key_group, owner_of_group
from crosscut.graph.specs import AsyncMapSpec, JobGraph, Vertex
from crosscut.operators.building import keyed_state
from crosscut.protocol.snapshots import Part
from crosscut.savepoints.manifest import Savepoint
from crosscut.savepoints.migrations import Migrations
from crosscut.savepoints.rows import STATE_COLUMNS
from crosscut.savepoints.values import from_text
from crosscut.state.encoding import Block
from crosscut.state.keyed import KeyedState
from crosscut.store.checkpoint_store import CheckpointStore

EPOCH = Epoch(1)
"""Of the first checkpoint of a job that begins with a savepoint."""


def blocks_of(
    savepoint: Savepoint, uid: str, migrations: Migrations, dropped: Collection[tuple[str, str, str]]
) -> Iterator[tuple[int, Block]]:
    """Yield the rows of an operator, with the task in whose file they are.

    Raises:
        StoreError: A file is not as it was written.
        StateError: A row can't be decoded or migrated; the message names it.
    """
    for file in savepoint.manifest.state_files(uid):
        tables: dict[tuple[str, bool], tuple[list[Any], list[Any]]] = {}
        for row in savepoint.rows_of(file, STATE_COLUMNS[2:]):
            state = row["state"]
            if ("state", uid, state) in dropped:
                continue
            is_named = row["name"] is not None
            try:
                key = from_text(row["key"])
                # A migration gets the value itself, which nothing loads that could be code.
                with only_data() if migrations.covers(uid, state) else nullcontext():
                    value = from_text(row["value"])
                encoded_key(key)
                name = from_text(row["name"]) if is_named else None
            except (StateError, FlowError) as error:
                raise StateError(
                    f"{file.path} in {savepoint.name}, the row of state {state!r} for key "
                    f"{row['key']!r:.100}: {error}"
                ) from error
            keys, values = tables.setdefault((state, is_named), ([], []))
            keys.append((key, name) if is_named else key)
            values.append(migrations.applied(uid, state, key, value))
        for (table, is_named), (keys, values) in tables.items():
            yield int(PurePosixPath(file.path).stem), Block(table, is_named, keys, values)


def parts_of(
    vertex: Vertex,
    task: TaskId,
    blocks: Sequence[tuple[int, Block]],
    graph: JobGraph,
    store: CheckpointStore,
    n: CheckpointId,
) -> tuple[Part, ...]:
    """Write what belongs to a task into `store`, as a part of checkpoint `n`.

    Raises:
        StoreError: It could not be written.
        StateError: A state is not declared, or a key has two rows.
    """
    state = next((one for node in vertex.chain if (one := keyed_state(node)) is not None), None)
    if state is None:
        return ()

    is_calling = isinstance(vertex.chain[0].spec, AsyncMapSpec)

    def owns(key: Any) -> bool:
        # Calls stay with their task, and so in order; the blocks of others are left out below.
        if is_calling:
            return True
        group = key_group(key, graph.max_parallelism)
        return owner_of_group(group, graph.max_parallelism, graph.parallelism) == task.index

    # A task has its own copy of what every task has, as after any start at this parallelism. What was on its
    # way to it is still on its way to it, and goes with that.
    mine = [
        _owned(block, state, owns)
        for index, block in blocks
        if index == task.index or not (is_calling or block.table in state.shared)
    ]
    for _ in state.loading_rows(mine, CheckpointId(n - 1)):
        pass
    for name, table in state.tables.items():
        rows = [row for one in mine if one.table == name for row in one.keys]
        if len(rows) != len(table):
            raise _doubled(vertex, name, rows)
    state.freeze(n)
    return (replace(store.write_part(n, task, EPOCH, state.encoded(n, CheckpointId(0))), checkpoint_id=n),)


def _owned(block: Block, state: KeyedState, owns: Callable[[Any], bool]) -> Block:
    rows = state.owned_rows(block, owns)
    return block._replace(keys=[row for row, _ in rows], values=[value for _, value in rows])


def _doubled(vertex: Vertex, state: str, rows: Sequence[Any]) -> StateError:
    seen: set[Any] = set()
    row = next(row for row in rows if row in seen or seen.add(row))  # type: ignore[func-returns-value]
    return StateError(
        f"the savepoint has two rows for {row!r:.100} in state {state!r} of {vertex.vertex_id!r}, and "
        f"can't tell which counts: take one of them away"
    )
