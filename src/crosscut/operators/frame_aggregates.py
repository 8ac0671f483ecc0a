"""The running aggregates of a frame: Polars aggregates a batch, and the state has a row for each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crosscut.contracts.frame_aggregates import Partials, Results
from crosscut.errors import FlowError, InternalError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows, key_values
from crosscut.graph.frames import FrameAggregateSpec
from crosscut.operators.frames import frame_of, row_error
from crosscut.operators.keyed import NOTHING_YET, KeyedOperator
from crosscut.operators.operator import user_code_error
from crosscut.state.keyed import KeyedState


class AggregateFrame(KeyedOperator):
    """Keeps what the aggregates of each key have come to.

    With `emit="batch"` a batch gives one row for each of its keys, in the order in which these come first.
    """

    runs_in_copies = False

    def __init__(self, uid: str, state: KeyedState, spec: FrameAggregateSpec) -> None:
        super().__init__(uid, state, "final" if spec.emit == "final" else "updates")
        self._reads = spec.reads
        self._partials = Partials(spec.aggregates, tuple(spec.keys))
        self._results = Results(spec.aggregates, spec.keys)

    def process(self, batch: Batch) -> Batch:
        rows = frame_of(self.uid, batch, self._reads)
        self.time_budget.step()
        try:
            different, parts = self._partials.of(rows.frame)
        except BaseException as error:
            raise row_error(
                self.uid, rows, self._partials.of, error, is_first=not self.taken_count
            ) from error
        keys = key_values(different)
        self._state.fetch(keys, to_change=True)
        slots, values = self._state.to_change(keys)
        before = [values[slot] for slot in slots]
        known = [at for at, one in enumerate(before) if one is not NOTHING_YET]
        if len(known) == len(before):
            parts = self._partials.merged(before, parts)
        elif known:
            merged = self._partials.merged([before[at] for at in known], [parts[at] for at in known])
            for at, one in zip(known, merged, strict=True):
                parts[at] = one
        for slot, one in zip(slots, parts, strict=True):
            values[slot] = one
        self.taken_count += len(batch)
        return Batch([]) if self._is_final_only else Batch(self._rows(keys, parts))

    def _add(self, batch: Batch, keys: list[Any]) -> Batch:
        raise InternalError(f"operator {self.uid!r} takes rows of a frame")

    def _final_results(self, keys: Batch, *, is_first: bool) -> list[Any]:
        self.time_budget.step()
        return self._rows(keys.records, [self._state.peek(key) for key in keys.records])

    def _rows(self, keys: Sequence[Any], values: Sequence[tuple[Any, ...]]) -> list[Any]:
        if not keys:
            return []
        try:
            return FrameRows(self._results.of(keys, values))
        except FlowError as error:
            raise user_code_error(self.uid, error, None) from error
