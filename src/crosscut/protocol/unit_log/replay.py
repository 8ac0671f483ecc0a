"""What the log of a unit adds up to: a decision on entries that were read."""

from __future__ import annotations

from collections.abc import Sequence

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.unit_log.entries import (
    START,
    GroupCommitted,
    SentRecords,
    UnitEntry,
    UnitSegmentOpened,
    UnitSnapshot,
)
from crosscut.protocol.unit_log.positions import advanced, by_channel

EMPTY = UnitSnapshot(LogIndex(0, 0))


@dataclass(frozen=True, slots=True)
class Replay:
    """What a log holds.

    Attributes:
        total: All of it, as a snapshot at the end of the newest group; its parts are those of `base`.
        base: The newest snapshot; None: there is none.
        groups: Those after it, in order.
        indices: Of `groups`.
    """

    total: UnitSnapshot
    base: UnitSnapshot | None
    groups: tuple[GroupCommitted, ...]
    indices: tuple[LogIndex, ...]


def replayed(tail: Sequence[tuple[LogIndex, UnitEntry]]) -> Replay:
    """Return what a log with this tail, in order and without void groups, adds up to."""
    heads = [entry for _, entry in tail if isinstance(entry, UnitSegmentOpened)]
    base = next((head.snapshot for head in reversed(heads) if head.snapshot is not None), None)
    since = base if base is not None else EMPTY
    groups = [
        (index, entry) for index, entry in tail if isinstance(entry, GroupCommitted) and index > since.index
    ]
    total = added(since, groups)
    return Replay(total, base, tuple(entry for _, entry in groups), tuple(index for index, _ in groups))


def added(snapshot: UnitSnapshot, groups: Sequence[tuple[LogIndex, GroupCommitted]]) -> UnitSnapshot:
    """Return `snapshot` with `groups` after it."""
    received, given = dict(snapshot.received), dict(snapshot.given)
    positions, owed = dict(snapshot.positions), dict(snapshot.owed)
    kept: list[SentRecords] = [*snapshot.kept]
    last = snapshot.index
    for index, group in groups:
        last = index
        received |= dict(group.received)
        for one in group.sent:
            position = given.get(one.channel, START)
            given[one.channel] = advanced(position, one.records.last, one.records.news)
        kept += group.sent
        positions |= dict(group.content.positions)
        if group.content.sink is not None:
            owed[index] = group.content.sink
    return UnitSnapshot(
        last,
        by_channel(received),
        by_channel(given),
        tuple(kept),
        by_split(positions),
        tuple(sorted(owed.items(), key=lambda one: one[0])),
        snapshot.parts,
    )


def by_split(positions: dict[str, JSON]) -> tuple[tuple[str, JSON], ...]:
    """Return positions in the order of their splits."""
    return tuple(sorted(positions.items(), key=lambda one: one[0]))
