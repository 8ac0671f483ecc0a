"""What can happen to the machines of a unit. Past participles: it has happened already.

Answers of the store to an append are those of the job log: `EntryAppended`, `EntryTaken`, `EntryUncertain`
and `EntryRefused` of `crosscut.protocol.events`.
"""

from __future__ import annotations

from typing import NewType

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, LogIndex
from crosscut.protocol.events import (
    EntryAppended,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    TimerFired,
)
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.entries import GroupContent, UnitEntry

ConnectionId = NewType("ConnectionId", int)
"""One connection of a channel. A later one replaces it."""

# Of the log.


@dataclass(frozen=True, slots=True)
class SegmentSealed:
    """Nothing that is appended to `segment` from now on counts, unless its owner misses the seal.

    `segment` was the newest one; 0: there is none.
    """

    segment: int


@dataclass(frozen=True, slots=True)
class UnitTailRead:
    """The log from the newest head with a snapshot on, or from its beginning, in order.

    Attributes:
        leftover: Older groups, which a deletion has left behind.
    """

    entries: tuple[tuple[LogIndex, UnitEntry], ...]
    leftover: tuple[LogIndex, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitEntryRead:
    """What entry `index` holds, or None if there is no such entry."""

    index: LogIndex
    entry: UnitEntry | None


@dataclass(frozen=True, slots=True)
class SealFound:
    """Group `index` is durable in its segment file, which had been sealed by then: it may be void."""

    index: LogIndex


LogAnswer = EntryAppended | EntryTaken | EntryUncertain | EntryRefused | UnitEntryRead | SealFound
UnitLogEvent = SegmentSealed | UnitTailRead | LogAnswer | TimerFired

# Of channels to and from other units.


@dataclass(frozen=True, slots=True)
class RecordsEmitted:
    """A task has sent `count` records on a channel to another unit."""

    channel: ChannelId
    count: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RecordsArrived:
    """Records `first` to `last` of an input have come: perhaps late, twice, or from a zombie."""

    channel: ChannelId
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ChannelConnected:
    """An output has a new connection. Its receiver will say where to go on."""

    channel: ChannelId
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class ChannelAccepted:
    """An input has a new connection: its sender wants to know where to go on."""

    channel: ChannelId
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """The receiver at the other end of `connection` has all records up to `number`: not for ever."""

    channel: ChannelId
    connection: ConnectionId
    number: int


@dataclass(frozen=True, slots=True)
class InputsAcknowledged:
    """The records up to `number` are in the log of their receiver. True for ever, from any incarnation, and
    when."""

    channel: ChannelId
    number: int


ChannelEvent = (
    RecordsEmitted | RecordsArrived | ChannelConnected | ChannelAccepted | ResumeAsked | InputsAcknowledged
)

# Of groups, sinks and snapshots.


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """All tasks are between two batches, and this is what they have made since the last group."""

    content: GroupContent


@dataclass(frozen=True, slots=True)
class UnitCommitted:
    """The sink transaction of group `index`, and all before it, are visible."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class UnitCommitFailed:
    """The commit of group `index` has failed, or its outcome is unknown."""

    index: LogIndex
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionRequested:
    """The log has become long, or a barrier wants a snapshot: take one at the end of the next group."""


@dataclass(frozen=True, slots=True)
class UnitSnapshotStored:
    """The state frozen at the end of group `index` is durable."""

    index: LogIndex
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class UnitSnapshotFailed:
    """The state frozen at the end of group `index` could not be stored."""

    index: LogIndex
    reason: str


UnitEvent = (
    UnitLogEvent | ChannelEvent | GroupEnded | UnitCommitted | UnitCommitFailed | CompactionRequested
    | UnitSnapshotStored | UnitSnapshotFailed
)  # fmt: skip
