"""The committed files of a file sink, by checkpoint, for readers of a job's output."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from crosscut.connectors.files.committed_output import committed_output, visible_files
from crosscut.connectors.files.local_paths import is_remote
from crosscut.connectors.files.merging import merges_done
from crosscut.connectors.files.stage import failed
from crosscut.connectors.files.staged_names import committed_file, staged_by
from crosscut.contracts.connectors import JSON
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Lineage, TaskId
from crosscut.foundation.urls import shown_url
from crosscut.protocol.log.entries import CheckpointCompleted

FORMATS = {"JsonLines": "jsonl", "ParquetFiles": "parquet", "TextFiles": "txt"}
"""By the class of a sink: what its files hold, as `crosscut.spark.register` reads it."""


GROUP_BYTES = 16 * 1024 * 1024
"""Of files that one Spark task reads, where they are smaller."""


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """One file that is visible, or was when its directory was read.

    Attributes:
        path: Of the sink's directory, and the file below it.
        first: The oldest checkpoint that it has output of.
        checkpoint_id: The newest one; another one only if it was merged of several files.
    """

    path: str
    size_bytes: int
    first: CheckpointId
    checkpoint_id: CheckpointId


def committed_files(directory: str, sink_uid: str) -> list[CommittedFile]:
    """Return the files that sink `sink_uid` has committed into `directory`, by name.

    Raises:
        ConnectorError: The directory can't be read.
    """
    if is_remote(directory):
        # As a path it would be a directory that is not there, and so without a file.
        raise ConnectorError(
            f"what sink {sink_uid!r} has committed to {shown_url(directory)} is in an object store, where it "
            f"can't be followed by checkpoints: have Spark read its files there"
        )
    found = []
    try:
        with merges_done(directory):
            for entry in visible_files(directory):
                parsed = committed_file(entry.name)
                if parsed is None or parsed.sink_uid != sink_uid:
                    continue
                # Readers may take files away; a merge can't meanwhile, or its files would be missed here.
                with suppress(FileNotFoundError):
                    size_bytes = entry.stat().st_size
                    found.append(CommittedFile(entry.path, size_bytes, parsed.first, parsed.checkpoint_id))
    except OSError as error:
        raise failed("look into", directory, error) from error
    return sorted(found, key=lambda one: one.path)


def grouped(files: Iterable[CommittedFile], bytes_max: int = GROUP_BYTES) -> Iterator[list[str]]:
    """Yield the paths of `files` in groups, in order: a job leaves many small files, one a checkpoint."""
    group: list[str] = []
    size_bytes = 0
    for one in files:
        if group and size_bytes + one.size_bytes > bytes_max:
            yield group
            group, size_bytes = [], 0
        group.append(one.path)
        size_bytes += one.size_bytes
    if group:
        yield group


def newest_visible(directory: str, sink_uid: str, retained: Sequence[CheckpointCompleted]) -> CheckpointId:
    """Return the newest checkpoint of `retained` whose output is all visible; 0 if there is none.

    A complete checkpoint is committed by each task in its own time. Nothing is added to one later: ids of
    checkpoints grow, whatever fails.

    Args:
        retained: Oldest first.

    Raises:
        ConnectorError: What is committed can't be read.
    """
    through: dict[tuple[Lineage, TaskId], CheckpointId] = {}
    for one in committed_output(directory, ""):
        if one.sink_uid == sink_uid:
            whose = one.lineage, one.task
            through[whose] = max(one.checkpoint_id, through.get(whose, CheckpointId(0)))
    for checkpoint in reversed(retained):
        staged = [
            (by, pending)
            for one in checkpoint.snapshots
            for pending in one.snapshot.pending
            if (by := staged_by(pending.handle, sink_uid)) is not None
        ]
        if all(
            pending.checkpoint_id <= through.get(by, CheckpointId(0))
            and not _awaits_rename(directory, pending.handle)
            for by, pending in staged
        ):
            return checkpoint.checkpoint_id
    return CheckpointId(0)


def _awaits_rename(directory: str, handle: JSON) -> bool:
    """Whether a file that a ledger names has no final name yet: it names them before they are moved."""
    match handle:
        case {"more": list(more), **first}:
            return any(_awaits_rename(directory, one) for one in (dict(first), *more))
        case {"staged": str(staged), "final": str(final)}:
            # In this order: the file may be moved meanwhile.
            is_staged = os.path.lexists(os.path.join(directory, staged))
            return is_staged and not os.path.lexists(os.path.join(directory, final))
        case _:
            return False
