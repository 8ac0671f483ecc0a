"""The identity of a row as the bytes under which RocksDB keeps it.

    table (1 byte) | key group (2 bytes, big-endian) | key | name, in tables of named rows

So the rows of a table stand together, those of a key group in it, and those of one key. Keys are encoded
as they are hashed (`crosscut.foundation.keys.encoded_key`): keys that are equal are one row.

If these bytes don't say exactly what the key was (`crosscut.state.given_keys`), the row itself follows its
value, where `pickle.loads` of the value ignores it:

    value, a pickle | row, a pickle | length of the latter (4 bytes, big-endian) | b"K"

A value without a row behind it ends with the last byte of its pickle, a full stop.
"""

from __future__ import annotations

import pickle  # noqa: S403 - keys, which are read as values are: from files whose SHA-256 is in the job log
import struct
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from xxhash import xxh3_64_intdigest

from crosscut.foundation.keys import decoded_key, encoded_key, encoded_keys
from crosscut.foundation.unpickling import loader
from crosscut.state.encoding import loaded
from crosscut.state.given_keys import PICKLED, encoded_name
from crosscut.state.rocksdb.database import after

_GROUP = struct.Struct(">H")
_LENGTH = struct.Struct(">I")
_WITH_ROW = b"K"
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

    def given(self, row_id: bytes, value: bytes) -> Any:
        """Return the row with the key that it was created with.

        Args:
            row_id: Its bytes.
            value: What is stored under them.
        """
        if not has_row(value):
            return self.decoded(row_id)
        end = len(value) - len(_WITH_ROW) - _LENGTH.size
        (length,) = _LENGTH.unpack_from(value, end)
        return loaded(value[end - length : end], "the key of a row")


def with_row(value: bytes, row: Any) -> bytes:
    """Return what is stored for a row that its bytes don't say exactly."""
    data = pickle.dumps(row, protocol=5)
    return b"%b%b%b%b" % (value, data, _LENGTH.pack(len(data)), _WITH_ROW)


def has_row(value: bytes) -> bool:
    """Return whether the row is stored behind this value."""
    return value.endswith(_WITH_ROW)


def some_have_rows(values: Iterable[bytes]) -> bool:
    """Return whether that is so for one of them."""
    return _WITH_ROW[0] in map(_last_byte, values)


_last_byte = itemgetter(-1)


def _decoded_name(data: bytes, at: int) -> Any:
    if data[at : at + 1] == PICKLED:
        return loader()(data[at + 1 :])
    return decoded_key(data, at)[0]
