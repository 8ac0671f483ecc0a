"""The part of a snapshot that holds channel records.

It is the magic `XCL2` and a series of blocks: length of the header (4 bytes, big-endian), the header
(JSON: channel, rows, who sends it again), length of the batch (8 bytes), the batch as on the wire. (In
`XCL1` a channel was called by the place of its edge in the graph, which is another one after an edit.)

A queue spills in the same form. So a snapshot takes a backlog on disk as it is there: it notes the place,
and the bytes are copied when it is stored. Neither costs more memory or a longer stop with a longer backlog.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.task.items import LoggedBatch
from crosscut.task.spilling import SpillFile, SpillSpace
from crosscut.wire.batches import encode_batch

MAGIC = b"XCL2"
_OLD_MAGIC = b"XCL1"
LENGTHS = struct.Struct(">IQ")

MEMORY_BYTES_MAX = 4 * 1024 * 1024
"""Of one log in memory, and of one channel that is restored from it: the rest goes to disk."""

SLICE_BYTES = 1024 * 1024
"""That are copied at once."""


@dataclass(frozen=True, slots=True)
class SpilledBlocks:
    """Whole blocks that are in `file`, which is held for them, from `start` to `end`."""

    file: SpillFile
    start: int
    end: int
    rows: int

    def slices(self) -> Iterator[bytes]:
        """Yield their bytes."""
        for at in range(self.start, self.end, SLICE_BYTES):
            yield self.file.read(at, min(SLICE_BYTES, self.end - at))


Logged = LoggedBatch | SpilledBlocks


class SnapshotLog:
    """The channel records of one snapshot, in the order they are added.

    Args:
        space: Takes all beyond `MEMORY_BYTES_MAX`. None: memory takes all.
    """

    def __init__(self, space: SpillSpace | None = None) -> None:
        self._space = space
        self._entries: list[Logged] = []
        self._memory_bytes = 0
        self._file: SpillFile | None = None
        self._write_at = 0

    def add(self, channel: ChannelId, batch: Batch, *, by_sender: bool) -> None:
        """Add a batch as it is now: user code may change its records once they are processed."""
        logged = LoggedBatch(channel, encode_batch(batch), len(batch), by_sender)
        if self._space is None or self._memory_bytes + len(logged.data) <= MEMORY_BYTES_MAX:
            self._memory_bytes += len(logged.data)
            self._entries.append(logged)
        else:
            self._spill(self._space, logged)

    def add_blocks(self, blocks: SpilledBlocks) -> None:
        """Add blocks that a queue has spilled; the log holds them from now on."""
        self._entries.append(blocks)

    def take(self) -> tuple[Logged, ...]:
        """Return everything; the caller lets go of it with `release_log`."""
        entries, self._entries = tuple(self._entries), []
        return entries

    def _spill(self, space: SpillSpace, logged: LoggedBatch) -> None:
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, SpilledBlocks) or last.file is not self._file:
            # Blocks of a queue stand between: one more stretch of the log's own file, held once more.
            if self._file is None:
                self._file = space.new_file()
            else:
                self._file.hold()
            last = SpilledBlocks(self._file, self._write_at, self._write_at, 0)
            self._entries.append(last)
        block = b"".join(encoded_block(logged))
        last.file.write(self._write_at, block)
        self._write_at += len(block)
        self._entries[-1] = replace(last, end=self._write_at, rows=last.rows + logged.rows)


def release_log(log: Iterable[Logged]) -> None:
    """Let go of the files that are held for `log`."""
    for one in log:
        if isinstance(one, SpilledBlocks):
            one.file.release()


def encoded_block(logged: LoggedBatch) -> Sequence[bytes]:
    """Return one block, in pieces."""
    channel = logged.channel
    header = json.dumps(
        {
            "input": channel.input,
            "source": [channel.source.vertex, channel.source.index],
            "target": [channel.target.vertex, channel.target.index],
            "rows": logged.rows,
            "by_sender": logged.by_sender,
        }
    ).encode()
    return LENGTHS.pack(len(header), len(logged.data)), header, logged.data


def encoded_log(log: Iterable[Logged], note: Callable[[bytes], None] | None = None) -> Iterator[bytes]:
    """Yield the part, in pieces of bounded size: at most a batch, or `SLICE_BYTES`.

    Args:
        note: Called with each batch as it is in the part.

    Raises:
        SpillError: The records on disk can't be read.
    """
    yield MAGIC
    for one in log:
        if isinstance(one, SpilledBlocks):
            yield from one.slices() if note is None else _noted_slices(one, note)
        else:
            if note is not None:
                note(one.data)
            yield from encoded_block(one)


def _noted_slices(blocks: SpilledBlocks, note: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the slices of `blocks`, and call `note` with each batch as soon as all of it has been read."""
    unread = bytearray()
    for piece in blocks.slices():
        unread += piece
        at = 0
        while len(unread) >= at + LENGTHS.size:
            header_bytes, batch_bytes = LENGTHS.unpack_from(unread, at)
            begin = at + LENGTHS.size + header_bytes
            if len(unread) < begin + batch_bytes:
                break
            at = begin + batch_bytes
            note(bytes(unread[begin:at]))
        del unread[:at]
        yield piece


def decoded_log(data: bytes) -> list[LoggedBatch]:
    """Return the entries that `encoded_log` was given, in order.

    Raises:
        StateError: `data` is something else.
    """
    if data[: len(MAGIC)] == _OLD_MAGIC:
        raise StateError(
            "this checkpoint has a channel log (records that were on their way) of crosscut 0.1.0, in a form "
            "that this release does not read: let that release take one more checkpoint with "
            "snapshots='aligned' and outside of loops, or let it finish the job"
        )
    if data[: len(MAGIC)] != MAGIC:
        raise StateError(f"a channel log of {len(data)} bytes starts with {data[:4]!r}: expected {MAGIC!r}")
    log = []
    at = len(MAGIC)
    try:
        while at < len(data):
            header_bytes, batch_bytes = LENGTHS.unpack_from(data, at)
            at += LENGTHS.size
            header = json.loads(data[at : at + header_bytes])
            at += header_bytes
            channel = ChannelId(header["input"], _task(header["source"]), _task(header["target"]))
            batch = data[at : at + batch_bytes]
            if len(batch) < batch_bytes:
                raise ValueError(f"a batch of {batch_bytes} bytes is cut off after {len(batch)}")
            log.append(LoggedBatch(channel, batch, header["rows"], header["by_sender"]))
            at += batch_bytes
    except (struct.error, ValueError, KeyError, IndexError, TypeError) as error:
        raise StateError(f"a channel log of {len(data)} bytes is not readable: {error}") from error
    return log


def _task(named: list[Any]) -> TaskId:
    return TaskId(VertexId(named[0]), named[1])
