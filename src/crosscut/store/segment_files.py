"""The log of a unit in files of a local file system: one file a segment, and one fsync a group.

    units/3/00000000000000000007.head       the head of segment 7 of unit 3
    units/3/00000000000000000007.groups     its groups, one after the other
    units/3/00000000000000000007.sealed     a newer incarnation is about to read it

A group can't be put at the end of a file if absent. So a claimant puts the seal, *then* reads the groups, and
then puts the head of the next segment, which says how far it has read (the cut). The owner looks for the seal
after each group is durable, and before it answers. If there is none, the group was in the file before the
seal, so that it was read. Heads and seals are put if absent; they are never deleted.

Bytes after the last whole group are what a crash has left of one that was never answered. If a whole group of
the same segment comes after them, something is damaged: a group begins only after the one before is durable.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from crosscut.errors import StoreError, invariant
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.events import EntryAppended, EntryRefused, EntryUncertain
from crosscut.protocol.unit_log.entries import GroupCommitted, UnitEntry, UnitSegmentOpened
from crosscut.protocol.unit_log.events import SealFound, SegmentSealed
from crosscut.store.files import NO_SPACE, LocalFiles, failed
from crosscut.store.log_key import UnitLogKey
from crosscut.store.mounts import check_is_local
from crosscut.store.owners import foreign_write
from crosscut.store.unit_log import AppendAnswer, UnitLogStore
from crosscut.store.unit_log_format import (
    MAGIC,
    StoredEntry,
    TornError,
    UnitName,
    decode_entry,
    encode_entry,
    index_at,
)

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | _NO_LINK
_GROUPS = re.compile(r"(\d{20})\.groups")


@dataclass(slots=True)
class _Writing:
    """The segment file that this process appends to.

    Attributes:
        end: Where the next group goes.
        trouble: Why nothing more is written; "": nothing is wrong.
        is_sealed: A newer incarnation has sealed the segment.
    """

    segment: int
    descriptor: int
    end: int = 0
    trouble: str = ""
    is_sealed: bool = False


class FileUnitLog(UnitLogStore):
    """A log of segment files. All its processes are on one host.

    Args:
        root: A directory of a local file system; made, mode 0700, if it does not exist.
        first_segment: Where the log begins.
        fsync: How to make a file or directory durable; a seam for tests.
        fdatasync: Likewise the content of a file and its length.

    Raises:
        SettingsError: The file system is not one of `crosscut.store.mounts.LOCAL`.
        StoreError: No permission, `root` is not a directory, or other users can write there.
    """

    def __init__(
        self,
        root: str,
        unit: UnitName,
        key: UnitLogKey | None = None,
        *,
        first_segment: int = 1,
        fsync: Callable[[int], None] = os.fsync,
        fdatasync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        files = LocalFiles(root, called="unit log", fsync=fsync)
        super().__init__(files, unit, key, first_segment=first_segment)
        check_is_local(root)
        self._fdatasync = fdatasync
        self._writing: _Writing | None = None
        try:
            self._make_directories(self._directory)
        except OSError as error:
            raise failed("can't make", files, self._directory, error) from error
        for below in ("", "units", self._directory):
            if reason := foreign_write(os.path.join(root, below), ()):
                raise StoreError(
                    f"unit log {files.root}/{self._directory}: {reason}; its entries are loaded as code, so "
                    f"change that, or choose another directory",
                    path=self._directory,
                    damaged=False,
                )
        self._descriptor = self._opened_directory(root)

    def close(self) -> None:
        if self._writing is not None:
            os.close(self._writing.descriptor)
            self._writing = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def seal(self, segment: int) -> SegmentSealed:
        path = f"{self._directory}/{_sealed(segment)}"
        try:
            self._put_file(path, b"")
        except OSError as error:
            raise failed("can't seal with", self._files, path, error) from error
        # Also if it existed: its maker may have died before it was durable.
        self._settle_directory(self._directory)
        return SegmentSealed(segment)

    def append(self, index: LogIndex, entry: UnitEntry) -> AppendAnswer:
        if isinstance(entry, GroupCommitted):
            return self._append_group(index, entry)
        invariant(
            isinstance(entry, UnitSegmentOpened) and index.number == 0,
            f"{type(entry).__name__} was to be entry {index} of segment files",
        )
        return self._put(index, entry)

    def delete(self, indices: Iterable[LogIndex]) -> list[str]:
        errors: list[str] = []
        newest: dict[int, int] = {}
        for index in indices:
            invariant(index.number > 0, f"the head of segment {index.segment} was to be deleted")
            newest[index.segment] = max(index.number, newest.get(index.segment, 0))
        for segment, number in newest.items():
            try:
                _, head = self._head(segment + 1)
                # A file goes as a whole: with its last group that counts.
                if number >= head.cut.number:
                    os.unlink(_groups(segment), dir_fd=self._descriptor)
            except FileNotFoundError:
                continue
            except (OSError, StoreError) as error:
                errors.append(
                    f"can't delete {self._files.root}/{self._directory}/{_groups(segment)}: {error}"
                )
        return errors

    # Writing.

    def _append_group(self, index: LogIndex, group: GroupCommitted) -> AppendAnswer:
        try:
            writing = self._writing_to(index)
        except OSError as error:
            return self._refused_or_uncertain(index, None, error)
        if writing.is_sealed:
            return SealFound(index)
        if writing.trouble:
            return EntryUncertain(index, writing.trouble)
        data, digest = encode_entry(self._unit, index, group, self._digest_before(index), self._key)
        try:
            _pwrite_fully(writing.descriptor, data, writing.end)
        except OSError as error:
            # What is there of it is not whole, and the next attempt writes over it.
            return self._refused_or_uncertain(index, writing, error)
        try:
            self._fdatasync(writing.descriptor)
            writing.is_sealed = self._is_sealed(index.segment)
        except OSError as error:
            # What is on the disk is unknown after a failed fsync, and the next one may report a success.
            writing.trouble = str(failed("can't make durable", self._files, self._path(index), error))
            return EntryUncertain(index, writing.trouble)
        if writing.is_sealed:
            return SealFound(index)
        writing.end += len(data)
        self._note(index, digest)
        return EntryAppended(index)

    def _refused_or_uncertain(
        self, index: LogIndex, writing: _Writing | None, error: OSError
    ) -> EntryRefused | EntryUncertain:
        reason = str(failed("can't write", self._files, self._path(index), error))
        if error.errno in NO_SPACE:
            return EntryRefused(index, reason)
        if writing is not None:
            writing.trouble = reason
        return EntryUncertain(index, reason)

    def _writing_to(self, index: LogIndex) -> _Writing:
        if self._writing is not None and self._writing.segment == index.segment:
            return self._writing
        invariant(index.number == 1, f"group {index} was to be the first one of its file")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK
        try:
            descriptor = os.open(_groups(index.segment), flags, 0o600, dir_fd=self._descriptor)
        except FileExistsError as error:
            # Only the owner makes it, and this process has just become that.
            raise StoreError(
                f"{self._files.root}/{self._path(index)} exists, and the segment is new: find out what has "
                f"made that file, and move it away",
                path=self._path(index),
                damaged=True,
            ) from error
        if self._writing is not None:
            os.close(self._writing.descriptor)
        self._writing = _Writing(index.segment, descriptor)
        try:
            self._files.settle(self._directory)
        except OSError as error:
            self._writing.trouble = str(failed("can't make durable", self._files, self._directory, error))
        return self._writing

    def _is_sealed(self, segment: int) -> bool:
        try:
            os.stat(_sealed(segment), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    # Reading.

    def _path(self, index: LogIndex) -> str:
        name = _groups(index.segment) if index.number else f"{index.segment:020d}.head"
        return f"{self._directory}/{name}"

    def _stored(self, index: LogIndex) -> StoredEntry | None:
        if index.number == 0:
            return self._in_own_file(index)
        groups = self._groups_in(index.segment)
        return groups[index.number - 1] if index.number <= len(groups) else None

    def _after(self, start: LogIndex, cut: LogIndex | None) -> list[StoredEntry]:
        if cut is not None and cut.number <= start.number:
            return []
        groups = self._groups_in(start.segment, cut)
        if cut is not None and len(groups) < cut.number:
            raise self._missing(LogIndex(cut.segment, len(groups) + 1))
        return groups[start.number :]

    def _groups_in(self, segment: int, cut: LogIndex | None = None) -> list[StoredEntry]:
        """Return the whole groups of a segment, in order, none of them after `cut`.

        Raises:
            StoreError: One of them is damaged, or the file could not be read.
        """
        data = self._content(segment)
        found: list[StoredEntry] = []
        offset = 0
        while offset < len(data) and (cut is None or len(found) < cut.number):
            index = LogIndex(segment, len(found) + 1)
            try:
                one = decode_entry(data, self._unit, self._key, offset=offset)
            except TornError as error:
                if cut is not None:
                    raise self._damaged(index, f"{error}, and the next segment follows it") from error
                if self._has_later(data, offset, index):
                    raise self._damaged(index, f"{error}, and later groups are whole") from error
                break
            except StoreError as error:
                raise self._refused(index, error) from error
            if one.index != index or not isinstance(one.entry, GroupCommitted):
                raise self._damaged(index, f"found {type(one.entry).__name__} {one.index}")
            found.append(one)
            offset += one.size_bytes
        return found

    def _has_later(self, data: bytes, offset: int, index: LogIndex) -> bool:
        """Whether a whole entry of the segment of `index`, and after that, is in `data` after `offset`."""
        at = offset
        while (at := data.find(MAGIC, at + 1)) >= 0:
            later = index_at(data, at)
            if later is None or later.segment != index.segment or later <= index:
                continue
            try:
                decode_entry(data, self._unit, self._key, offset=at)
            except StoreError:
                # Bytes of a record, or of what is torn.
                continue
            return True
        return False

    def _content(self, segment: int) -> bytes:
        try:
            with os.fdopen(self._open_groups(segment, os.O_RDONLY), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise failed("can't read", self._files, self._path(LogIndex(segment, 1)), error) from error

    def _open_groups(self, segment: int, flags: int) -> int:
        # O_NONBLOCK: opening a FIFO would wait for a writer, for ever.
        descriptor = os.open(_groups(segment), flags | os.O_NONBLOCK | _NO_LINK, dir_fd=self._descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file")
        return descriptor

    def _leftover(self, since: LogIndex) -> list[LogIndex]:
        try:
            names = os.listdir(self._descriptor)
        except OSError as error:
            raise failed("can't list", self._files, self._directory, error) from error
        found = []
        for match in filter(None, map(_GROUPS.fullmatch, names)):
            segment = int(match[1])
            if self._first_segment <= segment <= since.segment:
                _, head = self._head(segment + 1)
                if head.cut <= since:
                    # The last group stands for all in the file, and the first one for those that are void.
                    found.append(LogIndex(segment, max(head.cut.number, 1)))
        return sorted(found)

    def _settle(self, segment: int) -> None:
        self._settle_directory(self._directory)
        groups = self._groups_in(segment)
        if not groups:
            return
        size = sum(one.size_bytes for one in groups)
        path = self._path(groups[-1].index)
        try:
            descriptor = self._open_groups(segment, os.O_RDWR)
            try:
                # Those before the last one were durable when it was begun. If its own fsync has failed, the
                # kernel takes its pages for clean: only pages that are written again go to the disk.
                offset = size - groups[-1].size_bytes
                last = os.pread(descriptor, groups[-1].size_bytes, offset)
                _pwrite_fully(descriptor, last, offset)
                self._fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise failed("can't make durable", self._files, path, error) from error

    def _opened_directory(self, root: str) -> int:
        """Return a descriptor of the directory of the unit; no component below `root` is a link."""
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in self._directory.split("/"):
                below = os.open(name, _DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
        except OSError as error:
            os.close(descriptor)
            raise failed("can't open directory", self._files, self._directory, error) from error
        return descriptor


def _groups(segment: int) -> str:
    return f"{segment:020d}.groups"


def _sealed(segment: int) -> str:
    return f"{segment:020d}.sealed"


def _pwrite_fully(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
