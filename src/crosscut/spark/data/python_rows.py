"""What data sources of PySpark return as rows, as records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyspark.sql.types import Row

from crosscut.errors import ConnectorError
from crosscut.spark.data.arrow_records import RecordsOf, row_of


@dataclass(frozen=True, slots=True)
class PythonRows:
    """Makes records: of tuples, lists and rows, as a data source returns them, and of Arrow batches.

    Attributes:
        name: Of the data source.
        columns: Of its schema.
        as_rows: Records are Rows; else dicts.
    """

    name: str
    columns: tuple[str, ...]
    as_rows: bool

    def of(self, read: Callable[[], Iterator[Any]], *, skip: int) -> Iterator[Any]:
        """Yield the records from number `skip` on. `read` is called when the first is asked for.

        Raises:
            ConnectorError: There are fewer now than were read before.
        """
        rows = self._all(read)
        found = sum(1 for _ in islice(rows, skip))
        if found < skip:
            raise ConnectorError(
                f"data source {self.name}: read() returned {found} rows of a partition of which the job has "
                f"read {skip} before; expected the same rows again"
            )
        yield from rows

    def _all(self, read: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        names = list(self.columns)
        for one in read():
            if isinstance(one, tuple | list):
                values = self._values(one)
                yield row_of(names, values) if self.as_rows else dict(zip(names, values, strict=True))
            elif hasattr(one, "to_pylist") and hasattr(one, "schema"):
                self._check_columns(one.schema.names)
                yield from RecordsOf("rows" if self.as_rows else "dicts")(one.select(names))
            else:
                raise ConnectorError(
                    f"data source {self.name}: read() returned {one!r:.100}, of type {type(one).__name__}, "
                    f"as a row: expected a tuple, a list, a Row or a pyarrow.RecordBatch"
                )

    def _values(self, one: Any) -> Any:
        if isinstance(one, Row) and hasattr(one, "__fields__"):
            self._check_columns(one.__fields__)
            return [one[name] for name in self.columns]
        if len(one) != len(self.columns):
            raise ConnectorError(
                f"data source {self.name}: read() returned {one!r:.200}, a row of {len(one)} values: "
                f"expected {len(self.columns)}, for {', '.join(self.columns)}"
            )
        return one

    def _check_columns(self, found: Any) -> None:
        if sorted(found) != sorted(self.columns):
            raise ConnectorError(
                f"data source {self.name}: read() returned a row with the columns {', '.join(found)}: "
                f"expected {', '.join(self.columns)}"
            )
