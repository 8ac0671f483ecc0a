"""Operators of frames, as plain data; see `crosscut.graph.specs`.

A schema is a `polars.Schema`. What is not written here is as in a stream of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """Makes a frame of what comes: of records, or of columns that a source has read.

    Attributes:
        schema: What leaves.
        arrow_schema: The same as a `pyarrow.Schema`, which also says which columns may hold null.
        is_closed: Columns that the schema does not have are an error, since it was read from the first file.
    """

    schema: Any
    arrow_schema: Any
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class FrameMapSpec:
    """Replaces each batch by what `function` makes of it.

    Attributes:
        function: Takes and returns a `polars.DataFrame`.
        reads: The schema of what comes.
        schema: That of what leaves.
        kind: The method that adds it.
        is_by_row: What becomes of a row depends on that row alone, so an error is the fault of one row.
    """

    function: Callable[[Any], Any]
    reads: Any
    schema: Any
    kind: str
    is_by_row: bool = True


@dataclass(frozen=True, slots=True)
class FrameRowsSpec:
    """Makes records of a frame: a dict for each row."""


@dataclass(frozen=True, slots=True)
class FrameKeyBySpec:
    """Says which columns are the key. Always the last of its vertex; what follows is a hash edge."""

    columns: tuple[str, ...]
    schema: Any


FrameEmit = Literal["batch", "final"]
"""When aggregates of a frame say how far they have come: after each batch, for its keys, or at the end."""


@dataclass(frozen=True, slots=True)
class FrameAggregateSpec:
    """Aggregates the rows of each key.

    Attributes:
        aggregates: Each a `crosscut.contracts.frame_aggregates.FrameAggregate`.
        keys: Names and types of the columns that are the key.
        reads: The schema of what comes.
        schema: That of what leaves.
        states: What is kept for each aggregate: state of others is refused.
    """

    aggregates: tuple[Any, ...]
    keys: dict[str, Any]
    reads: Any
    schema: Any
    emit: FrameEmit
    states: tuple[tuple[str, str], ...]


AnyFrameSpec = FrameSpec | FrameMapSpec | FrameRowsSpec | FrameKeyBySpec | FrameAggregateSpec


def gives_frame(spec: object) -> bool:
    """Return whether what leaves an operator is a frame."""
    return isinstance(spec, AnyFrameSpec) and not isinstance(spec, FrameRowsSpec)


BATCH_FACTOR = 64
"""So many times as many rows as records make a full batch: a call for columns has a fixed cost."""


def rows_of_batch(specs: Iterable[object], batch_rows: int) -> int:
    """Return how many records or rows a full batch has for these operators of one vertex.

    Args:
        batch_rows: Of records.
    """
    return BATCH_FACTOR * batch_rows if any(isinstance(one, AnyFrameSpec) for one in specs) else batch_rows
