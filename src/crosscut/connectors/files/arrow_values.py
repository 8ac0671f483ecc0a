"""From rows to Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.rows import checked_columns
from crosscut.contracts.arrow_checks import check_values, type_by_name
from crosscut.errors import ConnectorError

REFUSALS = (TypeError, ValueError, OverflowError, AttributeError, NotImplementedError)
"""Of values. Arrow's own exceptions are of these kinds, too."""


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
                raise ValueError(f"column {field.name!r} does not accept None")
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
        found = type_by_name(arrow, kind)
        if found is not None:
            return found
    raise ConnectorError(
        f"schema: {kind!r} is not a type for {name!r}; expected one such as 'int64', 'string' or "
        f"'timestamp[us]', or give a pyarrow.Schema"
    )
