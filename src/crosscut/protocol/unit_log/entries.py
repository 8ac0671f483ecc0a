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


@dataclass(frozen=True, slots=True, order=True)
class ChannelPosition:
    """How far a channel has come.

    News (a watermark, idleness, the end of input) has numbers of its own. A receiver merges and cuts batches,
    and of the news in a merged batch the newest counts: it may have a record that came after news which it
    has not heard. So the two numbers are compared one by one.

    Attributes:
        record: The newest record; 0: there is none.
        news: The newest news; 0: there is none.
    """

    record: int = 0
    news: int = 0


START = ChannelPosition()


@dataclass(frozen=True, slots=True)
class NumberedRecords:
    """Records `first` to `last` of a channel, in order, and the news after them.

    Attributes:
        last: `first` - 1 if there is only news.
        payload: Encoded as on the wire; the end of input has none.
        news: Number of the news; 0: there is none.
    """

    first: int
    last: int
    payload: bytes
    news: int = 0


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
        received: How far the group has taken each channel that it took something from.
        sent: A number names one content for ever: this one, from here on.
    """

    incarnation: Incarnation
    received: tuple[tuple[ChannelId, ChannelPosition], ...]
    sent: tuple[SentRecords, ...]
    content: GroupContent


@dataclass(frozen=True, slots=True)
class UnitSnapshot:
    """What the log of a unit adds up to at the end of group `index`.

    Attributes:
        received: How far each input was taken.
        given: The newest numbers given out, for each output.
        kept: What was sent and not acknowledged.
        positions: By split.
        owed: Sink transactions that were not known to be committed, with their groups, oldest first.
        parts: State of the tasks.
    """

    index: LogIndex
    received: tuple[tuple[ChannelId, ChannelPosition], ...] = ()
    given: tuple[tuple[ChannelId, ChannelPosition], ...] = ()
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


def group_of(number: CheckpointId) -> LogIndex | None:
    """Return the group whose transaction sinks know under this number; None: it is a checkpoint's."""
    segment, within = divmod(number, 1 << COMMIT_NUMBER_BITS)
    return LogIndex(segment, within) if segment else None
