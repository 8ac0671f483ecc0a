"""The committed files of a file sink, by checkpoint: for whoever reads what a job has put out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from crosscut.connectors.committed_output import committed_output
from crosscut.connectors.stage import failed
from crosscut.connectors.staged_names import committed_file, staged_by
from crosscut.ids import CheckpointId, Lineage, TaskId
from crosscut.protocol.job.entries import CheckpointCompleted

FORMATS = {"JsonLines": "jsonl", "ParquetFiles": "parquet", "TextFiles": "txt"}
"""By the class of a sink: what its files hold, as `crosscut.spark.register` reads it."""


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """One file that is visible, or was when its directory was read."""

    path: str
    checkpoint_id: CheckpointId


def committed_files(directory: str, sink_uid: str) -> list[CommittedFile]:
    """Return the files that sink `sink_uid` has committed into `directory`, by name.

    Raises:
        ConnectorError: The directory can't be read.
    """
    found = []
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise failed("look into", directory, error) from error
    for name in names:
        said = committed_file(name)
        if said is not None and said.sink_uid == sink_uid:
            found.append(CommittedFile(os.path.join(directory, name), said.checkpoint_id))
    return found


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
            (by, pending.checkpoint_id)
            for one in checkpoint.snapshots
            for pending in one.snapshot.pending
            if (by := staged_by(pending.handle, sink_uid)) is not None
        ]
        if all(n <= through.get(by, CheckpointId(0)) for by, n in staged):
            return checkpoint.checkpoint_id
    return CheckpointId(0)
