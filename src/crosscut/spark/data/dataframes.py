"""DataFrames as sources: `crosscut.spark.dataframe`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, get_args

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from crosscut.connectors.extras import required
from crosscut.connectors.files.staged_rows import StagedRows
from crosscut.contracts.connectors import JSON, Source, Split, SplitReader
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options
from crosscut.spark.data.arrow_records import RecordKind, RecordsOf

_PLAIN = frozenset({
    BinaryType, BooleanType, ByteType, CharType, DateType, DayTimeIntervalType, DecimalType, DoubleType,
    FloatType, IntegerType, LongType, NullType, ShortType, StringType, TimestampNTZType, TimestampType,
    VarcharType,
})  # fmt: skip
"""Types with one counterpart in Python, Arrow and Parquet. Subclasses are not meant."""

_DESCRIBED_MAX = 900


@checks_options("spark.dataframe")
def dataframe(df: DataFrame, *, records: RecordKind = "rows") -> Source[Any]:
    """Return a source of the rows of a bounded DataFrame: of any format, table, query or JDBC.

    When a job starts that has no checkpoint, a Spark job stages the rows, once, as Parquet in the
    checkpoint directory; from there they are read. So a DataFrame that is not deterministic is read exactly
    once, too, and a resumed job goes on with the rows that it began with. Staged files are deleted when no
    checkpoint that is kept has still to read them. The rows of a file come in their order; a partition of
    more than about 32 MiB becomes several.

    Args:
        df: Of the SparkSession of this program; not a streaming one.
        records: What a record is: "rows" `pyspark.sql.Row`, "dicts" a dict by column, "tuples" a tuple, which
            is made fastest, "values" the value of the only column, "arrow" a `pyarrow.RecordBatch` of some
            rows. Timestamps have a time zone, that of the session.

    Raises:
        ConnectorError: It is no bounded DataFrame, a column is of a type that has no counterpart (it is
            named), or pyarrow is missing. Later, at the start of the job: Spark can't stage it.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.spark.dataframe(spark.read.parquet("orders"))  # doctest: +SKIP
    """
    required("pyarrow", "parquet")
    if not isinstance(df, DataFrame):
        raise ConnectorError(f"dataframe({df!r:.100}): expected a pyspark.sql.DataFrame")
    if not hasattr(df, "_jdf"):
        raise ConnectorError(
            "a DataFrame of Spark Connect can't be read: make it with a SparkSession in this program"
        )
    if df.isStreaming:
        raise ConnectorError(
            "dataframe(...) reads bounded DataFrames, and this one is streaming: use "
            "crosscut.spark.stream(format, options) instead"
        )
    if records not in get_args(RecordKind):
        raise ConnectorError(f"records={records!r}: expected one of {get_args(RecordKind)}")
    check_schema(df.schema)
    if records == "values" and len(df.columns) != 1:
        raise ConnectorError(
            f"records='values' is for a DataFrame of one column, and this one has {len(df.columns)}: "
            f"{', '.join(df.columns):.200}; select one, or use records='tuples'"
        )
    return DataFrameSource(df, records)


class DataFrameSource(Source[Any]):
    """See `dataframe`. Belongs to the process that made it; workers get a `StagedRows`.

    Args:
        purpose: What the rows are for, if those of another purpose are not to be taken for them.

    Attributes:
        df: What is staged.
    """

    def __init__(
        self, df: DataFrame, records: RecordKind, store_url: str = "", *, ends: bool = True, purpose: str = ""
    ) -> None:
        self.df = df
        self._purpose = purpose
        self._records = records
        self._rows = StagedRows(store_url, RecordsOf(records), ends)

    def __reduce__(self) -> tuple[Callable[..., Source[Any]], tuple[Any, ...]]:
        return StagedRows, (self._rows.store_url, self._rows.records, self._rows.ends)

    def placed(self, store_url: str) -> DataFrameSource:
        """Return the source for a job that has its checkpoint store there."""
        ends, purpose = self._rows.ends, self._purpose
        return DataFrameSource(self.df, self._records, store_url, ends=ends, purpose=purpose)

    def without_end(self, purpose: str) -> DataFrameSource:
        """Return the source as the beginning of an input that goes on."""
        return DataFrameSource(self.df, self._records, self._rows.store_url, ends=False, purpose=purpose)

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Nothing can be read before a job has staged it."""
        return self._rows.splits(parallelism)

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Read what was staged."""
        return self._rows.reader(split, position)

    def describe(self) -> str:
        """Return the schema, and what it is for: rows that were staged with another one are not those of this
        DataFrame."""
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.df.schema)
        purpose = f" for {self._purpose}" if self._purpose else ""
        text = f"DataFrame{purpose} ({columns})".replace("\n", " ")
        if len(text) <= _DESCRIBED_MAX:
            return text
        return f"{text[:_DESCRIBED_MAX]}... (digest {sha256(text.encode()).hexdigest()[:12]})"


def check_schema(schema: StructType) -> None:
    """Raise ConnectorError if a column can't be found by its name, or is of a type without a counterpart."""
    names = schema.fieldNames()
    if not names:
        raise ConnectorError("the DataFrame has no columns")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConnectorError(
            f"the DataFrame has more than one column {', '.join(map(repr, repeated))}: rename all but one"
        )
    problems = [f"{name} {kind.simpleString()}" for name, kind in _without_counterpart("", schema)]
    if problems:
        raise ConnectorError(
            f"columns of the DataFrame are of types without a counterpart: {', '.join(problems)}; cast them, "
            f"or leave them out with select"
        )


def _without_counterpart(name: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    inner: Iterable[tuple[str, DataType]]
    match kind:
        case StructType():
            inner = [(f"{name}.{field.name}".lstrip("."), field.dataType) for field in kind]
        case ArrayType():
            inner = [(f"{name}[]", kind.elementType)]
        case MapType():
            inner = [(f"{name}.key", kind.keyType), (f"{name}.value", kind.valueType)]
        case _:
            if type(kind) not in _PLAIN:
                yield name, kind
            return
    for path, one in inner:
        yield from _without_counterpart(path, one)
