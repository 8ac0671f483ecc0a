"""Which parts a table by slot is stored in: all have changes, and some a slice of the whole table.

A slice has the keys and values of a range of slots, changed or not. When the parts have grown too large
together, the slices of the next ones go through all slots, some with each checkpoint; and a part is not
needed any more when the newer ones have every key without it. So no checkpoint has to write a large table
whole, and the parts stay few all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crosscut.foundation.ids import CheckpointId
from crosscut.state.parts import kept, merged_changes
from crosscut.state.written import Written, WrittenParts

SLICES = 8
"""In so many, or fewer, a table is gone through."""

SLICE_ROWS_MIN = 10_000
"""A smaller table is rather written whole: that takes a millisecond, and leaves one part."""

_NONE = CheckpointId(0)


@dataclass(slots=True)
class SlotPart(Written):
    """One part: `rows` are slots.

    Attributes:
        known: How many keys the parts before it have. 0: it is a full one.
        key_count: How many keys have a slot with it; it names those that the parts before it have not.
        slice: Of the others, those that it names again, with their values.
    """

    known: int = 0
    key_count: int = 0
    slice: range = range(0)

    @property
    def row_count(self) -> int:
        return len(self.rows) + len(self.slice) if self.known else self.key_count


class Choice(NamedTuple):
    """What the next part holds.

    Attributes:
        since: The changes after that checkpoint; 0: it is a full one.
        slice: And these slots.
    """

    since: CheckpointId
    slice: range = range(0)


def choose(parts: Sequence[SlotPart], on: CheckpointId, new_rows: int, key_count: int) -> Choice:
    """Return what the next part holds.

    Args:
        parts: Of the checkpoint `on`, oldest first.
        new_rows: That have changed since.
        key_count: How many keys there are now.
    """
    if not parts:
        return Choice(_NONE)
    begin, end = _rest_of_table(parts)
    row_count = sum(one.row_count for one in parts) + new_rows
    step = max(new_rows, key_count // SLICES, SLICE_ROWS_MIN)
    if not begin and row_count <= 2 * key_count:
        changes = _changes_at_the_end(parts)
        merged = merged_changes(changes, new_rows)
        if not merged:
            return Choice(on)
        if sum(changes[-merged:]) <= step:
            return Choice(parts[-merged - 1].checkpoint_id)
    if new_rows + step >= key_count:
        return Choice(_NONE)
    return Choice(on, range(begin, min(begin + step, end)))


def _rest_of_table(parts: Sequence[SlotPart]) -> tuple[int, int]:
    """Return the slots that the next slice may have: the first, 0 if none has to be, and the end."""
    sliced = [one for one in parts if one.slice]
    if sliced:
        # Keys that have come since then are in these parts anyway.
        end = next((one.known for one in reversed(sliced) if not one.slice.start), 0)
        if sliced[-1].slice.stop < end:
            return sliced[-1].slice.stop, end
    return 0, parts[-1].key_count


def _changes_at_the_end(parts: Sequence[SlotPart]) -> list[int]:
    """Return the rows of the newest parts that can be merged: they follow another one, and have no slice."""
    first = max((position for position, one in enumerate(parts) if one.slice), default=0)
    return [one.row_count for one in parts[first + 1 :]]


class SlotParts(WrittenParts[SlotPart]):
    """See `WrittenParts`."""

    def _going_with(self, written: SlotPart, parts: Sequence[SlotPart]) -> list[SlotPart]:
        """Return those of `parts` that the new one needs: with them it has the key of every slot."""
        needed = with_all_keys([*kept(parts, written.since), written])
        if needed is None:
            # Another checkpoint has completed since it was planned, whose slice it has not.
            needed = with_all_keys([*parts, written])
        return list(parts) if needed is None else needed[:-1]

    @property
    def begun(self) -> SlotPart | None:
        """The part that is being loaded, if it is known what it has."""
        return self._newest[-1] if self._newest else None

    def drop_unneeded(self) -> None:
        """All parts are loaded; of those that were there before, some may not be needed any more."""
        if self._newest:
            self._newest = with_all_keys(self._newest) or self._newest


def with_all_keys(parts: Sequence[SlotPart]) -> list[SlotPart] | None:
    """Return the newest of `parts` that name every key, oldest first, and no more; None: all do not."""
    key_count = parts[-1].key_count
    gaps = [range(key_count)] if key_count else []
    for position in range(len(parts) - 1, -1, -1):
        one = parts[position]
        for named in (one.slice, range(one.known, one.key_count)):
            gaps = [rest for gap in gaps for rest in _without(gap, named)]
        if not gaps:
            return list(parts[position:])
    return None


def _without(gap: range, named: range) -> list[range]:
    rests = range(gap.start, min(gap.stop, named.start)), range(max(gap.start, named.stop), gap.stop)
    return [rest for rest in rests if rest] if named else [gap]
