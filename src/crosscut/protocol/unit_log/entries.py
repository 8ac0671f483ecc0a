"""The entries of a unit's log: data only.

A *unit* is what fails together, a worker with its tasks, and has one log. What its tasks process between
two appends is a *group*; one entry commits it. Bytes and JSON values are the performer's: the machines
compare them and look into none.
"""

from __future__ import annotations

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, LogIndex
from crosscut.protocol.snapshots import Part

COMMIT_NUMBER_BITS = 32


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """The `number`-th holder of a worker's place in `epoch`; the newest owns the log of the unit."""

    epoch: Epoch
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}"


@dataclass(frozen=True, slots=True)
class NumberedRecords:
    """Records `first` to `last` of a channel, in order.

    Attributes:
        payload: The records, encoded as on the wire.
    """

    first: int
    last: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class SentRecords:
    """What a group has sent to another unit: the channel, and records of it."""

    channel: ChannelId
    records: NumberedRecords


@dataclass(frozen=True, slots=True)
class GroupContent:
    """What the tasks of a unit have made of a group, beside the records that they received and sent.

    Attributes:
        sections: Changed state, time, and all else that a task needs to go on; one section a task.
        positions: Of splits that moved: split id and position.
        sink: The handle of the transaction cut off at the end of the group; None: no sink has output.
    """

    sections: bytes = b""
    positions: tuple[tuple[str, JSON], ...] = ()
    sink: JSON = None


@dataclass(frozen=True, slots=True)
class GroupCommitted:
    """A group. That this entry is durable *is* its commit (decision moment).

    Attributes:
        received: The newest record of each channel that the group took records from. It took all up to
        there. sent: A number names one content for ever: this one, from here on.
    """

    incarnation: Incarnation
    received: tuple[tuple[ChannelId, int], ...]
    sent: tuple[SentRecords, ...]
    content: GroupContent


@dataclass(frozen=True, slots=True)
class UnitSnapshot:
    """What the log of a unit adds up to at the end of group `index`.

    Attributes:
        received: The newest record taken, by channel.
        given: The newest number given out, by channel.
        kept: Records sent that their receivers had not acknowledged.
        positions: By split.
        owed: Sink transactions that were not known to be committed, with their groups, oldest first.
        parts: State of the tasks.
    """

    index: LogIndex
    received: tuple[tuple[ChannelId, int], ...] = ()
    given: tuple[tuple[ChannelId, int], ...] = ()
    kept: tuple[SentRecords, ...] = ()
    positions: tuple[tuple[str, JSON], ...] = ()
    owed: tuple[tuple[LogIndex, JSON], ...] = ()
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitSegmentOpened:
    """The head of a segment: from here on `incarnation` writes the log. The claim, if it is a new one.

    Never deleted.

    Attributes:
        cut: How far older segments count, in segment files: groups above it are void.
        snapshot: The log begins here, with this; None: older segments count as well.
    """

    incarnation: Incarnation
    cut: LogIndex
    snapshot: UnitSnapshot | None = None


@dataclass(frozen=True, slots=True)
class UnitSegmentClosed:
    """The last entry of a segment of objects. It has the index that the owner would append at next.

    Never deleted.
    """

    incarnation: Incarnation


UnitEntry = UnitSegmentOpened | GroupCommitted | UnitSegmentClosed


def commit_number(index: LogIndex) -> CheckpointId:
    """Return the number under which sinks know the transaction of group `index`: it grows for ever."""
    return CheckpointId(index.segment << COMMIT_NUMBER_BITS | index.number)
