"""map, filter, flat_map, split, inspect, key_by: one loop over the batch, and the user's function.

Never `map` or `filter` of the standard library: to them a StopIteration that the user's function lets
out (`next` of something empty) is the end of the batch, and the records after it would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from crosscut.errors import FlowError
from crosscut.foundation.batch import Batch
from crosscut.foundation.callables import several
from crosscut.operators.operator import Operator
from crosscut.operators.sides import Sides


class Map(Operator):
    def __init__(self, uid: str, function: Callable[[Any], Any]) -> None:
        super().__init__(uid)
        self._function = function

    def process(self, batch: Batch) -> Batch:
        with self.over(batch) as remaining:
            function = self._function
            results = [function(record) for record in remaining]
        return Batch(results, None, batch.timestamps)


class Filter(Operator):
    def __init__(self, uid: str, function: Callable[[Any], Any]) -> None:
        super().__init__(uid)
        self._function = function

    def process(self, batch: Batch) -> Batch:
        timestamps: list[int] | None = None
        with self.over(batch) as remaining:
            function = self._function
            if batch.timestamps is None:
                results = [record for record in remaining if function(record)]
            else:
                results, timestamps = [], []
                for record, timestamp in zip(remaining, batch.timestamps, strict=True):
                    if function(record):
                        results.append(record)
                        timestamps.append(timestamp)
        return Batch(results, None, timestamps)


class FlatMap(Operator):
    def __init__(self, uid: str, function: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(uid)
        self._function = function

    def process(self, batch: Batch) -> Batch:
        results: list[Any] = []
        timestamps: list[int] | None = None
        extend, function = results.extend, self._function
        with self.over(batch) as remaining:
            if batch.timestamps is None:
                for record in remaining:
                    found = function(record)
                    # Said in words while the function is at hand: a TypeError of `extend` would name nothing.
                    extend(found if type(found) is list else several(found, function))
            else:
                timestamps = []
                for record, timestamp in zip(remaining, batch.timestamps, strict=True):
                    found = function(record)
                    extend(found if type(found) is list else several(found, function))
                    timestamps += [timestamp] * (len(results) - len(timestamps))
        return Batch(results, None, timestamps)


class Split(Operator):
    """Says each record under the first name whose predicate is true, and returns the others.

    Args:
        has_rest: Whether there may be others.
    """

    def __init__(
        self,
        uid: str,
        predicates: tuple[tuple[str, Callable[[Any], Any]], ...],
        sides: Sides,
        *,
        has_rest: bool,
    ) -> None:
        super().__init__(uid, sides)
        self._emit = sides.emit
        self._predicates = predicates
        self._has_rest = has_rest

    def process(self, batch: Batch) -> Batch:
        rest: list[Any] = []
        predicates, emit, has_rest = self._predicates, self._emit, self._has_rest
        timestamps: list[int] | None = None if batch.timestamps is None else []
        times: Iterable[int | None] = repeat(None) if batch.timestamps is None else batch.timestamps
        with self.over(batch) as remaining:
            for record, timestamp in zip(remaining, times, strict=False):
                for name, predicate in predicates:
                    if predicate(record):
                        emit(name, record, timestamp)
                        break
                else:
                    if not has_rest:
                        raise self._fits_nowhere()
                    rest.append(record)
                    if timestamps is not None and timestamp is not None:
                        timestamps.append(timestamp)
        return Batch(rest, None, timestamps)

    def _fits_nowhere(self) -> FlowError:
        names = ", ".join(repr(name) for name, _ in self._predicates)
        return FlowError(
            f"a record fits none of {names}, and no stream reads the others: go on with `rest`, too",
            operator=self.uid,
        )


class Inspect(Operator):
    """Shows each record to a function, and ignores what that returns."""

    def __init__(self, uid: str, function: Callable[[Any], object]) -> None:
        super().__init__(uid)
        self._function = function

    def process(self, batch: Batch) -> Batch:
        with self.over(batch) as remaining:
            function = self._function
            for record in remaining:
                function(record)
        return batch


class ForEach(Inspect):
    """Shows each record to a function; nothing goes on."""

    def process(self, batch: Batch) -> Batch:
        super().process(batch)
        return Batch([])


class KeyBy(Operator):
    """Gives each record its key; the hash edge after it routes by that key."""

    def __init__(self, uid: str, function: Callable[[Any], Any], *, keys_only: bool) -> None:
        super().__init__(uid)
        self._function = function
        self._keys_only = keys_only

    def process(self, batch: Batch) -> Batch:
        with self.over(batch) as remaining:
            function = self._function
            keys = [function(record) for record in remaining]
        return Batch(keys if self._keys_only else batch.records, keys, batch.timestamps)
