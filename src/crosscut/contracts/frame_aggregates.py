"""Aggregates of frames: what Polars makes of a batch, and how that of one batch and the next become one.

An aggregate is an expression of Polars, such as `pl.col("price").sum()`. What it keeps for a key are numbers,
texts and bytes of Python, so integers grow as they have to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add, itemgetter
from typing import Any

from crosscut.errors import FlowError

KINDS = ("len", "count", "sum", "min", "max", "mean", "var", "first", "last")
_INTEGERS = frozenset({"Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"})
_FLOATS = frozenset({"Float32", "Float64"})
_KEPT = _INTEGERS | _FLOATS | {"Boolean", "String", "Binary", "Date", "Datetime", "Duration", "Time"}
_TIMES = frozenset({"Date", "Datetime", "Duration", "Time"})

KEY_TYPES = _INTEGERS | _FLOATS | {"Boolean", "String", "Binary"}
"""Types whose values are keys in records, too; of floats, those without a fraction."""


@dataclass(frozen=True, slots=True)
class FrameAggregate:
    """One aggregate.

    Attributes:
        name: Of its column.
        kind: One of `KINDS`.
        of: The expression that is aggregated; None for `len`.
        reads: The type of its values.
        dtype: That of the column.
    """

    name: str
    kind: str
    of: Any
    reads: Any
    dtype: Any

    @property
    def state(self) -> str:
        """What its part of the state is, for people and for the identity of the flow."""
        return self.kind if self.of is None else f"{self.kind} of {self.reads}"


def aggregate_of(expression: Any, schema: Any) -> FrameAggregate:
    """Return the aggregate that an expression of Polars is.

    Args:
        schema: Of the frame.

    Raises:
        FlowError: It can't be kept across batches, or does not take values of this type.
    """
    import polars

    if not isinstance(expression, polars.Expr):
        raise FlowError(f"{expression!r:.100} is not a Polars expression such as pl.col('price').sum()")
    if expression.meta.has_multiple_outputs():
        raise FlowError(f"{expression!s:.200} makes several columns; pass an aggregate for each")
    name, plain = expression.meta.output_name(), expression.meta.undo_aliases()
    if plain.meta.eq(polars.len()):
        return FrameAggregate(name, "len", None, None, polars.Int64())
    inner = plain.meta.pop()
    for dtype in (polars.Float64(), polars.Int128()):
        if len(inner) == 1 and plain.meta.eq(inner[0].cast(dtype)):
            found = aggregate_of(inner[0].alias(name), schema)
            if found.kind == "sum" and found.dtype.is_integer():
                # The state is the exact sum, whatever type its column has.
                return replace(found, dtype=dtype)
    kind = ""
    if len(inner) == 1:
        forms = {one: getattr(inner[0], one) for one in KINDS[1:]}
        kind = next((one for one, form in forms.items() if plain.meta.eq(form())), "")
    if not kind:
        raise FlowError(
            f"{expression!s:.200} is not an aggregate that can be kept across batches; expected pl.len(), or "
            f"{', '.join(KINDS[1:])} of an expression, as in pl.col('price').sum()"
        )
    of = inner[0]
    (reads,) = polars.DataFrame(schema=schema).select(of).schema.values()
    return FrameAggregate(name, kind, of, reads, _result_type(polars, name, kind, reads))


def _result_type(polars: Any, name: str, kind: str, reads: Any) -> Any:
    base = str(reads.base_type())
    is_number = base in _INTEGERS or base in _FLOATS or base == "Boolean"
    if kind == "count":
        return polars.Int64()
    if kind in ("sum", "mean", "var"):
        if not is_number:
            raise FlowError(
                f"{kind} {name!r} of values of type {reads}: expected integers of up to 64 bits, floats or "
                f"booleans; cast them first"
            )
        if kind != "sum" or base in _FLOATS:
            return polars.Float64()
        return polars.UInt64() if base[0] == "U" else polars.Int64()
    if base not in _KEPT:
        raise FlowError(f"{kind} {name!r} of values of type {reads} can't be kept; cast them to String first")
    return reads


Columns = list[Sequence[Any]]
"""What some keys have: a list for each number that is kept, with a value for each key."""

Fold = Callable[[Columns, Columns], Columns]
"""Takes what keys have and what comes to it, and returns what they have then."""


class Partials:
    """What some aggregates make of the batches of a frame.

    Keys are merged a column at a time: a call for each key would take ten times as long.

    Args:
        keys: The columns that are the key.
    """

    def __init__(self, aggregates: Sequence[FrameAggregate], keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._inputs: list[Any] = []
        self._expressions: list[Any] = []
        self._folds: list[tuple[Fold, slice]] = []
        for number, one in enumerate(aggregates):
            parts, fold = _parts_of(one, f"\0of {number}")
            if one.of is not None:
                self._inputs.append(one.of.alias(f"\0of {number}"))
            start = len(self._expressions)
            self._expressions += [part.alias(f"\0{start + at}") for at, part in enumerate(parts)]
            self._folds.append((fold, slice(start, start + len(parts))))

    def of(self, frame: Any) -> tuple[Any, list[tuple[Any, ...]]]:
        """Return the different keys of `frame`, in the order of their first rows, and what each one has."""
        # What is aggregated is computed first, of all rows: within groups Polars might see it otherwise.
        computed = frame.select([*self._keys, *self._inputs])
        grouped = computed.group_by(self._keys, maintain_order=True).agg(self._expressions)
        columns = [column.to_list() for column in grouped.drop(self._keys).get_columns()]
        return grouped.select(self._keys), list(zip(*columns, strict=True))

    def merged(
        self, before: Sequence[tuple[Any, ...]], more: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """Return what keys have after further rows; at least one key."""
        # Not `zip(*before)`: it makes an iterator of each, and the garbage collector looks at all of them.
        had: Columns = [list(map(itemgetter(at), before)) for at in range(len(self._expressions))]
        comes: Columns = [list(map(itemgetter(at), more)) for at in range(len(self._expressions))]
        made: Columns = []
        for fold, at in self._folds:
            made += fold(had[at], comes[at])
        return list(zip(*made, strict=True))


def _parts_of(one: FrameAggregate, column: str) -> tuple[list[Any], Fold]:
    """Return what Polars makes of the values of a batch, and how two of these become one.

    Args:
        column: It has the values.
    """
    import polars

    if one.kind == "len":
        return [polars.len()], _added
    of, base = polars.col(column), str(one.reads.base_type())
    if base in _TIMES:
        # As numbers: times of Python have no nanoseconds.
        of = of.to_physical().cast(polars.Int64)
    # The sum of a batch of 64-bit integers fits into 128 bits; that of all batches is one of Python.
    summed = (of.cast(polars.Float64) if base in _FLOATS else of.cast(polars.Int128)).sum()
    match one.kind:
        case "count":
            return [of.count()], _added
        case "sum":
            return [summed], _added
        case "mean":
            return [summed, of.count()], _added
        case "var":
            floats = of.cast(polars.Float64)
            return [floats.count(), floats.mean(), floats.var(ddof=0) * floats.count()], _merged_moments
        case "min" | "max":
            return [getattr(of, one.kind)()], _smaller if one.kind == "min" else _larger
        case "first":
            return [of.first()], _earlier
        case _:
            return [of.last()], _later


def _added(before: Columns, more: Columns) -> Columns:
    return [list(map(add, one, other)) for one, other in zip(before, more, strict=True)]


def _earlier(before: Columns, more: Columns) -> Columns:
    return before


def _later(before: Columns, more: Columns) -> Columns:
    return more


def _smaller(before: Columns, more: Columns) -> Columns:
    return [list(map(_smaller_one, before[0], more[0]))]


def _larger(before: Columns, more: Columns) -> Columns:
    return [list(map(_larger_one, before[0], more[0]))]


def _smaller_one(one: Any, other: Any) -> Any:
    if _is_absent(one) or _is_absent(other):
        return _present_one(one, other)
    return other if other < one else one


def _larger_one(one: Any, other: Any) -> Any:
    if _is_absent(one) or _is_absent(other):
        return _present_one(one, other)
    return other if other > one else one


def _is_absent(value: Any) -> bool:
    """Tell whether a value counts for nothing beside another one: a null, and NaN."""
    return value is None or value != value


def _present_one(one: Any, other: Any) -> Any:
    """Return that which is there; of a null and NaN, NaN."""
    if not _is_absent(one):
        return one
    return one if other is None else other


def _merged_moments(before: Columns, more: Columns) -> Columns:
    made = map(_merged_moment, zip(*before, strict=True), zip(*more, strict=True))
    return list(zip(*made, strict=True))


def _merged_moment(before: tuple[Any, ...], more: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return count, mean and sum of squared differences of two parts together (Chan, Golub, LeVeque 1979)."""
    (count, mean, squares), (more_count, more_mean, more_squares) = before, more
    if not more_count:
        return before
    if not count:
        return more
    total = count + more_count
    distance = more_mean - mean
    return (
        total,
        mean + distance * more_count / total,
        squares + more_squares + distance * distance * (count * more_count / total),
    )


class Results:
    """Makes columns of what keys have.

    Args:
        keys: Names and types of the columns that are the key.
    """

    def __init__(self, aggregates: Sequence[FrameAggregate], keys: dict[str, Any]) -> None:
        self._aggregates = aggregates
        self._keys = keys

    def of(self, keys: Sequence[Any], values: Sequence[tuple[Any, ...]]) -> Any:
        """Return a frame of `keys`, as a stream of records has them, and of the results of their values.

        Raises:
            FlowError: A sum is beyond the range of its column. Names the key.
        """
        import polars

        names = list(self._keys)
        by_column = [keys] if len(names) == 1 else [[key[at] for key in keys] for at in range(len(names))]
        columns = [
            polars.Series(name, _of_type(values_of_key, str(kind)), dtype=kind)
            for (name, kind), values_of_key in zip(self._keys.items(), by_column, strict=True)
        ]
        parts: Columns = [list(map(itemgetter(at), values)) for at in range(len(values[0]))]
        for one in self._aggregates:
            count = {"mean": 2, "var": 3}.get(one.kind, 1)
            mine, parts = parts[:count], parts[count:]
            columns.append(self._column(polars, one, mine, keys))
        return polars.DataFrame(columns)

    def _column(self, polars: Any, one: FrameAggregate, parts: Columns, keys: Sequence[Any]) -> Any:
        found: Sequence[Any] = parts[0]
        if one.kind == "mean":
            found = [total / count if count else None for total, count in zip(*parts, strict=True)]
        elif one.kind == "var":
            found = [
                squares / (count - 1) if count > 1 else None for count, _, squares in zip(*parts, strict=True)
            ]
        elif one.kind == "sum" and not one.dtype.is_integer() and str(one.reads.base_type()) not in _FLOATS:
            found = [float(total) for total in found]
        elif one.kind in ("len", "count", "sum") and one.dtype.is_integer():
            _check_range(one, found, keys)
        elif str(one.dtype.base_type()) in _TIMES:
            return (
                polars.Series(one.name, found, dtype=polars.Int64)
                .cast(_physical(polars, one.dtype))
                .cast(one.dtype)
            )
        return polars.Series(one.name, found, dtype=one.dtype)


def _physical(polars: Any, dtype: Any) -> Any:
    return polars.Series([], dtype=dtype).to_physical().dtype


def _of_type(values: Sequence[Any], kind: str) -> Sequence[Any]:
    """Return key values as their column has them: 1 and True are one key, and so are 1 and 1.0."""
    if kind == "Boolean":
        return [None if one is None else bool(one) for one in values]
    return [None if one is None else float(one) for one in values] if kind in _FLOATS else values


def _wider(one: FrameAggregate) -> str:
    if one.kind != "sum" or one.dtype == "Int128":
        return "Cast the values to Float64"
    return (
        "Cast the sum, as in pl.col(...).sum().cast(pl.Int128) or .cast(pl.Float64). Its state stays the "
        "same, so the job can go on from its checkpoint"
    )


def _check_range(one: FrameAggregate, values: Sequence[int], keys: Sequence[Any]) -> None:
    bits = 127 if str(one.dtype) == "Int128" else 63
    low, high = (0, (1 << 64) - 1) if str(one.dtype)[0] == "U" else (-(1 << bits), (1 << bits) - 1)
    if values and (min(values) < low or max(values) > high):
        for key, value in zip(keys, values, strict=True):
            if not low <= value <= high:
                raise FlowError(
                    f"{one.kind} {one.name!r} of key {key!r:.200} is {value}, beyond the range of "
                    f"{one.dtype}, {low} to {high}. {_wider(one)}"
                )
