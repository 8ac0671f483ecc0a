"""Full part or changes only? The chain of parts that a task's keyed state is stored in."""

from __future__ import annotations

from dataclasses import dataclass

from crosscut.ids import CheckpointId
from crosscut.protocol.messages import Part

CHAIN_LENGTH_MAX = 12


@dataclass(frozen=True, slots=True)
class PartChain:
    """The parts of the newest completed checkpoint that a task knows of.

    Attributes:
        checkpoint_id: That checkpoint, 0 for none.
        parts: A full part, then the changes since, oldest first.
    """

    checkpoint_id: CheckpointId = CheckpointId(0)
    parts: tuple[Part, ...] = ()

    @property
    def increment_base(self) -> CheckpointId:
        """The checkpoint that the next part holds the changes since; 0: it has to be a full one.

        A new full part is due once the changes are as large as the full one, or the chain is long:
        a restore reads it all.
        """
        if not self.parts:
            return CheckpointId(0)
        full, *changes = self.parts
        is_due = (
            sum(part.size_bytes for part in changes) > full.size_bytes or len(changes) >= CHAIN_LENGTH_MAX
        )
        return CheckpointId(0) if is_due else self.checkpoint_id

    def with_part(self, part: Part, since: CheckpointId) -> tuple[Part, ...]:
        """Return the chain with a new part: of the changes since `since`, or a full one if that is 0."""
        return (*self.parts, part) if since else (part,)
