"""The outputs of a task: each picks a channel for a record, and buffers it there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from crosscut.errors import FlowError
from crosscut.foundation.batch import Batch, LatencyMarker
from crosscut.foundation.ids import ChannelId
from crosscut.foundation.keys import KeyRouter
from crosscut.graph.specs import Partitioning, SideOutput
from crosscut.operators.operator import user_code_error


class Output(ABC):
    """One outgoing edge of a task: its channels, by target index, and a buffer for each.

    A channel's buffer holds records in the order they were added: FIFO starts here. News of event time
    waits until they leave, so it makes no batch smaller, and then goes to every channel.

    Attributes:
        side: The side output that leaves there; None: the results of the last operator.
        copies: Whether each channel gets all records.
        added_rows: Records that were added, in this epoch.
    """

    side: SideOutput | None = None
    copies = False

    def __init__(self, channels: tuple[ChannelId, ...], batch_rows: int) -> None:
        self.channels = channels
        self._batch_rows = batch_rows
        self.buffered_rows = self.added_rows = 0
        self._news: Batch | None = None
        self._marker: LatencyMarker | None = None
        self._next_marked = 0
        # A buffer for each channel, beside that of its records; None if they have no event time.
        self._timestamps: list[list[int]] | None = None

    @property
    def has_buffered(self) -> bool:
        """Whether something waits."""
        return bool(self.buffered_rows) or self._news is not None or self._marker is not None

    def add_marker(self, marker: LatencyMarker) -> None:
        """Let `marker` follow what has been added, to one channel: they have it in turn."""
        self._marker = self._marker or marker

    def add(self, batch: Batch) -> bool:
        """Take the batch in; return whether a buffer is full."""
        if batch.has_news:
            if self._news is None:
                self._news = Batch([])
            self._news.add_news(batch.watermark, idle=batch.idle)
        self.added_rows += len(batch.records)
        return bool(batch.records) and self._add(batch)

    @abstractmethod
    def _add(self, batch: Batch) -> bool:
        """Take the records in; return whether a buffer is full."""

    def take(self) -> list[tuple[ChannelId, Batch]]:
        """Return everything buffered, in batches of bounded size, and empty the buffers."""
        taken = self._take()
        if self._news is not None:
            taken = self._with_news(taken, self._news)
            self._news = None
        if self._marker is not None:
            taken = self._with_marker(taken, self._marker)
            self._marker = None
        for _, batch in taken:
            if len(batch) > 2 * self._batch_rows:
                return [(channel, piece) for channel, one in taken for piece in pieces(one, self._batch_rows)]
        return taken

    def _timestamp_buffers(self) -> list[list[int]]:
        if self._timestamps is None:
            self._timestamps = [[] for _ in self.channels]
        return self._timestamps

    def _take_timestamps(self) -> Sequence[list[int] | None]:
        """Return the timestamps of each channel's records, and empty their buffers."""
        taken, self._timestamps = self._timestamps, None
        return [None for _ in self.channels] if taken is None else taken

    def _with_news(self, taken: list[tuple[ChannelId, Batch]], news: Batch) -> list[tuple[ChannelId, Batch]]:
        """Let `news` follow the records of each channel, also where there are none."""
        batches = dict(taken)
        addressed = [(channel, batches.get(channel) or Batch([])) for channel in self.channels]
        for _, batch in addressed:
            batch.add_news(news.watermark, idle=news.idle)
        return addressed

    def _with_marker(
        self, taken: list[tuple[ChannelId, Batch]], marker: LatencyMarker
    ) -> list[tuple[ChannelId, Batch]]:
        """Let `marker` follow the records of the next channel, also if there are none."""
        marked = self.channels[self._next_marked % len(self.channels)]
        self._next_marked += 1
        batch = dict(taken).get(marked)
        if batch is None:
            batch = Batch([])
            taken = [*taken, (marked, batch)]
        batch.marker = marker
        return taken

    @abstractmethod
    def _take(self) -> list[tuple[ChannelId, Batch]]:
        """Return everything buffered, at most one batch for each channel, and empty the buffers."""


def pieces(batch: Batch, rows: int) -> Iterator[Batch]:
    """Yield `batch`, cut up if it is far longer than `rows`: one record may have become millions."""
    if len(batch) <= 2 * rows:
        yield batch
        return
    for start in range(0, len(batch), rows):
        piece = batch.part(start, start + rows)
        if start + rows >= len(batch):
            piece.add_news(batch.watermark, idle=batch.idle)
            piece.marker = batch.marker
        yield piece


class _Lists(Output):
    """Records without keys: a list for each channel."""

    def __init__(self, channels: tuple[ChannelId, ...], batch_rows: int) -> None:
        super().__init__(channels, batch_rows)
        self._buffers: list[list[Any]] = [[] for _ in channels]

    def _take(self) -> list[tuple[ChannelId, Batch]]:
        timestamps = self._take_timestamps()
        taken = [
            (channel, Batch(buffer, None, stamps))
            for channel, buffer, stamps in zip(self.channels, self._buffers, timestamps, strict=True)
            if buffer
        ]
        self._buffers = [[] for _ in self.channels]
        self.buffered_rows = 0
        return taken


class Broadcast(_Lists):
    """Every record to every channel; with a single channel, this is `forward`."""

    copies = True

    def _add(self, batch: Batch) -> bool:
        for buffer in self._buffers:
            buffer.extend(batch.records)
        if batch.timestamps is not None:
            for stamps in self._timestamp_buffers():
                stamps.extend(batch.timestamps)
        self.buffered_rows += len(batch)
        return self.buffered_rows >= self._batch_rows


class Rebalance(_Lists):
    """Batches to the channels in turn; each task starts at its own offset, so that all get some."""

    def __init__(self, channels: tuple[ChannelId, ...], batch_rows: int, first: int) -> None:
        super().__init__(channels, batch_rows)
        self._next = first % len(channels)

    def _add(self, batch: Batch) -> bool:
        self._buffers[self._next].extend(batch.records)
        if batch.timestamps is not None:
            self._timestamp_buffers()[self._next].extend(batch.timestamps)
        self.buffered_rows += len(batch)
        is_full = len(self._buffers[self._next]) >= self._batch_rows
        self._next = (self._next + 1) % len(self.channels)
        return is_full


class ByKey(Output):
    """Each record to the owner of its key's group.

    Args:
        key_by_uid: The operator that made the keys, to be named if one is no key.
    """

    def __init__(
        self, channels: tuple[ChannelId, ...], batch_rows: int, router: KeyRouter, key_by_uid: str
    ) -> None:
        super().__init__(channels, batch_rows)
        self._router = router
        self._key_by_uid = key_by_uid
        self._clear()

    def _clear(self) -> None:
        self._keys: list[list[Any]] = [[] for _ in self.channels]
        self._records: list[list[Any]] = [[] for _ in self.channels]
        self._is_keys_only = False
        self.buffered_rows = 0

    def _add(self, batch: Batch) -> bool:
        keys = batch.keys
        if keys is None:
            raise TypeError(f"operator {self._key_by_uid!r} gave no keys")
        try:
            # Every key is judged before the first record is added: a failure leaves no half a batch.
            owners = self._router.owners(keys)
        except FlowError as error:
            raise self._not_a_key(error, batch, keys) from error
        if keys is batch.records:
            self._is_keys_only = True
        else:
            _put(self._records, owners, batch.records)
        _put(self._keys, owners, keys)
        if batch.timestamps is not None:
            _put(self._timestamp_buffers(), owners, batch.timestamps)
        self.buffered_rows += len(keys)
        return self.buffered_rows >= self._batch_rows * len(self.channels)

    def _take(self) -> list[tuple[ChannelId, Batch]]:
        records = self._keys if self._is_keys_only else self._records
        timestamps = self._take_timestamps()
        taken = [
            (channel, Batch(some_records, keys, stamps))
            for channel, some_records, keys, stamps in zip(
                self.channels, records, self._keys, timestamps, strict=True
            )
            if keys
        ]
        self._clear()
        return taken

    def _not_a_key(self, error: FlowError, batch: Batch, keys: list[Any]) -> Exception:
        for key, record in zip(keys, batch.records, strict=True):
            try:
                self._router.owners([key])
            except FlowError as blamed:
                return user_code_error(self._key_by_uid, blamed, record)
        return error


def _put(buffers: list[list[Any]], owners: list[int], values: list[Any]) -> None:
    for owner, value in zip(owners, values, strict=True):
        # Not a bound `append` of each buffer: the interpreter has an instruction for this.
        buffers[owner].append(value)


def build_output(
    partitioning: Partitioning,
    channels: tuple[ChannelId, ...],
    *,
    batch_rows: int,
    router: KeyRouter,
    key_by_uid: str,
    task_index: int,
    side: SideOutput | None = None,
) -> Output:
    """Return the output for one edge."""
    output: Output
    match partitioning:
        case "forward" | "broadcast":
            output = Broadcast(channels, batch_rows)
        case "rebalance":
            output = Rebalance(channels, batch_rows, task_index)
        case "hash":
            output = ByKey(channels, batch_rows, router, key_by_uid)
    output.side = side
    return output
