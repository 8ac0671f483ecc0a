"""process: a user's own stateful operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from crosscut.batch import Batch
from crosscut.callables import several
from crosscut.errors import InternalError
from crosscut.keyed_process import Cells, Context, KeyedProcess, attached
from crosscut.operators.cells import cells_of
from crosscut.operators.operator import Operator
from crosscut.operators.sides import Sides
from crosscut.state.keyed import KeyedState

Call = Callable[[Any, Any], Iterable[Any] | None]


class Process(Operator):
    """Calls the user's process for each record, at the record's key."""

    hears_watermarks = True

    def __init__(self, uid: str, process: KeyedProcess[Any, Any], state: KeyedState, sides: Sides) -> None:
        super().__init__(uid, sides)
        self._context = self._new_context(sides)
        self._state = state
        cells, self._timed = cells_of(process, self._cells(state), state.tables, self._context, uid)
        self._process = attached(process, cells, self._context)
        self._is_open = False

    def _new_context(self, sides: Sides) -> Context:
        return Context(sides.say)

    def _cells(self, state: KeyedState) -> Mapping[str, Cells]:
        return state.tables

    def process(self, batch: Batch) -> Batch:
        return self._each(batch, batch.keys, self._process.on_record)

    def _each(self, batch: Batch, keys: Sequence[Any] | None, call: Call) -> Batch:
        """Return what `call` makes of the records, each at its key."""
        if keys is None:
            raise InternalError(f"operator {self.uid!r} got records without keys")
        self._state.fetch(keys)
        remaining = self.course.through(batch)
        results: list[Any] = []
        timestamps: list[int] | None = None
        extend, context = results.extend, self._context
        try:
            self._open_once()
            if batch.timestamps is None:
                for key, record in zip(keys, remaining, strict=True):
                    context.key = key
                    found = call(record, context)
                    if found is not None:
                        extend(several(found, call))
            else:
                timestamps = []
                for key, record, timestamp in zip(keys, remaining, batch.timestamps, strict=True):
                    context.key = key
                    context.timestamp = timestamp
                    found = call(record, context)
                    if found is not None:
                        extend(several(found, call))
                        timestamps += [timestamp] * (len(results) - len(timestamps))
        except BaseException as error:
            raise self.blamed(error, batch.records, remaining) from error
        self.taken_count += len(batch.records)
        return Batch(results, None, timestamps)

    def advance(self, watermark: int | None) -> Batch | None:
        if watermark is not None:
            self._context.watermark = watermark
        for timed in self._timed:
            timed.remove_expired()
        return None

    def _open_once(self) -> None:
        if not self._is_open:
            self._process.open()
            self._is_open = True
