"""What the machines of a unit ask for. Imperatives, carried out in list order.

The contract is that of `crosscut.protocol.effects`. Each docstring says which event answers. Losing an
effect in a crash is harmless: the next incarnation reads the log and asks again.
"""

from __future__ import annotations

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, LogIndex
from crosscut.protocol.effects import CancelTimer, StartTimer
from crosscut.protocol.unit_log.entries import GroupCommitted, NumberedRecords, UnitEntry, UnitSnapshot
from crosscut.protocol.unit_log.events import ConnectionId

# Of the log.


@dataclass(frozen=True, slots=True)
class SealSegment:
    """Put the seal of the newest segment file if absent, durably; answer SegmentSealed."""


@dataclass(frozen=True, slots=True)
class ReadUnitTail:
    """Read back from the newest entry to the newest head with a snapshot, and on to the group of that
    snapshot; answer UnitTailRead.

    In segment files, what was read is made durable before the answer: it may be in the page cache only.
    """


@dataclass(frozen=True, slots=True)
class AppendUnitEntry:
    """Create the entry, durably; answer EntryAppended, EntryTaken, EntryUncertain or EntryRefused.

    A group goes to the end of a segment file if the log has those: after it is durable, look for the seal
    of the segment, and answer SealFound if it is there. All else is put if absent.
    """

    index: LogIndex
    entry: UnitEntry


@dataclass(frozen=True, slots=True)
class ReadUnitEntry:
    """Answer UnitEntryRead."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class DeleteGroups:
    """Delete these groups of closed segments, at any time, or never. A snapshot in the log replaces them."""

    indices: tuple[LogIndex, ...]


UnitLogEffect = SealSegment | ReadUnitTail | AppendUnitEntry | ReadUnitEntry | StartTimer | CancelTimer

# Of channels to and from other units.


@dataclass(frozen=True, slots=True)
class SendRecords:
    """Send these on `connection`, after what was sent there before. They are in the log.

    Lost with the connection; the receiver asks for them on the next one.
    """

    channel: ChannelId
    connection: ConnectionId
    records: NumberedRecords


@dataclass(frozen=True, slots=True)
class DeliverRecords:
    """Hand the records that have just arrived to their task, without the `skipped` first ones."""

    channel: ChannelId
    skipped: int


@dataclass(frozen=True, slots=True)
class AskResume:
    """Tell the sender on `connection` to go on after `number`. Its loss ends the connection."""

    channel: ChannelId
    connection: ConnectionId
    number: int


@dataclass(frozen=True, slots=True)
class AcknowledgeInputs:
    """Tell the sender, on the present connection, that the records up to `number` are in this unit's log.

    If it is lost, a later one says more, or the next connection says it again.
    """

    channel: ChannelId
    number: int


ChannelEffect = SendRecords | DeliverRecords | AskResume | AcknowledgeInputs

# Of the whole unit.


@dataclass(frozen=True, slots=True)
class RestoreUnit:
    """Give each task the state of `snapshot`, if there is one, and then the sections of `groups`, in order.

    What the snapshot needs was read with the tail, so there is nothing to wait for.
    """

    snapshot: UnitSnapshot | None
    groups: tuple[GroupCommitted, ...]
    positions: tuple[tuple[str, JSON], ...]


@dataclass(frozen=True, slots=True)
class AcknowledgeSources:
    """Tell the sources that these positions are in the log: they may forget what is before."""

    positions: tuple[tuple[str, JSON], ...]


@dataclass(frozen=True, slots=True)
class AuthoriseCommit:
    """Commit the sink transaction of group `index`, which is in the log; answer UnitCommitted or
    UnitCommitFailed. One at a time, oldest first. Committing it again changes nothing.

    Attributes:
        delay_ms: Wait so long first.
    """

    index: LogIndex
    handle: JSON
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class FreezeUnit:
    """Freeze the state of all tasks as it is now, at the end of group `index`."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class StoreUnitSnapshot:
    """Write the state frozen at the end of group `index`, in the background; answer UnitSnapshotStored or
    UnitSnapshotFailed."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class EndUnit:
    """End the process: the unit is fenced or has failed. Nothing else is to leave it.

    Attributes:
        is_fenced: A newer incarnation owns the log.
    """

    reason: str
    is_fenced: bool


UnitEffect = (
    UnitLogEffect | ChannelEffect | DeleteGroups | RestoreUnit | AcknowledgeSources | AuthoriseCommit
    | FreezeUnit | StoreUnitSnapshot | EndUnit
)  # fmt: skip
