"""What the tests of the unit log share: channels, incarnations, entries."""

from crosscut.foundation.ids import ChannelId, Epoch, LogIndex, TaskId, VertexId
from crosscut.protocol.effects import CancelTimer, StartTimer
from crosscut.protocol.events import Timer
from crosscut.protocol.unit_log.effects import AppendUnitEntry, UnitLogEffect
from crosscut.protocol.unit_log.entries import (
    ChannelPosition,
    GroupCommitted,
    GroupContent,
    Incarnation,
    NumberedRecords,
    UnitEntry,
    UnitSegmentOpened,
)

TIMEOUT_MS = 60_000
FIRST, SECOND, THIRD = (Incarnation(Epoch(1), number) for number in (1, 2, 3))
INPUT, OUTPUT = (
    ChannelId(0, TaskId(VertexId(source), 0), TaskId(VertexId(target), 0))
    for source, target in (("a", "b"), ("b", "c"))
)
NOWHERE = LogIndex(0, 0)


def at(segment: int, number: int) -> LogIndex:
    return LogIndex(segment, number)


def head(incarnation: Incarnation, cut: LogIndex = NOWHERE) -> UnitSegmentOpened:
    return UnitSegmentOpened(incarnation, cut)


def group(incarnation: Incarnation, sections: bytes = b"") -> GroupCommitted:
    return GroupCommitted(incarnation, (), (), GroupContent(sections))


def run(first: int, last: int, payload: bytes = b"", news: int = 0) -> NumberedRecords:
    return NumberedRecords(first, last, payload, news)


def up_to(record: int, news: int = 0) -> ChannelPosition:
    return ChannelPosition(record, news)


def call(step: int) -> Timer:
    return Timer("log-call", number=step)


def appends(index: LogIndex, entry: UnitEntry, step: int) -> list[UnitLogEffect]:
    return [AppendUnitEntry(index, entry), StartTimer(call(step), TIMEOUT_MS)]


def answered(step: int) -> CancelTimer:
    return CancelTimer(call(step))
