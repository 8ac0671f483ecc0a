"""Rows that are still columns: no Python objects have been made of them yet.

Only a source whose rows are keyed and counted at once gives these (`crosscut.graph.combining`): then a column
is counted as it is. Nothing here imports pyarrow itself, which the maker of the rows has loaded.
"""

from __future__ import annotations

import dis
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import Any, Literal

from crosscut.contracts.connectors import Source


@dataclass(frozen=True, slots=True)
class Field:
    """What a function of a record takes of it: all of it, `record[name]`, or `record.name`."""

    how: Literal["itself", "item", "attribute"]
    name: str | int = ""


ITSELF = Field("itself")

_LOADS = {"LOAD_FAST", "LOAD_FAST_BORROW"}
_CONSTANTS = {"LOAD_CONST", "LOAD_SMALL_INT"}
_SUBSCRIPTS = {("BINARY_SUBSCR", ""), ("BINARY_OP", "[]")}


def field_of(function: Callable[[Any], Any]) -> Field | None:
    """Return what `function` takes of its argument; None: it may do something else as well.

    It is not called: what it does the second time could be something else.
    """
    if isinstance(function, itemgetter | attrgetter):
        reduced: Any = function.__reduce__()
        names = reduced[1]
        if len(names) != 1:
            return None
        if isinstance(function, itemgetter):
            return _item(names[0])
        return None if "." in names[0] else Field("attribute", names[0])
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & _UNLIKE_A_LAMBDA:
        return None
    steps = [
        (one.opname, one.argrepr if one.opname == "BINARY_OP" else "", one.argval)
        for one in dis.get_instructions(code)
        if one.opname not in ("RESUME", "CACHE", "NOP")
    ]
    first, last = steps[0], steps[-1]
    if first[0] not in _LOADS or first[2] != code.co_varnames[0] or last[0] != "RETURN_VALUE":
        return None
    match steps[1:-1]:
        case []:
            return ITSELF
        case [("LOAD_ATTR", _, str(name))]:
            return Field("attribute", name)
        case [(constant, _, name), (subscript, operation, _)] if (
            constant in _CONSTANTS and (subscript, operation) in _SUBSCRIPTS
        ):
            return _item(name)
        case _:
            return None


_UNLIKE_A_LAMBDA = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200
"""Code that takes any number of arguments, or yields, or waits."""


def _item(name: object) -> Field | None:
    return Field("item", name) if type(name) is str or (type(name) is int and name >= 0) else None


class Rows(list[Any]):
    """Some rows of an Arrow batch. It is as long as the list that it stands for, and becomes it when asked.

    Args:
        batch: A `pyarrow.RecordBatch`.
        start: The first row.
        end: The row after the last one.
        column_of: Returns the position of the column that holds what a function takes; None: there is none.
        records_of: Makes records of a batch.
    """

    def __init__(
        self,
        batch: Any,
        start: int,
        end: int,
        column_of: Callable[[Any, Field], int | None],
        records_of: Callable[[Any], list[Any]],
    ) -> None:
        super().__init__()
        self._batch = batch
        self._start = start
        self._end = end
        self._column_of = column_of
        self._records_of = records_of

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[Any]:
        return iter(self.made())

    def made(self) -> list[Any]:
        """Return the records."""
        return self._records_of(self._batch.slice(self._start, len(self)))

    def column(self, field: Field) -> Column | None:
        """Return what `field` is of each; None: it takes objects to tell."""
        index = self._column_of(self._batch.schema, field)
        return None if index is None else Column(self._batch, index, self._start, self._end)


class Column(list[Any]):
    """Values of one column; see `Rows`."""

    def __init__(self, batch: Any, index: int, start: int, end: int) -> None:
        super().__init__()
        self._batch = batch
        self._index = index
        self._start = start
        self._end = end

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[Any]:
        return iter(self._array.to_pylist())

    @property
    def _array(self) -> Any:
        return self._batch.column(self._index).slice(self._start, len(self))

    def goes_on_as(self, other: Column) -> bool:
        """Take the values of `other` in, if they follow these in the same batch; return whether they did."""
        if other._batch is not self._batch or other._index != self._index or other._start != self._end:
            return False
        self._end = other._end
        return True

    @property
    def is_at_its_end(self) -> bool:
        """Whether nothing of the same batch can follow."""
        return self._end == int(self._batch.num_rows)

    def counted(self) -> Iterator[tuple[Any, int]]:
        """Return each value once, with how often it comes."""
        found = self._array.value_counts()
        # As plain values: a dictionary's are made into objects one at a time, ten times as slowly.
        values = found.field("values")
        plain = values.dictionary_decode() if hasattr(values, "dictionary_decode") else values
        return zip(plain.to_pylist(), found.field("counts").to_pylist(), strict=True)


class ColumnSource(Source[Any]):
    """A source that can give rows as columns."""

    @abstractmethod
    def in_columns(self) -> Source[Any]:
        """Return the source whose readers return `Rows` for lists of records."""
