"""What an operator says under names, beside what it returns: its side outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from crosscut.contracts.dead_letters import DEAD_LETTERS, DeadLetter
from crosscut.errors import FlowError
from crosscut.foundation.batch import Batch
from crosscut.graph.specs import SideOutput

DEAD_LETTERS_KEPT = 5
"""For people; the records stay in memory for as long."""


class Sides:
    """The side outputs of one operator, until the chain takes what is in them.

    Args:
        uid: Of the operator.
        names: Those that somebody reads.

    Attributes:
        has_some: Whether there is something to take.
        dead_letter_count: Dead letters, in this epoch.
        dead_letters: The newest of them, until somebody shows them to people.
    """

    __slots__ = ("_records", "_timestamps", "_uid", "dead_letter_count", "dead_letters", "has_some")

    def __init__(self, uid: str, names: Collection[str] = ()) -> None:
        self._uid = uid
        self._records: dict[str, list[Any]] = {name: [] for name in sorted(names)}
        self._timestamps: dict[str, list[int]] = {name: [] for name in self._records}
        self.has_some = False
        self.dead_letter_count = 0
        self.dead_letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_KEPT)

    @property
    def outputs(self) -> list[SideOutput]:
        """Those that somebody reads."""
        return [SideOutput(self._uid, name) for name in self._records]

    @property
    def has_dead_letters(self) -> bool:
        """Whether somebody reads dead letters."""
        return DEAD_LETTERS in self._records

    def emit(self, name: str, record: Any, timestamp: int | None = None) -> None:
        """Send `record` to those who read `name`.

        Args:
            timestamp: None where records have none.

        Raises:
            FlowError: No stream reads it, so the record would be lost.
        """
        try:
            self._records[name].append(record)
        except KeyError:
            read = ", ".join(map(repr, self._records)) or "none"
            raise FlowError(
                f"operator {self._uid!r} gives a record to {name!r}, which no stream reads (of its side "
                f"outputs are read: {read}): add .side_output({name!r}) to the stream of the operator",
                operator=self._uid,
            ) from None
        if timestamp is not None:
            self._timestamps[name].append(timestamp)
        self.has_some = True

    def set_aside(self, dead_letter: DeadLetter, timestamp: int | None = None) -> None:
        """Send a dead letter to those who read them, and count it."""
        self.emit(DEAD_LETTERS, dead_letter, timestamp)
        self.dead_letter_count += 1
        self.dead_letters.append(dead_letter)

    def position(self) -> list[tuple[int, int]]:
        """Return how far it has come, for `go_back`."""
        return [(len(self._records[name]), len(self._timestamps[name])) for name in self._records]

    def go_back(self, position: list[tuple[int, int]]) -> None:
        """Discard what was emitted since `position`."""
        for name, (count, time_count) in zip(self._records, position, strict=True):
            del self._records[name][count:]
            del self._timestamps[name][time_count:]

    def take(self) -> list[tuple[SideOutput, Batch]]:
        """Return all that has been said since, by output."""
        taken = []
        for name, records in self._records.items():
            if records:
                timestamps = self._timestamps[name] or None
                taken.append((SideOutput(self._uid, name), Batch(records, None, timestamps)))
                self._records[name], self._timestamps[name] = [], []
        self.has_some = False
        return taken
