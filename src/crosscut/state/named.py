"""A table of named rows: any number of values per key, each under a name of its own.

The identity of a row is a pair `(key, name)`: an entry of a map, a window of a key, a timer of a key. It
belongs to its key wherever keys count: for key groups, ownership and restores. A change of one row copies,
stores and restores that row, whatever else the key has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

from crosscut.errors import InternalError
from crosscut.foundation.ids import CheckpointId
from crosscut.state.encoding import DELETED
from crosscut.state.given_keys import PLAIN, encoded_name
from crosscut.state.memory import GAPS_BYTES_MAX, Held
from crosscut.state.table import Table

NAMES_SAMPLED = 16
"""Of so many keys the names are looked at to tell how much memory those of all take."""


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
                    if self._has_unusual or not self.has(row):
                        self._row_went(row)
                    if self.has(row):
                        self._row_came(self._given(row) if self._has_unusual else row)

    def load(self, keys: list[Any], values: list[Any]) -> None:
        """See `Table.load`; `keys` are pairs."""
        super().load(keys, values)
        if self._names is not None:
            for row, value in zip(keys, values, strict=True):
                if value is DELETED or self._has_unusual:
                    self._row_went(row)
                if value is not DELETED:
                    self._row_came(row)

    def _is_unusual(self, key: Any) -> bool:
        one, name = key
        # Nearly all: asked of each row that comes to a layer.
        if type(one) in PLAIN and type(name) in PLAIN:
            return self._has_unusual
        return super()._is_unusual(key)

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


def _no_initial() -> Any:
    raise InternalError("a named row has no initial value")
