"""The checkpoint store: one job's directory, with its job log and the parts of its snapshots.

    log/00000000000000000017.json     entry 17 of the job log, created with put-if-absent
    log/hint                          index of a recent entry; may be stale, wrong or missing
    parts/<checkpoint>/<vertex>-<task>-<epoch>-<random>      written once, never overwritten

It carries out and decides nothing: what to append, what an unknown outcome means and what may be
deleted is decided by `crosscut.protocol`. It never depends on listing a directory (D5).
"""

from __future__ import annotations

import base64
import binascii
import errno
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import chain

from crosscut.errors import StoreError, invariant
from crosscut.ids import PLAIN_NAME, CheckpointId, Epoch, TaskId
from crosscut.protocol.log import Appended, AppendOutcome, Taken, Unknown
from crosscut.protocol.messages import CheckpointCompleted, EpochClaimed, LogEntry, Part
from crosscut.store.entries import decode_entry, encode_entry
from crosscut.store.files import Files, LocalFiles, Put, UncertainError
from crosscut.store.objects import ObjectFiles

INLINE_BYTES = 4096
HINT_EVERY = 8
"""Entries between two hints: so many reads at most does it take to find the end of the log."""

_INDEX_MAX = 10**18
_PART_PATH = re.compile(r"parts/\d{1,20}/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


def open_store(url: str, *, inline_bytes: int = INLINE_BYTES, create: bool = True) -> CheckpointStore:
    """Open the checkpoint store at a local path or an fsspec URL.

    Args:
        url: Such as "checkpoints", "file:///var/checkpoints", "s3://bucket/checkpoints".
        inline_bytes: Parts smaller than this travel in the manifest instead of in a file.
        create: Make a local directory (mode 0700) if there is none, and require that it can be written;
            False to look at a store only.

    Raises:
        StoreError: No permission, or not a directory.
        SettingsError: The file system is unknown, or has no atomic put-if-absent.
    """
    path = url.removeprefix("file://").removeprefix("local://")
    if "://" in path or "::" in path:
        return CheckpointStore(ObjectFiles(url), inline_bytes)
    files = LocalFiles(path, create=create)
    if create:
        for directory in ("log", "parts"):
            try:
                files.make_directory(directory)
            except OSError as error:
                raise _failed("can't make", files, directory, error) from error
    return CheckpointStore(files, inline_bytes)


class CheckpointStore:
    """The job log and the parts of one job. All methods block; any thread may call them.

    Every StoreError has an attribute `damaged`: True if what is stored is not what was written, False
    if the store could not be used, which may pass.
    """

    def __init__(self, files: Files, inline_bytes: int = INLINE_BYTES) -> None:
        self._files = files
        self._inline_bytes = inline_bytes

    # The job log

    def append(self, index: int, entry: LogEntry) -> AppendOutcome:
        """Create entry `index`, from 1, if there is none. Appended means durable.

        Raises:
            StoreError: The entry has certainly not been appended by this call.
            StateError: `entry` holds something that is not JSON.
        """
        path = _entry_path(index)
        data = encode_entry(entry, index)
        try:
            put = self._files.put_if_absent(path, data)
        except UncertainError as error:
            return Unknown(index, f"{self._files.root}/{path}: {error}")
        except OSError as error:
            raise _failed(f"can't write {len(data)} bytes to", self._files, path, error) from error
        if put is Put.EXISTS:
            return Taken(index)
        if index % HINT_EVERY == 0:
            self.write_hint(index)
        return Appended(index)

    def read(self, index: int) -> LogEntry | None:
        """Return entry `index`, which is durable then, or None if there is none.

        Raises:
            StoreError: It is damaged, or could not be read.
        """
        entry = self._read(index)
        if entry is not None:
            self._settle_log()
        return entry

    def hint(self) -> int:
        """Return the hinted index, 0 if there is no usable hint. Never raises: it is only a hint."""
        try:
            text = self._files.read("log/hint")
        except (OSError, StoreError):
            return 0
        return int(text) if re.fullmatch(rb"[0-9]{1,20}", text) else 0

    def write_hint(self, index: int) -> None:
        """Remember `index` as that of a recent entry, if possible."""
        # A missing or stale hint costs the next reader some time, nothing else. Above all it must not make
        # the entry before it, which is durable, look refused.
        with suppress(OSError, StoreError):
            self._files.overwrite("log/hint", b"%d" % index)

    def entries(self) -> Iterator[tuple[int, LogEntry]]:
        """Yield all entries of the log from 1 on, with their indexes.

        Raises:
            StoreError: An entry is damaged or could not be read.
        """
        index = 1
        while (entry := self.read(index)) is not None:
            yield index, entry
            index += 1

    def tail(self, checkpoints: int = 1) -> list[tuple[int, LogEntry]]:
        """Return what a recovery needs from the end of the log, in ascending order.

        That is every entry from the `checkpoints`-th newest completed checkpoint on, and the newest
        claim of an epoch, which may lie before them, with a gap. If there are fewer completed checkpoints,
        it is the whole log. All of it is durable.

        Raises:
            StoreError: An entry is damaged, missing between others, or could not be read.
        """
        invariant(checkpoints >= 1, f"tail of {checkpoints} checkpoints: expected at least 1")
        last = self._last_index()
        found: list[tuple[int, LogEntry]] = []
        wanted = checkpoints
        index = last
        while index >= 1 and wanted > 0:
            entry = self._read_existing(index)
            found.append((index, entry))
            wanted -= isinstance(entry, CheckpointCompleted)
            index -= 1
        if found and not any(isinstance(entry, EpochClaimed) for _, entry in found):
            found.append(self._claim_before(found[-1][0], found[0][1].epoch))
        if found:
            self._settle_log()
        return found[::-1]

    def _read(self, index: int) -> LogEntry | None:
        path = _entry_path(index)
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed("can't read", self._files, path, error) from error
        try:
            return decode_entry(data, index)
        except StoreError as error:
            raise StoreError(
                f"entry {index} of the job log, {self._files.root}/{path}, is damaged: {error}; restore "
                f"this file from a backup; Crosscut never goes on from an older entry by itself, because "
                f"output of the newer one may already be visible",
                path=path,
                damaged=True,
            ) from error

    def _read_existing(self, index: int) -> LogEntry:
        entry = self._read(index)
        if entry is None:
            raise StoreError(
                f"entry {index} of the job log, {self._files.root}/{_entry_path(index)}, is missing, but "
                f"newer ones exist; restore this file from a backup",
                path=_entry_path(index),
                damaged=True,
            )
        return entry

    def _exists(self, index: int) -> bool:
        try:
            self._files.read(_entry_path(index))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed("can't read", self._files, _entry_path(index), error) from error
        return True

    def _last_index(self) -> int:
        """Return the index of the newest entry, 0 if there is none.

        Entries are contiguous, as each is written only after the one before it exists.
        """
        last = self.hint()
        if not 1 <= last <= _INDEX_MAX or not self._exists(last):
            last = self._gallop()
        while True:
            if self._exists(last + 1):
                last += 1
            elif not self._exists(last + 2):
                return last
            elif not self._exists(last + 1):
                # It was not merely appended between the look at it and the look at its successor.
                self._read_existing(last + 1)

    def _gallop(self) -> int:
        """Return the index of an existing entry near the end without a hint: 0 if there is none."""
        absent = 1
        while self._exists(absent):
            absent *= 2
        present = absent // 2
        while absent - present > 1:
            middle = (absent + present) // 2
            if self._exists(middle):
                present = middle
            else:
                absent = middle
        return present

    def _claim_before(self, index: int, epoch: Epoch) -> tuple[int, LogEntry]:
        """Return the claim of `epoch`, which lies before entry `index` of the same epoch.

        Found by bisection, since an epoch may hold any number of checkpoints: epochs never go down
        along the log (I6), and the claim is the first entry of its own.
        """
        older, newer = 0, index
        while newer - older > 1:
            middle = (older + newer) // 2
            if self._read_existing(middle).epoch < epoch:
                older = middle
            else:
                newer = middle
        entry = self._read_existing(newer)
        if not isinstance(entry, EpochClaimed) or entry.epoch != epoch:
            raise StoreError(
                f"entry {newer} of the job log in {self._files.root}: expected the claim of epoch {epoch}, "
                f"found {type(entry).__name__} of epoch {entry.epoch}; restore the log from a backup",
                path=_entry_path(newer),
                damaged=True,
            )
        return newer, entry

    def _settle_log(self) -> None:
        try:
            self._files.settle("log")
        except OSError as error:
            raise _failed("can't make durable what was read from", self._files, "log", error) from error

    # The parts

    def write_part(
        self, checkpoint_id: CheckpointId, task: TaskId, epoch: Epoch, chunks: Iterable[bytes]
    ) -> Part:
        """Store the content that `chunks` adds up to, durably, under a name never used before.

        Content smaller than `inline_bytes` goes into the returned Part itself. What `chunks` raises is
        passed on. After any error, what was written is removed if possible; nothing refers to it.

        Raises:
            StoreError: It could not be stored.
        """
        digest = sha256()
        size = 0

        def measured(more: Iterable[bytes]) -> Iterator[bytes]:
            nonlocal size
            for chunk in more:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        rest = measured(chunks)
        first: list[bytes] = []
        while size < self._inline_bytes:
            chunk = next(rest, None)
            if chunk is None:
                content = b"".join(first)
                inline = base64.b64encode(content).decode("ascii")
                return Part("", size, digest.hexdigest(), inline, checkpoint_id)
            first.append(chunk)
        if PLAIN_NAME.fullmatch(task.vertex) is None:
            raise StoreError(
                f"vertex id {task.vertex!r} can't be part of a path: expected 1 to 64 letters, digits, "
                f"'_', '-' or '.' (not first)",
                damaged=False,
            )
        name = f"{task.vertex}-{task.index}-{epoch}-{secrets.token_hex(8)}"
        path = f"parts/{checkpoint_id}/{name}"
        try:
            self._files.write_new(path, chain(first, rest))
        except OSError as error:
            raise _failed(f"after {size} bytes, can't write", self._files, path, error) from error
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
            raise _failed("can't read", self._files, part.path, error) from error
        if mismatch := _mismatch(part, data):
            raise self._damaged(part.path, mismatch)
        return data

    def delete_parts(self, paths: Iterable[str]) -> list[str]:
        """Delete parts, and their directories when empty; return what went wrong, as text.

        Parts that are gone already are fine, and so is "", the path of inline parts.
        """
        errors: list[str] = []
        directories: dict[str, None] = {}
        for path in paths:
            if not path:
                continue
            try:
                self._check_part_path(path)
                directories[path.rpartition("/")[0]] = None
                with suppress(FileNotFoundError):
                    self._files.delete(path)
            except (OSError, StoreError) as error:
                errors.append(f"can't delete {self._files.root}/{path}: {error}")
        for directory in directories:
            try:
                self._files.delete_directory(directory)
            except (OSError, StoreError) as error:
                errors.append(f"can't delete directory {self._files.root}/{directory}: {error}")
        return errors

    def list_parts(self) -> list[str]:
        """Return the paths of all stored parts, sorted, for sweeps of orphans only: it may miss some.

        Raises:
            StoreError: The directory could not be read.
        """
        try:
            return sorted(path for path in self._files.walk("parts") if _PART_PATH.fullmatch(path))
        except OSError as error:
            raise _failed("can't list", self._files, "parts", error) from error

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


def _entry_path(index: int) -> str:
    invariant(1 <= index <= _INDEX_MAX, f"log index {index} is out of range")
    return f"log/{index:020d}.json"


def _mismatch(part: Part, data: bytes) -> str | None:
    if len(data) != part.size_bytes:
        return f"expected {part.size_bytes} bytes, found {len(data)}"
    found = sha256(data).hexdigest()
    return None if found == part.sha256 else f"expected sha256 {part.sha256}, found {found}"


def _failed(what: str, files: Files, path: str, error: OSError) -> StoreError:
    advice = "check the file system and its credentials"
    if error.errno in _NO_SPACE:
        advice = "free space there, or raise the quota"
    elif error.errno in _NO_PERMISSION:
        advice = "give this user permission to write there, or renew its credentials"
    elif error.errno in (errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
        advice = "choose a checkpoint_dir on a file system with hard links"
    reason = error.strerror or str(error) or type(error).__name__
    return StoreError(f"{what} {files.root}/{path}: {reason}; {advice}", path=path, damaged=False)
