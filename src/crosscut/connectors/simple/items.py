"""A source of objects that are there already: for trying things out, and for tests."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader
from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.suggestions import checks_options
from crosscut.state.encoding import owned_copy

Item = TypeVar("Item")

_PLAIN = (bool, int, float, str, bytes, type(None))


@checks_options("items")
def items(values: Collection[Item]) -> Source[Item]:
    """Return a source of the values of a list, in order.

    They travel with the flow to every worker, so: as many as fit easily into memory. It is one split, which
    one task reads; `rebalance()` deals the records out.

    Args:
        values: A list, tuple, set, range, ...; what can be pickled. Later changes of it are not seen.

    Raises:
        SettingsError: `values` is a text, which would fall apart into characters, or has no length.

    Examples:
        >>> import crosscut as cc
        >>> words = cc.items(["to", "be", "or", "not", "to", "be"])
    """
    if isinstance(values, str | bytes) or not isinstance(values, Collection):
        raise SettingsError(
            f"items({reprlib.repr(values)}), of type {type(values).__name__}: expected a list, a tuple, a "
            f"range, ...; put a single value into a list, and wrap an iterator in list(...)"
        )
    return Items(tuple(values))


@dataclass(frozen=True, slots=True)
class Items(Source[Item]):
    """See `items`. A position is the number of values that were read."""

    values: tuple[Item, ...]

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Return the only split."""
        return [Split("all", start=0, weight=len(self.values))]

    def reader(self, split: Split, position: JSON) -> SplitReader[Item]:
        """Go on with value number `position`."""
        if not isinstance(position, int) or not 0 <= position <= len(self.values):
            raise ConnectorError(
                f"position {position!r} is not in {len(self.values)} items; is the checkpoint of another "
                f"source?",
                split_id=split.split_id,
            )
        return _ItemsReader(self.values, position)

    def describe(self) -> str:
        """Return how many there are, with a digest where equal values look equal in every process."""
        count = f"{len(self.values)} items"
        if not _is_plain(self.values):
            return count
        return (
            f"{count}, digest {sha256(repr(self.values).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
        )


class _ItemsReader(SplitReader[Item]):
    def __init__(self, values: tuple[Item, ...], position: int) -> None:
        self._values = values
        self._position = position

    @property
    def position(self) -> JSON:
        return self._position

    @property
    def lag(self) -> int:
        return len(self._values) - self._position

    def read(self, limit: int) -> list[Item] | EndOfSplit:
        # Copies: a change that the flow makes to a record must not be there after a failure.
        found = [owned_copy(one) for one in self._values[self._position : self._position + limit]]
        self._position += len(found)
        return found or EndOfSplit()


def _is_plain(value: Any) -> bool:
    """Whether `repr(value)` is the same in every process; that of a set, or of most objects, is not."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(one) for pair in value.items() for one in pair)
    return type(value) in _PLAIN
