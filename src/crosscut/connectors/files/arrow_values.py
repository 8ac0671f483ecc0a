"""From rows to Arrow: what a column would take and silently change is refused instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.rows import checked_columns
from crosscut.errors import ConnectorError

REFUSALS = (TypeError, ValueError, OverflowError, AttributeError, NotImplementedError)
"""Of values. Arrow's own exceptions are of these kinds, too."""

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def check_values(arrow: Any, values: Sequence[Any], kind: Any) -> None:
    """Raise ValueError if one of `values` would come back from a column of type `kind` as something else.

    What pyarrow refuses by itself is left to it, and so is rounding to 32-bit floats, which is what they
    are for.
    """
    types = arrow.types
    found = [value for value in values if value is not None]
    if types.is_integer(kind):
        # pyarrow cuts fractions off. Most often a look at the types is enough.
        if not {int}.issuperset(map(type, found)):
            _refuse(found, kind, lambda value: not isinstance(value, int), "is no int")
    elif types.is_timestamp(kind):
        # A time without a zone would be taken for UTC, and one with a zone lose it.
        has_zone, grain = kind.tz is not None, _MICROSECONDS[kind.unit]
        _refuse(
            found,
            kind,
            lambda value: isinstance(value, datetime) and (value.tzinfo is not None) != has_zone,
            "has no time zone" if has_zone else "has a time zone",
        )
        _refuse(
            found, kind, lambda value: value.microsecond % grain != 0, f"is no whole number of {kind.unit}"
        )
    elif types.is_date(kind):
        _refuse(found, kind, lambda value: isinstance(value, datetime), "has a time of the day")
        _refuse(found, kind, lambda value: not isinstance(value, date), "is no date")
    elif types.is_time(kind) or types.is_duration(kind):
        _refuse(found, kind, lambda value: getattr(value, "tzinfo", None) is not None, "has a time zone")
        grain = _MICROSECONDS[kind.unit]
        name = "microseconds" if types.is_duration(kind) else "microsecond"
        _refuse(
            found,
            kind,
            lambda value: getattr(value, name, 0) % grain != 0,
            f"is no whole number of {kind.unit}",
        )
    elif types.is_struct(kind):
        names = {field.name for field in kind}
        _refuse(
            found,
            kind,
            lambda value: isinstance(value, Mapping) and not value.keys() <= names,
            f"has other fields than {', '.join(sorted(names))}",
        )
        rows = [value for value in found if isinstance(value, Mapping)]
        for field in kind:
            _check_inner(arrow, [row.get(field.name) for row in rows], field)

    elif types.is_map(kind):
        pairs = [pair for value in found for pair in (value.items() if isinstance(value, Mapping) else value)]
        check_values(arrow, [key for key, _ in pairs], kind.key_type)
        _check_inner(arrow, [item for _, item in pairs], kind.item_field)

    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        _check_inner(arrow, [item for value in found for item in value], kind.value_field)


def _check_inner(arrow: Any, values: list[Any], field: Any) -> None:
    """Check the values of a field within another one; pyarrow finds a missing one only when it writes."""
    if not field.nullable and any(value is None for value in values):
        raise ValueError(f"field {field.name!r} takes no None")
    check_values(arrow, values, field.type)


def _refuse(values: list[Any], kind: Any, is_wrong: Any, why: str) -> None:
    for value in values:
        if is_wrong(value):
            raise ValueError(f"{value!r:.100} {why}, and the column is {kind}")


class RowBatches:
    """Makes record batches of rows.

    Args:
        schema: A `pyarrow.Schema`.
        location: What errors call the place that the rows go to.
    """

    def __init__(self, schema: Any, location: str) -> None:
        self._arrow = required("pyarrow", "parquet")
        self._schema = schema
        self._location = location

    def batch(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """Return `rows`, at least one, as a record batch.

        Raises:
            ConnectorError: One does not fit; the message shows it.
        """
        try:
            return self.made(rows)
        except REFUSALS as error:
            raise self._refused(rows, error) from error

    def made(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """Return `rows` as a record batch, or raise one of `REFUSALS`."""
        schema = self._schema
        columns = list(zip(*rows, strict=True))
        for field, values in zip(schema, columns, strict=True):
            check_values(self._arrow, values, field.type)
        arrays = [
            self._arrow.array(values, field.type) for field, values in zip(schema, columns, strict=True)
        ]
        for field, array in zip(schema, arrays, strict=True):
            if not field.nullable and array.null_count:
                raise ValueError(f"column {field.name!r} takes no None")
        return self._arrow.RecordBatch.from_arrays(arrays, schema=schema)

    def misfit(self, row: tuple[Any, ...], error: Exception) -> str:
        """Return what people are told of a row that `made` has raised for."""
        kinds = ", ".join(f"{field.name}: {field.type}" for field in self._schema)
        return (
            f"row {shortened(row)} does not fit the schema ({kinds}): {error}; map it to one that does, or "
            f"change the schema"
        )

    def _refused(self, rows: Sequence[tuple[Any, ...]], error: Exception) -> ConnectorError:
        for row in rows:
            try:
                self.made([row])
            except REFUSALS as found:
                return ConnectorError(f"{self._location}: {self.misfit(row, found)}")
        return ConnectorError(f"{self._location}: {len(rows)} rows do not fit the schema together: {error}")


def schema_of(schema: Any) -> Any:
    """Return the `pyarrow.Schema` that names and types, or one itself, describe.

    Raises:
        ConnectorError: pyarrow is missing, or they describe none.
    """
    arrow = required("pyarrow", "parquet")
    if isinstance(schema, arrow.Schema):
        checked_columns(schema.names)
        return schema
    if not isinstance(schema, Mapping):
        raise ConnectorError(
            f"schema={schema!r:.200}: expected names and types, such as {{'word': 'string', 'count': "
            f"'int64'}}, or a pyarrow.Schema"
        )
    checked_columns(schema)
    return arrow.schema([(name, _type_of(arrow, name, kind)) for name, kind in schema.items()])


def _type_of(arrow: Any, name: str, kind: Any) -> Any:
    if isinstance(kind, arrow.DataType):
        return kind
    if isinstance(kind, str):
        unit, _, zone = kind.removesuffix("]").partition(", tz=")
        if zone and unit.startswith("timestamp["):
            return arrow.timestamp(unit.removeprefix("timestamp["), tz=zone)
        try:
            return arrow.type_for_alias(kind)
        except ValueError:
            pass
    raise ConnectorError(
        f"schema: {kind!r} is no type for {name!r}; expected one such as 'int64', 'string' or "
        f"'timestamp[us]', or give a pyarrow.Schema"
    )
