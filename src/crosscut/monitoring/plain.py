"""Frozen values as plain data, for the viewers of a job: each second, of each task."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

_ATOMS = frozenset((str, int, float, bool, type(None)))


def plain(value: Any) -> Any:
    """Return what `dataclasses.asdict` makes of `value`, some times as fast: nothing in it is copied.

    Args:
        value: Dataclasses, tuples, lists and dicts of texts and numbers.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple or kind is list:
        return kind(map(plain, value))
    if kind is dict:
        return {plain(key): plain(one) for key, one in value.items()}
    return {name: plain(getattr(value, name)) for name in _names(kind)} if is_dataclass(kind) else value


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))
