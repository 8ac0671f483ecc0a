"""What the tasks of the explored world pass on to each other, and what a part of a snapshot holds."""

from __future__ import annotations

from typing import NamedTuple

from tests.proof.explorer.event_time import NOTHING_KEPT, WATERMARK, Kept

from crosscut.foundation.ids import Lineage

END = 1 << 30
"""The item that says that no record will follow. Barrier n is -n, a record is `item_of`."""

HOP_BITS = 3
LINEAGE = Lineage("lineage")

Log = tuple[tuple[int, int, bool], ...]
"""Channel, item, and whether the sender sends it again."""


def item_of(record: int, hop: int) -> int:
    """Return `record` on its way through the `hop`-th channel of its route."""
    return record << HOP_BITS | hop


def is_record(item: int) -> bool:
    """Whether it is a record, rather than a barrier, a watermark or the end."""
    return 0 <= item < WATERMARK


def record_of(item: int) -> tuple[int, int]:
    """Return what `item_of` was made from."""
    return item >> HOP_BITS, item & (1 << HOP_BITS) - 1


class Violation(AssertionError):
    """Something happened that must never happen."""


def ensure(condition: bool, message: str) -> None:
    """Raise Violation unless `condition` holds."""
    if not condition:
        raise Violation(message)


class Content(NamedTuple):
    """What a part holds.

    Attributes:
        said: Everything that is said at the end of input has been; the end itself may still have to follow.
    """

    state: int
    position: int
    said: bool
    ended: bool
    kept: Kept
    log: Log


EMPTY = Content(0, 0, False, False, NOTHING_KEPT, ())
