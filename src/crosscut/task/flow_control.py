"""Who may send how much: both ends of a channel, inside a worker and between two.

A sender may have so much under way that its receiver has not processed. So memory is bounded, and a slow
receiver slows its senders down instead of filling up. Between workers that is counted in bytes: the
sending end has a credit, the receiving end gives it back as records are processed or have gone to
disk. Inside a worker batches are handed over by reference, and counted: the receiving end says when the
sender pauses. Three rules keep it live:

* a barrier needs no credit: a checkpoint is never held up by what it waits for;
* a back edge never makes its sender wait: what is too much for memory goes to disk;
* where nothing waits in memory, all credit has been given back.

Nothing is sent, read or written here: whoever has the connections and the queues asks, and does so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from crosscut.errors import WireError
from crosscut.ids import ChannelId
from crosscut.task.items import Barrier, Item

LOCAL_ITEMS_MAX = 4
"""Items that may wait in memory in a channel inside a worker before its sender has to pause."""

BACK_EDGE_ITEMS_MAX = 64
"""Items that may wait in memory in a back edge inside a worker before they are spilled."""

_GIVEN_AT_ONCE = 4
"""Credit goes back when nothing waits, or when it is a quarter of all: each time is a frame of its own."""


class Credit:
    """What the sending end of a channel to another worker may still send.

    Args:
        bytes_max: Of batches that may be under way. The last one may exceed it.
    """

    def __init__(self, channel: ChannelId, bytes_max: int) -> None:
        self._channel = channel
        self._bytes_max = bytes_max
        self.under_way_bytes = 0

    @property
    def is_used_up(self) -> bool:
        """Whether records have to wait."""
        return self.under_way_bytes >= self._bytes_max

    def take(self, size_bytes: int) -> None:
        """A batch of `size_bytes` leaves."""
        self.under_way_bytes += size_bytes

    def give_back(self, size_bytes: int) -> bool:
        """The receiver gives credit back; return whether the sender had to wait and may go on.

        Raises:
            WireError: It is more than is under way; nothing has changed.
        """
        if size_bytes > self.under_way_bytes:
            raise WireError(
                f"channel {self._channel}: credit for {size_bytes} of {self.under_way_bytes} bytes"
            )
        was_used_up = self.is_used_up
        self.under_way_bytes -= size_bytes
        return was_used_up and not self.is_used_up


def leaving(waiting: deque[Item], is_full: Callable[[], bool]) -> Iterator[Item]:
    """Take what may leave now out of `waiting`, an item at a time."""
    while waiting and (isinstance(waiting[0], Barrier) or not is_full()):
        yield waiting.popleft()


class LocalFlow(Enum):
    """What the sender inside the same worker does."""

    GO_ON = "it may send"
    PAUSE = "it has to wait"
    AS_IT_IS = "it does what it did before"


class LocalReceiver:
    """The receiving end of a channel inside a worker.

    Args:
        spill: Moves what is in memory to disk, if this channel may do that now; returns whether it did.
    """

    def __init__(self, spill: Callable[[], bool], *, is_back_edge: bool) -> None:
        self._spill = spill
        self._items_max = BACK_EDGE_ITEMS_MAX if is_back_edge else LOCAL_ITEMS_MAX

    def look(self, items: int, *, is_paused: bool) -> LocalFlow:
        """Say what the sender does, now that so many `items` wait in memory.

        Raises:
            SpillError: It can't be written.
        """
        is_much = items > self._items_max or is_paused
        if items <= LOCAL_ITEMS_MAX // 2 or (is_much and self._spill()):
            return LocalFlow.GO_ON
        return LocalFlow.PAUSE if is_much else LocalFlow.AS_IT_IS


@dataclass(slots=True)
class _Arrived:
    rows: int
    size_bytes: int


class Receiver:
    """The receiving end of a channel from another worker.

    Args:
        bytes_max: The sender's credit.
        rows_ahead: Records that were there before the sender: a snapshot has held them. No credit waits
            for them.
        spill: Moves what is in memory to disk, if this channel may do that now; returns whether it did.
    """

    def __init__(self, bytes_max: int, rows_ahead: int, spill: Callable[[], bool]) -> None:
        # Half of it: what comes in while the credit is on its way must not find the sender stopped.
        self._spill_from_bytes = bytes_max // 2
        self._give_from_bytes = bytes_max // _GIVEN_AT_ONCE
        self._spill = spill
        # In front of what is in the ledger: on disk, or restored.
        self._rows_ahead = rows_ahead
        # What is in memory and has no credit yet, a batch an entry, in order.
        self._ledger: deque[_Arrived] = deque()
        self._ledger_rows = 0
        self._ledger_bytes = 0
        self._earned_bytes = 0

    @property
    def uncredited_bytes(self) -> int:
        """What the sender has no credit for again."""
        return self._ledger_bytes + self._earned_bytes

    def arrived(self, rows: int, size_bytes: int) -> None:
        """A batch has come in, and waits in memory."""
        self._ledger.append(_Arrived(rows, size_bytes))
        self._ledger_rows += rows
        self._ledger_bytes += size_bytes

    def credit(self, rows: int) -> int:
        """Return how many bytes of credit go back, now that so many `rows` wait in memory and on disk.

        Raises:
            SpillError: It can't be written.
        """
        self._note_processed(self._rows_ahead + self._ledger_rows - rows)
        if self._ledger and self._ledger_bytes >= self._spill_from_bytes and self._spill():
            self._rows_ahead = rows
            self._earned_bytes += self._ledger_bytes
            self._ledger.clear()
            self._ledger_rows = self._ledger_bytes = 0
        if self._ledger and self._earned_bytes < self._give_from_bytes:
            return 0
        given, self._earned_bytes = self._earned_bytes, 0
        return given

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
