"""What the machines of a unit ask for. Imperatives, carried out in list order.

The contract is that of `crosscut.protocol.effects`. Losing an effect in a crash is harmless: the next
incarnation reads the log and asks again.
"""

from __future__ import annotations

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, LogIndex
from crosscut.protocol.effects import CancelTimer, StartTimer
from crosscut.protocol.unit_log.entries import (
    ChannelPosition,
    GroupCommitted,
    NumberedRecords,
    UnitEntry,
    UnitSnapshot,
)
from crosscut.protocol.unit_log.events import ConnectionId

# Of the log.


@dataclass(frozen=True, slots=True)
class ReadNewestHead:
    """Read the head of the newest segment file.

    After: -
    Answer: NewestHeadRead or UnitLogFailed; timer read-log
    Lost: the next incarnation reads it
    """


@dataclass(frozen=True, slots=True)
class SealSegment:
    """Put the seal of this segment file if absent, durably. A newer segment stays as it is.

    After: its head was read
    Answer: SegmentSealed or UnitLogFailed; timer read-log
    Lost: the next incarnation seals the segment
    """

    segment: int


@dataclass(frozen=True, slots=True)
class ReadUnitTail:
    """Read back from the newest entry to the newest head with a snapshot, and on to the group of that
    snapshot.

    In segment files, what was read is made durable before the answer: it may be in the page cache only.

    After: the seal of the newest segment
    Answer: UnitTailRead or UnitLogFailed; timer read-log
    Lost: the next incarnation reads it
    """


@dataclass(frozen=True, slots=True)
class AppendUnitEntry:
    """Create the entry, durably.

    A group goes to the end of a segment file if the log has those: after it is durable, look for the seal
    of the segment, and answer SealFound if it is there. All else is put if absent.

    After: all entries before it
    Answer: EntryAppended, EntryTaken, EntryUncertain, EntryRefused, SealFound, UnitLogFailed; timer log-call
    Lost: the next incarnation goes on from the entry before it
    """

    index: LogIndex
    entry: UnitEntry


@dataclass(frozen=True, slots=True)
class ReadUnitEntry:
    """Read one entry.

    After: -
    Answer: UnitEntryRead, EntryUncertain or UnitLogFailed; timer log-call
    Lost: the next incarnation reads the log
    """

    index: LogIndex


@dataclass(frozen=True, slots=True)
class DeleteGroups:
    """Delete these groups of closed segments, at any time.

    After: the head with a snapshot that replaces them
    Answer: nothing
    Lost: the next incarnation finds them before that head
    """

    indices: tuple[LogIndex, ...]


UnitLogEffect = (
    ReadNewestHead | SealSegment | ReadUnitTail | AppendUnitEntry | ReadUnitEntry | StartTimer | CancelTimer
)

# Of channels to and from other units.


@dataclass(frozen=True, slots=True)
class SendRecords:
    """Send these on `connection`, after what was sent there before.

    After: the group that holds them
    Answer: InputsAcknowledged, later
    Lost: with the connection; the receiver asks for them on the next one
    """

    channel: ChannelId
    connection: ConnectionId
    records: NumberedRecords


@dataclass(frozen=True, slots=True)
class DeliverRecords:
    """Hand what has just arrived to its task, without the `skipped` first records.

    After: -
    Answer: nothing
    Lost: the sender keeps them until they are acknowledged
    """

    channel: ChannelId
    skipped: int


@dataclass(frozen=True, slots=True)
class AskResume:
    """Tell the sender on `connection` to go on after `position`.

    After: -
    Answer: RecordsArrived, if there are any, or ResumeRefused
    Lost: with the connection; the next one asks again
    """

    channel: ChannelId
    connection: ConnectionId
    position: ChannelPosition


@dataclass(frozen=True, slots=True)
class RefuseResume:
    """Tell the receiver on `connection` that this unit keeps only what comes after `position`.

    After: -
    Answer: ResumeAsked, if the receiver has come as far meanwhile
    Lost: with the connection; the receiver asks again on the next one
    """

    channel: ChannelId
    connection: ConnectionId
    position: ChannelPosition


@dataclass(frozen=True, slots=True)
class AcknowledgeInputs:
    """Tell the sender, on the present connection, that all up to `position` is in this unit's log.

    After: the group that has taken them
    Answer: nothing
    Lost: a later one says more, or the next connection says it again
    """

    channel: ChannelId
    position: ChannelPosition


ChannelEffect = SendRecords | DeliverRecords | AskResume | RefuseResume | AcknowledgeInputs

# Of the whole unit.


@dataclass(frozen=True, slots=True)
class RestoreUnit:
    """Give each task the state of `snapshot`, if there is one, and then the sections of `groups`, in order.

    What the snapshot needs was read with the tail, so there is nothing to wait for.

    After: the claim of the log
    Answer: nothing
    Lost: the next incarnation restores the same
    """

    snapshot: UnitSnapshot | None
    groups: tuple[GroupCommitted, ...]
    positions: tuple[tuple[str, JSON], ...]


@dataclass(frozen=True, slots=True)
class AcknowledgeSources:
    """Tell the sources that they may forget what is before these positions.

    After: the group with these positions
    Answer: nothing
    Lost: a later one says more
    """

    positions: tuple[tuple[str, JSON], ...]


@dataclass(frozen=True, slots=True)
class AuthoriseCommit:
    """Commit the sink transaction of group `index`. One at a time, oldest first. Committing it again changes
    nothing.

    After: the group
    Answer: UnitCommitted or UnitCommitFailed
    Lost: the next incarnation commits it

    Attributes:
        delay_ms: Wait so long first.
    """

    index: LogIndex
    handle: JSON
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class FreezeUnit:
    """Freeze the state of all tasks as it is now, at the end of group `index`.

    After: -
    Answer: nothing
    Lost: with the unit; no snapshot is stored
    """

    index: LogIndex


@dataclass(frozen=True, slots=True)
class StoreUnitSnapshot:
    """Write the state frozen at the end of group `index`, in the background.

    After: the group
    Answer: UnitSnapshotStored or UnitSnapshotFailed
    Lost: the log stays long until the next snapshot
    """

    index: LogIndex


@dataclass(frozen=True, slots=True)
class EndUnit:
    """End the process: the unit is fenced or has failed. Nothing else is to leave it.

    After: -
    Answer: nothing
    Lost: the process has ended anyway

    Attributes:
        is_fenced: A newer incarnation owns the log.
    """

    reason: str
    is_fenced: bool


UnitEffect = (
    UnitLogEffect | ChannelEffect | DeleteGroups | RestoreUnit | AcknowledgeSources | AuthoriseCommit
    | FreezeUnit | StoreUnitSnapshot | EndUnit
)  # fmt: skip
