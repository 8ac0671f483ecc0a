"""Every entry of the job log that ever came into being, whatever has become of its file since."""

from __future__ import annotations

import re

from crosscut.contracts.connectors import JSON
from crosscut.errors import StoreError
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.log.entries import LogEntry, SegmentClosed, SegmentOpened
from crosscut.store.differences import applied
from crosscut.store.entries import decode_file, entry_of
from crosscut.testing.simulator.violation import ensure, violate

_HEAD = re.compile(r"log/(\d+)\.json")
_ENTRY = re.compile(r"log/(\d+)/(\d+)\.json")


class LogHistory:
    """Old entries are deleted, and a driver that has slept may put one of them there again."""

    def __init__(self) -> None:
        self._contents: dict[LogIndex, JSON] = {}
        self._digests: dict[LogIndex, str] = {}

    def appended(self, path: str, data: bytes) -> LogEntry | None:
        """Take a file that has come into being; return the entry if it is a new one of the log."""
        index = _index_of(path)
        sealed, digest = decode_file(data, index)
        base = self._contents.get(LogIndex(index.segment, sealed.since)) if sealed.since else None
        try:
            content = applied(base, sealed.content) if sealed.since else sealed.content
            entry = entry_of(content)
        except StoreError as error:
            violate(f"I6: entry {index} can't be read: {error}")
        if isinstance(entry, SegmentClosed) and LogIndex(index.segment + 1, 0) in self._contents:
            # Nobody comes to it any more.
            return None
        if index in self._contents:
            ensure(
                digest == self._digests[index],
                f"I7: {entry!r:.120} is appended at {index}, where another entry was deleted",
            )
            return None
        before = entry.previous if isinstance(entry, SegmentOpened) else _before(index)
        ensure(
            sealed.before == (self._digests.get(before, "?") if before is not None else ""),
            f"I6: entry {index} does not follow entry {before}",
        )
        if isinstance(entry, SegmentOpened) and before is not None:
            ensure(
                before.segment + 1 == index.segment, f"I6: segment {index.segment} is opened after {before}"
            )
        self._contents[index], self._digests[index] = content, digest
        return entry


def _index_of(path: str) -> LogIndex:
    if (match := _HEAD.fullmatch(path)) is not None:
        return LogIndex(int(match[1]), 0)
    match = _ENTRY.fullmatch(path)
    ensure(match is not None, f"{path} is no entry of the job log")
    assert match is not None
    return LogIndex(int(match[1]), int(match[2]))


def _before(index: LogIndex) -> LogIndex:
    return LogIndex(index.segment, index.number - 1)
