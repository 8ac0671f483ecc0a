"""Records of Arrow batches: `Row`s, dicts, or the batches themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pyspark.sql.types import Row

from crosscut.connectors.extras import required
from crosscut.contracts.columns import Field

RecordKind = Literal["rows", "dicts", "tuples", "values", "arrow"]
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class RecordsOf:
    """Makes the records of a `pyarrow.RecordBatch`; it is pickled with the flow.

    Records that are "values" are those of the only column. Values are those of `RecordBatch.to_pylist`, but
    for structs, which are `Row`s where records are rows, else dicts, and maps, which are dicts.
    A timestamp has the time zone that the session had which staged it.
    """

    kind: RecordKind

    def column_of(self, schema: Any, field: Field) -> int | None:
        """Return the position of the column whose values are what `field` is of each record.

        None: there is none, or its values make no keys as they are.
        """
        match self.kind, field:
            case ("values", Field("itself")):
                index = 0
            case ("tuples" | "rows", Field("item", int(index))) if index < len(schema):
                pass
            case ("dicts" | "rows", Field("item", str(name))) if name in schema.names:
                index = schema.names.index(name)
            case ("rows", Field("attribute", str(name))) if name in schema.names and not hasattr(Row, name):
                index = schema.names.index(name)
            case _:
                return None
        return index if _makes_keys(schema.field(index).type) else None

    def __call__(self, batch: Any) -> list[Any]:
        if self.kind == "arrow":
            return [batch]
        names, converts = _plan(batch.schema, self.kind == "rows")
        columns = [
            column.to_pylist() if convert is None else [convert(value) for value in column.to_pylist()]
            for column, convert in zip(batch.columns, converts, strict=True)
        ]
        if self.kind == "values":
            return columns[0]
        if self.kind == "tuples":
            return list(zip(*columns, strict=True))
        if self.kind == "dicts":
            return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        return [row_of(names, values) for values in zip(*columns, strict=True)]


def _makes_keys(kind: Any) -> bool:
    """Tell whether equal values of this type, and only those, are equal keys. Not so with fractions."""
    types = required("pyarrow", "parquet").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_binary(kind) or types.is_integer(kind))


def row_of(names: list[str], values: Any) -> Row:
    """Return a row. `names` is kept, and shared by all rows that are made with it."""
    row = Row(*values)
    row.__fields__ = names
    return row


@cache
def _plan(schema: Any, as_rows: bool) -> tuple[list[str], list[Convert | None]]:
    return schema.names, [_convert(field.type, as_rows) for field in schema]


def _convert(kind: Any, as_rows: bool) -> Convert | None:
    """Return what turns a value of `to_pylist` into that of a record; None: it is that already."""
    types = required("pyarrow", "parquet").types
    if types.is_struct(kind):
        names = [field.name for field in kind]
        parts = [_convert(field.type, as_rows) for field in kind]
        if not as_rows and not any(parts):
            return None

        def struct(value: dict[str, Any]) -> Any:
            found = [
                one if part is None else _or_none(part)(one)
                for part, one in zip(parts, value.values(), strict=True)
            ]
            return row_of(names, found) if as_rows else dict(zip(names, found, strict=True))

        return _or_none(struct)
    if types.is_map(kind):
        of_key, of_item = _convert(kind.key_type, as_rows), _convert(kind.item_type, as_rows)

        def mapped(value: list[tuple[Any, Any]]) -> dict[Any, Any]:
            return {
                (of_key(key) if of_key else key): (of_item(item) if of_item else item) for key, item in value
            }

        return _or_none(mapped)
    if types.is_list(kind) or types.is_large_list(kind):
        of_item = _convert(kind.value_type, as_rows)
        return _or_none(lambda value: [of_item(item) for item in value]) if of_item else None
    return None


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
