"""Input queues of a task. A back edge's spills to disk, so that a full loop can't wait for itself."""

from __future__ import annotations

import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import IO, Protocol

from crosscut.batch import Batch
from crosscut.ids import CheckpointId
from crosscut.runtime.items import Barrier, EndOfInput, Item
from crosscut.wire.batches import decode_batch, encode_batch

MEMORY_ITEMS_MAX = 64
_HEADER = struct.Struct(">BQ")
_BATCH, _BARRIER, _END = range(3)


class ItemQueue(Protocol):
    """What waits in one input channel, in order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item]: ...

    def append(self, item: Item, /) -> None: ...

    def appendleft(self, item: Item, /) -> None: ...

    def popleft(self) -> Item: ...

    def remove(self, item: Item, /) -> None: ...


class SpillingQueue:
    """A queue of which at most the first `MEMORY_ITEMS_MAX` items are in memory.

    The rest is in an unnamed temporary file, which is cut off whenever it has been read to its end.
    """

    def __init__(self) -> None:
        self._head: deque[Item] = deque()
        self._file: IO[bytes] | None = None
        self._read_at = 0
        self._write_at = 0
        self._spilled_count = 0
        self._removed: list[Item] = []

    def __len__(self) -> int:
        return len(self._head) + self._spilled_count

    def append(self, item: Item) -> None:
        """Add at the end: to the file, once there is something in it."""
        if not self._spilled_count and len(self._head) < MEMORY_ITEMS_MAX:
            self._head.append(item)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="crosscut-spill-")  # noqa: SIM115 - closed by `close`
        data = _encoded(item)
        self._file.seek(self._write_at)
        self._file.write(data)
        self._write_at += len(data)
        self._spilled_count += 1

    def appendleft(self, item: Item) -> None:
        """Put an item, or the rest of one, back."""
        self._head.appendleft(item)

    def popleft(self) -> Item:
        """Take the first item."""
        if not self._head:
            self._refill()
        return self._head.popleft()

    def remove(self, item: Item) -> None:
        """Remove the first item that equals `item`."""
        if item in self._head:
            self._head.remove(item)
            return
        self._removed.append(item)
        self._spilled_count -= 1
        if not self._spilled_count:
            self._truncate()

    def __iter__(self) -> Iterator[Item]:
        yield from self._head
        removed = list(self._removed)
        at = self._read_at
        while at < self._write_at:
            item, at = self._read(at)
            if item in removed:
                removed.remove(item)
            else:
                yield item

    def close(self) -> None:
        """Give the disk space back."""
        if self._file is not None:
            self._file.close()

    def _refill(self) -> None:
        while self._spilled_count and len(self._head) < MEMORY_ITEMS_MAX:
            item, self._read_at = self._read(self._read_at)
            if item in self._removed:
                self._removed.remove(item)
                continue
            self._head.append(item)
            self._spilled_count -= 1
        if not self._spilled_count:
            self._truncate()

    def _truncate(self) -> None:
        self._read_at = self._write_at = 0
        self._removed.clear()
        if self._file is not None:
            self._file.truncate(0)

    def _read(self, at: int) -> tuple[Item, int]:
        if self._file is None:
            raise IndexError("nothing is spilled")
        self._file.seek(at)
        kind, number = _HEADER.unpack(self._file.read(_HEADER.size))
        at += _HEADER.size
        match kind:
            case 0:
                return decode_batch(self._file.read(number)), at + number
            case 1:
                return Barrier(CheckpointId(number)), at
            case _:
                return EndOfInput(), at


def _encoded(item: Item) -> bytes:
    match item:
        case Batch():
            data = encode_batch(item)
            return _HEADER.pack(_BATCH, len(data)) + data
        case Barrier(checkpoint_id):
            return _HEADER.pack(_BARRIER, checkpoint_id)
        case EndOfInput():
            return _HEADER.pack(_END, 0)
