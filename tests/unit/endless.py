"""A source that goes on waiting when all of it is read."""

from __future__ import annotations

from typing import Any

import crosscut as cc
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.testing.simulator.sources import ReplayedSource


class Goes(ReplayedSource):
    """Does not end."""

    def reader(self, split: cc.Split, position: JSON) -> SplitReader:
        return GoesReader(super().reader(split, position))


class GoesReader(SplitReader):
    lag = 0

    def __init__(self, reader: SplitReader) -> None:
        self._reader = reader

    @property
    def position(self) -> JSON:
        return self._reader.position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        found = self._reader.read(limit)
        return Wait(1.0) if isinstance(found, EndOfSplit) else found
