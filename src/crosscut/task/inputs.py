"""Input queues of a task: in memory, and on disk where the sender must not be made to wait.

Items on disk come after those that were in memory before them, and before those that have come since. A file
holds batches alone, as a channel log does; the places of barriers are kept in memory. So a snapshot that
must hold a backlog refers to the file, and reads nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from crosscut.errors import invariant
from crosscut.foundation.batch import Batch
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId
from crosscut.task.channel_log import LENGTHS, MEMORY_BYTES_MAX, SpilledBlocks, encoded_block
from crosscut.task.items import Barrier, EndOfInput, Item, LoggedBatch
from crosscut.task.spilling import SpillFile, SpillSpace
from crosscut.wire.batches import decode_batch, encode_batch

SEGMENT_BYTES = 64 * 1024 * 1024
"""A file that is as long is not written any further, and given back when it has been read: else a queue
that is never quite empty would grow for ever."""


_FULL_ENOUGH = 0.75
"""Of a full batch: once it is so full, no other batch is cut to fill it."""


@dataclass(frozen=True, slots=True)
class _Control:
    """An item at `at` between two batches, after `rows` records of its file."""

    item: Barrier | EndOfInput
    at: int
    rows: int


class _Segment:
    """One file of a queue."""

    def __init__(self, file: SpillFile) -> None:
        self.file = file
        self.read_at = self.write_at = 0
        self.rows_read = self.rows_written = 0
        self.controls: deque[_Control] = deque()

    @property
    def is_read(self) -> bool:
        return self.read_at == self.write_at and not self.controls

    def append(self, channel: ChannelId, items: Sequence[Item]) -> int:
        """Write at the end; return how many bytes. If it raises, all is as before."""
        at, rows, controls = self.write_at, self.rows_written, []
        for item in items:
            if isinstance(item, Batch):
                logged = LoggedBatch(channel, encode_batch(item), len(item), by_sender=False)
                at = self._write(at, logged)
                rows += len(item)
            else:
                controls.append(_Control(item, at, rows))
        size_bytes = at - self.write_at
        self.write_at, self.rows_written = at, rows
        self.controls += controls
        return size_bytes

    def append_logged(self, logged: LoggedBatch) -> int:
        """As `append`, of an encoded batch."""
        before = self.write_at
        self.write_at = self._write(before, logged)
        self.rows_written += logged.rows
        return self.write_at - before

    def _write(self, at: int, logged: LoggedBatch) -> int:
        block = b"".join(encoded_block(logged))
        self.file.write(at, block)
        return at + len(block)

    @property
    def next_control(self) -> Barrier | EndOfInput | None:
        """The next item, if it is no batch."""
        return self.controls[0].item if self.controls and self.controls[0].at == self.read_at else None

    def pop(self) -> Item:
        if (item := self.next_control) is not None:
            self.controls.popleft()
            return item
        header_bytes, batch_bytes = LENGTHS.unpack(self.file.read(self.read_at, LENGTHS.size))
        at = self.read_at + LENGTHS.size + header_bytes
        batch = decode_batch(self.file.read(at, batch_bytes))
        self.read_at = at + batch_bytes
        self.rows_read += len(batch)
        return batch

    def control(self, barrier: Barrier) -> _Control | None:
        return next((control for control in self.controls if control.item == barrier), None)

    def blocks(self, until: _Control | None) -> SpilledBlocks:
        """Return the blocks that have not been read yet, up to `until`, held for the caller."""
        end, rows = (self.write_at, self.rows_written) if until is None else (until.at, until.rows)
        self.file.hold()
        return SpilledBlocks(self.file, self.read_at, end, rows - self.rows_read)


class InputQueue:
    """The items that wait in one input channel, in order. Small batches that follow each other become one.

    Args:
        space: Where it may spill to. None: nowhere.
        batch_rows: Records in a full batch.

    Attributes:
        rows: Records that wait, in memory and on disk.
        spilled_bytes: Bytes that were ever written to disk.
    """

    def __init__(self, channel: ChannelId, space: SpillSpace | None = None, batch_rows: int = 0) -> None:
        self.channel = channel
        self._space = space
        self._batch_rows = batch_rows
        self._head: deque[Item] = deque()
        self._segments: deque[_Segment] = deque()
        self._on_disk = 0
        # Items after those on disk; empty when nothing is there.
        self._tail: deque[Item] = deque()
        self._restored_bytes = 0
        self.rows = 0
        self.spilled_bytes = 0

    def __len__(self) -> int:
        return len(self._head) + self._on_disk + len(self._tail)

    def __contains__(self, barrier: Barrier) -> bool:
        return (
            barrier in self._head
            or barrier in self._tail
            or any(segment.control(barrier) is not None for segment in self._segments)
        )

    def in_front_of(self, barrier: Barrier) -> Iterator[Batch | SpilledBlocks]:
        """Yield the records that wait in front of `barrier`, or all if it does not wait here.

        Items on disk are not read; they are held for the caller.
        """
        for item in self._head:
            if item == barrier:
                return
            if isinstance(item, Batch):
                yield item
        for segment in self._segments:
            control = segment.control(barrier)
            if (segment.write_at if control is None else control.at) > segment.read_at:
                yield segment.blocks(control)
            if control is not None:
                return
        for item in self._tail:
            if item == barrier:
                return
            if isinstance(item, Batch):
                yield item

    @property
    def holds_barrier(self) -> bool:
        """Whether a barrier waits here."""
        if any(segment.controls for segment in self._segments):
            return True
        return any(isinstance(item, Barrier) for items in (self._head, self._tail) for item in items)

    @property
    def begins_with_barrier(self) -> bool:
        """Whether the first item is a barrier."""
        if self._head or not self._on_disk:
            return bool(self._head) and isinstance(self._head[0], Barrier)
        return isinstance(self._segments[0].next_control, Barrier)

    @property
    def in_memory(self) -> int:
        """How many of the items are in memory."""
        return len(self._head) + len(self._tail)

    @property
    def is_on_disk(self) -> bool:
        """Whether an item is on disk."""
        return self._on_disk > 0

    @property
    def items(self) -> tuple[Item, ...]:
        """The items, in order. None of them may be on disk."""
        invariant(not self._on_disk, f"items of {self.channel} are on disk")
        return tuple(self._head)

    @property
    def newest_rows(self) -> int:
        """How many of the records are in memory, with nothing on disk after them, and were never on disk."""
        if self._on_disk:
            return sum(map(_rows, self._tail))
        # The first item may be the rest of one that was.
        return sum(map(_rows, list(self._head)[1 if self.spilled_bytes else 0 :]))

    def append(self, item: Item) -> None:
        """Add at the end."""
        part = self._tail if self._on_disk else self._head
        if isinstance(item, Batch):
            rows = len(item)
            self.rows += rows
            if part and isinstance(last := part[-1], Batch) and _fit(last, item, self._batch_rows):
                # An operator that has a fixed cost a call then has fewer calls.
                last.extend(item)
                return
        part.append(item)

    def restore(self, logged: LoggedBatch) -> None:
        """Add a batch that a snapshot holds of this channel, before anything else comes.

        Raises:
            SpillError: It can't be written.
            WireError: It can't be decoded.
        """
        self._restored_bytes += len(logged.data)
        fits = self._restored_bytes <= MEMORY_BYTES_MAX
        if self._space is None or (not self._on_disk and (fits or self._space.is_full)):
            self.append(decode_batch(logged.data))
            return
        self.spilled_bytes += self._writable(self._space).append_logged(logged)
        self.rows += logged.rows
        self._on_disk += 1

    def restore_replay_marker(self, marker: Barrier) -> None:
        """Add a replay marker after the items restored so far."""
        if self._on_disk:
            segment = self._segments[-1]
            segment.controls.append(_Control(marker, segment.write_at, segment.rows_written))
            self._on_disk += 1
        else:
            self._head.append(marker)

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

    def take(self, rows_max: int, whole_max: int = 0) -> Item:
        """Take the first item, of at most `rows_max` records; partial batches in memory make a full one.

        A batch of up to `whole_max` is not cut: what a shuffle sends is seldom just as long as a full one.

        An operator that has a fixed cost a call then has fewer calls: the rest of a batch is not a call of
        its own.

        Raises:
            IndexError: There is none.
            SpillError: It can't be read from disk.
        """
        item = self.popleft()
        if not isinstance(item, Batch):
            return item
        if len(item) > max(rows_max, whole_max):
            item, rest = item.split(rows_max)
            self.appendleft(rest)
            return item
        full = min(rows_max, self._batch_rows)
        while len(item) < _FULL_ENOUGH * full and self._head and isinstance(more := self._head[0], Batch):
            if type(more) is not type(item):
                break
            self.popleft()
            room = full - len(item)
            if len(more) > max(room, whole_max - len(item)):
                more, rest = more.split(room)
                self.appendleft(rest)
            item.extend(more)
        return item

    def remove(self, barrier: Barrier) -> None:
        """Take out a barrier, which must be there."""
        for part in (self._head, self._tail):
            if barrier in part:
                part.remove(barrier)
                return
        for segment in self._segments:
            if (control := segment.control(barrier)) is not None:
                segment.controls.remove(control)
                self._on_disk -= 1
                self._give_back()
                return
        raise ValueError(f"{barrier} is not in the queue of {self.channel}")

    def spill(self) -> bool:
        """Move the items in memory to the end of those on disk; return False if there is no space.

        Raises:
            SpillError: It can't be written; the queue is as before.
            WireError: A record can't be pickled; as above.
        """
        if self._space is None or self._space.is_full:
            return False
        items = self._tail if self._on_disk else self._head
        if not items:
            return True
        self.spilled_bytes += self._writable(self._space).append(self.channel, items)
        self._on_disk += len(items)
        items.clear()
        return True

    def close(self) -> None:
        """Give the disk space back."""
        while self._segments:
            self._segments.popleft().file.release()

    def _writable(self, space: SpillSpace) -> _Segment:
        if not self._segments or self._segments[-1].write_at >= SEGMENT_BYTES:
            self._segments.append(_Segment(space.new_file()))
        return self._segments[-1]

    def _read(self) -> Item:
        item = self._segments[0].pop()
        self._on_disk -= 1
        self._give_back()
        return item

    def _give_back(self) -> None:
        """Give back each file of which nothing is needed."""
        while self._segments and self._segments[0].is_read and (len(self._segments) > 1 or not self._on_disk):
            self._segments.popleft().file.release()
        if not self._on_disk:
            self._head.extend(self._tail)
            self._tail.clear()


def _fit(batch: Batch, more: Batch, rows_max: int) -> bool:
    """Whether both can be one batch. After a start from another protocol, records without numbers may wait in
    front of those that have some."""
    return len(batch) + len(more) <= rows_max and type(batch) is type(more)


def _rows(item: Item) -> int:
    return len(item) if isinstance(item, Batch) else 0
