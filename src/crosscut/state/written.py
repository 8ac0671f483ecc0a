"""What the stored parts of a table have changed, so that a new part can replace several of them.

Rows are named as the table names them: by their keys, or by their slots.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crosscut.foundation.ids import CheckpointId
from crosscut.state.parts import kept

_NONE = CheckpointId(0)


@dataclass(slots=True)
class Written:
    """The changed rows of one part.

    Attributes:
        since: They are the changes after that checkpoint. 0: the part was a full one, and they are not
            remembered.
    """

    checkpoint_id: CheckpointId
    since: CheckpointId
    rows: MutableSequence[Any]


W = TypeVar("W", bound=Written)


class WrittenParts(Generic[W]):
    """The parts of the newest completed checkpoint, and those that may become complete.

    Attributes:
        completed: That checkpoint.
    """

    def __init__(self) -> None:
        self.completed = _NONE
        # Oldest first, the full one first; None if what they have changed is not known.
        self._newest: list[W] | None = []
        # Parts that have been encoded and are not known to be complete.
        self._encoded: dict[CheckpointId, W] = {}
        # Of these, the older parts that go with each; None if they are not known.
        self._older: dict[CheckpointId, list[W] | None] = {}

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

    def of(self, checkpoint_id: CheckpointId) -> list[W] | None:
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
            older = None if self._newest is None else self._going_with(written, self._newest)
        return None if older is None else [*older, written]

    def known(self) -> list[W]:
        """Return all parts whose rows are remembered here."""
        several = [self._newest or (), self._encoded.values(), *(one or () for one in self._older.values())]
        return list({id(one): one for some in several for one in some}.values())

    def after(self, since: CheckpointId, on: CheckpointId) -> list[W]:
        """Return the parts of the complete checkpoint `on` that were written after `since`, newest first."""
        return [one for one in reversed(self.of(on) or ()) if one.checkpoint_id > since]

    def build(self, checkpoint_id: CheckpointId, on: CheckpointId) -> list[CheckpointId] | None:
        """The part of `checkpoint_id` goes with those of `on` that it does not replace.

        Returns:
            The checkpoints of these; None, if they are not known here.
        """
        written = self._encoded.get(checkpoint_id)
        if written is None:
            return None
        if not written.since:
            return []
        parts = self.of(on)
        older = self._older[checkpoint_id] = None if parts is None else self._going_with(written, parts)
        return None if older is None else [one.checkpoint_id for one in older]

    def _going_with(self, written: W, parts: Sequence[W]) -> list[W]:
        """Return those of `parts`, oldest first, that the new part does not replace."""
        return kept(parts, written.since)

    def add(self, written: W) -> None:
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

    def begin(self, written: W) -> None:
        """Rows of that part follow, which has none yet; parts come oldest first."""
        if self._newest is not None:
            if self._newest:
                written.since = self._newest[-1].checkpoint_id
            self._newest.append(written)

    def extend(self, rows: Iterable[Any]) -> None:
        """Changed rows of the part that has begun."""
        if self._newest and self._newest[-1].since:
            self._newest[-1].rows.extend(rows)

    def forget(self) -> None:
        """What the parts have changed is not known, so no part can be added to them."""
        self._newest = None
