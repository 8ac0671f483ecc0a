"""Frames whose rows have keys: what is kept for each key."""

from __future__ import annotations

from typing import Any, get_args

from crosscut.contracts.frame_aggregates import KEY_TYPES, FrameAggregate, aggregate_of
from crosscut.contracts.frames import check_names, polars_errors
from crosscut.errors import FlowError
from crosscut.flow.arguments import flow_error, shown
from crosscut.flow.draft import Draft, DraftInput, DraftOperator
from crosscut.flow.frame import Frame
from crosscut.flow.frame_checks import RowWise, check_operator_name, check_row_wise, expanded
from crosscut.flow.tail import Tail
from crosscut.foundation.frame_rows import schema_text
from crosscut.graph.frames import FrameAggregateSpec, FrameEmit, FrameKeyBySpec


class KeyedFrame(Tail):
    """A frame after `key_by`.

    Examples:
        >>> import crosscut as cc
        >>> import polars as pl
        >>> orders = cc.Flow("turnover").source(cc.items([{"item": "tea", "price": 3}]))
        >>> keyed = orders.frame({"item": "string", "price": "int64"}).key_by("item")
        >>> turnover = keyed.agg(total=pl.col("price").sum(), emit="final")
    """

    def __init__(self, draft: Draft, operator: DraftOperator, schema: Any, columns: tuple[str, ...]) -> None:
        super().__init__(draft, operator)
        self._schema = schema
        self._columns = columns

    def agg(
        self, *aggregates: Any, emit: FrameEmit = "batch", name: str | None = None, **named: Any
    ) -> Frame:
        """Aggregate the rows of each key: all of them since the job began.

        Aggregates are those of Polars, of any expression of single rows: `pl.len()`, `count`, `sum`, `min`,
        `max`, `mean`, `var`, `first` and `last`, with their default arguments.
        Nulls count as in Polars. Sums of integers are exact: one that is beyond the range of its column
        (Int64, or UInt64 for unsigned values) fails the job where it would be emitted, and never wraps. Sums
        of floats depend on the order of their rows, in their last digits.

        Args:
            aggregates: Expressions; each has the name that Polars gives it.
            emit: "batch": the results so far, once for each batch and key in it. Where a batch begins and
                ends depends on time and load; the last row of a key has its result. "final": one row a key,
                when the input has ended.
            named: Expressions, with the names of their columns.

        Returns:
            The frame of the key columns and the aggregates.

        Raises:
            FlowError: An expression is no such aggregate, or the values are of a type that it does not take.

        Examples:
            >>> import crosscut as cc
            >>> import polars as pl
            >>> orders = cc.Flow("turnover").source(cc.items([{"item": "tea", "price": 3, "count": 2}]))
            >>> frame = orders.frame({"item": "string", "price": "int64", "count": "int64"})
            >>> turnover = frame.key_by("item").agg(
            ...     pl.len(), total=(pl.col("price") * pl.col("count")).sum(), emit="final", name="turnover"
            ... )
        """
        kind = "agg"
        check_operator_name(self._draft, kind, name)
        if emit not in get_args(FrameEmit):
            raise flow_error(self._draft, kind, f"emit={shown(emit)}: expected 'batch' or 'final'")
        found = tuple(self._aggregate(one) for one in self._named(aggregates, named))
        if not found:
            raise flow_error(self._draft, kind, "expected aggregates, such as total=pl.col('price').sum()")
        keys = {column: self._schema[column] for column in self._columns}
        names = [*keys, *(one.name for one in found)]
        if twice := sorted({one for one in names if names.count(one) > 1}):
            raise flow_error(
                self._draft,
                kind,
                f"several columns would be called {', '.join(twice)}: give each its own name",
            )
        try:
            check_names(names)
        except FlowError as error:
            raise flow_error(self._draft, kind, error.message) from error
        import polars

        schema = polars.Schema({**keys, **{one.name: one.dtype for one in found}})
        # Keys are part of the state: rows of other key columns must not be taken for these.
        states = (
            *((f"key {column}", str(kind_of_key)) for column, kind_of_key in keys.items()),
            *((one.name, one.state) for one in found),
        )
        spec = FrameAggregateSpec(found, keys, self._schema, schema, emit, states)
        read = DraftInput(self._operator, "hash")
        return Frame(self._draft, self._draft.add(kind, spec, read, name=name), schema)

    def _named(self, aggregates: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """Return all expressions, those of `named` with their names."""
        return [
            *(
                one
                for given in expanded(aggregates)
                for one in (given if isinstance(given, list) else [given])
            ),
            *(getattr(one, "alias", lambda _, one=one: one)(name) for name, one in named.items()),
        ]

    def _aggregate(self, expression: Any) -> FrameAggregate:
        try:
            found = aggregate_of(expression, self._schema)
        except FlowError as error:
            raise flow_error(self._draft, "agg", error.message) from error
        except polars_errors() as error:
            problem = str(error).partition("\n")[0]
            raise flow_error(
                self._draft,
                "agg",
                f"{expression!s:.200}: {type(error).__name__}: {problem}. The frame has the columns "
                f"({schema_text(self._schema)})",
            ) from error
        if found.of is not None:
            check_row_wise(self._draft, "agg", RowWise("select", (found.of,), {}), self._schema)
        return found


def keyed_frame(
    draft: Draft, operator: DraftOperator, schema: Any, columns: tuple[str, ...], name: str | None
) -> KeyedFrame:
    """Return the frame with its keys; see `Frame.key_by`."""
    for index, column in enumerate(columns):
        if column in columns[:index]:
            raise flow_error(draft, "key_by", f"{column!r} is named twice")
        if str(schema[column].base_type()) not in KEY_TYPES:
            raise flow_error(
                draft,
                "key_by",
                f"column {column!r} of type {schema[column]} can't be a key: expected integers of up "
                f"to 64 bits, texts, bytes, booleans or whole floats; cast it, as in "
                f"pl.col({column!r}).cast(pl.String)",
            )
    spec = FrameKeyBySpec(columns, schema)
    read = DraftInput(operator, "forward")
    return KeyedFrame(draft, draft.add("key_by", spec, read, name=name), schema, columns)
