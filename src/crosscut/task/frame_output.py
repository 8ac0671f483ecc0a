"""The output of a task for the columns of frames: a channel gets as many rows as one call should take."""

from __future__ import annotations

from crosscut.errors import FlowError, InternalError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.foundation.ids import ChannelId
from crosscut.foundation.keys import KeyRouter
from crosscut.graph.frames import BATCH_FACTOR
from crosscut.graph.specs import Partitioning
from crosscut.operators.operator import user_code_error
from crosscut.task.outputs import Output

PIECE_BYTES = 16 * 1024 * 1024
"""A batch of more bytes is cut up: it has to fit into a frame of the wire, and a barrier waits for it."""


def build_frame_output(
    partitioning: Partitioning,
    channels: tuple[ChannelId, ...],
    *,
    batch_rows: int,
    router: KeyRouter,
    key_by_uid: str,
) -> Output:
    """Return the output for one edge that carries columns."""
    match partitioning:
        case "forward":
            return FrameOutput(channels, batch_rows, None, key_by_uid)
        case "hash":
            return FrameOutput(channels, batch_rows, router, key_by_uid)
        case _:
            raise InternalError(f"columns of a frame can't be sent by {partitioning!r}")


class FrameOutput(Output):
    """Rows to every channel, or each row to the owner of its key.

    Args:
        batch_rows: Records in a full batch; of columns there are more.
        router: Tells the owners; None: every channel gets all rows.
        key_by_uid: The operator that says which columns are the key, to be named if one holds no keys.
    """

    def __init__(
        self, channels: tuple[ChannelId, ...], batch_rows: int, router: KeyRouter | None, key_by_uid: str
    ) -> None:
        super().__init__(channels, BATCH_FACTOR * batch_rows)
        self.copies = router is None
        self._router = router
        self._key_by_uid = key_by_uid
        self._buffers: list[FrameRows | None] = [None for _ in channels]

    def _add(self, batch: Batch) -> bool:
        rows = batch.records
        if not isinstance(rows, FrameRows):
            raise InternalError(f"an output of frames got a {type(rows).__name__} of records")
        for index, some in self._divided(rows):
            buffered = self._buffers[index]
            if buffered is None:
                # What is merged into it must not be seen by others.
                self._buffers[index] = some.copied()
            else:
                buffered += some
        self.buffered_rows += len(rows)
        count = 1 if self.copies else len(self.channels)
        return self.buffered_rows >= self._batch_rows * count

    def _divided(self, rows: FrameRows) -> list[tuple[int, FrameRows]]:
        if self._router is None:
            return [(index, rows) for index in range(len(self.channels))]
        try:
            return rows.by_owner(self._router.owners)
        except FlowError as error:
            for key in rows.key_values():
                try:
                    self._router.owners([key])
                except FlowError as blamed:
                    raise user_code_error(self._key_by_uid, blamed, key) from error
            raise

    def _take(self) -> list[tuple[ChannelId, Batch]]:
        taken = [
            (channel, Batch(rows))
            for channel, rows in zip(self.channels, self._buffers, strict=True)
            if rows is not None
        ]
        self._buffers = [None for _ in self.channels]
        self.buffered_rows = 0
        for _, batch in taken:
            size_bytes = batch.records.frame.estimated_size()  # type: ignore[attr-defined]
            self._fit(size_bytes, len(batch))
        return taken

    def _fit(self, size_bytes: int, rows: int) -> None:
        """Cut batches into smaller pieces from now on if rows are large."""
        if size_bytes > PIECE_BYTES:
            self._batch_rows = max(1, min(self._batch_rows, rows * PIECE_BYTES // size_bytes // 2))
