"""Parquet that Spark reads as a table: `crosscut.spark.table`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from pyspark import SparkContext
from pyspark.sql.types import Row, StructType

from crosscut.connectors.extras import required
from crosscut.connectors.files.parquet_sink import write_parquet
from crosscut.connectors.files.partitions import PARTITIONS_MAX
from crosscut.connectors.files.rows import checked_row
from crosscut.contracts.connectors import Sink
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options
from crosscut.spark.cluster.versions import arrow_schema
from crosscut.spark.data.dataframes import check_schema


@checks_options("spark.table")
def table(
    directory: str | os.PathLike[str],
    schema: StructType | str,
    *,
    row: Callable[[Any], Any] | None = None,
    partition_by: str | Sequence[str] = (),
    partitions_max: int = PARTITIONS_MAX,
    roll_bytes: int | None = None,
) -> Sink[Any]:
    """Return a sink that writes Parquet which `spark.read.parquet(directory)` reads, while the job runs, too.

    It is `crosscut.files.write_parquet` with a schema of Spark: files become visible as a whole when their
    checkpoint is complete, one a task and checkpoint, and never change; what is staged Spark does not see. A
    query sees the files that were there when it began.

    Args:
        directory: Of a local or shared file system, the same for all workers.
        schema: Of the rows: a StructType, or DDL, for which a SparkSession has to be there.
        row: Takes a record, returns a row: a Row, a dict or a dataclass by name, a tuple or list by order.
            Default: the record itself.
        partition_by: Columns whose values name directories, as `df.write.partitionBy` does it. Spark guesses
            their types from the names ("007" is 7) unless `spark.read.schema(...)` says them.
        partitions_max: See `crosscut.files.write_parquet`.
        roll_bytes: See `crosscut.files.write_parquet`.

    Raises:
        ConnectorError: An argument is not as described, a column is of a type without a counterpart, or
            pyarrow is missing. Later, in the job: a record is no row, or a value is not of its column's type.

    Examples:
        >>> import crosscut as cc
        >>> sink = cc.spark.table("visits", "user STRING, count BIGINT")  # doctest: +SKIP
    """
    checked_row(row)
    required("pyarrow", "parquet")
    found: Any = schema
    if isinstance(schema, str):
        if SparkContext._active_spark_context is None:
            raise ConnectorError(
                f"schema={schema!r:.100}: Spark reads DDL, and there is no SparkSession yet: create one, "
                f"or pass a StructType"
            )
        try:
            found = StructType.fromDDL(schema)
        except Exception as error:
            raise ConnectorError(f"schema={schema!r:.200} is not valid DDL: {error}") from error
    if not isinstance(found, StructType):
        raise ConnectorError(f"schema={schema!r:.100}: expected a StructType, or DDL")
    check_schema(found)
    return write_parquet(
        directory,
        arrow_schema(found),
        row=_ByName(row),
        partition_by=partition_by,
        partitions_max=partitions_max,
        roll_bytes=roll_bytes,
    )


class _ByName:
    """Has the values of a Row go by name, as those of a dict do."""

    def __init__(self, row: Callable[[Any], Any] | None) -> None:
        self._row = row

    def __call__(self, record: Any) -> Any:
        found = record if self._row is None else self._row(record)
        is_named = isinstance(found, Row) and hasattr(found, "__fields__")
        return found.asDict(recursive=True) if is_named else found
