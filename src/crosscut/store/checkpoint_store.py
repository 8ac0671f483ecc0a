"""The checkpoint store: one job's directory, with its job log and the parts of its snapshots.

    log/...                           the job log, each entry created with put-if-absent: `crosscut.store.log`
    parts/<checkpoint>/<vertex>-<task>-<epoch>-<random>      written once, never overwritten
    commits/<vertex>-<task>           how far the commit of a sink task has come; replaced

It carries out and decides nothing: what to append, what an unknown outcome means and what may be
deleted is decided by `crosscut.protocol`. It never depends on listing a directory (D5).
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain

from crosscut.errors import InternalError, StoreError
from crosscut.foundation.ids import PLAIN_NAME, CheckpointId, Epoch, Lineage, LogIndex, TaskId, WorkerIndex
from crosscut.foundation.urls import local_path
from crosscut.protocol.log.entries import LogEntry
from crosscut.protocol.log.writer import AppendOutcome
from crosscut.protocol.messages import UnitKeys
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.appending import LogKind
from crosscut.store.blocks import BLOCK_BYTES, in_blocks
from crosscut.store.files import Files, LocalFiles, delete_all, failed
from crosscut.store.log import UNFINISHED_PATH, StoredLog
from crosscut.store.log_key import VARIABLE, LogKey, unit_log_key
from crosscut.store.objects import ObjectFiles
from crosscut.store.segment_files import FileUnitLog
from crosscut.store.unit_log import ObjectUnitLog, UnitLogStore
from crosscut.store.unit_log_format import UnitName

INLINE_BYTES = 4096
_PART_PATH = re.compile(r"parts/\d{1,20}/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")


def open_store(
    url: str, *, inline_bytes: int = INLINE_BYTES, create: bool = True, key: LogKey | None = None
) -> CheckpointStore:
    """Open the checkpoint store at a local path or an fsspec URL.

    Args:
        url: Such as "checkpoints", "file:///var/checkpoints", "s3://bucket/checkpoints".
        inline_bytes: Parts smaller than this travel in the manifest instead of in a file.
        create: Make a local directory (mode 0700) if there is none, and require that it can be written;
            False to look at a store only.
        key: The key of the job log, for who reads or writes that.

    Raises:
        StoreError: No permission, or not a directory.
        SettingsError: The file system is unknown, or has no atomic put-if-absent.
    """
    path = local_path(url)
    if path is None:
        return CheckpointStore(ObjectFiles(url), inline_bytes, key)
    files = LocalFiles(path, create=create)
    if create:
        for directory in ("log", "parts"):
            try:
                files.make_directory(directory)
            except OSError as error:
                raise failed("can't make", files, directory, error) from error
    return CheckpointStore(files, inline_bytes, key)


class CheckpointStore:
    """The job log and the parts of one job. All methods block; any thread may call them.

    Every StoreError has an attribute `damaged`: True if what is stored is not what was written, False
    if the store could not be used, which may pass.
    """

    def __init__(self, files: Files, inline_bytes: int = INLINE_BYTES, key: LogKey | None = None) -> None:
        self._files = files
        self._inline_bytes = inline_bytes
        self._log = StoredLog(files, key)
        self._key = key

    @property
    def protection(self) -> str:
        """The protection of the job log against changes by others, in words."""
        if self._key is not None:
            return f"the job log is authenticated, with key {self._key.key_id}"
        return (
            f"the job log is not authenticated ({VARIABLE} is not set): anyone who may write to the "
            f"checkpoint directory decides what the job goes on from"
        )

    def unit_keys(self, lineage: Lineage, unit: WorkerIndex, epoch: Epoch) -> UnitKeys | None:
        """Return what a worker signs and reads its log with in `epoch`; None: the job log is not signed."""
        return None if self._key is None else self._key.unit_keys(lineage, unit, epoch)

    def unit_log(self, unit: UnitName, kind: LogKind, keys: UnitKeys | None = None) -> UnitLogStore:
        """Open the log of a worker, which lies beside the job log.

        Args:
            keys: See `unit_keys`.

        Raises:
            StoreError: The directory can't be made, or is no place for a log of this kind.
        """
        if kind == "objects":
            return ObjectUnitLog(self._files, unit, unit_log_key(keys))
        if not isinstance(self._files, LocalFiles):
            raise InternalError(f"segment files in {self._files.root}")
        return FileUnitLog(self._files.root, unit, unit_log_key(keys))

    # The job log: see `StoredLog`.

    def append(self, index: LogIndex, entry: LogEntry, since: LogIndex | None = None) -> AppendOutcome:
        """Create entry `index` of the job log if there is none. Appended means durable.

        Args:
            since: An entry of the same segment: only what differs from it is written.

        Raises:
            StoreError: The entry has certainly not been appended by this call.
            StateError: `entry` holds something that is not JSON.
        """
        return self._log.append(index, entry, since)

    def read(self, index: LogIndex) -> LogEntry | None:
        """Return entry `index`, which is durable then, or None if there is none.

        Raises:
            StoreError: It is damaged, or could not be read.
        """
        return self._log.read(index)

    def tail(self, checkpoints: int = 1) -> list[tuple[LogIndex, LogEntry]]:
        """Return the newest entries, as far as a recovery needs them, in order; see `StoredLog.tail`.

        Raises:
            StoreError: An entry is damaged, missing between others, or could not be read.
        """
        return self._log.tail(checkpoints)

    def entries(self) -> Iterator[tuple[LogIndex, LogEntry]]:
        """Yield all entries of the log that are left, the oldest first.

        Raises:
            StoreError: An entry is damaged or could not be read.
        """
        return self._log.entries()

    def list_log(self) -> tuple[list[LogIndex], list[str]]:
        """Return the files in the log's directory, for sweeps only: it may miss some; see `StoredLog.listed`.

        Raises:
            StoreError: The directory could not be read.
        """
        return self._log.listed()

    def delete_entries(self, entries: Iterable[LogIndex]) -> list[str]:
        """Delete entries of old segments; return what went wrong, as text."""
        return self._log.delete(entries)

    # The parts

    def write_part(
        self,
        checkpoint_id: CheckpointId,
        task: TaskId,
        epoch: Epoch,
        chunks: Iterable[bytes],
        *,
        may_inline: bool = True,
    ) -> Part:
        """Store the content that `chunks` adds up to, durably, under a name never used before.

        Content smaller than `inline_bytes` goes into the returned Part itself, if it may. What `chunks`
        raises is passed on. After any error, the file is removed if possible; nothing refers to it.

        Raises:
            StoreError: It could not be stored.
        """
        digest = sha256()
        size = 0

        def measured() -> Iterator[bytes]:
            nonlocal size
            for block in in_blocks(chunks, max(BLOCK_BYTES, self._inline_bytes)):
                digest.update(block)
                size += len(block)
                yield block

        rest = measured()
        first = next(rest, b"")
        # No block but the last one is so short.
        if may_inline and size < self._inline_bytes:
            inline = base64.b64encode(first).decode("ascii")
            return Part("", size, digest.hexdigest(), inline, checkpoint_id)
        name = f"{_in_path(task)}-{epoch}-{secrets.token_hex(8)}"
        path = f"parts/{checkpoint_id}/{name}"
        try:
            self._files.write_new(path, chain((first,), rest))
        except OSError as error:
            raise failed(f"after {size} bytes, can't write", self._files, path, error) from error
        return Part(path, size, digest.hexdigest(), "", checkpoint_id)

    def read_part(self, part: Part) -> bytes:
        """Return the content of `part`, verified.

        Raises:
            StoreError: It is missing, is not what was written (also when read a second time), or could
                not be read.
        """
        if not part.path:
            return self._verified_inline(part)
        self._check_part_path(part.path)
        try:
            data = self._files.read(part.path)
            if _mismatch(part, data):
                # A transfer can go wrong where the stored bytes are right: look once more (D6).
                data = self._files.read(part.path)
        except FileNotFoundError as error:
            raise self._damaged(part.path, "it is missing") from error
        except OSError as error:
            raise failed("can't read", self._files, part.path, error) from error
        if mismatch := _mismatch(part, data):
            raise self._damaged(part.path, mismatch)
        return data

    def delete_parts(self, paths: Iterable[str]) -> list[str]:
        """Delete parts, and their directories when empty; return what went wrong, as text.

        Parts that are gone already are fine, and so is "", the path of inline parts. What somebody has not
        finished writing in the log may be deleted, too.
        """

        def is_part(path: str) -> bool:
            if UNFINISHED_PATH.fullmatch(path) is not None:
                return False
            self._check_part_path(path)
            return True

        return delete_all(self._files, filter(None, paths), is_part)

    def list_parts(self) -> list[str]:
        """Return the paths of all stored parts, sorted, for sweeps of orphans only: it may miss some.

        Raises:
            StoreError: The directory could not be read.
        """
        try:
            return sorted(path for path in self._files.walk("parts") if _PART_PATH.fullmatch(path))
        except OSError as error:
            raise failed("can't list", self._files, "parts", error) from error

    # The progress of commits.

    def progress_key(self, job: str) -> bytes:
        """Return what workers of `job` sign the progress of commits with, b"" if the log is not signed."""
        return b"" if self._key is None else self._key.progress_key(job)

    def write_progress(self, task: TaskId, data: bytes) -> None:
        """Replace what is noted of the commits of `task`, durably and in one step.

        Raises:
            StoreError: It may or may not have been replaced.
        """
        path = _progress_path(task)
        try:
            self._files.make_directory("commits")
            self._files.replace(path, data)
        except OSError as error:
            raise failed("can't write", self._files, path, error) from error

    def read_progress(self, task: TaskId) -> bytes | None:
        """Return what is noted of the commits of `task`, None if nothing is.

        Raises:
            StoreError: It could not be read.
        """
        path = _progress_path(task)
        try:
            return self._files.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failed("can't read", self._files, path, error) from error

    def _check_part_path(self, path: str) -> None:
        if _PART_PATH.fullmatch(path) is None:
            raise StoreError(
                f"{path!r} is not the path of a part: expected parts/<checkpoint>/<name>; the manifest that "
                f"it comes from was not written by Crosscut",
                path=path,
                damaged=True,
            )

    def _verified_inline(self, part: Part) -> bytes:
        try:
            data = base64.b64decode(part.inline, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self._damaged("(inline)", "it is not base64") from error
        if mismatch := _mismatch(part, data):
            raise self._damaged("(inline)", mismatch)
        return data

    def _damaged(self, path: str, reason: str) -> StoreError:
        return StoreError(
            f"part {path} in {self._files.root} is damaged: {reason}; restore this file from a backup; "
            f"Crosscut never falls back to an older checkpoint by itself, because the output of the newer "
            f"one is already committed",
            path=path,
            damaged=True,
        )


def _in_path(task: TaskId) -> str:
    if PLAIN_NAME.fullmatch(task.vertex) is None:
        raise StoreError(
            f"vertex id {task.vertex!r} can't be part of a path: expected 1 to 64 letters, digits, "
            f"'_', '-' or '.' (not first)",
            damaged=False,
        )
    return f"{task.vertex}-{task.index}"


def _progress_path(task: TaskId) -> str:
    return f"commits/{_in_path(task)}"


def _mismatch(part: Part, data: bytes) -> str | None:
    if len(data) != part.size_bytes:
        return f"expected {part.size_bytes} bytes, found {len(data)}"
    found = sha256(data).hexdigest()
    return None if found == part.sha256 else f"expected sha256 {part.sha256}, found {found}"
