"""map, filter, flat_map, key_by: one C-level loop over the batch, and the user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from crosscut.batch import Batch
from crosscut.operators.operator import Operator


class Map(Operator):
    def __init__(self, uid: str, function: Callable[[Any], Any]) -> None:
        super().__init__(uid)
        self._function = function

    def process(self, batch: Batch) -> Batch:
        remaining = iter(batch.records)
        try:
            return Batch(list(map(self._function, remaining)))
        except BaseException as error:
            raise self.blamed(error, batch.records, remaining) from error


class Filter(Operator):
    def __init__(self, uid: str, function: Callable[[Any], Any]) -> None:
        super().__init__(uid)
        self._function = function

    def process(self, batch: Batch) -> Batch:
        remaining = iter(batch.records)
        try:
            return Batch(list(filter(self._function, remaining)))
        except BaseException as error:
            raise self.blamed(error, batch.records, remaining) from error


class FlatMap(Operator):
    def __init__(self, uid: str, function: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(uid)
        self._function = function

    def process(self, batch: Batch) -> Batch:
        remaining = iter(batch.records)
        try:
            return Batch(list(chain.from_iterable(map(self._function, remaining))))
        except BaseException as error:
            raise self.blamed(error, batch.records, remaining) from error


class KeyBy(Operator):
    """Gives each record its key; the hash edge behind it routes by that key."""

    def __init__(self, uid: str, function: Callable[[Any], Any], *, keys_only: bool) -> None:
        super().__init__(uid)
        self._function = function
        self._keys_only = keys_only

    def process(self, batch: Batch) -> Batch:
        remaining = iter(batch.records)
        try:
            keys = list(map(self._function, remaining))
        except BaseException as error:
            raise self.blamed(error, batch.records, remaining) from error
        return Batch(keys if self._keys_only else batch.records, keys)
