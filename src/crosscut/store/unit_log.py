"""The log of a unit in a store that creates an object only if it is absent.

    units/3/00000000000000000007/00000000000000000000       the head of segment 7 of unit 3
    units/3/00000000000000000007/00000000000000000017       entry 17 of it

Heads and what closed a segment are never deleted, and nothing is deleted in the newest segment:
`crosscut.protocol.unit_log.appending`. So the end is found by probing, and never by listing a directory.

What a log is asked, and what it answers, are the effects and events of `crosscut.protocol.unit_log`.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise

from crosscut.errors import AuthenticityError, InternalError, StoreError, invariant
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.events import EntryAppended, EntryRefused, EntryTaken, EntryUncertain
from crosscut.protocol.log.segments import following, head_after
from crosscut.protocol.unit_log.entries import GroupCommitted, UnitEntry, UnitSegmentClosed, UnitSegmentOpened
from crosscut.protocol.unit_log.events import (
    NewestHeadRead,
    SealFound,
    SegmentSealed,
    UnitEntryRead,
    UnitTailRead,
)
from crosscut.store.files import Files, Put, UncertainError, delete_all, failed
from crosscut.store.log_key import UnitLogKey
from crosscut.store.numbering import Gap, newest_number
from crosscut.store.unit_log_format import FORMAT, NO_ENTRY, StoredEntry, UnitName, decode_entry, encode_entry

AppendAnswer = EntryAppended | EntryTaken | EntryUncertain | EntryRefused | SealFound

_NUMBER_MAX = 10**18
_REREADS_MAX = 10
_FOLLOWED_MAX = 1_000
"""Entries that an owner may append while its segment is read: one that is faster is not followed for ever."""


class UnitLogStore(ABC):
    """The log of one unit. All methods block; any thread may call them.

    Read the tail before the first append: each entry holds the digest of the one before. Every StoreError has
    an attribute `damaged`: True if what is stored is not what was written, False if the store could not be
    used, which may pass.

    Args:
        key: Signs each entry, and is needed to read it; None: nothing is signed.
        first_segment: Where the log begins.
    """

    def __init__(
        self, files: Files, unit: UnitName, key: UnitLogKey | None = None, *, first_segment: int = 1
    ) -> None:
        invariant(unit.number >= 0 and first_segment >= 1, f"log of {unit} from segment {first_segment} on")
        self._files = files
        self._unit = unit
        self._key = key
        self._first_segment = first_segment
        self._directory = f"units/{unit.number}"
        # A call that was given up may return while the next one is under way.
        self._lock = threading.Lock()
        self._newest: tuple[LogIndex, bytes] | None = None
        self._newest_before: tuple[LogIndex, bytes] | None = None

    # What the logs have in common.

    def close(self) -> None:
        """Let go of what is open. The log is not used after that, and no call of it is under way."""
        return

    def newest_head(self) -> NewestHeadRead:
        """Return whose the newest segment is.

        Raises:
            StoreError: The log could not be used, or is damaged.
        """
        newest = self._newest_segment()
        if newest < self._first_segment:
            return NewestHeadRead(0, None)
        _, head = self._head(newest)
        return NewestHeadRead(newest, head.incarnation)

    def seal(self, segment: int) -> SegmentSealed:
        """Put the seal of `segment`, durably, if it has none.

        Raises:
            InternalError: The log has no segment files.
            StoreError: The log could not be used.
        """
        raise InternalError(f"the log of {self._unit} has no segment file {segment} to seal")

    def read_tail(self) -> UnitTailRead:
        """Return the entries after the newest snapshot in the log, or all, in order. All of them are durable.

        Raises:
            StoreError: An entry is damaged, missing between others, or could not be read.
        """
        for _ in range(_REREADS_MAX):
            newest = self._newest_segment()
            if newest < self._first_segment:
                self._remember(None)
                return UnitTailRead(())
            try:
                found, leftover = self._tail(newest)
                self._settle(newest)
            except StoreError:
                if not self._has_head(newest + 1):
                    raise
            else:
                if not self._has_head(newest + 1):
                    self._remember(found[-1])
                    return UnitTailRead(tuple((one.index, one.entry) for one in found), leftover)
            # Its owner has gone on meanwhile: what was looked at may have been deleted by then.
        raise StoreError(
            f"the log of {self._unit} in {self._files.root} is written faster than it can be read; end its "
            f"worker first",
            path=self._directory,
            damaged=False,
        )

    def read(self, index: LogIndex) -> UnitEntryRead:
        """Return entry `index`, which is durable then.

        Raises:
            StoreError: It is damaged, or could not be read.
        """
        found = self._stored(index)
        if found is None:
            return UnitEntryRead(index, None)
        self._settle(index.segment)
        self._note(index, found.digest)
        return UnitEntryRead(index, found.entry)

    @abstractmethod
    def append(self, index: LogIndex, entry: UnitEntry) -> AppendAnswer:
        """Create entry `index` if there is none. EntryAppended: it is durable.

        Raises:
            StateError: A position or sink handle in it is not JSON.
            StoreError: The log holds something that it can't hold. The entry is not appended.
        """

    @abstractmethod
    def delete(self, indices: Iterable[LogIndex]) -> list[str]:
        """Delete groups of closed segments, in this order; return what went wrong.

        Those that are gone already are fine.
        """

    @abstractmethod
    def _path(self, index: LogIndex) -> str:
        """Return the path of the file that holds entry `index`."""

    @abstractmethod
    def _stored(self, index: LogIndex) -> StoredEntry | None:
        """Return entry `index`, None if there is none."""

    @abstractmethod
    def _after(self, start: LogIndex, cut: LogIndex | None) -> list[StoredEntry]:
        """Return the entries after `start` in its segment.

        Args:
            cut: Up to where there must be entries; None: the segment is the newest.
        """

    @abstractmethod
    def _leftover(self, since: LogIndex) -> list[LogIndex]:
        """Return groups up to `since`, which a snapshot has replaced; a listing may miss some."""

    @abstractmethod
    def _settle(self, segment: int) -> None:
        """Make durable what was read of `segment`: its writer may have died before it did."""

    # Reading.

    def _newest_segment(self) -> int:
        try:
            return newest_number(self._has_head, self._first_segment)
        except Gap as gap:
            raise self._missing(LogIndex(gap.number, 0)) from gap

    def _has_head(self, segment: int) -> bool:
        return self._data(LogIndex(segment, 0)) is not None

    def _head(self, segment: int) -> tuple[StoredEntry, UnitSegmentOpened]:
        index = LogIndex(segment, 0)
        found = self._in_own_file(index)
        if found is None:
            raise self._missing(index)
        if not isinstance(found.entry, UnitSegmentOpened):
            raise self._damaged(index, f"expected a head, found {type(found.entry).__name__}")
        return found, found.entry

    def _tail(self, newest: int) -> tuple[list[StoredEntry], tuple[LogIndex, ...]]:
        heads = {newest: self._head(newest)}
        oldest = newest
        while heads[oldest][1].snapshot is None and oldest > self._first_segment:
            oldest -= 1
            heads[oldest] = self._head(oldest)
        snapshot = heads[oldest][1].snapshot
        since = snapshot.index if snapshot is not None else None
        if since is not None and since.segment >= oldest:
            raise self._damaged(
                LogIndex(oldest, 0), f"it holds a snapshot of group {since}, which is after it"
            )
        begin = oldest if since is None else max(since.segment, self._first_segment)
        for segment in range(begin, newest):
            if segment not in heads and (since is None or segment > since.segment):
                heads[segment] = self._head(segment)
        found: list[StoredEntry] = []
        for segment in range(begin, newest + 1):
            start = LogIndex(segment, 0)
            if since is not None and segment == since.segment:
                start = since
            else:
                found.append(heads[segment][0])
            cut = heads[segment + 1][1].cut if segment < newest else None
            if cut is not None and cut.segment != segment:
                raise self._damaged(LogIndex(segment + 1, 0), f"it cuts off segment {cut.segment}")
            found += self._after(start, cut)
        for one, next_one in pairwise(found):
            if next_one.before != one.digest:
                raise self._damaged(
                    next_one.index, f"it does not follow entry {one.index}: one of the two was replaced"
                )
        return found, tuple(self._leftover(since)) if since is not None else ()

    def _in_own_file(self, index: LogIndex) -> StoredEntry | None:
        """Return entry `index`, which has a file of its own, None if there is none."""
        data = self._data(index)
        return self._decoded(data, index) if data is not None else None

    def _data(self, index: LogIndex) -> bytes | None:
        path = self._path(index)
        try:
            return self._files.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failed("can't read", self._files, path, error) from error

    def _data_of(self, indices: Sequence[LogIndex]) -> list[bytes | None]:
        """Return the contents of files of entries, None where there is none: of a long tail many at once."""
        try:
            return self._files.read_each([self._path(index) for index in indices])
        except OSError as error:
            raise failed("can't read", self._files, self._directory, error) from error

    def _decoded(self, data: bytes, index: LogIndex) -> StoredEntry:
        try:
            return decode_entry(data, self._unit, self._key, index=index)
        except StoreError as error:
            raise self._refused(index, error) from error

    def _settle_directory(self, path: str) -> None:
        try:
            self._files.settle(path)
        except OSError as error:
            raise failed("can't make durable what is in", self._files, path, error) from error

    # Appending.

    def _put(self, index: LogIndex, entry: UnitEntry) -> AppendAnswer:
        """Put an entry that has a file of its own."""
        path = self._path(index)
        with self._lock:
            if self._newest is not None and index <= self._newest[0]:
                # A call that was given up begins only now: the log has gone on.
                return EntryTaken(index)
        data, digest = encode_entry(self._unit, index, entry, self._digest_before(index), self._key)
        try:
            if index.number == 0:
                self._make_directories(path.rpartition("/")[0])
            put = self._put_file(path, data)
        except UncertainError as error:
            return EntryUncertain(index, f"{self._files.root}/{path}: {error}")
        except OSError as error:
            return EntryRefused(
                index, str(failed(f"can't write {len(data)} bytes to", self._files, path, error))
            )
        if put is Put.EXISTS:
            return EntryTaken(index)
        self._note(index, digest)
        return EntryAppended(index)

    def _put_file(self, path: str, data: bytes) -> Put:
        try:
            return self._files.put_if_absent(path, data)
        except FileNotFoundError:
            # Our file was taken for one that was given up.
            return self._files.put_if_absent(path, data)

    def _make_directories(self, path: str) -> None:
        """Make directory `path` durably, also if it exists: its maker may have died before it did."""
        names = path.split("/")
        for count in range(1, len(names) + 1):
            self._files.make_directory("/".join(names[:count]))

    def _digest_before(self, index: LogIndex) -> bytes:
        """Return the digest of the entry before `index`: the newest one when `index` was first asked for."""
        with self._lock:
            if self._newest_before is None or self._newest_before[0] != index:
                last, digest = self._newest if self._newest is not None else (None, NO_ENTRY)
                expected = LogIndex(self._first_segment, 0)
                if last is not None:
                    expected = head_after(last) if index.number == 0 else following(last)
                invariant(index == expected, f"entry {index} of {self._unit} was to follow entry {last}")
                self._newest_before = index, digest
            return self._newest_before[1]

    def _note(self, index: LogIndex, digest: bytes) -> None:
        with self._lock:
            if self._newest is None or index > self._newest[0]:
                self._newest = index, digest

    def _remember(self, newest: StoredEntry | None) -> None:
        with self._lock:
            self._newest = (newest.index, newest.digest) if newest is not None else None
            self._newest_before = None

    # Errors.

    def _refused(self, index: LogIndex, error: StoreError) -> StoreError:
        """Return `error`, for which entry `index` can't be used, with its place."""
        where = f"entry {index} of the log of {self._unit}, {self._files.root}/{self._path(index)}"
        if isinstance(error, AuthenticityError):
            return AuthenticityError(f"{where}: {error}", path=self._path(index), damaged=False)
        if (form := error.ids.get("format")) is not None:
            return StoreError(
                f"{where}, is of format {form}, and this release of Crosscut has format {FORMAT}: go on with "
                f"the release that it was written by",
                path=self._path(index),
                damaged=False,
            )
        return self._damaged(index, str(error))

    def _damaged(self, index: LogIndex, reason: str) -> StoreError:
        return StoreError(
            f"entry {index} of the log of {self._unit}, {self._files.root}/{self._path(index)}, is damaged: "
            f"{reason}; restore this file from a backup; Crosscut never goes on from an older entry by "
            f"itself, because output of the newer one may already be visible",
            path=self._path(index),
            damaged=True,
        )

    def _missing(self, index: LogIndex) -> StoreError:
        return StoreError(
            f"entry {index} of the log of {self._unit}, {self._files.root}/{self._path(index)}, is missing, "
            f"but newer ones exist; restore this file from a backup",
            path=self._path(index),
            damaged=True,
        )


class ObjectUnitLog(UnitLogStore):
    """A log of one object an entry, each of them put if absent."""

    def append(self, index: LogIndex, entry: UnitEntry) -> AppendAnswer:
        return self._put(index, entry)

    def delete(self, indices: Iterable[LogIndex]) -> list[str]:
        def checked(index: LogIndex) -> str:
            invariant(index.number > 0, f"the head of segment {index.segment} was to be deleted")
            return self._path(index)

        # The directory of a segment keeps its head.
        return delete_all(self._files, map(checked, indices), lambda path: False)

    def _path(self, index: LogIndex) -> str:
        invariant(
            1 <= index.segment <= _NUMBER_MAX and 0 <= index.number <= _NUMBER_MAX,
            f"log index {index} is out of range",
        )
        return f"{self._directory}/{index.segment:020d}/{index.number:020d}"

    def _stored(self, index: LogIndex) -> StoredEntry | None:
        return self._in_own_file(index)

    def _after(self, start: LogIndex, cut: LogIndex | None) -> list[StoredEntry]:
        if cut is None:
            last = self._newest_in(start.segment)
        else:
            # What closed the segment may be after the entry up to which its claimant had read.
            last = cut.number + self._exists(following(cut))
        indices = [LogIndex(start.segment, number) for number in range(start.number + 1, last + 1)]
        found = []
        for index, data in zip(indices, self._data_of(indices), strict=True):
            if data is None:
                raise self._missing(index)
            found.append(self._decoded(data, index))
        for _ in range(_FOLLOWED_MAX if cut is None else 0):
            # The owner may have gone on meanwhile. A claimant must close the segment after its newest entry.
            one = self._in_own_file(LogIndex(start.segment, last + 1))
            if one is None:
                break
            found.append(one)
            last += 1
        for one in found:
            is_closing = isinstance(one.entry, UnitSegmentClosed) and one.index.number == last
            if not isinstance(one.entry, GroupCommitted) and not is_closing:
                raise self._damaged(one.index, f"found {type(one.entry).__name__} among groups")
        return found

    def _newest_in(self, segment: int) -> int:
        try:
            return newest_number(lambda number: self._exists(LogIndex(segment, number)))
        except Gap as gap:
            raise self._missing(LogIndex(segment, gap.number)) from gap

    def _exists(self, index: LogIndex) -> bool:
        return self._data(index) is not None

    def _leftover(self, since: LogIndex) -> list[LogIndex]:
        pattern = re.compile(rf"{self._directory}/(\d{{20}})/(\d{{20}})")
        try:
            matches = [pattern.fullmatch(path) for path in self._files.walk(self._directory)]
        except OSError as error:
            raise failed("can't list", self._files, self._directory, error) from error
        listed = [LogIndex(int(one[1]), int(one[2])) for one in matches if one is not None]
        # The greatest number of a segment is that of the entry which has closed it.
        closing = {index.segment: index for index in sorted(listed)}
        return sorted(
            index
            for index in listed
            if index.number > 0 and index <= since and index != closing[index.segment]
        )

    def _settle(self, segment: int) -> None:
        self._settle_directory(self._directory)
        self._settle_directory(f"{self._directory}/{segment:020d}")
