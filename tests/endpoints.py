"""A source and a sink for flows that are written and never run."""

from __future__ import annotations

from collections.abc import Sequence

from crosscut.contracts.connectors import (
    JSON,
    Sink,
    SinkContext,
    SinkWriter,
    Source,
    Split,
    SplitReader,
)


class Nothing(Source):
    def splits(self, parallelism: int) -> Sequence[Split]:
        return ()

    def reader(self, split: Split, position: JSON) -> SplitReader:
        raise AssertionError(f"split {split} of a flow that is never run is read")


class Nowhere(Sink):
    def writer(self, context: SinkContext) -> SinkWriter:
        raise AssertionError(f"{context} of a flow that is never run is written to")
