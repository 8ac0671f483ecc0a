"""What a worker notes in a file whenever it reads, for a program that looks at any time."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crosscut as cc
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait


@dataclass(frozen=True)
class NotingSource(cc.Source[Any]):
    """Reads `source`, and notes. For one task with one split.

    Attributes:
        path: The file of `Notes`.
        note: Returns the numbers that are noted, from how many records have been read.
    """

    source: cc.Source[Any]
    path: str
    note: Callable[[int], Sequence[int]]

    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        return self.source.splits(parallelism)

    def reader(self, split: cc.Split, position: JSON) -> SplitReader[Any]:
        return _NotingReader(self.source.reader(split, position), self)


class _NotingReader(SplitReader[Any]):
    def __init__(self, reader: SplitReader[Any], source: NotingSource) -> None:
        self._reader = reader
        self._note = source.note
        self._count = 0
        with open(source.path, "r+b") as file:
            self._notes = mmap.mmap(file.fileno(), 0)

    @property
    def position(self) -> JSON:
        return self._reader.position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        found = self._reader.read(limit)
        if isinstance(found, list):
            self._count += len(found)
        numbers = self._note(self._count)
        struct.pack_into(f"<{len(numbers)}q", self._notes, 0, *numbers)
        return found


class Notes:
    """So many numbers that the worker has noted, in a new file."""

    def __init__(self, path: Path, count: int) -> None:
        self._layout = f"<{count}q"
        path.write_bytes(bytes(struct.calcsize(self._layout)))
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self) -> tuple[int, ...]:
        """Return all of one moment."""
        while (found := struct.unpack(self._layout, self._map)) != struct.unpack(self._layout, self._map):
            pass
        return found
