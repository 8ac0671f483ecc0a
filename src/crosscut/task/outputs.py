"""The outputs of a task: which record goes into which channel, and what waits there to be sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from crosscut.batch import Batch
from crosscut.errors import FlowError
from crosscut.graph.specs import Partitioning, SideOutput
from crosscut.ids import ChannelId
from crosscut.keys import KeyRouter
from crosscut.operators.operator import user_code_error


class Output(ABC):
    """One outgoing edge of a task: its channels, by target index, and a buffer for each.

    A channel's buffer holds records in the order they were added: FIFO starts here.

    Attributes:
        side: What leaves there; None: what the last operator returns.
    """

    side: SideOutput | None = None

    def __init__(self, channels: tuple[ChannelId, ...], batch_rows: int) -> None:
        self.channels = channels
        self._batch_rows = batch_rows
        self.buffered_rows = 0

    @abstractmethod
    def add(self, batch: Batch) -> bool:
        """Take the batch in; return whether a buffer is full."""

    def take(self) -> list[tuple[ChannelId, Batch]]:
        """Return everything buffered, in batches of bounded size, and empty the buffers."""
        return [
            (channel, piece) for channel, batch in self._take() for piece in pieces(batch, self._batch_rows)
        ]

    @abstractmethod
    def _take(self) -> list[tuple[ChannelId, Batch]]:
        """Return everything buffered, at most one batch for each channel, and empty the buffers."""


def pieces(batch: Batch, rows: int) -> Iterator[Batch]:
    """Yield `batch`, cut up if it is far longer than `rows`: one record may have become millions."""
    if len(batch) <= 2 * rows:
        yield batch
        return
    for start in range(0, len(batch), rows):
        records = batch.records[start : start + rows]
        if batch.keys is None:
            yield Batch(records)
        else:
            is_keys_only = batch.keys is batch.records
            yield Batch(records, records if is_keys_only else batch.keys[start : start + rows])


class _Lists(Output):
    """Records without keys: a list for each channel."""

    def __init__(self, channels: tuple[ChannelId, ...], batch_rows: int) -> None:
        super().__init__(channels, batch_rows)
        self._buffers: list[list[Any]] = [[] for _ in channels]

    def _take(self) -> list[tuple[ChannelId, Batch]]:
        taken = [
            (channel, Batch(buffer))
            for channel, buffer in zip(self.channels, self._buffers, strict=True)
            if buffer
        ]
        self._buffers = [[] for _ in self.channels]
        self.buffered_rows = 0
        return taken


class Broadcast(_Lists):
    """Every record to every channel; with a single channel, this is `forward`."""

    def add(self, batch: Batch) -> bool:
        for buffer in self._buffers:
            buffer.extend(batch.records)
        self.buffered_rows += len(batch)
        return self.buffered_rows >= self._batch_rows


class Rebalance(_Lists):
    """Batches to the channels in turn; each task starts at its own place, so that all get some."""

    def __init__(self, channels: tuple[ChannelId, ...], batch_rows: int, first: int) -> None:
        super().__init__(channels, batch_rows)
        self._next = first % len(channels)

    def add(self, batch: Batch) -> bool:
        self._buffers[self._next].extend(batch.records)
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

    def add(self, batch: Batch) -> bool:
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
            put_record = [buffer.append for buffer in self._records]
            for owner, record in zip(owners, batch.records, strict=True):
                put_record[owner](record)
        put_key = [buffer.append for buffer in self._keys]
        for owner, key in zip(owners, keys, strict=True):
            put_key[owner](key)
        self.buffered_rows += len(keys)
        return self.buffered_rows >= self._batch_rows * len(self.channels)

    def _take(self) -> list[tuple[ChannelId, Batch]]:
        records = self._keys if self._is_keys_only else self._records
        taken = [
            (channel, Batch(some_records, keys))
            for channel, some_records, keys in zip(self.channels, records, self._keys, strict=True)
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
