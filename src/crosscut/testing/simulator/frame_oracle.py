"""What operators of frames do, a row at a time: a batch of one row has no boundary to depend on."""

from __future__ import annotations

from typing import Any, assert_never

from crosscut.contracts.frames import RowColumns, schemas
from crosscut.foundation.frame_rows import as_records
from crosscut.graph.frames import AnyFrameSpec, FrameMapSpec, FrameRowsSpec, FrameSpec


def rows_of(spec: AnyFrameSpec, record: Any) -> list[Any]:
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
