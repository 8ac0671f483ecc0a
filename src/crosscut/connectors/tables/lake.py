"""What sinks of table formats have in common, whose tables are files and a log of commits.

Rows of a checkpoint are held in its snapshot. They are one commit of the table, which carries a note with the
marker of the task: how far it has committed, in which epoch, and whose driver that was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.arrow_values import REFUSALS, RowBatches
from crosscut.connectors.secrets import Environment
from crosscut.connectors.tables.trial import Row, RowsRefused
from crosscut.contracts.connectors import CommittedOutput, SinkContext
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.foundation.urls import HIDDEN

_SECRET_BYTES_MIN = 4


class HeldRows:
    """Rows as bytes, to be held in a snapshot, and back.

    Args:
        schema: A `pyarrow.Schema`.
        what: What errors call the table.
    """

    def __init__(self, schema: Any, what: str, extra: str) -> None:
        self._schema = schema
        self._extra = extra
        self._batches = RowBatches(schema, what)

    def encoded(self, rows: Sequence[Row]) -> bytes:
        """Return rows, at least one, as bytes.

        Raises:
            RowsRefused: One does not fit the schema.
        """
        arrow = required("pyarrow", self._extra)
        try:
            batch = self._batches.made(rows)
        except REFUSALS as error:
            if len(rows) == 1:
                raise RowsRefused(self._batches.misfit(rows[0], error)) from error
            raise RowsRefused(str(error)) from error
        data = arrow.BufferOutputStream()
        options = arrow.ipc.IpcWriteOptions(compression="lz4")
        with arrow.ipc.new_stream(data, self._schema, options=options) as stream:
            stream.write_batch(batch)
        return bytes(data.getvalue())

    def decoded(self, data: bytes) -> Any:
        """Return them as a `pyarrow.Table`."""
        return required("pyarrow", self._extra).ipc.open_stream(data).read_all()


def note_of(context: SinkContext, checkpoint_id: CheckpointId) -> str:
    """Return the marker of a task as a commit carries it."""
    return json.dumps(
        {
            "lineage": context.lineage,
            "sink": context.sink_uid,
            "vertex": context.task.vertex,
            "task": context.task.index,
            "epoch": context.epoch,
            "driver": context.driver,
            "checkpoint": checkpoint_id,
        }
    )


def noted(note: object, what: str) -> CommittedOutput | None:
    """Return what `note_of` has noted; None for anything else."""
    try:
        match json.loads(note) if isinstance(note, str) else None:
            case {
                "lineage": str(lineage),
                "sink": str(sink),
                "vertex": str(vertex),
                "task": int(index),
                "epoch": int(epoch),
                "driver": str(driver),
                "checkpoint": int(n),
            }:
                task = TaskId(VertexId(vertex), index)
                return CommittedOutput(
                    what, Lineage(lineage), sink, task, Epoch(epoch), driver, CheckpointId(n)
                )
            case _:
                pass
    except (ValueError, RecursionError):
        pass
    return None


def place_of(context: SinkContext) -> str:
    """Return what the marker of a task is called."""
    task = context.task
    return f"crosscut/{context.lineage}/{context.sink_uid}/{task.vertex}/{task.index}"


def without_secrets(text: str, options: Any) -> str:
    """Return `text` without what the values of `options` are."""
    for value in options.values():
        secret = value.value() if isinstance(value, Environment) else str(value)
        if len(secret) >= _SECRET_BYTES_MIN:
            text = text.replace(secret, HIDDEN)
    return text
