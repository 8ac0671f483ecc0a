"""What operators of frames do, a row at a time: a batch of one row has no boundary to depend on."""

from __future__ import annotations

from typing import Any, assert_never

from crosscut.contracts.frame_aggregates import Partials, Results
from crosscut.contracts.frames import RowColumns, schemas
from crosscut.foundation.frame_rows import as_records
from crosscut.foundation.keys import stable_hash
from crosscut.graph.frames import FrameAggregateSpec, FrameMapSpec, FrameRowsSpec, FrameSpec


def rows_of(spec: FrameSpec | FrameMapSpec | FrameRowsSpec, record: Any) -> list[Any]:
    """Return what becomes of a record, or of a row, which is a dict here."""
    match spec:
        case FrameSpec(_, arrow_schema):
            return as_records(RowColumns(arrow_schema).of([record]))
        case FrameMapSpec(function, reads):
            _, arrow_schema = schemas(reads)
            return as_records(function(RowColumns(arrow_schema).of([record])))
        case FrameRowsSpec():
            return [record]
        case _:
            assert_never(spec)


def key_of(columns: tuple[str, ...], row: Any) -> Any:
    """Return the key of a row.

    Raises:
        FlowError: It is none.
    """
    values = tuple(row[column] for column in columns)
    key = values if len(values) > 1 else values[0]
    stable_hash(key)
    return key


def aggregated(spec: FrameAggregateSpec, value: Any, row: Any) -> Any:
    """Return what the aggregates keep for a key after a row; `value`: before, None if it is the first."""
    partials = Partials(spec.aggregates, tuple(spec.keys))
    _, arrow_schema = schemas(spec.reads)
    _, (more,) = partials.of(RowColumns(arrow_schema).of([row]))
    return more if value is None else partials.merged([value], [more])[0]


def result_row(spec: FrameAggregateSpec, key: Any, value: Any) -> Any:
    """Return the row that is emitted for a key."""
    return as_records(Results(spec.aggregates, spec.keys).of([key], [value]))[0]
