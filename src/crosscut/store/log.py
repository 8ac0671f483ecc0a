"""The job log in the checkpoint store: one file an entry, in segments.

    log/00000000000000000003.json                             the head of segment 3
    log/00000000000000000003/00000000000000000017.json        entry 17 of it

Heads are never deleted, and nothing is deleted in the newest segment: `crosscut.protocol.log.segments`. So
the end is found by probing (an entry exists only if the one before does, or did), in some twenty reads
for each power of a thousand, and never by listing a directory (D5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from crosscut.contracts.connectors import JSON
from crosscut.errors import AuthenticityError, StoreError, invariant
from crosscut.foundation.ids import Epoch, LogIndex
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry, SegmentOpened
from crosscut.protocol.log.segments import claim_of, following, head_after
from crosscut.protocol.log.writer import Appended, AppendOutcome, Taken, Unknown
from crosscut.store.differences import applied, difference
from crosscut.store.entries import FORMAT, Sealed, content_of, decode_file, encode_file, entry_of
from crosscut.store.files import TEMPORARY, Files, Put, UncertainError, delete_all, failed
from crosscut.store.log_key import VARIABLE, LogKey, Signature
from crosscut.store.numbering import Gap, newest_number

_NUMBER_MAX = 10**18
_ENTRY_PATH = re.compile(r"log/(\d{20})/(\d{20})\.json")
UNFINISHED_PATH = re.compile(rf"log/(\d{{20}}/)?{TEMPORARY}[0-9a-f]{{16}}")
"""Of a file whose writer may have died. One that still writes finds it gone, and writes it again."""

_REREADS_MAX = 10


@dataclass(frozen=True, slots=True)
class _Known:
    """An entry, with its digest and position for the next one."""

    index: LogIndex
    sealed: Sealed
    digest: str
    content: JSON


class _Missing(Exception):
    """There is no entry at `index`, where one is needed."""

    def __init__(self, index: LogIndex) -> None:
        super().__init__(str(index))
        self.index = index


class StoredLog:
    """The job log. All methods block; any thread may call them.

    Args:
        key: Signs each entry, and is needed to read it; None: nothing is signed.

    Every StoreError has an attribute `damaged`: True if what is stored is not what was written, False
    if the store could not be used, which may pass.
    """

    def __init__(self, files: Files, key: LogKey | None = None) -> None:
        self._files = files
        self._key = key
        # The newest entry, as far as this handle knows: the next one needs it.
        self._newest: _Known | None = None

    def append(self, index: LogIndex, entry: LogEntry, since: LogIndex | None = None) -> AppendOutcome:
        """Create entry `index` if there is none. Appended means durable.

        Args:
            since: An older entry of the same segment, not its head: only what differs from it is written.

        Raises:
            StoreError: The entry has certainly not been appended by this call.
            StateError: `entry` holds something that is not JSON.
        """
        path, content = _path(index), content_of(entry)
        try:
            sealed = self._sealed(index, entry, content, since)
        except _Missing as error:
            # A driver that has slept for long: what its entry follows is deleted, and its index is taken.
            if self._exists(index):
                return Taken(index)
            raise self._missing(error.index) from error
        data, digest = encode_file(sealed, self._key)
        try:
            put = self._put(index, path, data)
        except UncertainError as error:
            return Unknown(index, f"{self._files.root}/{path}: {error}")
        except OSError as error:
            raise failed(f"can't write {len(data)} bytes to", self._files, path, error) from error
        if put is Put.EXISTS:
            return Taken(index)
        self._newest = _Known(index, sealed, digest, content)
        return Appended(index)

    def read(self, index: LogIndex) -> LogEntry | None:
        """Return entry `index`, which is durable then, or None if there is none.

        Raises:
            StoreError: It is damaged, or could not be read.
        """
        found = self._known(index)
        if found is None:
            return None
        entry = self._entry(found)
        self._settle({_directory(index)})
        self._newest = found
        return entry

    def tail(self, checkpoints: int = 1) -> list[tuple[LogIndex, LogEntry]]:
        """Return the newest entries, as far as a recovery needs them, in order.

        That is every entry from the `checkpoints`-th newest completed checkpoint on, and the newest
        claim of an epoch, which may lie before them, with a gap. If there are fewer completed checkpoints,
        it is the whole log, as far as it has not been deleted. All of it is durable.

        Raises:
            StoreError: An entry is damaged, missing between others, or could not be read.
        """
        invariant(checkpoints >= 1, f"tail of {checkpoints} checkpoints: expected at least 1")
        for _ in range(_REREADS_MAX):
            end = self._end()
            if end is None:
                return []
            try:
                found = self._tail(end, checkpoints)
            except _Missing as error:
                if not self._has_gone_on(end):
                    raise self._missing(error.index) from error
            else:
                if not self._exists(head_after(end)):
                    self._settle({_directory(index) for index, _ in found})
                    return found
            # Its driver has gone on meanwhile: the entries looked at may have been deleted by then.
        raise StoreError(
            f"the job log in {self._files.root} is written faster than it can be read; stop the job first",
            path="log",
            damaged=False,
        )

    def entries(self) -> Iterator[tuple[LogIndex, LogEntry]]:
        """Yield all entries that are left, the oldest first.

        Raises:
            StoreError: An entry is damaged or could not be read.
        """
        yield from self.tail(_NUMBER_MAX)

    def listed(self) -> tuple[list[LogIndex], list[str]]:
        """Return the files in the directory, for sweeps only: it may miss some.

        Returns:
            The indices of all entries but heads, sorted.
            The paths of what processes have not finished writing, and perhaps never will, sorted.

        Raises:
            StoreError: The directory could not be read.
        """
        try:
            paths = list(self._files.walk("log"))
        except OSError as error:
            raise failed("can't list", self._files, "log", error) from error
        found = [match for path in paths if (match := _ENTRY_PATH.fullmatch(path)) is not None]
        indices = sorted(LogIndex(int(match[1]), int(match[2])) for match in found)
        return indices, sorted(path for path in paths if UNFINISHED_PATH.fullmatch(path))

    def delete(self, entries: Iterable[LogIndex]) -> list[str]:
        """Delete entries, and the directories of their segments when empty; return what went wrong.

        Those that are gone already are fine. A head is never deleted.
        """

        def checked(index: LogIndex) -> str:
            invariant(index.number > 0, f"the head of segment {index.segment} was to be deleted")
            return _path(index)

        return delete_all(self._files, map(checked, entries))

    # Where the log ends.

    def _end(self) -> LogIndex | None:
        segment = self._newest_of(lambda number: LogIndex(number, 0))
        if segment == 0:
            return None
        return LogIndex(segment, self._newest_of(lambda number: LogIndex(segment, number)))

    def _newest_of(self, index_of: Callable[[int], LogIndex]) -> int:
        """Return the greatest number from 1 on at which there is an entry: 0 if there is none."""
        try:
            return newest_number(lambda number: self._exists(index_of(number)))
        except Gap as gap:
            raise self._missing(index_of(gap.number)) from gap

    def _has_gone_on(self, end: LogIndex) -> bool:
        return self._exists(head_after(end)) or self._exists(following(end))

    def _exists(self, index: LogIndex) -> bool:
        return self._data(index) is not None

    # Entries.

    def _tail(self, end: LogIndex, checkpoints: int) -> list[tuple[LogIndex, LogEntry]]:
        """Return the tail of a log that ends at `end`.

        Raises:
            _Missing: An entry that is needed is not there.
        """
        found: list[tuple[LogIndex, LogEntry]] = []
        wanted = checkpoints
        for index, entry in self._back(end):
            found.append((index, entry))
            wanted -= isinstance(entry, CheckpointCompleted)
            if wanted == 0:
                break
        if not any(claim_of(entry) for _, entry in found):
            found.append(self._claim_before(*found[-1]))
        return found[::-1]

    def _back(self, end: LogIndex) -> Iterator[tuple[LogIndex, LogEntry]]:
        """Yield the entries from `end` on back to the oldest that is left.

        Raises:
            _Missing: An entry is not there, and is not one that was deleted.
        """
        known: dict[LogIndex, _Known] = {}
        after: _Known | None = None
        index: LogIndex | None = end
        has_checkpoint = False
        while index is not None:
            found = self._known(index, known)
            if found is None:
                if has_checkpoint and index.segment < end.segment:
                    return
                raise _Missing(index)
            if index == end:
                self._newest = found
            known.pop(index, None)
            if after is not None and after.sealed.before != found.digest:
                raise self._damaged(
                    after.index, f"it does not follow entry {index}: one of the two was replaced"
                )
            entry = self._entry(found)
            yield index, entry
            has_checkpoint = has_checkpoint or isinstance(entry, CheckpointCompleted)
            after, index = found, _previous(index, entry)

    def _claim_before(self, index: LogIndex, entry: LogEntry) -> tuple[LogIndex, LogEntry]:
        """Return the claim of the epoch of `entry`, which lies before it in the same segment.

        Found by bisection, since an epoch may hold any number of checkpoints: epochs never go down
        along the log (I6), and the claim is the first entry of its own.
        """
        older, newer = -1, index.number
        while newer - older > 1:
            middle = (older + newer) // 2
            if self._epoch_of(LogIndex(index.segment, middle)) < entry.epoch:
                older = middle
            else:
                newer = middle
        at = LogIndex(index.segment, newer)
        found = self._entry(self._needed(at))
        claim = claim_of(found)
        if claim is None or claim.epoch != entry.epoch:
            raise self._damaged(
                at, f"expected the claim of epoch {entry.epoch}, found {type(found).__name__}"
            )
        return at, found

    def _sealed(self, index: LogIndex, entry: LogEntry, content: JSON, since: LogIndex | None) -> Sealed:
        """Return `entry`, whose content is `content`, as it is to be written.

        Raises:
            _Missing: The entry that it follows, or is a change of, is not there.
        """
        previous = _previous(index, entry)
        before = self._needed(previous).digest if previous is not None else ""
        if since is None:
            return Sealed(index, entry.epoch, 0, before, content)
        invariant(
            since.segment == index.segment and 0 < since.number < index.number,
            f"entry {index} was to be written as a change of entry {since}",
        )
        changes = difference(self._needed(since).content, content)
        return Sealed(index, entry.epoch, since.number, before, changes)

    def _needed(self, index: LogIndex) -> _Known:
        if self._newest is not None and self._newest.index == index:
            return self._newest
        found = self._known(index)
        if found is None:
            raise _Missing(index)
        return found

    def _epoch_of(self, index: LogIndex) -> Epoch:
        data = self._data(index)
        if data is None:
            raise _Missing(index)
        return self._opened(index, data)[0].epoch

    def _known(self, index: LogIndex, known: dict[LogIndex, _Known] | None = None) -> _Known | None:
        """Return entry `index` with its whole content, None if it, or one that it builds on, is not there.

        Args:
            known: Entries that were resolved before; those that are on the way are added.
        """
        known = {} if known is None else known
        changes: list[tuple[LogIndex, Sealed, str]] = []
        at = index
        while at not in known:
            data = self._data(at)
            if data is None:
                return None
            sealed, digest = self._opened(at, data)
            changes.append((at, sealed, digest))
            if not sealed.since:
                break
            at = LogIndex(at.segment, sealed.since)
        content = known[at].content if at in known else None
        for one, sealed, digest in reversed(changes):
            try:
                content = applied(content, sealed.content) if sealed.since else sealed.content
            except StoreError as error:
                raise self._damaged(one, str(error)) from error
            known[one] = _Known(one, sealed, digest, content)
        return known[index]

    def _entry(self, found: _Known) -> LogEntry:
        try:
            return entry_of(found.content)
        except StoreError as error:
            raise self._damaged(found.index, str(error)) from error

    # Files.

    def _data(self, index: LogIndex) -> bytes | None:
        try:
            return self._files.read(_path(index))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failed("can't read", self._files, _path(index), error) from error

    def _opened(self, index: LogIndex, data: bytes) -> tuple[Sealed, str]:
        try:
            sealed, digest = decode_file(data, index)
        except StoreError as error:
            if (form := error.ids.get("format")) is not None:
                raise StoreError(
                    f"the job log in {self._files.root} is of format {form}, and this release of Crosscut "
                    f"has format {FORMAT}: go on with the release that it was written by, or choose another "
                    f"checkpoint_dir",
                    path=_path(index),
                    damaged=False,
                ) from error
            raise self._damaged(index, str(error)) from error
        self._check_signature(index, sealed.signature, digest)
        return sealed, digest

    def _check_signature(self, index: LogIndex, signature: Signature | None, digest: str) -> None:
        """Raise AuthenticityError unless the entry was written with the key that there is, or is not."""
        key = self._key
        if key is None:
            if signature is None:
                return
            reason = (
                f"was written with key {signature.key_id}, and this process has none: set {VARIABLE} to the "
                f"key that the job was begun with"
            )
        elif signature is None:
            reason = (
                f"was written without a key, and {VARIABLE} is set: if the job was begun without one, unset "
                f"it, or choose another checkpoint_dir; else somebody without the key has written there: "
                f"restore this file from a backup"
            )
        elif signature.key_id != key.key_id:
            reason = (
                f"was written with key {signature.key_id}, and {VARIABLE} is key {key.key_id}: set it to the "
                f"key that the job was begun with"
            )
        elif not key.has_made(signature, digest):
            reason = (
                f"says that it was written with key {key.key_id}, and was not: somebody without the key has "
                f"written there; restore this file from a backup"
            )
        else:
            return
        path = _path(index)
        raise AuthenticityError(
            f"entry {index} of the job log, {self._files.root}/{path}, {reason}", path=path, damaged=False
        )

    def _put(self, index: LogIndex, path: str, data: bytes) -> Put:
        if index.number == 1:
            # Also if it exists: its maker may have died before that was durable.
            self._files.make_directory(_directory(index))
        try:
            return self._files.put_if_absent(path, data)
        except FileNotFoundError:
            # All that was in the segment is deleted; or somebody took our file for one that was given up.
            self._files.make_directory(_directory(index))
            return self._files.put_if_absent(path, data)

    def _settle(self, directories: set[str]) -> None:
        for directory in sorted({"log", *directories}):
            try:
                self._files.settle(directory)
            except OSError as error:
                raise failed("can't make durable what is in", self._files, directory, error) from error

    def _damaged(self, index: LogIndex, reason: str) -> StoreError:
        return StoreError(
            f"entry {index} of the job log, {self._files.root}/{_path(index)}, is damaged: {reason}; restore "
            f"this file from a backup; Crosscut never goes on from an older entry by itself, because "
            f"output of the newer one may already be visible",
            path=_path(index),
            damaged=True,
        )

    def _missing(self, index: LogIndex) -> StoreError:
        return StoreError(
            f"entry {index} of the job log, {self._files.root}/{_path(index)}, is missing, but newer ones "
            f"exist; restore this file from a backup",
            path=_path(index),
            damaged=True,
        )


def _previous(index: LogIndex, entry: LogEntry) -> LogIndex | None:
    """Return the index of the entry before `entry`, which is at `index`; None if it is the first."""
    if isinstance(entry, SegmentOpened):
        return entry.previous
    return LogIndex(index.segment, index.number - 1)


def _directory(index: LogIndex) -> str:
    return "log" if index.number == 0 else f"log/{index.segment:020d}"


def _path(index: LogIndex) -> str:
    invariant(
        1 <= index.segment <= _NUMBER_MAX and 0 <= index.number <= _NUMBER_MAX,
        f"log index {index} is out of range",
    )
    return (
        f"log/{index.segment:020d}.json"
        if index.number == 0
        else (f"log/{index.segment:020d}/{index.number:020d}.json")
    )
