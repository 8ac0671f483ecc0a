"""Entries of a unit's log, for tests of what stores them."""

from __future__ import annotations

from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.entries import (
    ChannelPosition,
    GroupCommitted,
    GroupContent,
    Incarnation,
    NumberedRecords,
    SentRecords,
    UnitSegmentClosed,
    UnitSegmentOpened,
    UnitSnapshot,
)
from crosscut.store.unit_log_format import UnitName

UNIT = UnitName(Lineage("lineage"), 1)
CHANNEL = ChannelId(0, TaskId(VertexId("source"), 0), TaskId(VertexId("sink"), 1))
OTHER = ChannelId(1, TaskId(VertexId("zähler"), 3), TaskId(VertexId("sink"), 0))


def incarnation(number: int) -> Incarnation:
    """Return the `number`-th holder of the place, in epoch 1."""
    return Incarnation(Epoch(1), number)


NOTHING = LogIndex(0, 0)
"""What the first head of a log cuts at."""


def head(number: int, cut: LogIndex = NOTHING, total: UnitSnapshot | None = None) -> UnitSegmentOpened:
    """Return the head that incarnation `number` puts after `cut`."""
    return UnitSegmentOpened(incarnation(number), cut, total)


def closed(number: int) -> UnitSegmentClosed:
    """Return what closes a segment for incarnation `number`."""
    return UnitSegmentClosed(incarnation(number))


def group(number: int, position: int, size: int = 20) -> GroupCommitted:
    """Return a group of incarnation `number` that reads up to `position`, with a payload of `size` bytes."""
    return GroupCommitted(
        incarnation(number),
        ((CHANNEL, ChannelPosition(2 * position, 1)), (OTHER, ChannelPosition(position))),
        (SentRecords(OTHER, NumberedRecords(position, position + 2, b"p" * size, position)),),
        GroupContent(b"state", (("split", [position, None, 2.5, "ä"]), ("b", position)), {"file": "x"}),
    )


def snapshot(index: LogIndex) -> UnitSnapshot:
    """Return what a log adds up to at `index`."""
    return UnitSnapshot(
        index,
        ((CHANNEL, ChannelPosition(9, 2)),),
        ((OTHER, ChannelPosition(11, 1)),),
        (
            SentRecords(OTHER, NumberedRecords(10, 11, b"kept")),
            SentRecords(OTHER, NumberedRecords(12, 11, b"", 1)),
        ),
        (("split", {"at": 1}), ("b", None)),
        ((LogIndex(1, 4), {"file": "y"}), (LogIndex(2, 2), "z")),
        (Part("parts/1/a", 7, "ab" * 32, checkpoint_id=CheckpointId(3)), Part("", 1, "cd" * 32, "eA==")),
    )
