"""From Arrow to rows: values come out as they were stored, or the file, the column and the row are named."""

from __future__ import annotations

from functools import partial
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.extras import required
from crosscut.errors import ConnectorError

# Of the calls that make Python values; Arrow's own exceptions are of these kinds, too.
_REFUSALS = (ValueError, ArithmeticError, LookupError, TypeError, NotImplementedError)


class RowConverter:
    """Makes rows of the record batches of one file.

    Nanoseconds become microseconds where nothing is lost: Python's own types hold no more, and records must
    not be of another type where pandas happens to be installed.

    Args:
        schema: Of the batches.
        path: Of the file, for errors.
    """

    def __init__(self, schema: Any, path: str) -> None:
        self._arrow = required("pyarrow", "parquet")
        self._path = path
        kinds = [_plain(self._arrow, field.type) for field in schema]
        self._casts = {
            index: kind
            for index, (field, kind) in enumerate(zip(schema, kinds, strict=True))
            if kind != field.type
        }

    def plain(self, batch: Any, row: int) -> Any:
        """Return a batch whose first row is number `row` of its file, without nanoseconds.

        Raises:
            ConnectorError: A value is no whole number of microseconds.
        """
        if not self._casts:
            return batch
        columns = list(batch.columns)
        for index, kind in self._casts.items():
            try:
                columns[index] = columns[index].cast(kind)
            except _REFUSALS as error:
                raise self._refused(batch, index, row, error, partial(_cast, kind)) from error
        return self._arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def rows(self, batch: Any, row: int) -> list[dict[str, Any]]:
        """Return the rows of a plain batch whose first row is number `row` of its file.

        Raises:
            ConnectorError: Python has no value for one of them.
        """
        try:
            found: list[dict[str, Any]] = batch.to_pylist()
        except _REFUSALS as error:
            for index, column in enumerate(batch.columns):
                try:
                    column.to_pylist()
                except _REFUSALS as refusal:
                    raise self._refused(batch, index, row, refusal, lambda one: one.to_pylist()) from refusal
            raise ConnectorError(f"{self._path}: {error}", path=self._path) from error
        return found

    def _refused(self, batch: Any, index: int, row: int, error: Exception, convert: Any) -> ConnectorError:
        column, name = batch.column(index), batch.schema.names[index]
        for number in range(len(column)):
            # No slice: casting one looks at all that the lists of the column hold.
            one = column.take(self._arrow.array([number]))
            try:
                convert(one)
            except _REFUSALS as found:
                row, error = row + number, found
                break
        # The value itself can't be shown where Python has none for it; its number can.
        value = getattr(one[0], "value", None)
        shown = "" if value is None else f", value {shortened(value)}"
        # Arrow's advice to install pandas would change the type of all other records.
        why = str(error).partition(" Install pandas")[0]
        return ConnectorError(
            f"{self._path}: column {name!r} of type {column.type}, row {row}{shown}: {why}; "
            f"write values that Python has (times from year 1 to 9999, in whole microseconds), or leave the "
            f"column out with columns=",
            path=self._path,
            column=name,
            is_permanent=True,
        )


def _cast(kind: Any, column: Any) -> Any:
    return column.cast(kind)


def _plain(arrow: Any, kind: Any) -> Any:
    """Return the type that holds microseconds where `kind` holds nanoseconds, at any depth."""
    types = arrow.types
    if types.is_timestamp(kind):
        return arrow.timestamp("us", tz=kind.tz) if kind.unit == "ns" else kind
    if types.is_time64(kind):
        return arrow.time64("us")
    if types.is_duration(kind):
        return arrow.duration("us") if kind.unit == "ns" else kind
    if types.is_dictionary(kind):
        value = _plain(arrow, kind.value_type)
        return kind if value == kind.value_type else value
    if types.is_struct(kind):
        return arrow.struct([field.with_type(_plain(arrow, field.type)) for field in kind])
    if types.is_map(kind):
        return arrow.map_(
            kind.key_field.with_type(_plain(arrow, kind.key_type)),
            kind.item_field.with_type(_plain(arrow, kind.item_type)),
            keys_sorted=kind.keys_sorted,
        )
    if types.is_fixed_size_list(kind):
        return arrow.list_(kind.value_field.with_type(_plain(arrow, kind.value_type)), kind.list_size)
    if types.is_large_list(kind):
        return arrow.large_list(kind.value_field.with_type(_plain(arrow, kind.value_type)))
    if types.is_list(kind):
        return arrow.list_(kind.value_field.with_type(_plain(arrow, kind.value_type)))
    return kind
