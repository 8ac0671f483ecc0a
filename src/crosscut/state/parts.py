"""Which parts a task's keyed state is stored in: a whole one, and changes since.

A restore reads all of them, so they are kept few, and not much larger than the state; and a checkpoint
after a small change stays small, however large the state is. As in a log-structured merge tree
(O'Neil et al. 1996; LevelDB's sizes), but that the rows of a merge come out of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.snapshots import Part

PARTS_MAX = 8
"""Rows that change with every checkpoint are merged, rather than counted again and again until a whole part
is due, if they are fewer than this part of all."""
_NONE = CheckpointId(0)


class _Dated(Protocol):
    @property
    def checkpoint_id(self) -> CheckpointId: ...


D = TypeVar("D", bound=_Dated)


def kept(parts: Sequence[D], since: CheckpointId) -> list[D]:
    """Return those of `parts`, oldest first, that a part of all changes after `since` doesn't replace."""
    begins = [_NONE, *(part.checkpoint_id for part in parts)]
    return [part for part, begin in zip(parts, begins, strict=False) if begin < since]


def merged_count(rows: Sequence[int], new_rows: int) -> int:
    """Return how many of the parts, the newest ones, the next part replaces.

    Args:
        rows: Of each part, oldest first; the first is the whole state at its time.
        new_rows: That have changed since.
    """
    if not rows:
        return 0
    whole, *changes = rows
    return len(rows) if sum(changes) + new_rows > whole else merged_changes(changes, new_rows)


def merged_changes(changes: Sequence[int], new_rows: int) -> int:
    """Return how many parts of changes, the newest ones, the next one replaces, so that they stay few.

    Args:
        changes: The rows of each, oldest first.
    """
    if len(changes) < PARTS_MAX - 1:
        return 0
    count, merged = 1, new_rows + changes[-1]
    while count < len(changes) and changes[-count - 1] <= merged:
        count += 1
        merged += changes[-count]
    return count


@dataclass(frozen=True, slots=True)
class PartChain:
    """The parts of the newest completed checkpoint that a task knows of.

    Attributes:
        checkpoint_id: That checkpoint, 0 for none.
        parts: A full part, then changes, oldest first.
    """

    checkpoint_id: CheckpointId = _NONE
    parts: tuple[Part, ...] = ()

    def next_base(self, rows: Sequence[int] | None, new_rows: int) -> CheckpointId:
        """Return the checkpoint that the next part holds the changes since; 0: it must be a full one.

        For tables in layers; for those by slot see `crosscut.state.slot_parts`.

        Args:
            rows: Of these parts; of other parts, if it is not told yet that these are complete. None: no part
                can be added to them.
            new_rows: That have changed since.
        """
        if not self.parts or rows is None:
            return _NONE
        if len(rows) != len(self.parts):
            return self.checkpoint_id
        count = merged_count(rows, new_rows)
        if not count:
            return self.checkpoint_id
        return self.parts[-count - 1].checkpoint_id if count < len(self.parts) else _NONE

    def with_part(
        self, part: Part, since: CheckpointId, needed: Collection[CheckpointId] | None = None
    ) -> tuple[Part, ...]:
        """Return the chain with a new part: of the changes since `since`, or a full one if that is 0.

        Args:
            needed: The older parts that go with it; None: those that it does not replace.
        """
        if needed is None:
            return (*kept(self.parts, since), part)
        return (*(one for one in self.parts if one.checkpoint_id in needed), part)
