"""A table of named rows: any number of values per key, each under a name of its own.

The identity of a row is a pair `(key, name)`: an entry of a map, a window of a key, a timer of a key. It
belongs to its key wherever keys count: for key groups, ownership and restores. A change of one row copies,
stores and restores that row, whatever else the key has.
"""

from __future__ import annotations

import pickle  # noqa: S403 - names are put in order by it, nothing is loaded
import sys
from collections.abc import Iterable
from decimal import Decimal
from itertools import islice
from typing import Any

from crosscut.errors import FlowError, InternalError
from crosscut.ids import CheckpointId
from crosscut.keys import encoded_key, plain_key
from crosscut.state.encoding import DELETED
from crosscut.state.memory import GAPS_BYTES_MAX, Held
from crosscut.state.table import Table

NAMES_SAMPLED = 16
"""Of so many keys the names are looked at to tell how much memory those of all take."""
PICKLED = b"p"
"""Begins the bytes of a name that can't be a key."""


class NamedTable(Table):
    """Values by pairs `(key, name)`: `get`, `put`, `delete` and `has` take such a pair.

    Args:
        name: Of the table.
        lists_names: Whether `names` will be asked for. It takes memory for each row.
    """

    def __init__(self, name: str, *, lists_names: bool = True) -> None:
        super().__init__(_no_initial)
        self.name = name
        self._names: dict[Any, set[Any]] | None = {} if lists_names else None

    @property
    def lists_names(self) -> bool:
        """Whether `names` may be asked for."""
        return self._names is not None

    @property
    def held(self) -> Held:
        """See `Table.held`."""
        held = super().held
        if not self._names:
            return held
        sets, names_bytes = 0, sys.getsizeof(self._names)
        # Else it would be a walk over the gaps, with each report.
        if names_bytes < GAPS_BYTES_MAX * len(self._names):
            some = list(map(sys.getsizeof, islice(reversed(self._names.values()), NAMES_SAMPLED)))
            sets = sum(some) * len(self._names) // len(some)
        return held._replace(structure_bytes=held.structure_bytes + names_bytes + sets)

    def names(self, key: Any) -> list[Any]:
        """Return the names under which `key` has values, always in the same order.

        It is the order of their bytes, not that in which they came: that one is lost by a restore.
        """
        return in_order(self._listed().get(key, ()))

    def count(self, key: Any) -> int:
        """Return how many values `key` has."""
        return len(self._listed().get(key, ()))

    def roll_back(self, checkpoint_id: CheckpointId) -> None:
        """See `Table.roll_back`; takes longer for more changes since that checkpoint, not for more rows."""
        dropped = [self.values, *(layer for n, layer in self._frozen if n > checkpoint_id)]
        super().roll_back(checkpoint_id)
        if self._names is not None:
            for layer in dropped:
                for row in layer:
                    if self.has(row):
                        self._row_came(row)
                    else:
                        self._row_went(row)

    def load(self, keys: list[Any], values: list[Any]) -> None:
        """See `Table.load`; `keys` are pairs."""
        super().load(keys, values)
        if self._names is not None:
            for row, value in zip(keys, values, strict=True):
                if value is DELETED:
                    self._row_went(row)
                else:
                    self._row_came(row)

    def _row_came(self, row: Any) -> None:
        if self._names is not None:
            key, name = row
            names = self._names.get(key)
            if names is None:
                self._names[key] = {name}
            else:
                names.add(name)

    def _row_went(self, row: Any) -> None:
        if self._names is not None:
            key, name = row
            names = self._names.get(key)
            if names is not None:
                names.discard(name)
                if not names:
                    del self._names[key]

    def _listed(self) -> dict[Any, set[Any]]:
        if self._names is None:
            raise InternalError(f"state {self.name!r} does not list the names of its rows")
        return self._names


def in_order(names: Iterable[Any]) -> list[Any]:
    """Return the names of rows in the order in which they are always given."""
    return sorted(names, key=encoded_name)


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


def _no_initial() -> Any:
    raise InternalError("a named row has no initial value")
