"""A stream reader of PySpark whose partitions all tasks read: its batches are planned on the driver."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from crosscut.contracts.connectors import JSON, Split, SplitReader
from crosscut.contracts.driver_source import DriverSource
from crosscut.contracts.dynamic_source import Discovered
from crosscut.errors import ConnectorError
from crosscut.spark.data.batches import Offset, PlannedBatches, batches_of
from crosscut.spark.data.data_source import DataSourceOf
from crosscut.spark.data.packed import packed, unpacked
from crosscut.spark.data.partition_reader import PartitionReader
from crosscut.spark.data.python_rows import PythonRows

FOUND_BYTES_MAX = 256 * 1024
"""Of partitions that are said at a time; the others of a batch are said when it is asked again."""

_LOG = logging.getLogger("crosscut")


@dataclass(frozen=True, slots=True)
class Plan:
    """How far the stream is dealt out.

    Attributes:
        batch: The number of the batch that begins at `start`.
        end: Of that batch, if some of its partitions are dealt out already, and not all: how many is
            `partition`.
    """

    batch: int
    start: Offset
    end: Offset | None = None
    partition: int = 0

    @classmethod
    def of(cls, known: JSON, name: str) -> Plan:
        """Return the plan that `as_json` has made `known` of.

        Raises:
            ConnectorError: It is something else.
        """
        match known:
            case {
                "batch": int(batch),
                "start": dict(start),
                "end": dict() | None as end,
                "partition": int(partition),
            }:
                return cls(batch, start, end, partition)
            case _:
                raise ConnectorError(
                    f"data source {name}: a checkpoint has {known!r:.200} as the state of its stream; is "
                    f"it of another source?"
                )

    def as_json(self) -> JSON:
        """Return what a checkpoint holds."""
        return {"batch": self.batch, "start": self.start, "end": self.end, "partition": self.partition}


class PlannedSource(DriverSource[Any]):
    """See `crosscut.spark.source`, with `parallel`.

    It is planned in the process that starts the job, where one reader is kept for all of it, as Spark has it;
    tasks make readers of their own.
    """

    discover_every = "100ms"

    def __init__(self, of: DataSourceOf, *, as_rows: bool) -> None:
        self.of = of
        self.as_rows = as_rows
        self._lock = threading.Lock()
        self._batches: PlannedBatches | None = None
        # Number of the engine run that it plans for.
        self._run = 0
        self._committed: Offset | None = None

    def __reduce__(self) -> tuple[Callable[..., PlannedSource], tuple[Any, ...]]:
        return partial(PlannedSource, as_rows=self.as_rows), (self.of,)

    def resolved(self) -> PlannedSource:
        """Return it with its schema."""
        return PlannedSource(self.of.resolved(), as_rows=self.as_rows)

    def begin(self, *, ends: bool) -> None:
        """The reader is made when it is asked first."""
        self._run += 1

    def discover(self, known: JSON) -> Discovered:
        """Plan the next batch, or deal out more of the last."""
        with self._lock:
            batches = self._planner()
            plan = Plan(0, batches.initial()) if known is None else Plan.of(known, self.of.name)
            end = plan.end or batches.newest(plan.start)
            if end is None:
                return Discovered((), plan.as_json())
            partitions = batches.partitions(plan.start, end)
        if plan.partition > len(partitions):
            raise ConnectorError(
                f"data source {self.of.name}: partitions() returned {len(partitions)} partitions of a "
                f"batch of which the job has assigned {plan.partition}: expected the same partitions again"
            )
        splits: list[Split] = []
        size_bytes = 0
        # Other offsets make another batch, even under a number that a failure has made void.
        suffix = sha256(json.dumps([plan.start, end], sort_keys=True).encode()).hexdigest()[:12]
        for number in range(plan.partition, len(partitions)):
            detail: dict[str, JSON] = {
                "batch": plan.batch,
                "start": plan.start,
                "packed": packed(self.of.name, number, partitions[number]),
            }
            size_bytes += len(json.dumps(detail))
            if splits and size_bytes > FOUND_BYTES_MAX:
                rest = Plan(plan.batch, plan.start, end, number)
                return Discovered(splits, rest.as_json(), is_coming=True)
            splits.append(Split(f"{plan.batch:09}-{number:06}-{suffix}", 0, detail))
        return Discovered(splits, Plan(plan.batch + 1, end).as_json())

    def _planner(self) -> PlannedBatches:
        if self._batches is None:
            found = batches_of(self.of)
            if not isinstance(found, PlannedBatches):
                raise ConnectorError(
                    f"data source {self.of.name} has only a simple stream reader, whose batches have no "
                    f"partitions: leave parallel=True out"
                )
            self._batches = found
        return self._batches

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Read one partition, from a row on."""
        match split.detail, position:
            case {"packed": str(text)}, int(row) if row >= 0:
                made = self.of.called("streamReader", lambda: self.of.made().streamReader(self.of.columns))
                rows = PythonRows(self.of.name, tuple(self.of.columns.fieldNames()), self.as_rows)
                return PartitionReader(self.of, partial(made.read, unpacked(text)), rows, row)
            case _:
                raise ConnectorError(
                    f"split {split} at position {position!r} is not of the stream of {self.of.name}; is the "
                    f"checkpoint of another source?",
                    split_id=split.split_id,
                )

    def describe(self) -> str:
        """Return the class and its options."""
        return self.of.describe()

    def completed(self, known: JSON, unread: Iterable[JSON]) -> None:
        """Tell the reader how far a completed checkpoint has everything. Blocks; one call at a time.

        Args:
            known: Of the checkpoint.
            unread: The details of its splits that have not ended.
        """
        try:
            end = read_up_to(Plan.of(known, self.of.name), unread)
            if end == self._committed:
                return
            self._committed = end
            with self._lock:
                self._planner().commit(end)
        except ConnectorError as error:
            # A system that keeps what it might have forgotten: the job can go on.
            _LOG.warning("%s; it is not called again for this offset", error)

    def stop(self) -> Callable[[], None]:
        """Let the reader free what it holds."""
        return partial(self._end, self._run)

    def _end(self, run: int) -> None:
        with self._lock:
            if run != self._run:
                # The next engine run plans with the same reader.
                return
            batches, self._batches = self._batches, None
        if batches is not None:
            try:
                batches.stop()
            except ConnectorError as error:
                _LOG.warning("%s", error)


def read_up_to(plan: Plan, unread: Iterable[JSON]) -> Offset:
    """Return the offset up to which all is read: there the oldest batch begins that has more to read."""
    begun: list[tuple[int, Offset]] = []
    for one in unread:
        match one:
            case {"batch": int(batch), "start": dict(start)}:
                begun.append((batch, start))
            case _:
                raise ConnectorError(f"{one!r:.200} is not a partition of a stream")
    return min(begun, key=lambda one: one[0])[1] if begun else plan.start
