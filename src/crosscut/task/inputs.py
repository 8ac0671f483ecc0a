"""Input queues of a task: in memory, and on disk where the sender must not be made to wait.

What is on disk lies behind what was in memory before it and in front of what has come since.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO

from crosscut.batch import Batch
from crosscut.errors import SpillError
from crosscut.ids import CheckpointId
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.wire.batches import decode_batch, encode_batch

SEGMENT_BYTES = 64 * 1024 * 1024
"""A file that is as long is not written any further, and given back when it has been read: else a queue
that is never quite empty would grow for ever."""

_HEADER = struct.Struct(">BQ")
_BATCH, _BARRIER, _END = range(3)


class SpillSpace:
    """Where queues spill to, and how much they may take there together.

    The files never have a name, so nothing is left of them, whatever ends the process.

    Args:
        directory: None: the system's directory for temporary files.
        bytes_max: A queue spills no more once so much is taken, so it is exceeded by what one queue
            holds in memory at most. None: no limit.
    """

    def __init__(self, directory: str | None = None, bytes_max: int | None = None) -> None:
        self._directory = directory or tempfile.gettempdir()
        self._bytes_max = bytes_max
        self.taken_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be spilled for now."""
        return self._bytes_max is not None and self.taken_bytes >= self._bytes_max

    def new_file(self) -> IO[bytes]:
        """Return an empty file without a name.

        Raises:
            SpillError: There can be none.
        """
        try:
            return tempfile.TemporaryFile(buffering=0, dir=self._directory)
        except OSError as error:
            raise self.failed("make a file", error) from error

    def failed(self, what: str, error: OSError) -> SpillError:
        """Return the error that says so."""
        return SpillError(
            f"can't {what} in {self._directory}, where channels spill what does not fit into memory: "
            f"{error}; make room there, set spill_dir to another directory, or lower spill_bytes",
            directory=self._directory,
        )


class _Segment:
    """One file of a queue."""

    def __init__(self, space: SpillSpace) -> None:
        self._space = space
        self._file = space.new_file()
        self.read_at = 0
        self.write_at = 0

    @property
    def is_read(self) -> bool:
        return self.read_at == self.write_at

    def append(self, chunks: Iterable[bytes]) -> int:
        """Write behind what is there; return how many bytes. If it raises, all is as before."""
        at = self.write_at
        try:
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    written = os.pwrite(self._file.fileno(), rest, at)
                    at, rest = at + written, rest[written:]
        except OSError as error:
            raise self._space.failed("write", error) from error
        size_bytes = at - self.write_at
        self._space.taken_bytes += size_bytes
        self.write_at = at
        return size_bytes

    def item(self, at: int) -> tuple[Item, int]:
        """Return the item at `at`, and where the next one is."""
        kind, number = _HEADER.unpack(self._bytes(at, _HEADER.size))
        at += _HEADER.size
        match kind:
            case 0:
                return decode_batch(self._bytes(at, number)), at + number
            case 1:
                return Barrier(CheckpointId(number)), at
            case _:
                return EndOfInput(), at

    def _bytes(self, at: int, count: int) -> bytes:
        try:
            data = os.pread(self._file.fileno(), count, at)
        except OSError as error:
            raise self._space.failed("read", error) from error
        if len(data) < count:
            raise self._space.failed("read", OSError(f"{len(data)} of {count} bytes at {at} are there"))
        return data

    def close(self) -> None:
        self._space.taken_bytes -= self.write_at
        self._file.close()


class InputQueue:
    """What waits in one input channel, in order. Small batches that wait one behind the other become one.

    Args:
        batch_rows: Records in a full batch.

    Attributes:
        rows: Records that wait, in memory and on disk.
        spilled_bytes: What was ever written to disk.
    """

    def __init__(self, space: SpillSpace | None = None, batch_rows: int = 0) -> None:
        self._space = space or SpillSpace()
        self._batch_rows = batch_rows
        self._head: deque[Item] = deque()
        self._segments: deque[_Segment] = deque()
        self._on_disk = 0
        # Barriers that were taken out of what is on disk; skipped when it is read.
        self._removed: set[Barrier] = set()
        # Behind what is on disk; empty when nothing is there.
        self._tail: deque[Item] = deque()
        self.rows = 0
        self.spilled_bytes = 0

    def __len__(self) -> int:
        return len(self._head) + self._on_disk + len(self._tail)

    def __iter__(self) -> Iterator[Item]:
        yield from self._head
        for segment in self._segments:
            at = segment.read_at
            while at < segment.write_at:
                item, at = segment.item(at)
                if item not in self._removed:
                    yield item
        yield from self._tail

    @property
    def in_memory(self) -> int:
        """How many of the items are in memory."""
        return len(self._head) + len(self._tail)

    def append(self, item: Item) -> None:
        """Add at the end."""
        part = self._tail if self._on_disk else self._head
        if isinstance(item, Batch):
            rows = len(item)
            self.rows += rows
            if part and isinstance(last := part[-1], Batch) and len(last) + rows <= self._batch_rows:
                # An operator that has a fixed cost a call then has fewer calls.
                last.extend(item)
                return
        part.append(item)

    def appendleft(self, item: Item) -> None:
        """Put an item, or the rest of one, back."""
        self.rows += _rows(item)
        self._head.appendleft(item)

    def popleft(self) -> Item:
        """Take the first item.

        Raises:
            IndexError: There is none.
            SpillError: It can't be read from disk.
        """
        item = self._head.popleft() if self._head or not self._on_disk else self._read()
        self.rows -= _rows(item)
        return item

    def remove(self, barrier: Barrier) -> None:
        """Take a barrier out, which has to be there."""
        for part in (self._head, self._tail):
            if barrier in part:
                part.remove(barrier)
                return
        self._removed.add(barrier)
        self._on_disk -= 1
        self._give_back()

    def spill(self) -> bool:
        """Move what is in memory behind what is on disk; return False if the space for that is used up.

        Raises:
            SpillError: It can't be written; the queue is as before.
            WireError: A record can't be pickled; likewise.
        """
        if self._space.is_full:
            return False
        items = self._tail if self._on_disk else self._head
        if not items:
            return True
        if not self._segments or self._segments[-1].write_at >= SEGMENT_BYTES:
            self._segments.append(_Segment(self._space))
        self.spilled_bytes += self._segments[-1].append(map(_encoded, items))
        self._on_disk += len(items)
        items.clear()
        return True

    def close(self) -> None:
        """Give the disk space back."""
        while self._segments:
            self._segments.popleft().close()

    def _read(self) -> Item:
        while True:
            segment = self._segments[0]
            item, segment.read_at = segment.item(segment.read_at)
            if segment.is_read and len(self._segments) > 1:
                self._segments.popleft().close()
            if item in self._removed:
                self._removed.remove(item)
                continue
            self._on_disk -= 1
            self._give_back()
            return item

    def _give_back(self) -> None:
        """Give the disk back once nothing of it is needed."""
        if not self._on_disk:
            self.close()
            self._removed.clear()
            self._head.extend(self._tail)
            self._tail.clear()


def _rows(item: Item) -> int:
    return len(item) if isinstance(item, Batch) else 0


def _encoded(item: Item) -> bytes:
    match item:
        case Batch():
            data = encode_batch(item)
            return _HEADER.pack(_BATCH, len(data)) + data
        case Barrier(checkpoint_id):
            return _HEADER.pack(_BARRIER, checkpoint_id)
        case EndOfInput():
            return _HEADER.pack(_END, 0)
