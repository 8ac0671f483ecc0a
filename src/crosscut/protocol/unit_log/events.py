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
from crosscut.protocol.unit_log.entries import ChannelPosition, GroupContent, Incarnation, UnitEntry

ConnectionId = NewType("ConnectionId", int)
"""One connection of a channel. A later one replaces it."""

# Of the log.


@dataclass(frozen=True, slots=True)
class NewestHeadRead:
    """Whose the newest segment file is.

    Attributes:
        segment: 0: there is none.
        owner: None: likewise.
    """

    segment: int
    owner: Incarnation | None


@dataclass(frozen=True, slots=True)
class SegmentSealed:
    """Nothing that is appended to `segment` from now on counts, unless its owner misses the seal."""

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


@dataclass(frozen=True, slots=True)
class UnitLogFailed:
    """The log can't be used: an entry is damaged, missing or not authentic, or the log could not be read."""

    reason: str


LogAnswer = EntryAppended | EntryTaken | EntryUncertain | EntryRefused | UnitEntryRead | SealFound
UnitLogEvent = NewestHeadRead | SegmentSealed | UnitTailRead | LogAnswer | UnitLogFailed | TimerFired

# Of channels to and from other units.


@dataclass(frozen=True, slots=True)
class RecordsEmitted:
    """A task has sent `count` records, or news, on a channel to another unit.

    Attributes:
        payload: Encoded as on the wire; b"": the end of input.
        has_news: Whether news follows the records: a watermark, idleness, or the end of input.
    """

    channel: ChannelId
    count: int
    payload: bytes
    has_news: bool = False


@dataclass(frozen=True, slots=True)
class RecordsArrived:
    """Records `first` to `last` of an input have come: perhaps late, twice, or from a zombie.

    Attributes:
        last: `first` - 1 if there is only news.
        news: Number of the news after them; 0: there is none.
    """

    channel: ChannelId
    connection: ConnectionId
    first: int
    last: int
    news: int = 0


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
    """The receiver at the other end of `connection` has all up to `position`: not for ever."""

    channel: ChannelId
    connection: ConnectionId
    position: ChannelPosition


@dataclass(frozen=True, slots=True)
class InputsAcknowledged:
    """All up to `position` is in the log of the receiver. True for ever, from any incarnation."""

    channel: ChannelId
    position: ChannelPosition


@dataclass(frozen=True, slots=True)
class ResumeRefused:
    """The sender at the other end of `connection` keeps only what comes after `position`, which is later than
    where this unit wanted to go on when it asked."""

    channel: ChannelId
    connection: ConnectionId
    position: ChannelPosition


ChannelEvent = (
    RecordsEmitted | RecordsArrived | ChannelConnected | ChannelAccepted | ResumeAsked | ResumeRefused
    | InputsAcknowledged
)  # fmt: skip

# Of groups, sinks and snapshots.


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """All tasks are between two batches, and this is what they have made since the last group.

    Attributes:
        taken: How far tasks have taken their inputs; those that are not here are as they were. What has
            arrived and was not taken belongs to a later group.
    """

    content: GroupContent
    taken: tuple[tuple[ChannelId, ChannelPosition], ...] = ()


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
