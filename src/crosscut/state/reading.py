"""What stored parts of keyed state say, in whatever format they are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from crosscut.protocol.snapshots import Part
from crosscut.state.encoding import Block, PartReader, merged, take_in
from crosscut.state.rocksdb.database import Database, Options
from crosscut.state.rocksdb.head import decoded_head, is_head, unpack
from crosscut.state.rocksdb.rows import RowIds
from crosscut.state.rocksdb.table import StoredRows

ReadPart = Callable[[Part], bytes]
_ROWS_PER_BLOCK = 1_000


def stored_blocks(parts: Sequence[Part], read: ReadPart, scratch: str) -> Iterator[Block]:
    """Yield what the parts of one task hold, oldest first; later blocks override earlier ones. Blocks.

    Args:
        read: Returns the verified bytes of a part.
        scratch: A directory that is not there yet, for parts that are files of a database.

    Raises:
        StoreError: A part is missing or damaged.
        StateError: It can't be decoded.
    """
    reader = PartReader()
    for position, part in enumerate(parts):
        data = read(part)
        if is_head(data) and not position:
            yield from _blocks_of_database(data, parts[1:], read, scratch)
            return
        yield from reader.blocks(data)
    reader.end()


def one_of_several(
    blocks: Iterable[Block], shared: Collection[str], alike: Collection[str]
) -> Iterator[Block]:
    """Yield what one task had, to be put together with what others had.

    Args:
        blocks: Of its parts.
        shared: Tables whose rows several of them have: that it has deleted one concerns no other.
        alike: Tables that another one has just as well, and whose rows come from there.
    """
    tables: dict[tuple[str, bool], dict[Any, Any]] = {}
    for block in blocks:
        if block.table in alike:
            continue
        if block.table in shared:
            take_in(tables.setdefault((block.table, block.is_named), {}), block.keys, block.values)
        else:
            yield block
    for (table, is_named), rows in tables.items():
        yield Block(table, is_named, list(rows), list(rows.values()))


def is_of_database(contents: Sequence[bytes]) -> bool:
    """Return whether the parts of a task with these contents are the files of a database."""
    return bool(contents) and is_head(contents[0])


def stored_contents(parts: Sequence[Part], read: ReadPart) -> dict[str, dict[Any, Any]]:
    """Return what the parts of one task add up to; see `crosscut.state.encoding.contents`. Blocks.

    Raises:
        StoreError: A part is missing or damaged.
        StateError: It can't be decoded.
    """
    with tempfile.TemporaryDirectory(prefix="crosscut-read-") as directory:
        return merged(stored_blocks(parts, read, os.path.join(directory, "database")))


def _blocks_of_database(data: bytes, parts: Sequence[Part], read: ReadPart, scratch: str) -> Iterator[Block]:
    head = decoded_head(data)
    unpack(head, parts, read, scratch)
    database = Database(scratch, Options())
    try:
        for number, table in enumerate(head.tables):
            is_named = table in head.named
            ids = RowIds(number, head.max_parallelism, is_named=is_named)
            rows: Iterable[tuple[Any, Any]] = StoredRows(table, ids, lambda: database).scan()
            iterator = iter(rows)
            while some := list(islice(iterator, _ROWS_PER_BLOCK)):
                yield Block(table, is_named, [row for row, _ in some], [value for _, value in some])
    finally:
        database.close()
