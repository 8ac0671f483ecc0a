"""What the stored parts of a table have changed, so that a new part can replace several of them.

Rows are named as the table names them: by their keys, or by their slots.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass
from typing import Any

from crosscut.ids import CheckpointId
from crosscut.state.parts import kept

_NONE = CheckpointId(0)


@dataclass(slots=True)
class Written:
    """The changed rows of one part.

    Attributes:
        since: They are the changes after that checkpoint. 0: the part was a full one, and they are not
            remembered.
        key_count: In a table whose keys have slots: how many had one.
    """

    checkpoint_id: CheckpointId
    since: CheckpointId
    rows: MutableSequence[Any]
    key_count: int = 0


class WrittenParts:
    """The parts of the newest completed checkpoint, and those that may become complete.

    Attributes:
        completed: That checkpoint.
    """

    def __init__(self) -> None:
        self.completed = _NONE
        # Oldest first, the full one first; None if what they have changed is not known.
        self._newest: list[Written] | None = []
        # Parts that have been encoded and are not known to be complete.
        self._encoded: dict[CheckpointId, Written] = {}
        # Of these, the older parts that go with each; None if they are not known.
        self._older: dict[CheckpointId, list[Written] | None] = {}

    def row_counts(self, full_count: int) -> list[int] | None:
        """Return how many rows each part of the newest completed checkpoint has, oldest first.

        Args:
            full_count: Stands for that of a full one.

        Returns:
            None, if no part can build on them.
        """
        if self._newest is None:
            return None
        return [len(one.rows) if one.since else full_count for one in self._newest]

    def of(self, checkpoint_id: CheckpointId) -> list[Written] | None:
        """Return the parts of a checkpoint that is complete, whether it is known here or not yet."""
        if checkpoint_id == self.completed:
            return self._newest
        written = self._encoded.get(checkpoint_id)
        if written is None:
            return None
        if not written.since:
            return [written]
        if checkpoint_id in self._older:
            older = self._older[checkpoint_id]
        else:
            older = None if self._newest is None else kept(self._newest, written.since)
        return None if older is None else [*older, written]

    def after(self, since: CheckpointId, on: CheckpointId) -> list[Written]:
        """Return the parts of the complete checkpoint `on` that were written after `since`, newest first."""
        return [one for one in reversed(self.of(on) or ()) if one.checkpoint_id > since]

    def build(self, checkpoint_id: CheckpointId, on: CheckpointId) -> None:
        """The part of `checkpoint_id` goes with those of `on` that it does not replace."""
        written = self._encoded.get(checkpoint_id)
        if written is not None and written.since:
            parts = self.of(on)
            self._older[checkpoint_id] = None if parts is None else kept(parts, written.since)

    def add(self, written: Written) -> None:
        """A part has been encoded."""
        self._encoded[written.checkpoint_id] = written

    def complete(self, checkpoint_id: CheckpointId) -> None:
        """The parts of `checkpoint_id` are those that the next one builds on."""
        self._newest = self.of(checkpoint_id)
        self._encoded = {n: one for n, one in self._encoded.items() if n > checkpoint_id}
        self._older = {n: one for n, one in self._older.items() if n > checkpoint_id}
        self.completed = checkpoint_id

    def drop_newer(self) -> None:
        """Nothing that is not known to be complete will be."""
        self._encoded.clear()
        self._older.clear()

    # At a restore.

    def begin(self, checkpoint_id: CheckpointId, rows: MutableSequence[Any]) -> None:
        """Rows of the part written at `checkpoint_id` follow, for `rows`; parts come oldest first."""
        if self._newest is not None:
            last = self._newest[-1] if self._newest else Written(_NONE, _NONE, [])
            self._newest.append(Written(checkpoint_id, last.checkpoint_id, rows, last.key_count))

    def extend(self, rows: Iterable[Any], key_count: int = 0) -> None:
        """Rows of the part that has begun."""
        if self._newest:
            one = self._newest[-1]
            one.key_count = key_count
            if one.since:
                one.rows.extend(rows)

    def forget(self) -> None:
        """What the parts have changed is not known, so no part can be added to them."""
        self._newest = None
