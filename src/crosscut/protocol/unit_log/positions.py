"""How far a channel between units has come, and what records do to it: decisions."""

from __future__ import annotations

from crosscut.foundation.ids import ChannelId
from crosscut.protocol.unit_log.entries import START, ChannelPosition, NumberedRecords


def is_after(records: NumberedRecords, position: ChannelPosition) -> bool:
    """Return whether a receiver at `position` lacks any of `records`, or the news after them."""
    return records.last > position.record or records.news > position.news


def is_gap(first: int, news: int, position: ChannelPosition) -> bool:
    """Return whether a receiver at `position` lacks something before record `first` or before `news`."""
    return first > position.record + 1 or news > position.news + 1


def advanced(position: ChannelPosition, last: int, news: int) -> ChannelPosition:
    """Return the position after a receiver at `position` has records up to `last`, and `news` after them."""
    return ChannelPosition(max(position.record, last), max(position.news, news))


def skipped(first: int, last: int, position: ChannelPosition) -> int:
    """Return how many of records `first` to `last` a receiver at `position` has."""
    return max(0, min(position.record, last) + 1 - first)


def before(records: NumberedRecords, position: ChannelPosition) -> ChannelPosition:
    """Return the position in front of `records`, which lead to `position`.

    The news that they are after has the number before theirs; without news of their own, it is that of
    `position`.
    """
    return ChannelPosition(records.first - 1, records.news - 1 if records.news else position.news)


def by_channel(positions: dict[ChannelId, ChannelPosition]) -> tuple[tuple[ChannelId, ChannelPosition], ...]:
    """Return positions in the order of their channels, without those where nothing has come yet."""
    return tuple(sorted((channel, one) for channel, one in positions.items() if one != START))
