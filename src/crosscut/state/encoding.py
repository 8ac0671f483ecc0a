"""State as bytes: the format of a part, and copies of values.

A part is the magic `XCS4` and a series of blocks; a block is two lengths (8 bytes each, big-endian) and
two pickles (protocol 5) of these lengths: of `(table, is_named, keys)`, and of the values, a list as long
as the keys. So a value that can't be read is named by its table and key. In a table of named rows each of
the keys is a pair `(key, name)`. Later blocks override earlier ones, in one part too; the value `DELETED`
takes a row away. Parts are not divided by key group, so a snapshot costs no hash per key
(docs/decisions/0003).

Pickle runs code of whoever made the bytes. Parts are read only after their SHA-256 matched the one in
the job log: by workers, which run the user's code anyway, and on the driver for the flow's own
invariants, if it states any (rules S7, S8).
"""

from __future__ import annotations

import copyreg
import pickle  # noqa: S403 - see above
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from crosscut.errors import StateError

MAGIC = b"XCS4"
_LENGTHS = struct.Struct(">QQ")
_KEYS_SHOWN = 3

ATOMIC = frozenset({int, float, complex, bool, str, bytes, type(None)})
"""Types whose values nobody can change."""


class _Deleted:
    """The value of a key that is gone, where an older layer or part may still have one."""

    def __reduce__(self) -> str:
        return "DELETED"

    def __repr__(self) -> str:
        return "DELETED"


DELETED: Any = _Deleted()


class Block(NamedTuple):
    """Some rows of one table.

    Attributes:
        is_named: The keys are pairs `(key, name)`, each of which belongs to its key.
    """

    table: str
    is_named: bool
    keys: list[Any]
    values: list[Any]


def encode_block(table: str, keys: list[Any], values: list[Any], *, is_named: bool = False) -> bytes:
    """Return one block.

    Raises:
        StateError: A value can't be pickled; the message names its key.
    """
    try:
        head = pickle.dumps((table, is_named, keys), protocol=5)
        data = pickle.dumps(values, protocol=5)
    except Exception as error:  # A value's own __reduce__ may raise anything.
        raise _unstorable(table, keys, values, error) from error
    return _LENGTHS.pack(len(head), len(data)) + head + data


def decode_part(data: bytes) -> Iterator[Block]:
    """Yield the blocks, in order.

    Raises:
        StateError: `data` is no part, or a value's class can't be loaded here.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise StateError(
            f"a part of {len(data)} bytes starts with {data[:4]!r}: expected {MAGIC!r}; parts of another "
            f"format were written by another version of Crosscut"
        )
    offset = len(MAGIC)
    while offset < len(data):
        start = offset + _LENGTHS.size
        head, rest = _LENGTHS.unpack_from(data, offset) if start <= len(data) else (0, 0)
        offset = start + head + rest
        if start > len(data) or offset > len(data):
            raise StateError(f"a part of {len(data)} bytes ends in the middle of a block: it was cut short")
        table, is_named, keys = loaded(memoryview(data)[start : start + head])
        yield Block(table, is_named, keys, _values(memoryview(data)[start + head : offset], table, keys))


def _values(data: memoryview, table: str, keys: list[Any]) -> list[Any]:
    which = ", ".join(f"{key!r:.120}" for key in keys[:_KEYS_SHOWN])
    others = f" or {len(keys) - _KEYS_SHOWN} others" if len(keys) > _KEYS_SHOWN else ""
    values: list[Any] = loaded(data, f"state {table!r} of one of the keys {which}{others}")
    return values


def contents(parts: Iterable[bytes]) -> dict[str, dict[Any, Any]]:
    """Return what `parts` of one task, oldest first, add up to: the values of each table by key.

    The value of a key of named rows is a dict of values by name.

    Raises:
        StateError: As in `decode_part`.
    """
    return merged(block for part in parts for block in decode_part(part))


def merged(blocks: Iterable[Block]) -> dict[str, dict[Any, Any]]:
    """Return what `blocks` add up to, the oldest first; see `contents`."""
    tables: dict[str, dict[Any, Any]] = {}
    named: set[str] = set()
    for block in blocks:
        take_in(tables.setdefault(block.table, {}), block.keys, block.values)
        if block.is_named:
            named.add(block.table)
    for table in named:
        by_key: dict[Any, dict[Any, Any]] = {}
        for (key, name), value in tables[table].items():
            by_key.setdefault(key, {})[name] = value
        tables[table] = by_key
    return tables


def take_in(into: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Set newer values in a plain dict, and remove deleted ones."""
    # By way of a small dict, which knows the hashes: that takes less time where `into` is large.
    into.update(dict(zip(keys, values, strict=True)))
    # By type: values may have an == of their own.
    if _Deleted in map(type, values):
        for key, value in zip(keys, values, strict=True):
            if value is DELETED:
                into.pop(key, None)


def owned_copy(value: Any) -> Any:
    """Return `value` if nobody can change it, else a copy that the caller may change."""
    kind = type(value)
    if kind in ATOMIC:
        return value
    # Common containers of such values: a shallow copy is a whole one, at a tenth of what pickle costs.
    if kind is tuple:
        # A loop: most have few items, and each value of an aggregate comes by here.
        for one in value:
            if type(one) not in ATOMIC:
                break
        else:
            return value
    elif kind is list or kind is set:
        if ATOMIC.issuperset(map(type, value)):
            return value.copy()
    elif (
        kind is dict and ATOMIC.issuperset(map(type, value.values())) and ATOMIC.issuperset(map(type, value))
    ):
        return value.copy()
    else:
        # An object with such attributes: likewise.
        is_plain = _PLAIN_KINDS.get(kind)
        if is_plain is None:
            is_plain = _PLAIN_KINDS[kind] = _is_plain(kind)
        if is_plain and ATOMIC.issuperset(map(type, vars(value).values())):
            one = object.__new__(kind)
            vars(one).update(vars(value))
            return one
    return loaded(pickle.dumps(value, protocol=5))


_PLAIN_KINDS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_PICKLES_BY = (
    "__new__",
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
)


def _is_plain(kind: type) -> bool:
    """Return whether pickle would take of an object of this class its attributes, and nothing else."""
    return (
        kind not in copyreg.dispatch_table
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in _PICKLES_BY)
        and kind.__dictoffset__ != 0
        and not any("__slots__" in vars(base) for base in kind.__mro__)
    )


def loaded(data: bytes | memoryview, what: str = "state") -> Any:
    """Return what a pickle of our own state holds.

    Args:
        what: It is, for errors.

    Raises:
        StateError: A value's class can't be loaded here.
    """
    try:
        return pickle.loads(data)  # noqa: S301 - own state, checked against the SHA-256 in the job log
    except Exception as error:  # A value's own __setstate__ may raise anything.
        raise StateError(
            f"{what} can't be decoded: {type(error).__name__}: {error}; the classes of keyed state must be "
            f"importable, in a version that accepts what an earlier one stored"
        ) from error


def unstorable(table: str, key: Any, value: Any, error: Exception) -> StateError:
    """Return the error that says that a value can't be pickled."""
    where = f" in {table!r}" if table else ""
    return StateError(
        f"the state of key {key!r:.120}{where}, of type {type(value).__qualname__}, can't be stored: "
        f"{type(error).__name__}: {error}; keep plain values in state"
    )


def _unstorable(table: str, keys: list[Any], values: list[Any], error: Exception) -> StateError:
    for key, value in zip(keys, values, strict=True):
        try:
            pickle.dumps(value, protocol=5)
        except Exception as cause:  # noqa: BLE001 - as in encode_block: the same value raises again
            return unstorable(table, key, value, cause)
    where = f" in {table!r}" if table else ""
    return StateError(f"state{where} can't be stored: {type(error).__name__}: {error}")
