"""The identity of a row as the bytes under which RocksDB keeps it.

    table (1 byte) | key group (2 bytes, big-endian) | key | name, in tables of named rows

So the rows of a table stand together, those of a key group in it, and those of one key. Keys are encoded
as they are hashed (`crosscut.keys.encoded_key`): keys that are equal are one row.
"""

from __future__ import annotations

import struct
from typing import Any

from xxhash import xxh3_64_intdigest

from crosscut.keys import decoded_key, encoded_key, encoded_keys
from crosscut.state.named import PICKLED, encoded_name
from crosscut.state.rocksdb.database import after
from crosscut.unpickling import loader

_GROUP = struct.Struct(">H")
_GROUP_AT = 1
_KEY_AT = _GROUP_AT + _GROUP.size

HEAD_BYTES = _KEY_AT
"""So many bytes of a row are alike for all rows of its key group in its table."""

TABLES_MAX = 128
INDEXES_END = 255
"""The number of the first index of a table; the others count down from there."""


class RowIds:
    """Bytes of the rows of one table, and back.

    Args:
        table: Its number.
        is_named: Rows are pairs `(key, name)`.
    """

    def __init__(self, table: int, max_parallelism: int, *, is_named: bool) -> None:
        self.table = bytes((table,))
        self._max_parallelism = max_parallelism
        self._heads = [self.table + _GROUP.pack(group) for group in range(max_parallelism)]
        self._is_named = is_named

    def encoded(self, row: Any) -> bytes:
        """Return the bytes of a row."""
        if self._is_named:
            key, name = row
            return self.of_key(key) + encoded_name(name)
        return self.of_key(row)

    def encoded_many(self, rows: list[Any]) -> list[bytes]:
        """Return the bytes of each row, in order."""
        if self._is_named:
            return list(map(self.encoded, rows))
        heads, group_count = self._heads, self._max_parallelism
        return [heads[xxh3_64_intdigest(data) % group_count] + data for data in encoded_keys(rows)]

    def of_key(self, key: Any) -> bytes:
        """Return the bytes that all rows of `key` begin with, and no others."""
        data = encoded_key(key)
        return self._heads[xxh3_64_intdigest(data) % self._max_parallelism] + data

    def bounds(self, groups: range) -> tuple[bytes, bytes]:
        """Return the first bytes that a row of these key groups may have, and the first after all those."""
        heads = self._heads
        end = heads[groups.stop] if groups.stop < len(heads) else after(self.table)
        return heads[groups.start] if groups else end, end

    def decoded(self, data: bytes) -> Any:
        """Return the row whose bytes these are."""
        key, at = decoded_key(data, _KEY_AT)
        return (key, _decoded_name(data, at)) if self._is_named else key


def _decoded_name(data: bytes, at: int) -> Any:
    if data[at : at + 1] == PICKLED:
        return loader()(data[at + 1 :])
    return decoded_key(data, at)[0]
