"""What the records of the explorer are to real operators, sources, outputs and sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.proof.explorer.frozen import Site
from tests.proof.explorer.graphs import Graph
from tests.proof.explorer.items import END, item_of, record_of

from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    EndOfSplit,
    SinkWriter,
    Source,
    Split,
    SplitReader,
    Wait,
)
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.operators.operator import Operator
from crosscut.operators.sink import SinkOperator
from crosscut.state.keyed import KeyedState
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.task.outputs import Output


def modelled(item: Item) -> int:
    """Return what the explorer calls `item`."""
    match item:
        case Barrier(n):
            return -n
        case EndOfInput():
            return END
        case Batch():
            (only,) = item.records
            return int(only)


def real(item: int) -> Item:
    """Return what `modelled` was made from."""
    if item == END:
        return EndOfInput()
    return Barrier(CheckpointId(-item)) if item < 0 else Batch([item])


class Records(Source):
    """What one source reads, a record at a time, as it goes into the first channel of its way."""

    def __init__(self, site: Site) -> None:
        self.items = [item_of(record, 0) for record in site.records]

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("only", 0)]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        assert isinstance(position, int)
        return RecordReader(self, position)


class RecordReader(SplitReader):
    def __init__(self, source: Records, position: int) -> None:
        self._source = source
        self._position = position

    @property
    def position(self) -> JSON:
        return self._position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        found = self._source.items[self._position : self._position + 1]
        self._position += len(found)
        return found or EndOfSplit()


class Hop(Operator):
    """Counts the records, and lets them on to the next channel of their way, or keeps them until the end."""

    def __init__(self, site: Site, state: KeyedState) -> None:
        super().__init__("hop")
        self._site = site
        self._state = state

    def process(self, batch: Batch) -> Batch:
        counts = self._state.values
        for item in batch.records:
            counts[record_of(item)[0]] += 1
        return Batch([] if self._site.is_count else [item + 1 for item in batch.records])

    def end(self, after: str) -> Iterator[tuple[Batch, str]]:
        site = self._site
        if not site.is_count or after:
            return
        kept = []
        for record, count in sorted(self._state.items()):
            route = site.graph.routes[record]
            hop = next(hop for hop, one in enumerate(route) if one in site.inputs)
            kept += [item_of(record, hop + 1)] * count
        if kept:
            yield Batch(kept), "all"


class Stage(SinkWriter):
    """Takes the multiset of what comes out, as the explorer's sink does."""

    def __init__(self) -> None:
        self.open: list[int] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        raise AssertionError("whoever restores the task does that")

    def write(self, records: list[Any]) -> None:
        self.open += records

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        rotated, self.open = self.open, []
        return rotated or None

    def prepare(self, transaction: Any) -> JSON:
        raise AssertionError("it is done by the walk")

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        raise AssertionError("it is done by the walk")

    def close(self) -> None:
        pass


class Last(SinkOperator):
    """Writes what has come to the end of its way, and lets the rest on."""

    def __init__(self, graph: Graph, writer: Stage) -> None:
        super().__init__("last", writer)
        self._graph = graph

    def process(self, batch: Batch) -> Batch:
        ended = {record for record, hop in map(record_of, batch.records) if self._is_over(record, hop)}
        super().process(Batch([record for record, _ in map(record_of, batch.records) if record in ended]))
        return Batch([item for item in batch.records if record_of(item)[0] not in ended])

    def _is_over(self, record: int, hop: int) -> bool:
        return hop == len(self._graph.routes[record])


class Routed(Output):
    """Each record into the channel that its way names, a record a batch."""

    def __init__(self, site: Site) -> None:
        self._site = site
        super().__init__(tuple(map(site.graph.channel, site.outputs)), 1)
        self._items: list[int] = []

    def _add(self, batch: Batch) -> bool:
        self._items += batch.records
        self.buffered_rows = len(self._items)
        return True

    def take(self) -> list[tuple[ChannelId, Batch]]:
        items, self._items, self.buffered_rows = self._items, [], 0
        return [(self._channel(item), Batch([item])) for item in items]

    def _take(self) -> list[tuple[ChannelId, Batch]]:
        raise AssertionError("`take` does it")

    def _channel(self, item: int) -> ChannelId:
        record, hop = record_of(item)
        return self._site.graph.channel(self._site.graph.routes[record][hop])
