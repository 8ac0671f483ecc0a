"""Who may send how much: the two ends of a channel, inside a worker and between two.

Each end owns its queue. A sender may have so much under way that its receiver has not processed.
So memory is bounded, and a slow receiver slows its senders down instead of filling up. Between workers
that is counted in bytes: the sending end has a credit, the receiving end gives it back as records are
processed or have gone to disk. Inside a worker batches are handed over by reference, and counted: the
receiving end says when the sender pauses. Three rules keep it live:

* a barrier needs no credit: no backlog holds a checkpoint up for ever;
* a back edge never makes its sender wait: it spills to disk;
* where nothing waits in memory, all credit has been given back.

Nothing is sent here: the pool asks which items may leave, and sends them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from crosscut.errors import WireError
from crosscut.frozen import dataclass
from crosscut.ids import ChannelId
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, Item

LOCAL_ITEMS_MAX = 4
"""Items that may wait in memory in a channel inside a worker before its sender has to pause."""

BACK_EDGE_ITEMS_MAX = 64
"""Items that may wait in memory in a back edge inside a worker before they are spilled."""

_GIVEN_AT_ONCE = 4
"""Credit goes back when nothing waits, or when it is a quarter of all: each time is a frame of its own."""


class SendingEnd:
    """The queue of items that are to leave on a channel, and the credit for them.

    Args:
        bytes_max: Of batches that may be under way to another worker. The last one may exceed it.

    Attributes:
        waiting: The items, in order; a barrier may overtake others.
        is_paused: The receiver, in the same worker, has enough for now.
        under_way_bytes: Of batches that have left, and for which no credit has come back.
    """

    def __init__(self, channel: ChannelId, bytes_max: int) -> None:
        self.waiting: deque[Item] = deque()
        self.is_paused = False
        self.under_way_bytes = 0
        self._channel = channel
        self._bytes_max = bytes_max

    @property
    def is_clogged(self) -> bool:
        """Whether the task has to stop: it has made more than the channel takes."""
        return self.is_paused or bool(self.waiting)

    @property
    def is_used_up(self) -> bool:
        """Whether the credit is."""
        return self.under_way_bytes >= self._bytes_max

    def leaving(self) -> Iterator[Item]:
        """Take the items that may leave now out of `waiting`, one by one; after each, call `sent`."""
        waiting = self.waiting
        while waiting and (not self.is_used_up or isinstance(waiting[0], Barrier)):
            yield waiting.popleft()

    def sent(self, size_bytes: int) -> None:
        """A batch of `size_bytes` has left; 0: something that needs no credit has."""
        self.under_way_bytes += size_bytes

    def credited(self, size_bytes: int) -> None:
        """The receiver gives credit back.

        Raises:
            WireError: It is more than is under way; nothing has changed.
        """
        if size_bytes > self.under_way_bytes:
            raise WireError(
                f"channel {self._channel}: credit for {size_bytes} of {self.under_way_bytes} bytes"
            )
        self.under_way_bytes -= size_bytes


@dataclass(slots=True)
class _Arrived:
    rows: int
    size_bytes: int


class ReceivingEnd:
    """The queue at the end of a channel, and the limits of its sender.

    Args:
        queue: May hold records of a snapshot already: no credit is due for them.
        bytes_max: The sender's credit.
        may_spill: Whether the channel may be spilled to disk now; a back edge always may.
    """

    def __init__(
        self, queue: InputQueue, bytes_max: int, may_spill: Callable[[], bool], *, is_back_edge: bool
    ) -> None:
        self.queue = queue
        self._may_spill = may_spill
        self._is_back_edge = is_back_edge
        self._items_max = BACK_EDGE_ITEMS_MAX if is_back_edge else LOCAL_ITEMS_MAX
        self._is_pausing = False
        # Half of it: the sender must not have stopped before its credit is back.
        self._spill_from_bytes = bytes_max // 2
        self._give_from_bytes = bytes_max // _GIVEN_AT_ONCE
        # Records before those in the ledger: on disk, or restored.
        self._rows_ahead = queue.rows
        # Batches in memory without credit yet, in order.
        self._ledger: deque[_Arrived] = deque()
        self._ledger_rows = 0
        self._ledger_bytes = 0
        self._earned_bytes = 0

    def pauses_sender(self) -> bool:
        """Whether the sender, in the same worker, has to wait now.

        Raises:
            SpillError: It can't be written.
        """
        items = self.queue.in_memory
        is_much = items > self._items_max or self._is_pausing
        self._is_pausing = is_much and items > LOCAL_ITEMS_MAX // 2 and not self.spill()
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

    def credit(self) -> int:
        """Return how many bytes of credit go back to another worker now.

        Raises:
            SpillError: It can't be written.
        """
        rows = self.queue.rows
        self._note_processed(self._rows_ahead + self._ledger_rows - rows)
        if self._ledger and self._ledger_bytes >= self._spill_from_bytes and self.spill():
            self._rows_ahead = rows
            self._earned_bytes += self._ledger_bytes
            self._ledger.clear()
            self._ledger_rows = self._ledger_bytes = 0
        if self._ledger and self._earned_bytes < self._give_from_bytes:
            return 0
        given, self._earned_bytes = self._earned_bytes, 0
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
        ledger = self._ledger
        # A batch has been processed when its last record has: before, the rest is in memory.
        while ledger and not self._rows_ahead and ledger[0].rows <= rows:
            done = ledger.popleft()
            rows -= done.rows
            self._ledger_bytes -= done.size_bytes
            self._earned_bytes += done.size_bytes
        if rows:
            ledger[0].rows -= rows
