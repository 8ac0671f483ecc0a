"""Keys: the hash that routes them, key groups, and who owns which.

`stable_hash` is the same in every process, machine and release. Python's own `hash` is not: it is
salted per process for str and bytes (PySpark needs PYTHONHASHSEED for that reason), and it may
change between versions. Keyed state on disk would be unreadable after either.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from reprlib import repr as shortened
from typing import Any

from xxhash import xxh3_64_intdigest

from crosscut.errors import FlowError, InternalError
from crosscut.foundation.ids import KeyGroup

_length: Callable[[int], bytes] = struct.Struct(">I").pack
_LENGTH_BYTES = 4

_KINDS = (int, str, bytes, tuple)

_COMPUTED_BATCHES = 64
"""After so many the cache is tried again: other keys may come by then."""

QUICK_KEYS_MAX = 131_072
"""Of keys that are quickly encoded, no more are remembered: a look-up in a larger dict waits for memory, and
takes longer than the hash."""

Key = int | str | bytes | bool | None | tuple["Key", ...]


def encoded_key(key: Any) -> bytes:
    """Return the canonical bytes of a key: equal for keys that compare equal, and only for those.

    `True == 1` in Python, so both are one key and have one encoding; the same holds for nested ones, and for
    a value of another type that equals a key (1.0, a Decimal, a named tuple): every dict of the job finds it
    as that key, so it must go where that key goes.

    Raises:
        FlowError: `key` is not int, str, bytes, bool, None or a tuple of those, and equals none of them.
    """
    kind = type(key)
    if kind is str:
        data: bytes = key.encode("utf-8", "surrogatepass")
        return b"s" + _length(len(data)) + data
    if kind is int or kind is bool:
        data = key.to_bytes((key.bit_length() + 8) // 8, "big", signed=True)
        return b"i" + _length(len(data)) + data
    if kind is bytes:
        return b"b%b%b" % (_length(len(key)), key)
    if key is None:
        return b"n"
    if kind is tuple:
        return b"t%b%b" % (_length(len(key)), b"".join(map(encoded_key, key)))
    plain = plain_key(key)
    if type(plain) in _KINDS:
        return encoded_key(plain)
    why = "; NaN equals nothing, not even itself" if key != key else ""
    raise FlowError(
        f"{shortened(key)} of type {kind.__name__} can't be a key: expected int, str, bytes, bool, None or a "
        f"tuple of those, which hash alike in every process; return one of them from key_by{why}"
    )


_SHORT_TEXT = [b"s" + _length(count) for count in range(256)]
"""How texts of so many bytes begin."""
_SHORT_INT = [b"i" + _length(count) for count in range(256)]
"""The same for numbers."""


def encoded_keys(keys: Sequence[Any]) -> list[bytes]:
    """Return `encoded_key` of each, in order; where all are text, or numbers, in a third of the time."""
    return _quickly_encoded(keys) or list(map(encoded_key, keys))


def _quickly_encoded(keys: Sequence[Any]) -> list[bytes]:
    """Return the same, if all are short texts, or all small numbers; else nothing."""
    kinds = set(map(type, keys))
    try:
        if kinds == {str}:
            return [_SHORT_TEXT[len(data)] + data for data in map(str.encode, keys)]
        if kinds == {int}:
            encoded = [key.to_bytes((key.bit_length() + 8) // 8, "big", signed=True) for key in keys]
            return [_SHORT_INT[len(data)] + data for data in encoded]
    except (UnicodeEncodeError, IndexError):
        # One of them has half a surrogate pair, or is long.
        pass
    return []


def decoded_key(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Return the key whose bytes begin at `at`, and where they end: the inverse of `encoded_key`."""
    kind, start = data[at : at + 1], at + 1
    if kind == b"n":
        return None, start
    count = int.from_bytes(data[start : start + _LENGTH_BYTES], "big")
    start += _LENGTH_BYTES
    end = start + count
    if kind == b"s":
        return data[start:end].decode("utf-8", "surrogatepass"), end
    if kind == b"i":
        return int.from_bytes(data[start:end], "big", signed=True), end
    if kind == b"b":
        return data[start:end], end
    if kind == b"t":
        items = []
        for _ in range(count):
            item, start = decoded_key(data, start)
            items.append(item)
        return tuple(items), start
    raise InternalError(f"{kind!r} at byte {at} of {data!r:.100} begins no key")


def plain_key(key: Any) -> Any:
    """Return the key that `key` equals, which is of another type: 1 for 1.0. If there is none, `key`."""
    try:
        hash(key)
    except TypeError:
        # No dict can hold it.
        return key
    if isinstance(key, tuple):
        return tuple(map(plain_key, key))
    for kind in (int, str, bytes):
        try:
            # Not `str(key)` of a text, which an Enum has say its own name.
            plain = str.__str__(key) if kind is str and isinstance(key, str) else kind(key)
        except (TypeError, ValueError, OverflowError):
            continue
        if plain == key:
            return plain
    return key


def stable_hash(key: Any) -> int:
    """Return a 64-bit hash of `key`, the same in every process, machine and release.

    Raises:
        FlowError: `key` can't be a key; see `encoded_key`.
    """
    return xxh3_64_intdigest(encoded_key(key))


def key_group(key: Any, max_parallelism: int) -> KeyGroup:
    """Return the key group of `key`, in range(max_parallelism)."""
    return KeyGroup(stable_hash(key) % max_parallelism)


def owner_of_group(group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the index of the task that owns `group`.

    Contiguous ranges, so that after a change of parallelism a task reads the parts of few others.
    """
    return group * parallelism // max_parallelism


def groups_of_task(index: int, max_parallelism: int, parallelism: int) -> range:
    """Return the key groups of task `index`: the inverse of `owner_of_group`."""
    first = -(-index * max_parallelism // parallelism)
    last = -(-(index + 1) * max_parallelism // parallelism)
    return range(first, last)


class OwnedKeys:
    """Tells which keys the task owns that has some key groups.

    Args:
        groups: A range without gaps.
    """

    def __init__(self, groups: range, max_parallelism: int) -> None:
        self.groups = groups
        self._max_parallelism = max_parallelism

    def __call__(self, key: Any) -> bool:
        # Not `key_group`: a restore asks of millions of keys.
        return xxh3_64_intdigest(encoded_key(key)) % self._max_parallelism in self.groups


class KeyRouter(dict[Any, int]):
    """Owner by key, computed once per key and process: one dict look-up for a key seen before.

    Keys are found as Python compares them, so True, 1 and 1.0 are one key, as in `encoded_key`, whichever
    comes first.

    An unbounded key space must not grow a worker without bound. When the cache is full and too many keys of
    a batch were not in it, all keys of the next batches are computed at once: a look-up that finds nothing
    in a large dict costs more than that. Where keys are texts or numbers, so does one that finds something.
    """

    def __init__(self, max_parallelism: int, parallelism: int, keys_max: int = 1_000_000) -> None:
        super().__init__()
        self._owner_of_group = [
            owner_of_group(group, max_parallelism, parallelism) for group in range(max_parallelism)
        ]
        self._keys_max = keys_max
        # Keys that were looked for in the full cache in vain, and for how many batches it is left alone.
        self._missed_count = 0
        self._computed_batches = 0

    def __missing__(self, key: Any) -> int:
        owner = self._owner_of_group[stable_hash(key) % len(self._owner_of_group)]
        if len(self) < self._keys_max:
            self[key] = owner
        else:
            self._missed_count += 1
        return owner

    def owners(self, keys: Sequence[Any]) -> list[int]:
        """Return the owner of each key, in order.

        Raises:
            FlowError: One of them can't be a key; unlike a single look-up, also if it has no hash.
        """
        if self._computed_batches:
            self._computed_batches -= 1
            return self._computed(encoded_keys(keys))
        if len(self) >= QUICK_KEYS_MAX and (encoded := _quickly_encoded(keys)):
            return self._computed(encoded)
        self._missed_count = 0
        try:
            found = list(map(self.__getitem__, keys))
        except TypeError:
            for key in keys:
                encoded_key(key)
            raise
        if self._missed_count > len(keys) // 4:
            self._computed_batches = _COMPUTED_BATCHES
        return found

    def _computed(self, encoded: list[bytes]) -> list[int]:
        owner_of, groups = self._owner_of_group, len(self._owner_of_group)
        return [owner_of[xxh3_64_intdigest(data) % groups] for data in encoded]
