"""What changes in a table by slot between two barriers, and its values as they were at one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any


class Changes:
    """What changed between two barriers.

    Attributes:
        slots: Each once. Those of new keys follow each other, with None for an old value.
        olds: The values that they had at the first of the barriers.
        key_count: How many keys there were at the second one.
    """

    __slots__ = ("key_count", "olds", "slots")

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.olds: list[Any] = []
        self.key_count = 0

    def note(self, slots: Sequence[int], olds: list[Any]) -> None:
        """Add some that have not changed before."""
        self.slots += slots
        self.olds += olds


class Past:
    """Values as they were at a barrier, while they go on changing.

    Args:
        values: The newest ones.
        changes: Returns what has changed after the barrier, the oldest first.
    """

    def __init__(self, values: list[Any], changes: Callable[[], list[Changes]]) -> None:
        self._values = values
        self._changes = changes
        self._olds: dict[int, Any] = {}
        # How many of the changes it has seen, by their identity.
        self._seen: dict[int, int] = {}

    def values(self, slots: Sequence[int]) -> list[Any]:
        if isinstance(slots, range):
            newest = self._values[slots.start : slots.stop]
        else:
            newest = values_at(slots, self._values)
        self._note_olds()
        return list(map(self._olds.get, slots, newest)) if self._olds else newest

    def _note_olds(self) -> None:
        for later in self._changes():
            seen = self._seen.get(id(later), 0)
            # What an older one has noted counts.
            deque(map(self._olds.setdefault, later.slots[seen:], later.olds[seen:]), maxlen=0)
            self._seen[id(later)] = len(later.slots)


def values_at(slots: Sequence[int], values: list[Any]) -> list[Any]:
    """Return the values in `slots`."""
    # In a third of the time; of one it would make no tuple.
    return list(itemgetter(*slots)(values)) if len(slots) > 1 else [values[slot] for slot in slots]
