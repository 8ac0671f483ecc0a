"""Checks of expressions before there are any rows: names, types, and that each row stands alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crosscut.contracts.frames import check_names, polars_errors
from crosscut.errors import FlowError
from crosscut.flow.arguments import flow_error
from crosscut.flow.draft import Draft
from crosscut.flow.frame_expressions import row_problem
from crosscut.foundation.frame_rows import schema_text


@dataclass(frozen=True, slots=True)
class RowWise:
    """A method of `polars.DataFrame` with its arguments, as a function of a frame."""

    method: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]

    def __call__(self, frame: Any) -> Any:
        made = getattr(frame, self.method)(*self.arguments, **self.named)
        if made.height != frame.height and self.method != "filter":
            raise FlowError(
                f"{self.method} made {made.height} rows of {frame.height}, expected one of each. Add "
                f"constants with with_columns; use map_batches to change the number of rows"
            )
        return made


def checked_schema(draft: Draft, kind: str, function: RowWise, schema: Any) -> Any:
    """Return the schema of what `function` makes of a frame of `schema`, which it tries without rows.

    Raises:
        FlowError: Polars refuses it.
    """
    import polars

    empty = polars.DataFrame(schema=schema)
    try:
        made = getattr(empty, function.method)(*function.arguments, **function.named)
    except polars_errors() as error:
        found = str(error).partition("\n")[0]
        raise flow_error(
            draft,
            kind,
            f"{type(error).__name__}: {found}. The frame has the columns ({schema_text(schema)})",
        ) from error
    if not made.width:
        raise flow_error(draft, kind, "expected columns or expressions, found none")
    try:
        check_names(made.columns)
    except FlowError as error:
        raise flow_error(draft, kind, error.message) from error
    return made.schema


def check_operator_name(draft: Draft, kind: str, name: object) -> None:
    """Refuse a column that was meant to be called "name".

    Raises:
        FlowError: `name` is an expression.
    """
    if name is not None and not isinstance(name, str):
        raise flow_error(
            draft,
            kind,
            "name= names the operator, and expects a text; for a column called 'name' use .alias('name')",
        )


def check_row_wise(draft: Draft, kind: str, function: RowWise, schema: Any) -> None:
    """Refuse expressions whose result for a row depends on other rows.

    Each expression is judged (`row_problem`). Then some rows are tried together and one by one, since Polars
    need not be right about each of its functions.

    Raises:
        FlowError: One does.
    """
    for one in _expressions((*function.arguments, *function.named.values())):
        if problem := row_problem(one, schema):
            raise flow_error(draft, kind, problem)
    if _differs(function, _some_rows(schema)):
        raise flow_error(
            draft,
            kind,
            f"{function.method} does not compute each row from that row alone: a batch of several rows gives "
            f"another result than its rows one by one. Use expressions of single rows; add constants with "
            f"with_columns",
        )


def _expressions(given: Any) -> Iterator[Any]:
    """Yield the expressions among arguments."""
    for one in given:
        if isinstance(one, list | tuple):
            yield from _expressions(one)
        elif hasattr(one, "meta"):
            yield one


def expanded(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Return arguments with lists in place of generators and the like, which can be read only once."""
    import polars

    whole = (str, bytes, list, tuple, Mapping, polars.Expr, polars.Series, polars.DataFrame)
    return tuple(
        list(one) if isinstance(one, Iterable) and not isinstance(one, whole) else one for one in arguments
    )


def _some_rows(schema: Any) -> Any:
    """Return four rows that are not in order, with a null and a value that occurs twice.

    The order differs from column to column: of equal columns `x.is_in(y)` would say the same for each row.
    """
    import polars

    numbers = [2, None, 1, 2]
    columns = []
    for index, (name, kind) in enumerate(schema.items()):
        order = polars.Series(numbers[index % 4 :] + numbers[: index % 4], dtype=polars.Int64)
        try:
            column = _values(order, kind)
        except polars_errors():
            # A type without such values.
            column = polars.Series([None] * len(order), dtype=kind)
        columns.append(column.alias(name))
    return polars.DataFrame(columns)


def _values(order: Any, kind: Any) -> Any:
    """Return a `polars.Series` of type `kind` with a value for each number of `order`."""
    import polars

    if isinstance(kind, polars.Boolean):
        return order == 2
    if isinstance(kind, polars.Enum):
        names = kind.categories.to_list()
        return polars.Series([None if one is None else names[one % len(names)] for one in order], dtype=kind)
    if isinstance(kind, polars.Categorical | polars.Binary):
        return order.cast(polars.String).cast(kind)
    if isinstance(kind, polars.Struct):
        fields = [_values(order, one.dtype).alias(one.name) for one in kind.fields]
        return polars.DataFrame(fields).to_struct()
    if isinstance(kind, polars.List | polars.Array):
        width = 1 if isinstance(kind, polars.List) else kind.size
        inner = _values(order, kind.inner).to_list()
        return polars.Series([None if one is None else [one] * width for one in inner], dtype=kind)
    return order.cast(kind)


def _differs(function: RowWise, rows: Any) -> bool:
    """Tell whether rows give another result one by one; an error for single rows says nothing."""
    import polars

    try:
        single = polars.concat([function(rows.slice(index, 1)) for index in range(rows.height)])
    except polars_errors():
        # Functions of the user may raise anything for these rows.
        return False
    try:
        return not function(rows).equals(single)
    except polars_errors():
        # One by one it has worked.
        return True
