"""Sealed logs as a checkpoint: a decision.

A group is durable only after what it took was durable at its sender. So the ends of the logs of all units are
a consistent cut at any moment, and a job whose processes are all gone can start from them under another
protocol or parallelism. What was on its way is what senders keep and receivers have not taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, LogIndex
from crosscut.protocol.unit_log.entries import START, ChannelPosition, SentRecords, UnitSnapshot
from crosscut.protocol.unit_log.positions import advanced, is_after, is_gap, skipped


@dataclass(frozen=True, slots=True)
class RecordsInFlight:
    """Records that were logged and not taken: without the `skipped` first ones of these.

    The news after them was not taken, or is the newest that was.
    """

    sent: SentRecords
    skipped: int


@dataclass(frozen=True, slots=True)
class Fold:
    """A consistent cut of all units.

    Attributes:
        in_flight: In the order of their channels and numbers.
        owed: Sink transactions to commit before anything else, oldest first, for each unit.
    """

    in_flight: tuple[RecordsInFlight, ...]
    owed: tuple[tuple[tuple[LogIndex, JSON], ...], ...]


@dataclass(frozen=True, slots=True)
class RecordsLost:
    """The logs are no cut: one of them lacks entries that it has had, as after a backup was put back.

    Attributes:
        taken: How far the log of the receiver has taken the channel.
        kept: The oldest and the newest record that the log of the sender has; None: none.
        given: The newest numbers that the sender has given out.
    """

    channel: ChannelId
    taken: ChannelPosition
    kept: tuple[int, int] | None
    given: ChannelPosition


def folded(units: Sequence[UnitSnapshot]) -> Fold | RecordsLost:
    """Return the cut that these make: what the log of each unit adds up to, after it was sealed."""
    taken = {channel: position for one in units for channel, position in one.received}
    given = {channel: position for one in units for channel, position in one.given}
    kept: dict[ChannelId, list[SentRecords]] = {}
    for unit in units:
        for sent in unit.kept:
            kept.setdefault(sent.channel, []).append(sent)
    in_flight: list[RecordsInFlight] = []
    for channel in sorted(taken.keys() | given.keys()):
        have, last = taken.get(channel, START), given.get(channel, START)
        runs = kept.get(channel, [])
        position = have
        for sent in runs:
            records = sent.records
            if is_gap(records.first, records.news, position):
                break
            if is_after(records, position):
                in_flight.append(RecordsInFlight(sent, skipped(records.first, records.last, position)))
                position = advanced(position, records.last, records.news)
        if position != last:
            ends = (runs[0].records.first, runs[-1].records.last) if runs else None
            return RecordsLost(channel, have, ends, last)
    return Fold(tuple(in_flight), tuple(one.owed for one in units))
