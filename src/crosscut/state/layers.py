"""The layers of a table: what changed since a barrier, and how rows of several layers are read as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, filterfalse, islice, repeat
from typing import Any, Protocol

from crosscut.state.encoding import ATOMIC, DELETED, owned_copy

ABSENT: Any = object()
"""In place of the value of a key that a layer does not have."""
_WITHOUT_VALUE = frozenset({type(ABSENT), type(DELETED)})

ROWS_PER_BLOCK = 1_000
"""Rows that are encoded or merged in one step: well below a millisecond for small values."""


class Rows(Protocol):
    """The next below a layer: an older one, or all that is older."""

    def get(self, key: Any, default: Any, /) -> Any:
        """Return the value of `key`, or `default`."""


class Layer(dict[Any, Any]):
    """What changed since the last barrier. Looking a key up brings its value here first.

    Attributes:
        below: The older layers, newest first, the base last.
        growth: How many more keys have a value with this layer than without it.
        has_deleted: Whether values were taken away.
    """

    __slots__ = ("below", "growth", "has_deleted", "initial")

    def __init__(self, initial: Callable[[], Any], below: tuple[Rows, ...]) -> None:
        super().__init__()
        self.initial = initial
        self.below = below
        self.growth = 0
        self.has_deleted = False

    def __missing__(self, key: Any) -> Any:
        for layer in self.below:
            value = layer.get(key, ABSENT)
            if value is not ABSENT:
                if value is DELETED:
                    break
                if type(value) not in ATOMIC:
                    value = owned_copy(value)
                self[key] = value
                return value
        self.growth += 1
        value = self[key] = self.initial()
        return value


def can_be_changed(values: Sequence[Any]) -> bool:
    """Return whether user code could change some of `values` in place; they are looked at together."""
    kinds = set(map(type, values))
    if kinds <= ATOMIC:
        return False
    return kinds != {tuple} or not ATOMIC.issuperset(map(type, chain.from_iterable(values)))


def bring_up(into: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Set the values of keys that have one, as the owner of `into` may change them."""
    if can_be_changed(values):
        if not _WITHOUT_VALUE.isdisjoint(map(type, values)):
            keys, values = _present(keys, values)
        if can_be_changed(values):
            try:
                values = list(map(owned_copy, values))
            except Exception:  # noqa: BLE001 - raised when the value is asked for, with its key
                return
    into.update(zip(keys, values, strict=True))


def _present(keys: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return those that have a value."""
    found = [
        (key, value)
        for key, value in zip(keys, values, strict=True)
        if value is not ABSENT and value is not DELETED
    ]
    return [key for key, _ in found], [value for _, value in found]


def newest_rows(
    layers: Sequence[dict[Any, Any]], tails: Sequence[Sequence[Any]], base: dict[Any, Any]
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield the newest row of each key of `layers` and `tails`, those deleted too.

    Args:
        tails: Keys whose changes are in the base.
    """
    if len(layers) == 1 and not tails:
        yield from row_blocks(layers[0])
        return
    seen: set[Any] = set()
    for layer in layers:
        for some, _ in row_blocks(layer):
            if keys := list(filterfalse(seen.__contains__, some)):
                seen.update(keys)
                yield keys, list(map(layer.get, keys))
    for tail in tails:
        for first in range(0, len(tail), ROWS_PER_BLOCK):
            # Once each, in order: a tail that was loaded may name a key twice.
            some = list(dict.fromkeys(tail[first : first + ROWS_PER_BLOCK]))
            if keys := list(filterfalse(seen.__contains__, some)):
                seen.update(keys)
                yield keys, list(map(base.get, keys, repeat(DELETED)))


def row_blocks(layer: dict[Any, Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    keys, values = iter(layer), iter(layer.values())
    while block := list(islice(keys, ROWS_PER_BLOCK)):
        yield block, list(islice(values, ROWS_PER_BLOCK))
