"""The states and timers of a process, in plain dicts, for the sequential run of `oracle`.

What they are made of belongs to a cut, which others go on from, too: what is in it stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from crosscut.contracts.connected_process import BroadcastState
from crosscut.contracts.process import KeyedProcess, declared
from crosscut.contracts.state import MapState
from crosscut.state.named import in_order

_LONG_AFTER = 2**41
"""The year 2039: after all that a world sees, and not so long after that a `deduplicate` lets go."""
_NAMED_KINDS = (MapState.kind, BroadcastState.kind)
_UNCHANGING = frozenset({int, str, bytes, bool, float, type(None)})


def cells_of(
    process: KeyedProcess[Any, Any], values: Callable[[str], dict[Any, Any]]
) -> dict[str, _Cells | _NamedCells]:
    """Return the states of a process, by name.

    Args:
        values: Returns those of one state.
    """
    return {
        name: (_NamedCells if one.kind in _NAMED_KINDS else _Cells)(values(name))
        for name, one in declared(process).items()
    }


class _Cells:
    """A state of a process, in a plain dict."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values

    def get(self, key: Any, default: Any = None) -> Any:
        # A cut's values are others' too.
        return copied(self._values[key]) if key in self._values else default

    own = get

    def put(self, key: Any, value: Any) -> None:
        self._values[key] = value

    def delete(self, key: Any) -> None:
        self._values.pop(key, None)


class _NamedCells:
    """A state of a process with values by name: a dict for each key."""

    def __init__(self, values: dict[Any, dict[Any, Any]]) -> None:
        values.update(rows_copied(values))
        self._values = values

    def get(self, row: tuple[Any, Any], default: Any = None) -> Any:
        key, name = row
        return copied(self._values[key][name]) if self.has(row) else default

    own = get

    def put(self, row: tuple[Any, Any], value: Any) -> None:
        key, name = row
        self._values.setdefault(key, {})[name] = value

    def delete(self, row: tuple[Any, Any]) -> None:
        key, name = row
        self._values.get(key, {}).pop(name, None)

    def has(self, row: tuple[Any, Any]) -> bool:
        key, name = row
        return name in self._values.get(key, ())

    def names(self, key: Any) -> list[Any]:
        return in_order(self._values.get(key, ()))

    def count(self, key: Any) -> int:
        return len(self._values.get(key, ()))


class Clocks:
    """Times of a process, in plain dicts: the times of each key."""

    def __init__(self, event: dict[Any, dict[int, Any]], processing: dict[Any, dict[int, Any]]) -> None:
        for timers in (event, processing):
            # A cut's values are others' too.
            timers.update({key: dict(times) for key, times in timers.items()})
        self._timers = {True: event, False: processing}

    def now(self) -> int:
        return _LONG_AFTER

    def set_timer(self, key: Any, time: int, *, is_event_time: bool) -> None:
        self._timers[is_event_time].setdefault(key, {})[time] = None

    def delete_timer(self, key: Any, time: int, *, is_event_time: bool) -> None:
        self._timers[is_event_time].get(key, {}).pop(time, None)

    def timers(self, key: Any, *, is_event_time: bool) -> list[int]:
        return sorted(self._timers[is_event_time].get(key, {}))


def rows_copied(values: dict[Any, Any]) -> dict[Any, Any]:
    """Return a copy of a state, with copies of the dicts of keys that have values by name."""
    return {key: dict(found) if type(found) is dict else found for key, found in values.items()}


def copied(value: Any) -> Any:
    """Return a deep copy of `value`; what can't change is shared, which is most of it."""
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is tuple and _are_unchanging(value):
        return value
    if kind is list and _are_unchanging(value):
        return list(value)
    return copy.deepcopy(value)


def _are_unchanging(values: Sequence[Any]) -> bool:
    """Whether none of them can change, nor anything in them."""
    seen = list(values)
    for value in seen:
        kind = type(value)
        if kind is tuple:
            seen += value
        elif kind not in _UNCHANGING:
            return False
    return True
