"""A checkpoint as a savepoint: everything of it, in files that need neither us nor the checkpoint store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from crosscut.errors import StoreError
from crosscut.foundation.ids import TaskId
from crosscut.foundation.keys import key_group
from crosscut.host.clock import SystemClock
from crosscut.protocol.log.entries import Ancestor, CheckpointCompleted, EpochClaimed, OpenOutput
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.protocol.splits.rescaling import parallelism_of
from crosscut.protocol.splits.staged import BEFORE_ALL, staged_splits
from crosscut.savepoints.folder import UNFINISHED, Folder, claim_at, new_folder, remove
from crosscut.savepoints.manifest import (
    MANIFEST,
    VERSION,
    SavepointManifest,
    staged_name,
    write_manifest,
)
from crosscut.savepoints.rows import IN_FLIGHT_COLUMNS, STATE_COLUMNS, RowFile, write_rows
from crosscut.savepoints.values import to_text
from crosscut.state.encoding import DELETED
from crosscut.state.reading import ReadPart, stored_blocks
from crosscut.task.channel_log import decoded_log
from crosscut.task.items import LoggedBatch
from crosscut.wire.batches import decode_batch

WriteFiles = Callable[[CheckpointCompleted, int], list[RowFile]]
"""Writes the files of a savepoint, given the number of key groups; see `files_written`."""


def write_savepoint(
    path: str | os.PathLike[str],
    checkpoint: CheckpointCompleted,
    claim: EpochClaimed,
    read: ReadPart,
    *,
    is_committed: bool = True,
    goes_on: bool = False,
    write_files: WriteFiles | None = None,
) -> SavepointManifest:
    """Write `checkpoint` as a savepoint into the directory or URL `path`, which must be empty. Blocks.

    The state of one task at a time is held in memory.

    Args:
        claim: The newest claim of the job's log.
        read: Returns the verified bytes of a part.
        is_committed: All output of the checkpoint is.
        goes_on: What the same job has left there unfinished, when its program died, is removed first.
        write_files: Writes the files, which means to unpickle what workers wrote; None: this process does.

    Raises:
        StoreError: There is something already, or it can't be written; nothing is left then.
        SettingsError: `path` is a URL of an unknown file system.
        StateError: A class in the state can't be loaded here, or a value can't be stored.
    """
    folder, own = new_folder(path, claim.lineage, goes_on=goes_on)
    paths = [UNFINISHED, *_paths(checkpoint)]
    is_ours = True
    try:
        if write_files is None:
            files = files_written(folder, checkpoint, claim.max_parallelism, read)
        else:
            files = write_files(checkpoint, claim.max_parallelism)
        manifest = SavepointManifest(
            version=VERSION,
            release=version("crosscut"),
            flow=claim.flow,
            parallelism=parallelism_of(checkpoint),
            max_parallelism=claim.max_parallelism,
            tasks=tuple(TaskSnapshot(one.task, _without_files(one.snapshot)) for one in checkpoint.snapshots),
            files=tuple(files),
            ancestors=(*claim.ancestors, Ancestor(claim.lineage, checkpoint.checkpoint_id)),
            pending=() if is_committed else _pending(checkpoint),
            written=SystemClock().now().isoformat(timespec="seconds"),
            known_splits=checkpoint.known_splits,
        )
        if claim_at(folder) != own:
            raise StoreError(
                f"{folder.root}: another program has begun to write this savepoint", path=folder.root
            )
        write_manifest(folder, manifest)
    except BaseException:
        with suppress(StoreError):
            is_ours = claim_at(folder) == own
        if is_ours:
            # The manifest, too: whether it was written may not be known.
            remove(folder, [MANIFEST, *paths])
        raise
    remove(folder, [UNFINISHED])
    return manifest


def files_written(
    folder: Folder, checkpoint: CheckpointCompleted, max_parallelism: int, read: ReadPart
) -> list[RowFile]:
    """Write all files of a savepoint but its manifest. Blocks.

    Raises:
        StoreError: One can't be written, or a part is missing or damaged.
        StateError: A class in the state can't be loaded here, or a value can't be stored.
    """
    files: list[RowFile] = []
    for one in checkpoint.snapshots:
        if one.snapshot.parts:
            rows = state_rows(one.task, one.snapshot.parts, read, max_parallelism)
            files.append(write_rows(folder, _state_path(one.task), STATE_COLUMNS, rows))
    for name, part, rows_count in _staged(checkpoint):
        data = read(part)
        folder.write_new(name, (data,))
        files.append(RowFile(name, rows_count, len(data), part.sha256))
    for vertex, logs in _logs(checkpoint).items():
        files.append(write_rows(folder, _log_path(vertex), IN_FLIGHT_COLUMNS, _log_rows(logs, read)))
    return files


def _paths(checkpoint: CheckpointCompleted) -> list[str]:
    """Return the names of all files that a savepoint of `checkpoint` has, but for its manifest."""
    states = [_state_path(one.task) for one in checkpoint.snapshots if one.snapshot.parts]
    return [*states, *(name for name, _, _ in _staged(checkpoint)), *map(_log_path, _logs(checkpoint))]


def _state_path(task: TaskId) -> str:
    return f"state/{task.vertex}/{task.index}.parquet"


def _log_path(vertex: str) -> str:
    return f"in-flight/{vertex}.parquet"


def _staged(checkpoint: CheckpointCompleted) -> Iterator[tuple[str, Part, int]]:
    """Yield the staged files that have still to be read: their names here, what they are, and their rows."""
    seen: set[str] = set()
    for one in checkpoint.snapshots:
        for detail in staged_splits(one.snapshot.positions):
            match detail:
                case {"staged": str(path), "size_bytes": int(size), "sha256": str(sha256), "rows": int(rows)}:
                    if path not in seen:
                        seen.add(path)
                        yield staged_name(path), Part(path, size, sha256, "", BEFORE_ALL), rows
                case _:
                    pass


def _pending(checkpoint: CheckpointCompleted) -> tuple[OpenOutput, ...]:
    return tuple(
        OpenOutput(one.task, max(pending.checkpoint_id for pending in one.snapshot.pending))
        for one in checkpoint.snapshots
        if one.snapshot.pending
    )


def _without_files(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot, parts=(), pending=(), committed=None, log=(), in_flight=0, drained=False, at_rest=False
    )


def state_rows(
    task: TaskId, parts: Sequence[Part], read: ReadPart, max_parallelism: int
) -> Iterator[Sequence[Any]]:
    """Yield the rows of all states of a task, with `STATE_COLUMNS`.

    Raises:
        StoreError: A part is missing or damaged.
        StateError: It can't be decoded, or a value can't be written as text.
    """
    tables: dict[tuple[str, bool], dict[Any, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="crosscut-savepoint-") as scratch:
        for block in stored_blocks(parts, read, f"{scratch}/database"):
            tables.setdefault((block.table, block.is_named), {}).update(
                zip(block.keys, block.values, strict=True)
            )
    for (table, is_named), values in tables.items():
        for row, value in values.items():
            if value is DELETED:
                continue
            key, name = row if is_named else (row, None)
            yield (
                key_group(key, max_parallelism),
                task.vertex,
                table,
                to_text(key),
                to_text(name) if is_named else None,
                to_text(value),
            )


def _logs(checkpoint: CheckpointCompleted) -> dict[str, list[Part]]:
    """Return the logs by the vertex whose tasks hold them."""
    found: dict[str, list[Part]] = {}
    for one in checkpoint.snapshots:
        if one.snapshot.log:
            found.setdefault(one.task.vertex, []).extend(one.snapshot.log)
    return found


def _log_rows(parts: Sequence[Part], read: ReadPart) -> Iterator[Sequence[Any]]:
    number = 0
    for part in parts:
        for logged in decoded_log(read(part)):
            yield from _records(logged, number)
            number += 1


def _records(logged: LoggedBatch, number: int) -> Iterator[Sequence[Any]]:
    channel, batch = logged.channel, decode_batch(logged.data)
    is_key = batch.keys is not None and batch.keys is batch.records
    for position, record in enumerate(batch.records):
        yield (
            channel.input,
            channel.source.vertex,
            channel.source.index,
            channel.target.vertex,
            channel.target.index,
            logged.by_sender,
            number,
            None if batch.keys is None else to_text(batch.keys[position]),
            is_key,
            None if batch.timestamps is None else batch.timestamps[position],
            to_text(record),
        )
