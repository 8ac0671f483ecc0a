"""Frames in tests: what the operators of a flow make of batches, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import crosscut as cc
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.operators.building import build
from crosscut.operators.operator import Operator


def source(flow: cc.Flow, records: Sequence[Any] = ()) -> cc.Stream[Any]:
    return flow.source(cc.items(records), name="in")


def operators_of(stream: Any) -> list[Operator]:
    """Return the operators of a stream that come after its source, in order."""
    found = [build(node, None, None) for node in stream._draft.nodes()]
    return [one for one in found if one is not None]


def passed_through(stream: Any, batches: Iterable[list[Any]]) -> list[list[Any]]:
    """Return what becomes of each batch of records, or of `FrameRows`."""
    operators = operators_of(stream)
    out = []
    for records in batches:
        batch = Batch(records)
        for operator in operators:
            if batch.records:
                batch = operator.process(batch)
        out.append(batch.records)
    return out


def frame_from(batches: Iterable[list[Any]], schema: Any) -> Any:
    """Return the rows of all batches as one `polars.DataFrame`."""
    import polars as pl

    frames = [one.frame for one in batches if isinstance(one, FrameRows)]
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)
