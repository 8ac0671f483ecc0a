"""State as rows with types, for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from crosscut.foundation.data_pickles import only_data
from crosscut.savepoints.tables import FileOfTask, PartsOfTask, StateRow
from crosscut.savepoints.values import from_text

COLUMNS = ("key_group", "key", "name", "value")
LOOKED_AT_MAX = 1_000
"""Rows of each task that types are found out from."""

_LONG_MAX = 2**63
_TYPES: dict[type, DataType] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
    bytes: BinaryType(),
    datetime: TimestampType(),
}


def inferred(tasks: Sequence[FileOfTask | PartsOfTask], state: str) -> StructType:
    """Return the schema of a state, by the first rows of each task; `name` only where rows have one."""
    seen: dict[str, set[DataType]] = {name: set() for name in ("key", "name", "value")}
    with only_data():
        for row in chain.from_iterable(_first_rows(one, state) for one in tasks):
            for name, types in seen.items():
                text = getattr(row, name)
                if text is not None and (value := from_text(text)) is not None:
                    types.add(_type_of(value))
    schema = StructType().add("key_group", IntegerType()).add("key", _common(seen["key"]))
    if seen["name"]:
        schema.add("name", _common(seen["name"]))
    return schema.add("value", _common(seen["value"]))


def _first_rows(task: FileOfTask | PartsOfTask, state: str) -> Iterator[StateRow]:
    return islice((row for row in task.rows() if row.state == state), LOOKED_AT_MAX)


def _type_of(value: Any) -> DataType:
    if type(value) is int and not -_LONG_MAX <= value < _LONG_MAX:
        return StringType()
    return _TYPES.get(type(value), StringType())


def _common(types: set[DataType]) -> DataType:
    if len(types) == 1:
        return next(iter(types))
    return DoubleType() if types == {LongType(), DoubleType()} else StringType()


def typed(task: FileOfTask | PartsOfTask, state: str, schema: StructType) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of one task. In a column of text, what is none is JSON."""
    fields = [(field.name, field.dataType) for field in schema]
    with only_data():
        for row in task.rows():
            if row.state == state:
                yield tuple(_cell(row, name, kind) for name, kind in fields)


def _cell(row: StateRow, name: str, kind: DataType) -> Any:
    found = getattr(row, name)
    if not isinstance(found, str):
        return found
    value = from_text(found)
    if isinstance(kind, StringType):
        return value if value is None or isinstance(value, str) else found
    # Spark takes no int for a double.
    return float(value) if isinstance(kind, DoubleType) and type(value) is int else value
