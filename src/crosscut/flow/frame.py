"""Frames: streams of columns, whose operators are expressions of Polars.

What a method says of names and types is checked when it is called, on a frame without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

from crosscut.contracts.connectors import Sink
from crosscut.contracts.frames import (
    BatchFormat,
    BatchFunction,
    FrameSource,
    TakesFrames,
    schemas,
    unlike_records,
)
from crosscut.errors import ConnectorError, FlowError
from crosscut.flow.arguments import checked_function, flow_error, shown
from crosscut.flow.draft import Draft, DraftInput, DraftOperator, has_event_time
from crosscut.flow.frame_checks import RowWise, check_operator_name, check_row_wise, checked_schema, expanded
from crosscut.flow.tail import StreamEnd, Tail
from crosscut.foundation.frame_rows import schema_text
from crosscut.graph.frames import FrameMapSpec, FrameRowsSpec, FrameSpec
from crosscut.graph.specs import OperatorSpec, SinkSpec, SourceSpec

if TYPE_CHECKING:
    from crosscut.flow.keyed_frame import KeyedFrame
    from crosscut.flow.stream import Stream


class Frame(Tail):
    """A stream of rows that are held as columns, a batch at a time.

    Operators take expressions of Polars (`crosscut[polars]`). The value of an expression depends on its row
    alone, since batch boundaries are arbitrary. One that looks at other rows, such as `pl.col("x").sum()` or
    `.shift()`, is refused.

    `name=` names the operator that a method adds, as `named` does.

    Examples:
        >>> import crosscut as cc
        >>> import polars as pl
        >>> orders = cc.Flow("orders").source(cc.items([{"item": "tea", "price": 3, "count": 2}]))
        >>> frame = orders.frame({"item": "string", "price": "int64", "count": "int64"})
        >>> totals = frame.select("item", total=pl.col("price") * pl.col("count"))
        >>> totals.schema
        Schema([('item', String), ('total', Int64)])
    """

    def __init__(self, draft: Draft, operator: DraftOperator, schema: Any) -> None:
        super().__init__(draft, operator)
        self._schema = schema

    @property
    def schema(self) -> Any:
        """Names and types of the columns, as a `polars.Schema`."""
        return self._schema

    def select(self, *columns: Any, name: str | None = None, **named: Any) -> Frame:
        """Keep these columns, or what expressions make of columns, and no others.

        Args:
            columns: Names or expressions, as in `polars.DataFrame.select`.
            named: The same, with the names of the new columns. One that is called `name` needs `.alias`.

        Raises:
            FlowError: A column does not exist, types do not fit, or an expression looks at other rows.

        Examples:
            >>> import crosscut as cc
            >>> import polars as pl
            >>> numbers = cc.Flow("squares").source(cc.generate(lambda i: {"n": i}, count=10))
            >>> squares = numbers.frame({"n": "int64"}).select("n", square=pl.col("n") ** 2)
        """
        return self._mapped("select", RowWise("select", expanded(columns), named), name)

    def with_columns(self, *columns: Any, name: str | None = None, **named: Any) -> Frame:
        """Add columns, or replace those of the same name.

        Args:
            columns: Expressions, as in `polars.DataFrame.with_columns`.
            named: See `select`.

        Raises:
            FlowError: See `select`.

        Examples:
            >>> import crosscut as cc
            >>> import polars as pl
            >>> words = cc.Flow("upper").source(cc.items([{"word": "tea"}])).frame({"word": "string"})
            >>> upper = words.with_columns(pl.col("word").str.to_uppercase())
        """
        return self._mapped("with_columns", RowWise("with_columns", expanded(columns), named), name)

    def filter(self, *predicates: Any, name: str | None = None) -> Frame:
        """Keep the rows for which all predicates are true; a null is not.

        Args:
            predicates: Expressions, as in `polars.DataFrame.filter`.

        Raises:
            FlowError: See `select`.

        Examples:
            >>> import crosscut as cc
            >>> import polars as pl
            >>> numbers = cc.Flow("large").source(cc.generate(lambda i: {"n": i}, count=10))
            >>> large = numbers.frame({"n": "int64"}).filter(pl.col("n") > 5)
        """
        return self._mapped("filter", RowWise("filter", expanded(predicates), {}), name)

    def drop(self, *columns: str, name: str | None = None) -> Frame:
        """Leave columns out.

        Raises:
            FlowError: One does not exist, or none is left.

        Examples:
            >>> import crosscut as cc
            >>> people = cc.Flow("people").source(cc.items([{"id": 1, "secret": "x"}]))
            >>> open_to_all = people.frame({"id": "int64", "secret": "string"}).drop("secret")
        """
        self._check_names("drop", columns)
        kept = [one for one in self._schema if one not in columns]
        if not kept:
            raise flow_error(self._draft, "drop", "no column is left; a frame needs at least one")
        return self._mapped("drop", RowWise("select", tuple(kept), {}), name)

    def rename(self, names: Mapping[str, str], *, name: str | None = None) -> Frame:
        """Give columns other names.

        Args:
            names: The new names, by the old ones.

        Raises:
            FlowError: A column does not exist, or two would have one name.

        Examples:
            >>> import crosscut as cc
            >>> people = cc.Flow("people").source(cc.items([{"id": 1}])).frame({"id": "int64"})
            >>> renamed = people.rename({"id": "person"})
        """
        if not isinstance(names, Mapping) or not all(isinstance(one, str) for one in names.values()):
            raise flow_error(
                self._draft, "rename", f"{shown(names)}: expected new names by old ones, as in {{'a': 'b'}}"
            )
        self._check_names("rename", tuple(names))
        return self._mapped("rename", RowWise("rename", (dict(names),), {}), name)

    def map_batches(
        self,
        function: Callable[[Any], Any],
        schema: Any,
        *,
        format: BatchFormat = "polars",  # noqa: A002 - the word for it in Polars, Arrow and pandas
        name: str | None = None,
    ) -> Frame:
        """Replace each batch of rows by what a function makes of it, such as a model.

        Where a batch begins and ends depends on time and load, and is another one after a failure. A function
        whose result for a row depends on the other rows of its batch is not exact.

        Args:
            function: Takes a batch, returns one of any number of rows, in any of the formats. It must not
                change what it is given.
            schema: Of what it returns; see `Stream.frame`.
            format: What it takes: a `polars.DataFrame`, a `pyarrow.Table` ("arrow") or a `pandas.DataFrame`.

        Raises:
            FlowError: An argument is not as described.

        Examples:
            >>> import crosscut as cc
            >>> import polars as pl
            >>> texts = cc.Flow("lengths").source(cc.items([{"text": "tea"}])).frame({"text": "string"})
            >>> def lengths(batch):
            ...     return batch.select(length=pl.col("text").str.len_chars().cast(pl.Int64))
            >>> lengths = texts.map_batches(lengths, {"length": "int64"})
        """
        kind = "map_batches"
        if format not in get_args(BatchFormat):
            raise flow_error(
                self._draft, kind, f"format={shown(format)}: expected 'polars', 'arrow' or 'pandas'"
            )
        checked = checked_function(self._draft, kind, "function", function, "batch")
        if format == "pandas" and find_spec("pandas") is None:
            raise flow_error(
                self._draft,
                kind,
                "format='pandas' needs pandas, which is not installed: pip install pandas",
            )
        made, _ = _schemas(self._draft, kind, schema)
        spec = FrameMapSpec(BatchFunction(checked, format), self._schema, made, kind, is_by_row=False)
        return self._then(kind, spec, made, name)

    def key_by(self, *columns: str, name: str | None = None) -> KeyedFrame:
        """Bring together, in one task, all rows that have the same values in these columns.

        They go to the task that has the records of a stream with the same key: the value of one column, or
        the tuple of several. A null is a key. Columns are of integers, texts, bytes or booleans; of floats
        only whole numbers are keys, as in records, and anything else fails the job.

        Raises:
            FlowError: A column does not exist, or its values are no keys.

        Examples:
            >>> import crosscut as cc
            >>> import polars as pl
            >>> orders = cc.Flow("turnover").source(cc.items([{"item": "tea", "price": 3}]))
            >>> keyed = orders.frame({"item": "string", "price": "int64"}).key_by("item")
            >>> turnover = keyed.agg(pl.len().alias("orders"), total=pl.col("price").sum())
            >>> turnover.schema
            Schema([('item', String), ('orders', Int64), ('total', Int64)])
        """
        from crosscut.flow.keyed_frame import keyed_frame

        self._check_names("key_by", columns)
        return keyed_frame(self._draft, self._operator, self._schema, columns, name)

    def rows(self, *, name: str | None = None) -> Stream[dict[str, Any]]:
        """Return the stream of the rows, each a dict by column.

        Raises:
            FlowError: A column holds what Python has no values for.

        Examples:
            >>> import crosscut as cc
            >>> frame = cc.Flow("both").source(cc.items([{"id": 1}])).frame({"id": "int64"})
            >>> ids = frame.rows().map(lambda row: row["id"])
        """
        from crosscut.flow.stream import Stream

        if problem := unlike_records(self._schema):
            raise flow_error(self._draft, "rows", problem)
        return Stream(self._draft, self._add("rows", FrameRowsSpec(), name))

    def sink(self, sink: Sink[Any], *, name: str | None = None) -> StreamEnd:
        """Write the rows to `sink`; they become visible when their checkpoint is complete.

        `crosscut.files.write_parquet` takes columns as they are. Every other sink gets each row as a dict.

        Raises:
            FlowError: `sink` is no sink, or can't take these columns.

        Examples:
            >>> import crosscut as cc
            >>> frame = cc.Flow("stored").source(cc.items([{"id": 1}])).frame({"id": "int64"})
            >>> end = frame.sink(cc.files.write_parquet("out", {"id": "int64"}), name="stored")
        """
        if not isinstance(sink, Sink):
            raise flow_error(self._draft, "sink", f"expected a crosscut.Sink, found {shown(sink)}")
        if sink.has_one_task:
            return self.rows().sink(sink, name=name)
        try:
            takes_columns = isinstance(sink, TakesFrames) and sink.takes_frame(self._schema)
        except ConnectorError as error:
            raise flow_error(self._draft, "sink", error.message) from error
        if not takes_columns and (problem := unlike_records(self._schema)):
            raise flow_error(self._draft, "sink", problem)
        return StreamEnd(self._draft, self._add("sink", SinkSpec(sink), name))

    def _mapped(self, kind: str, function: RowWise, name: str | None) -> Frame:
        check_operator_name(self._draft, kind, name)
        schema = checked_schema(self._draft, kind, function, self._schema)
        check_row_wise(self._draft, kind, function, self._schema)
        return self._then(kind, FrameMapSpec(function, self._schema, schema, kind), schema, name)

    def _check_names(self, kind: str, names: tuple[object, ...]) -> None:
        if not names:
            raise flow_error(self._draft, kind, "expected the names of columns, found none")
        for one in names:
            if not isinstance(one, str) or one not in self._schema:
                raise flow_error(
                    self._draft,
                    kind,
                    f"{shown(one)} is not a column; the frame has {schema_text(self._schema)}",
                )

    def _add(self, kind: str, spec: OperatorSpec, name: str | None) -> DraftOperator:
        return self._draft.add(kind, spec, DraftInput(self._operator, "forward"), name=name)

    def _then(self, kind: str, spec: OperatorSpec, schema: Any, name: str | None) -> Frame:
        return Frame(self._draft, self._add(kind, spec, name), schema)


def frame_of(draft: Draft, read: DraftInput, schema: Any, name: str | None) -> Frame:
    """Return the frame of a stream; see `Stream.frame`."""
    kind = "frame"
    operator = read.operator
    source = operator.spec.source if isinstance(operator.spec, SourceSpec) else None
    if has_event_time(operator):
        raise flow_error(
            draft,
            kind,
            "frames have no event time: call assign_timestamps on records, after rows()",
        )
    is_closed = False
    if schema is None:
        if not isinstance(source, FrameSource):
            raise flow_error(
                draft,
                kind,
                f"the columns of {operator.uid!r} are not known: pass a schema, as in "
                f"frame({{'word': 'string', 'count': 'int64'}})",
            )
        try:
            schema, is_closed = source.frame_schema(), True
        except ConnectorError as error:
            raise flow_error(draft, kind, f"{error.message}. Or call frame with a schema") from error
    made, arrow_schema = _schemas(draft, kind, schema)
    if isinstance(source, FrameSource):
        try:
            source.in_frames(made.names())
        except ConnectorError as error:
            raise flow_error(draft, kind, error.message) from error
    spec = FrameSpec(made, arrow_schema, is_closed)
    return Frame(draft, draft.add(kind, spec, read, name=name), made)


def _schemas(draft: Draft, kind: str, schema: Any) -> tuple[Any, Any]:
    try:
        return schemas(schema)
    except FlowError as error:
        raise flow_error(draft, kind, error.message) from error
