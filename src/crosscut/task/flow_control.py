"""Who may send how much: the two ends of a channel, inside a worker and between two.

Each end owns its queue. A sender may have so much under way that its receiver has not processed.
So memory is bounded, and a slow receiver slows its senders down instead of filling up. Between workers
that is counted in bytes: the sending end has a credit, the receiving end gives it back as records are
processed or have gone to disk. Inside a worker batches are handed over by reference, and counted: the
receiving end says when the sender pauses.

Both are bounded by time as well: a barrier waits for the records in front of it, and a few kilobytes of them
may be the work of minutes. So a channel holds at most `rows_max` records, about what its receiver takes in
half a second (`Window`). A batch that is longer is cut.

Three rules keep it live:

* a barrier needs no credit: no backlog holds a checkpoint up for ever;
* a back edge never makes its sender wait: it spills to disk;
* where nothing waits in memory, at least three quarters of the credit have been given back, and `rows_max`
  is at least one record.

Nothing is sent here: the pool asks which items may leave, and sends them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from crosscut.errors import WireError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, Item

LOCAL_ITEMS_MAX = 4
"""Items that may wait in memory in a channel inside a worker before its sender has to pause."""

BACK_EDGE_ITEMS_MAX = 64
"""Items that may wait in memory in a back edge inside a worker before they are spilled."""

_GIVEN_AT_ONCE = 4
"""Credit goes back when it is a quarter of all: each time is a frame, which wakes the sender's worker up."""

WITHIN_NS = 500_000_000
"""A channel holds what its receiver takes in so long. A sender that reads on while a barrier is on its way,
and the batches that it has begun, add as much again."""

FIRST_ROWS = 16
"""Records that a channel may hold before anything is known of its receiver."""

ROWS_MAX = 1 << 40
"""Records, where time sets no bound."""

UNBOUNDED_BYTES = 1 << 60
"""Credit of a channel without flow control: all that it brings is wanted, and nothing waits behind it."""

_MEMORY_NS = 100_000_000
"""What was slower or faster before is forgotten in a few times as long."""

_SLICES = 2
"""A channel always holds so many of the slices that its receiver takes: with a high fixed cost a call, these
have to be large, and grow."""

_GROWTH = 4
"""By which a window grows at most at a time: little is known from a few records."""

_CHANGE = 2
"""By which it has to change before anybody is told."""


class Window:
    """How many records each input of a task may hold: what it takes within `WITHIN_NS`, by measured progress.

    No clock is read here: the runner of the task tells how long it took. That includes the time in which the
    worker did other work, and in which an output held the task up: a barrier waits for all of it.

    Args:
        channels: Inputs that share the time.
        is_bounded: False: time sets no bound.

    Attributes:
        rows_max: Records that each of the inputs may hold.
    """

    def __init__(self, channels: int, *, is_bounded: bool) -> None:
        self._channels = max(1, channels)
        self._is_bounded = is_bounded
        # Of the newest slices, up to `_MEMORY_NS` together, or of one that was longer.
        self._rows = self._ns = 0.0
        self.rows_max = first_rows(is_bounded=is_bounded)

    def took(self, rows: int, elapsed_ns: int, slice_rows: int) -> bool:
        """Note progress; return whether `rows_max` has changed.

        Args:
            rows: That were taken.
            elapsed_ns: Since the task took records last, if others waited then; else since it began.
            slice_rows: That the task takes at a time.
        """
        if not self._is_bounded:
            return False
        kept = max(0.0, min(1.0, (_MEMORY_NS - elapsed_ns) / self._ns)) if self._ns else 0.0
        self._rows = rows + kept * self._rows
        self._ns = elapsed_ns + kept * self._ns
        if not self._rows:
            # One record may take as long.
            if self._ns < WITHIN_NS:
                return False
            wanted = float(_SLICES * slice_rows)
        else:
            taken = self._rows * WITHIN_NS / self._ns if self._ns else float(ROWS_MAX)
            wanted = max(taken / self._channels, _SLICES * slice_rows)
        wanted = min(wanted, _GROWTH * self.rows_max, ROWS_MAX)
        if self.rows_max / _CHANGE < wanted < self.rows_max * _CHANGE:
            return False
        before, self.rows_max = self.rows_max, max(1, int(wanted))
        return self.rows_max != before


def first_rows(*, is_bounded: bool) -> int:
    """Return the records that a channel may hold at first."""
    return FIRST_ROWS if is_bounded else ROWS_MAX


@dataclass(frozen=True, slots=True)
class Credit:
    """What a receiver tells its sender in another worker.

    Attributes:
        size_bytes: Of batches that have been processed, or have gone to disk.
        rows: Records of those batches.
        rows_max: That may be under way from now on.
    """

    size_bytes: int
    rows: int
    rows_max: int


class SendingEnd:
    """The queue of items that are to leave on a channel, and the credit for them.

    Args:
        bytes_max: Of batches that may be under way to another worker. The last one may exceed it.

    Attributes:
        waiting: The items, in order; a barrier may overtake others.
        is_paused: The receiver, in the same worker, has enough for now.
        under_way_bytes: Of batches that have left, and for which no credit has come back.
        under_way_rows: Records of those batches.
        rows_max: That may be under way, by the receiver's last word.
    """

    def __init__(self, channel: ChannelId, bytes_max: int) -> None:
        self.waiting: deque[Item] = deque()
        self.is_paused = False
        self.under_way_bytes = self.under_way_rows = 0
        self.rows_max = first_rows(is_bounded=bytes_max < UNBOUNDED_BYTES)
        self._channel = channel
        self._bytes_max = bytes_max

    @property
    def is_clogged(self) -> bool:
        """Whether the task has to stop: it has made more than the channel takes."""
        return self.is_paused or bool(self.waiting)

    @property
    def is_used_up(self) -> bool:
        """Whether the credit is."""
        return self.under_way_bytes >= self._bytes_max or self.under_way_rows >= self.rows_max

    def leaving(self) -> Iterator[Item]:
        """Take the items that may leave now out of `waiting`, one by one; after each, call `sent`."""
        waiting = self.waiting
        while waiting and (not self.is_used_up or isinstance(waiting[0], Barrier)):
            item = waiting.popleft()
            if isinstance(item, Batch):
                room = self.rows_max - self.under_way_rows
                # A little too much is better than many small batches.
                if len(item) > room + self.rows_max // 4:
                    item, rest = item.split(room)
                    waiting.appendleft(rest)
            yield item

    def sent(self, size_bytes: int, rows: int = 0) -> None:
        """A batch of `size_bytes` has left; 0: something that needs no credit has."""
        self.under_way_bytes += size_bytes
        self.under_way_rows += rows

    def credited(self, credit: Credit) -> None:
        """The receiver gives credit back.

        Raises:
            WireError: It is more than is under way, or nothing may be from now on; nothing has changed.
        """
        if credit.size_bytes > self.under_way_bytes:
            raise WireError(
                f"channel {self._channel}: credit for {credit.size_bytes} of {self.under_way_bytes} bytes"
            )
        if credit.rows > self.under_way_rows:
            raise WireError(
                f"channel {self._channel}: credit for {credit.rows} of {self.under_way_rows} records"
            )
        if not credit.rows_max:
            raise WireError(f"channel {self._channel}: the receiver takes no records any more")
        self.under_way_bytes -= credit.size_bytes
        self.under_way_rows -= credit.rows
        self.rows_max = credit.rows_max


@dataclass(slots=True)
class _Arrived:
    rows: int
    size_bytes: int


class ReceivingEnd:
    """The queue at the end of a channel, and the limits of its sender.

    Args:
        queue: May hold records of a snapshot already: no credit is due for them.
        bytes_max: See the attribute.
        may_spill: Whether the channel may be spilled to disk now; a back edge always may.

    Attributes:
        bytes_max: The sender's credit.
        rows_max: Records that may wait, or be on their way here. Time sets no bound to a back edge: what it
            brings goes to disk.
    """

    def __init__(
        self, queue: InputQueue, bytes_max: int, may_spill: Callable[[], bool], *, is_back_edge: bool
    ) -> None:
        self.queue = queue
        self.bytes_max = bytes_max
        self._may_spill = may_spill
        self._is_back_edge = is_back_edge
        self._items_max = BACK_EDGE_ITEMS_MAX if is_back_edge else LOCAL_ITEMS_MAX
        self._is_pausing = False
        self.is_bounded = not is_back_edge and bytes_max < UNBOUNDED_BYTES
        self.rows_max = first_rows(is_bounded=self.is_bounded)
        # The sender knows of no other before it gets credit.
        self._rows_max_sent = first_rows(is_bounded=bytes_max < UNBOUNDED_BYTES)
        # Half of it: the sender must not have stopped before its credit is back.
        self._spill_from_bytes = bytes_max // 2
        self._give_from_bytes = bytes_max // _GIVEN_AT_ONCE
        # Records before those in the ledger: on disk, or restored.
        self._rows_ahead = queue.rows
        # Batches in memory without credit yet, in order.
        self._ledger: deque[_Arrived] = deque()
        self._ledger_rows = 0
        self._ledger_bytes = 0
        self._earned_bytes = self._earned_rows = 0

    def pauses_sender(self) -> bool:
        """Whether the sender, in the same worker, has to wait now.

        Raises:
            SpillError: It can't be written.
        """
        queue = self.queue
        items = queue.in_memory
        # Records on disk take no memory, and are there because their sender must not wait.
        rows = queue.rows if self.is_bounded and not queue.is_on_disk else 0
        is_much = items > self._items_max or rows > self.rows_max or self._is_pausing
        is_left = items > LOCAL_ITEMS_MAX // 2 or rows > self.rows_max // 2
        self._is_pausing = is_much and is_left and not self.spill()
        return self._is_pausing

    @property
    def uncredited_bytes(self) -> int:
        """Bytes for which the sender, in another worker, has no credit back yet."""
        return self._ledger_bytes + self._earned_bytes

    def arrived(self, rows: int, size_bytes: int) -> None:
        """A batch has come in from another worker, and is to wait in memory.

        One without records has its credit back with the records before it: its news becomes theirs in the
        queue, so of news there is never much.
        """
        self._ledger.append(_Arrived(rows, size_bytes))
        self._ledger_rows += rows
        self._ledger_bytes += size_bytes

    def credit(self) -> Credit | None:
        """Return the credit that goes back to another worker now, if any does.

        Raises:
            SpillError: It can't be written.
        """
        rows = self.queue.rows
        self._note_processed(self._rows_ahead + self._ledger_rows - rows)
        is_much = self._ledger_bytes >= self._spill_from_bytes or 2 * self._ledger_rows >= self._rows_max_sent
        if self._ledger and is_much and self.spill():
            self._rows_ahead = rows
            self._earned_bytes += self._ledger_bytes
            self._earned_rows += self._ledger_rows
            self._ledger.clear()
            self._ledger_rows = self._ledger_bytes = 0
        # By the bound that the sender knows: it may have stopped there.
        rows_max = min(self.rows_max, self._rows_max_sent)
        is_due = self._earned_bytes >= self._give_from_bytes or _GIVEN_AT_ONCE * self._earned_rows >= rows_max
        # A sender that was told of a larger window would fill it.
        is_above_limit = self.rows_max * _CHANGE <= self._rows_max_sent
        if not is_above_limit and not (is_due and (self._earned_bytes or self._earned_rows)):
            return None
        given = Credit(self._earned_bytes, self._earned_rows, self.rows_max)
        self._earned_bytes = self._earned_rows = 0
        self._rows_max_sent = self.rows_max
        return given

    def spill(self) -> bool:
        """Move the items in memory to disk, if this channel may do that now; return whether it did.

        Raises:
            SpillError: It can't be written.
        """
        return (self._is_back_edge or self._may_spill()) and self.queue.spill()

    def _note_processed(self, rows: int) -> None:
        ahead = min(rows, self._rows_ahead)
        self._rows_ahead -= ahead
        rows -= ahead
        self._ledger_rows -= rows
        self._earned_rows += rows
        ledger = self._ledger
        # A batch has been processed when its last record has: before, the rest is in memory.
        while ledger and not self._rows_ahead and ledger[0].rows <= rows:
            done = ledger.popleft()
            rows -= done.rows
            self._ledger_bytes -= done.size_bytes
            self._earned_bytes += done.size_bytes
        if rows:
            ledger[0].rows -= rows
