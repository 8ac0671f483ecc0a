"""Flows whose records go where chance sends them: what numbers these, and what shows them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import crosscut as cc
from crosscut.contracts.connectors import JSON, Guarantee
from crosscut.foundation.ids import CheckpointId


class Numbering(cc.KeyedProcess[Any, Any]):
    """Gives the records of a key numbers from 1 on."""

    count = cc.ValueState[int](default=0)

    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        self.count.set(self.count.get() + 1)
        yield ctx.key, self.count.get(), record


class Upserts(cc.Sink[Any]):
    """A table, in which each record is seen at once.

    Args:
        row_of: Returns the key of a record, and what is shown under it.
    """

    def __init__(self, row_of: Callable[[Any], tuple[Any, Any]]) -> None:
        self.rows: dict[Any, Any] = {}
        self._row_of = row_of

    @property
    def guarantee(self) -> Guarantee:
        return "idempotent"

    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        return _Writer(self.rows, self._row_of)


class _Writer(cc.SinkWriter):
    def __init__(self, rows: dict[Any, Any], row_of: Callable[[Any], tuple[Any, Any]]) -> None:
        self._rows = rows
        self._row_of = row_of

    def recover(self, permit: cc.CommitPermit | None, handles: Sequence[JSON]) -> None:
        """Nothing is staged."""

    def write(self, records: list[Any]) -> None:
        self._rows.update(map(self._row_of, records))

    def rotate(self, checkpoint_id: CheckpointId) -> None:
        return None

    def prepare(self, transaction: Any) -> JSON:
        raise AssertionError("nothing is staged")

    def commit(self, permit: cc.CommitPermit, handles: Sequence[JSON]) -> None:
        """Nothing is staged."""
