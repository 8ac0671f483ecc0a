"""Rows that were staged as Parquet in the job's own checkpoint store, as a source; needs pyarrow.

Whoever stages (a Spark job: `crosscut.spark.staging`) writes each file as a part of checkpoint 0, which is
none, before the first record is read. A split is one file and has its digest: what is read is what was
staged. The job's retention deletes a file once no checkpoint that is kept has still to read it
(`crosscut.protocol.job.staged`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.read_ahead import BatchesAhead, from_row
from crosscut.errors import ConnectorError, StoreError
from crosscut.ids import CheckpointId, TaskId
from crosscut.interfaces import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.protocol.job.staged import BEFORE_ALL, FILE
from crosscut.protocol.snapshots import Part
from crosscut.store.checkpoint_store import open_store

FILE_BYTES = 32 * 1024 * 1024
"""About so large is a file, compressed: a reader holds it in memory."""

BATCH_ROWS = 4_096
_WAIT_FOR_EVER_MS = 1_000

Records = Callable[[Any], list[Any]]
"""Makes the records of a `pyarrow.RecordBatch`: as many as it has rows, or the batch itself."""


@dataclass(frozen=True, slots=True)
class StagedRows(Source[Any]):
    """Reads what was staged. A position is the number of rows of the file that were read.

    Attributes:
        store_url: Of the checkpoint store of the job that reads.
        records: What the rows become. One that gives less records than rows gives one for all.
        ends: Else a split that was read to its end goes on waiting, as the input that a history is of would.
    """

    store_url: str
    records: Records
    ends: bool = True

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Nothing is staged by this: see `split_of`."""
        raise ConnectorError("a DataFrame is staged when a job that reads it is started: there is none here")

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Go on at row `position` of a file."""
        match split.detail, position:
            case {"rows": 0}, 0:
                return _Nothing(ends=self.ends)
            case (
                {"staged": str(path), "size_bytes": int(size), "sha256": str(sha256), "rows": int(rows)},
                int(row),
            ) if 0 <= row <= rows:
                return _FileReader(self, Part(path, size, sha256, "", BEFORE_ALL), row, rows)
        raise ConnectorError(
            f"split {split} at position {position!r} is not of a staged DataFrame; is the checkpoint of "
            f"another source?",
            split_id=split.split_id,
        )


def split_of(number: int, part: Part, rows: int) -> Split:
    """Return the split that a staged file is.

    Args:
        number: Of the file, within the source.
    """
    detail: dict[str, JSON] = {
        FILE: part.path,
        "size_bytes": part.size_bytes,
        "sha256": part.sha256,
        "rows": rows,
    }
    return Split(f"{number:06}", 0, detail, weight=max(1, part.size_bytes))


def empty_split() -> Split:
    """Return the split of a source that has no rows."""
    return Split("empty", 0, {"rows": 0})


def staged(
    batches: Iterator[Any],
    *,
    store_url: str,
    task: TaskId,
    epoch: Any,
    number: CheckpointId = BEFORE_ALL,
    file_bytes: int = FILE_BYTES,
) -> Iterator[tuple[Part, int]]:
    """Write Arrow batches into files of about `file_bytes`; yield each, durable by then, with its rows.

    Args:
        task: Whose files they are named after: the source, and the partition.
        number: What they are kept with: nothing, or the batch of a stream.

    Raises:
        StoreError: One can't be stored.
    """
    arrow, parquet = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
    store = open_store(store_url, create=False, inline_bytes=0)
    writer: Any = None
    rows = 0

    def finished() -> tuple[Part, int]:
        writer.close()
        return store.write_part(number, task, epoch, [end.getvalue().to_pybytes()]), rows

    for batch in batches:
        if not batch.num_rows:
            continue
        if writer is None:
            end, rows = arrow.BufferOutputStream(), 0
            writer = parquet.ParquetWriter(end, batch.schema, compression="zstd")
        writer.write_batch(batch)
        rows += batch.num_rows
        if end.tell() >= file_bytes:
            yield finished()
            writer = None
    if writer is not None:
        yield finished()


class _Nothing(SplitReader[Any]):
    position = 0
    lag = 0

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends

    def read(self, limit: int) -> Wait | EndOfSplit:
        return EndOfSplit() if self._ends else Wait(_WAIT_FOR_EVER_MS)


class _FileReader(SplitReader[Any]):
    """Fetches and decodes in a thread, a batch ahead."""

    def __init__(self, source: StagedRows, part: Part, position: int, rows: int) -> None:
        self._source = source
        self._part = part
        self._position = position
        self._rows = rows
        self._ahead = BatchesAhead(self._read(position))

    @property
    def position(self) -> JSON:
        return self._position

    @property
    def lag(self) -> int:
        return self._rows - self._position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        if self._position >= self._rows:
            return EndOfSplit() if self._source.ends else Wait(_WAIT_FOR_EVER_MS)
        some = self._ahead.take(limit)
        if isinstance(some, Wait):
            return some
        if some is None:
            raise ConnectorError(
                f"{self._part.path} has fewer than {self._rows} rows, and was staged with as many"
            )
        records = self._source.records(some)
        self._position += some.num_rows
        return records

    def close(self) -> None:
        self._ahead.close()

    def _read(self, position: int) -> Generator[Any, None, None]:
        """Yield record batches from row `position` on. Runs in the thread, all of it."""
        arrow, parquet = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
        try:
            data = open_store(self._source.store_url, create=False).read_part(self._part)
        except StoreError as error:
            raise ConnectorError(
                f"the rows that a DataFrame was staged in can't be read: {error}; they are deleted when no "
                f"checkpoint of their own job needs them",
                path=self._part.path,
            ) from error
        file = parquet.ParquetFile(arrow.BufferReader(data))
        yield from from_row(file.iter_batches(BATCH_ROWS, use_threads=False), position)
