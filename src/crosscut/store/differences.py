"""The changes from one JSON value to another, as JSON: most of a manifest is as it was before.

A change is one of

    ["=", value]                          it is `value` now
    ["{", {key: change, ...}, [key, ...]] an object: these fields have changed or are new, these are gone
    ["[", before, after, [value, ...]]    a list: so many items at either end are kept, and between them
                                          stand these values now
    ["~", before, after, [change, ...]]   a list of the same length: as above, and between them each item
                                          has changed in this way (None: not at all)
"""

from __future__ import annotations

import marshal
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.errors import StoreError

_MARSHAL_VERSION = 2
"""The newest that writes equal values as equal bytes: later ones refer back to objects met before."""


def difference(old: JSON, new: JSON) -> JSON:
    """Return the change that makes `new` of `old`. Neither is copied."""
    if isinstance(old, dict) and isinstance(new, dict):
        changes = {
            key: difference(old[key], value) if key in old else ["=", value]
            for key, value in new.items()
            if key not in old or not _is_same(old[key], value)
        }
        return ["{", changes, [key for key in old if key not in new]]
    if isinstance(old, list) and isinstance(new, list):
        return _list_difference(old, new)
    return ["=", new]


def applied(old: JSON, change: JSON) -> JSON:
    """Return the value that `change`, which `difference` has returned, makes of `old`.

    Raises:
        StoreError: `change` is not of a value like `old`.
    """
    match old, change:
        case _, ["=", value]:
            return value
        case dict(), ["{", dict(changes), list(gone)] if all(isinstance(key, str) for key in gone):
            kept = {key: value for key, value in old.items() if key not in gone}
            return kept | {key: applied(old.get(key), one) for key, one in changes.items()}
        case list(), ["[" | "~" as kind, int(before), int(after), list(items)] if (
            before >= 0 and after >= 0 and before + after <= len(old)
        ):
            middle = old[before : len(old) - after]
            if kind == "~":
                if len(items) != len(middle):
                    raise _misfit()
                items = [
                    was if one is None else applied(was, one) for was, one in zip(middle, items, strict=True)
                ]
            return [*old[:before], *items, *old[len(old) - after :]]
        case _:
            raise _misfit()


def _list_difference(old: list[Any], new: list[Any]) -> JSON:
    shorter = min(len(old), len(new))
    before = 0
    while before < shorter and _is_same(old[before], new[before]):
        before += 1
    after = 0
    while after < shorter - before and _is_same(old[-1 - after], new[-1 - after]):
        after += 1
    middle = new[before : len(new) - after]
    if len(old) != len(new):
        return ["[", before, after, middle]
    pairs = zip(old[before : len(old) - after], middle, strict=True)
    return ["~", before, after, [None if _is_same(was, now) else difference(was, now) for was, now in pairs]]


def _is_same(one: JSON, other: JSON) -> bool:
    """Whether the two are one value for a reader of JSON: 1, 1.0 and true are equal in Python only."""
    if one is other:
        return True
    return one == other and marshal.dumps(one, _MARSHAL_VERSION) == marshal.dumps(other, _MARSHAL_VERSION)


def _misfit() -> StoreError:
    return StoreError("it is written as a change of another entry, and does not fit to that")
