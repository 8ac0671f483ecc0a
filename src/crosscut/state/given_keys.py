"""Keys as they were given, where other keys that are equal find the same row.

`True`, `1` and `1.0` are one key. So are a member of a `StrEnum` and its text, or a named tuple and a plain
one. A row keeps the key with which it was created until it is removed, whichever of them changes it later:
timers, final results and the names of a map come with the key that the record had.

A dict finds the value of an equal key, but doesn't return the key that it has. Where all keys are plain, that
makes no difference. Tables look for the key itself once another kind of key has come.
"""

from __future__ import annotations

import pickle  # noqa: S403 - names are put in order by it, nothing is loaded
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import chain
from typing import Any

from crosscut.errors import FlowError
from crosscut.foundation.keys import encoded_key, plain_key

PICKLED = b"p"
"""Begins the bytes of a name that can't be a key."""
PLAIN = frozenset({int, str, bytes, type(None)})
"""The types of keys whose bytes say exactly what they are."""


def is_plain(row: Any) -> bool:
    """Return whether the bytes of a row say exactly what its key is; see `encoded_name`."""
    kind = type(row)
    if kind in PLAIN:
        return True
    if kind is tuple:
        # Most are pairs of such keys.
        return PLAIN.issuperset(map(type, row)) or all(map(is_plain, row))
    if kind is frozenset:
        return all(map(is_plain, row))
    return kind is not bool and _canonical(row) is row


def all_plain(rows: Iterable[Any]) -> bool:
    """Return whether all rows are plain: they are looked at together."""
    some = rows if isinstance(rows, (list, tuple)) else list(rows)
    kinds = set(map(type, some))
    if kinds <= PLAIN:
        return True
    if kinds == {tuple}:
        return all_plain(list(chain.from_iterable(some)))
    return all(map(is_plain, some))


class _Probe:
    """Equals a key, and notes which one of a dict it was compared with."""

    def __init__(self, key: Any) -> None:
        self._key = key
        self.found: Any = key

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        is_equal = bool(self._key == other)
        if is_equal:
            self.found = other
        return is_equal


def key_in(rows: Mapping[Any, Any], row: Any) -> Any:
    """Return the key of a dict that equals `row`, which it has."""
    probe = _Probe(row)
    # If the key's own == knows no probe: another one that equals it is better than none.
    return probe.found if probe in rows else row


def encoded_name(name: Any) -> bytes:
    """Return the bytes of a row's name: alike for names that are equal.

    A name may be anything that can be pickled. Of what is neither a key, nor a number, nor a tuple or
    frozenset, those that are equal have to be pickled alike.
    """
    try:
        return encoded_key(name)
    except FlowError:
        return PICKLED + _pickled(_canonical(name))


class _Pieces(list[bytes]):
    """A file for a pickler."""

    write = list.append


class _Items:
    """Is pickled as the frozenset of its items, in the order of their bytes."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = sorted(map(_canonical, items), key=_pickled)

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return frozenset, (self._items,)


def _canonical(name: Any) -> Any:
    """Return what equals `name`, once it is unpickled, and is the same for all that do."""
    if isinstance(name, tuple):
        return tuple(map(_canonical, name))
    if isinstance(name, frozenset):
        return _Items(name)
    plain = plain_key(name)
    if type(plain) in (int, str, bytes):
        return plain
    try:
        number = float(name)
    except (TypeError, ValueError, OverflowError):
        return name
    if number == name:
        return number
    if isinstance(name, Decimal):
        shortest = name.normalize()
        return shortest if shortest == name else name
    return name


def _pickled(name: Any) -> bytes:
    pieces = _Pieces()
    pickler = pickle.Pickler(pieces, protocol=5)
    # Without references to what came before: they tell one object that is there twice from two equal ones.
    pickler.fast = True
    pickler.dump(name)
    return b"".join(pieces)
