"""Expressions of Polars, tried before there are any rows: names, types, and that rows stay apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crosscut.errors import FlowError
from crosscut.flow.arguments import flow_error
from crosscut.flow.draft import Draft
from crosscut.foundation.frame_rows import schema_text

_ALIKE = "it depends on the other rows of its batch, and where a batch begins and ends is nobody's choice"


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
                f"{self.method} made {made.height} rows of {frame.height}: each row has to become one; of a "
                f"constant make a column with with_columns"
            )
        return made


def made_of_nothing(draft: Draft, kind: str, function: RowWise, schema: Any) -> Any:
    """Return the schema of what `function` makes of a frame of `schema`, without rows.

    Raises:
        FlowError: Polars refuses it.
    """
    import polars

    empty = polars.DataFrame(schema=schema)
    try:
        made = getattr(empty, function.method)(*function.arguments, **function.named)
    except Exception as error:
        found = str(error).partition("\n")[0]
        raise flow_error(
            draft,
            kind,
            f"{type(error).__name__}: {found}. The frame has the columns ({schema_text(schema)})",
        ) from error
    if not made.width:
        raise flow_error(draft, kind, "expected columns or expressions, found none")
    return made.schema


def check_row_wise(draft: Draft, kind: str, function: RowWise, schema: Any) -> None:
    """Refuse expressions that look at other rows than the one that they are for.

    Polars says it of most expressions. As it does not of all (of `x - x.mean()`, say, it denies it), those
    that an expression is made of are asked as well, and some rows are tried together and one by one.

    Raises:
        FlowError: One does.
    """
    for one in (*function.arguments, *function.named.values()):
        for part in _parts(one):
            if _looks_around(part):
                raise flow_error(draft, kind, _refusal(str(part)))
    if _differs(function, _some_rows(schema)):
        raise flow_error(draft, kind, _refusal(function.method))


def check_aggregated(draft: Draft, function: RowWise, schema: Any) -> None:
    """Refuse what is not one value for each row, to be aggregated.

    Raises:
        FlowError: It is not.
    """
    check_row_wise(draft, "agg", function, schema)
    rows = _some_rows(schema)
    try:
        count = getattr(rows, function.method)(*function.arguments, **function.named).height
    except Exception:  # noqa: BLE001 - these rows may be none that it takes
        return
    if count != rows.height:
        raise flow_error(
            draft,
            "agg",
            f"{function.arguments[0]!s:.200} gives {count} values of {rows.height} rows: expected one of "
            f"each. Values that are not to count are made null, as in pl.when(condition).then(value)",
        )


def _refusal(what: str) -> str:
    return (
        f"{what:.200} does not say what becomes of a row from that row alone: {_ALIKE}. Use an expression of "
        f"single rows; a date or time that is parsed needs its format="
    )


def _parts(given: Any) -> Iterator[Any]:
    """Yield an expression, and those that it is made of."""
    if isinstance(given, list | tuple):
        for one in given:
            yield from _parts(one)
    elif hasattr(given, "meta"):
        yield given
        try:
            inner = given.meta.pop()
        except Exception:  # noqa: BLE001 - Polars raises its own: some have no parts
            return
        for one in inner:
            yield from _parts(one)


def _looks_around(part: Any) -> bool:
    try:
        return not part.meta.is_literal() and not part.meta.is_row_separable()
    except Exception:  # noqa: BLE001 - Polars raises its own for what it can't tell
        return False


def _some_rows(schema: Any) -> Any:
    """Return four rows with values that come twice, in no order, and a null."""
    import polars

    order = polars.Series([2, None, 1, 2], dtype=polars.Int64)
    columns = []
    for name, kind in schema.items():
        try:
            column = order.cast(kind)
        except Exception:  # noqa: BLE001 - Polars raises its own: some types have no such values
            column = polars.Series([None] * len(order), dtype=kind)
        columns.append(column.alias(name))
    return polars.DataFrame(columns)


def _differs(function: RowWise, rows: Any) -> bool:
    """Tell whether rows become something else one by one; what raises for them alone says nothing."""
    import polars

    try:
        single = polars.concat([function(rows.slice(index, 1)) for index in range(rows.height)])
    except Exception:  # noqa: BLE001 - functions of the user may raise anything
        return False
    try:
        return not function(rows).equals(single)
    except Exception:  # noqa: BLE001 - as above; but one by one it has worked
        return True
