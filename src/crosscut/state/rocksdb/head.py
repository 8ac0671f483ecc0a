"""The first part of a checkpoint of a database: which files its other parts are."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import orjson

from crosscut.errors import StateError
from crosscut.protocol.snapshots import Part
from crosscut.state.rocksdb.database import written

MAGIC = b"XCR2"
OLD_MAGIC = b"XCR1"
"""Of heads whose databases have no index of timers."""

ReadPart = Callable[[Part], bytes]


@runtime_checkable
class LinksParts(Protocol):
    """A `ReadPart` that has parts as files: a database is opened without reading those of its tables."""

    def __call__(self, part: Part) -> bytes: ...

    def link(self, part: Part, path: str) -> bool:
        """Make `path` another name of the file with the content of `part`; return whether that was possible.

        Raises:
            StoreError: It can't be read.
        """


@dataclass(frozen=True, slots=True)
class Head:
    """What the first part of a checkpoint says: which database its other parts are.

    Attributes:
        files: The names of the table files, in the order of the parts.
        small: The other files, by name.
        tables: Their names, in the order of their numbers.
        named: Those with named rows.
        row_counts: By table.
        next_places: By table of timers; None: the database has no index of them.
    """

    files: tuple[str, ...]
    small: Mapping[str, bytes]
    tables: tuple[str, ...]
    named: tuple[str, ...]
    row_counts: Mapping[str, int]
    max_parallelism: int
    next_places: Mapping[str, int] | None

    def encoded(self) -> bytes:
        """Return it as bytes."""
        return MAGIC + orjson.dumps(
            {
                "files": self.files,
                "small": {name: base64.b64encode(data).decode() for name, data in self.small.items()},
                "tables": self.tables,
                "named": self.named,
                "row_counts": self.row_counts,
                "max_parallelism": self.max_parallelism,
                "next_places": self.next_places,
            }
        )


def is_head(data: bytes) -> bool:
    """Return whether these are the bytes of a head."""
    return data.startswith((MAGIC, OLD_MAGIC))


def decoded_head(data: bytes) -> Head:
    """Return the head whose bytes these are.

    Raises:
        StateError: They are no head.
    """
    if not is_head(data):
        raise StateError(f"a part of {len(data)} bytes starts with {data[:4]!r}: expected {MAGIC!r}")
    try:
        found = orjson.loads(data[len(MAGIC) :])
        return Head(
            tuple(found["files"]),
            {name: base64.b64decode(text) for name, text in found["small"].items()},
            tuple(found["tables"]),
            tuple(found["named"]),
            found["row_counts"],
            found["max_parallelism"],
            found["next_places"] if data.startswith(MAGIC) else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"the head of a checkpoint in RocksDB can't be read: {error}") from error


def unpack(head: Head, parts: Sequence[Part], read: ReadPart, directory: str) -> None:
    """Make `directory` the database that `head` and `parts` are. Blocks.

    Raises:
        StoreError: A part can't be read, or is damaged.
        StateError: Parts are missing, or the disk takes no more.
    """
    if len(head.files) != len(parts):
        raise StateError(
            f"a checkpoint has {len(parts)} table files of RocksDB: its head names {len(head.files)}"
        )
    written(directory, [])
    for name, part in zip(head.files, parts, strict=True):
        path = os.path.join(directory, os.path.basename(name))
        if not (isinstance(read, LinksParts) and read.link(part, path)):
            written(directory, [(os.path.basename(name), read(part))])
    written(directory, [(os.path.basename(name), data) for name, data in head.small.items()])
