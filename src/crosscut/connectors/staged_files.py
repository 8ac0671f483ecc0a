"""Files with a two-phase commit: the sink writer behind `jsonl` and `collect`.

A transaction is one file. It is written under a staged name that readers do not look at, made
durable by `prepare`, and made visible under its final name by `commit` with a hard link, the one
POSIX operation that is atomic and never replaces a file:

    out/part-00003-000000000017-00000002-<sink uid>-<digest>.jsonl     committed
    out/.crosscut/<lineage>/<sink uid>/<vertex>-3-2-<random>.jsonl.staged     staged

The final name says who wrote what (task, checkpoint, epoch, sink, lineage), so a commit that is
repeated, by whomever, finds its own result. Nothing here needs a clock, a lock or a listing to be
right; the only listing looks for orphans.

Local and shared POSIX file systems only (hard links, fsync of directories): all workers and the
driver must see the directory under the same path.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

from crosscut.errors import ConnectorError, invariant
from crosscut.ids import PLAIN_NAME, CheckpointId, checked_name
from crosscut.interfaces import JSON, CommitPermit, SinkContext, SinkWriter

STAGE_DIRECTORY = ".crosscut"
_BUFFER_BYTES = 256 * 1024
_CREATE_ATTEMPTS = 16
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_STAGED_NAME = re.compile(
    r"(?P<vertex>[A-Za-z0-9_.-]+)-(?P<task>\d+)-(?P<epoch>\d+)-[0-9a-f]{16}\.[A-Za-z0-9]+\.staged"
)
_FINAL_NAME = re.compile(r"part-\d{5,}-(?P<checkpoint>\d{12,})-\d{8,}-[A-Za-z0-9_.-]+")
_ADVICE = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota or free space",
    errno.EFBIG: "raise the file size limit of the workers (ulimit -f)",
    errno.EACCES: "let the user that runs the workers write there",
    errno.EPERM: "use a file system with hard links, and let the user that runs the workers write there",
    errno.EOPNOTSUPP: "use a file system with hard links",
    errno.EXDEV: "keep the directory and its .crosscut on one file system",
    errno.EROFS: "choose a directory that can be written",
    errno.ENOTDIR: "choose a path on which every component is a directory",
    errno.EEXIST: "choose a path that is a directory or does not exist yet",
}

_log = logging.getLogger(__name__)


def local_path(location: object, what: str) -> str:
    """Return `location` as a path of the local file system, as spelt.

    Args:
        location: A path, or a URL file:///path.
        what: What it is for, as the error should call it.

    Raises:
        ConnectorError: Empty, not a path, or a URL of another scheme.
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConnectorError(f"{what} {location!r} is not a path: expected a non-empty str or os.PathLike")
    url = _SCHEME.fullmatch(text)
    if url is None:
        return text
    if url[1].lower() != "file" or not url[2].startswith("/"):
        raise ConnectorError(
            f"{what} {text!r} is on a remote file system, which is not supported: expected a path that the "
            f"driver and all workers share, or file:///path; mount the remote one, or copy to or from it"
        )
    return url[2]


def check_directory(directory: str) -> None:
    """Find out if `directory` can hold committed files: make it, write into it, link, remove all again.

    Raises:
        ConnectorError: It cannot; says why and what to do.
    """
    stage = os.path.join(directory, STAGE_DIRECTORY)
    token = secrets.token_hex(8)
    staged, final = os.path.join(stage, f"check-{token}"), os.path.join(directory, f".check-{token}")
    is_new = not os.path.exists(directory)
    try:
        os.makedirs(stage, exist_ok=True)
        try:
            os.close(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            os.link(staged, final)
        finally:
            for path in (final, staged):
                _remove(path)
            # The job may still be refused, or be finished already: leave no trace.
            for path in (stage, directory) if is_new else (stage,):
                with suppress(OSError):
                    os.rmdir(path)
    except OSError as error:
        raise _failed("write staged files into", directory, error) from error


@dataclass(slots=True)
class _Stage:
    """The open stage directory; `durable` once it and all directories above it are on disk."""

    descriptor: int
    durable: bool = False


@dataclass(slots=True, eq=False)
class _Transaction:
    """One staged file, from its first record until it is prepared."""

    name: str
    file: BufferedWriter[FileIO]
    stage: _Stage
    size_bytes: int = 0
    record_count: int = 0
    checkpoint_id: CheckpointId | None = None
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class _Handle:
    """A handle, checked: both paths stay inside the sink's directory (rule S10)."""

    staged: Path
    final: Path
    size_bytes: int
    record_count: int
    checkpoint_id: CheckpointId


class StagedFiles(SinkWriter):
    """Writes one task's records into files that become visible at a commit.

    `write`, `rotate` and `close` belong to one thread, `recover`, `prepare` and `commit` to another,
    as `SinkWriter` says; `close` only after those have returned.

    A handle commits from any process that sees the directory, for as long as nobody touches the stage.
    `recover` removes staged files of older epochs of the same logical task, so within one lineage a
    task has to be given all handles that it staged itself.

    Args:
        directory: Absolute path of the sink's directory; made when the first record is written.
        suffix: Of the committed files, without the dot.
        encode: Turns records into the bytes to append. Must raise ConnectorError for what it can't.
        context: Who is writing.
    """

    def __init__(
        self, directory: str, suffix: str, encode: Callable[[list[Any]], bytes], context: SinkContext
    ) -> None:
        self._directory = Path(directory)
        self._suffix = suffix
        self._encode = encode
        self._context = context
        lineage = checked_name(context.lineage, "lineage")
        self._sink_uid = checked_name(context.sink_uid, "sink uid")
        self._vertex = checked_name(context.task.vertex, "vertex id")
        self._stage_path = self._directory / STAGE_DIRECTORY / lineage / self._sink_uid
        self._stage: _Stage | None = None
        self._open: _Transaction | None = None
        self._unprepared: dict[str, _Transaction] = {}

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        """Commit `handles`, then remove what this task staged in older epochs and nobody will commit.

        Files of other tasks, sinks and lineages, and of this or a newer epoch, are never touched.
        """
        if permit is None:
            invariant(not handles, "handles to recover but no permit", sink_uid=self._sink_uid)
        else:
            self.commit(permit, handles)
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._stage_path)):
                if self._is_orphan(name):
                    _remove(self._stage_path / name)

    def write(self, records: list[Any]) -> None:
        """Encode `records` now, so that they may be changed afterwards, and append them.

        Raises:
            ConnectorError: They can't be encoded (nothing was added), or the file can't be written (the
                transaction is not usable any more).
        """
        if not records:
            return
        data = self._encode(records)
        try:
            if self._open is None:
                self._open = self._create()
            transaction = self._open
            # Counted first: if the write fails half-way, prepare finds a file of another size.
            transaction.size_bytes += len(data)
            transaction.record_count += len(records)
            transaction.file.write(data)
        except OSError as error:
            raise _failed("write to", self._stage_path, error) from error

    def rotate(self, checkpoint_id: CheckpointId) -> _Transaction | None:
        """Detach the open file. Costs nothing: what is buffered is flushed by `prepare`."""
        transaction = self._open
        if transaction is not None:
            transaction.checkpoint_id = checkpoint_id
            self._open = None
        return transaction

    def prepare(self, transaction: Any) -> JSON:
        """Make the file and its directory entry durable; may be repeated if it failed for want of space.

        Raises:
            ConnectorError: Not durable. After a failed fsync the kernel may have dropped the data and
                would call the next fsync a success, so such a transaction is refused from then on.
        """
        invariant(isinstance(transaction, _Transaction), f"{transaction!r} is not a transaction of this sink")
        invariant(transaction.checkpoint_id is not None, f"{transaction.name} was not rotated")
        path = self._stage_path / transaction.name
        if transaction.damaged:
            raise ConnectorError(
                f"staged file {path} can't be prepared: an earlier fsync of it failed and its "
                f"{transaction.record_count} records may be lost; restart from the last checkpoint",
                path=str(path),
            )
        try:
            transaction.file.flush()
        except OSError as error:
            raise _failed("write to", path, error) from error
        try:
            found_bytes = os.fstat(transaction.file.fileno()).st_size
            os.fsync(transaction.file.fileno())
            transaction.file.close()
            _sync_directory(self._stage_path)
            if not transaction.stage.durable:
                _sync_directories_above(self._stage_path)
                transaction.stage.durable = True
        except OSError as error:
            transaction.damaged = True
            raise _failed("make durable", path, error) from error
        if found_bytes != transaction.size_bytes:
            transaction.damaged = True
            raise ConnectorError(
                f"staged file {path} has {found_bytes} bytes, expected {transaction.size_bytes}: a write to "
                f"it had failed; restart from the last checkpoint",
                path=str(path),
            )
        self._unprepared.pop(transaction.name, None)
        return {
            "staged": path.relative_to(self._directory).as_posix(),
            "final": self._final_name(transaction.checkpoint_id),
            "bytes": transaction.size_bytes,
            "records": transaction.record_count,
        }

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        """Link each staged file to its final name, make that durable, then remove the staged names.

        Whoever commits first wins and everybody else finds it done: a crash at any line, a repetition
        and a zombie of an older epoch all end in the same files.
        """
        invariant(permit.lineage == self._context.lineage, f"{permit} is not of {self._context.lineage}")
        failures: list[ConnectorError] = []
        linked: list[Path] = []
        for raw_handle in handles:
            try:
                handle = self._checked(raw_handle)
                invariant(
                    handle.checkpoint_id <= permit.checkpoint_id, f"{handle} is not covered by {permit}"
                )
                if self._link(handle):
                    linked.append(handle.staged)
            except ConnectorError as failure:
                failures.append(failure)
        if linked:
            try:
                # Before any staged name goes: until now it is the only durable one.
                _sync_directory(self._directory)
            except OSError as error:
                raise _failed("make the commit durable in", self._directory, error) from error
            for staged in linked:
                _remove(staged)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Close all files. What was prepared stays; what never was is in no checkpoint and goes."""
        for transaction in self._unprepared.values():
            # The buffered rest is of no use any more, so neither is an error from flushing it.
            with suppress(OSError):
                transaction.file.close()
            _remove(self._stage_path / transaction.name)
        self._unprepared.clear()
        self._open = None
        self._close_stage()
        # Only empty directories can go, so staged files of others are safe.
        with suppress(OSError):
            for directory in (self._stage_path, *self._stage_path.parents[:2]):
                os.rmdir(directory)

    def _create(self) -> _Transaction:
        """Make a staged file, in a directory that another task may remove while it is empty.

        The file is made relative to the open directory: if that directory is gone, this fails, and it
        never lands in a new directory of the same name whose own durability we know nothing about.
        """
        name = f"{self._vertex}-{self._context.task.index}-{self._context.epoch}-{secrets.token_hex(8)}"
        name = f"{name}.{self._suffix}.staged"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for _ in range(_CREATE_ATTEMPTS):
            try:
                if self._stage is None:
                    os.makedirs(self._stage_path, exist_ok=True)
                    self._stage = _Stage(os.open(self._stage_path, os.O_RDONLY | os.O_DIRECTORY))
                descriptor = os.open(name, flags, 0o666, dir_fd=self._stage.descriptor)
            except FileNotFoundError:
                self._close_stage()
                continue
            file = BufferedWriter(FileIO(descriptor, "wb"), _BUFFER_BYTES)
            self._unprepared[name] = _Transaction(name, file, self._stage)
            return self._unprepared[name]
        raise FileNotFoundError(errno.ENOENT, "directory was removed again and again", str(self._stage_path))

    def _close_stage(self) -> None:
        if self._stage is not None:
            os.close(self._stage.descriptor)
            self._stage = None

    def _final_name(self, checkpoint_id: CheckpointId) -> str:
        """Return a name that sorts by task, then checkpoint, and that nobody else will ever use."""
        context = self._context
        digest = blake2b(f"{context.lineage}/{self._vertex}".encode(), digest_size=6).hexdigest()
        numbers = f"{context.task.index:05d}-{checkpoint_id:012d}-{context.epoch:08d}"
        return f"part-{numbers}-{self._sink_uid}-{digest}.{self._suffix}"

    def _is_orphan(self, name: str) -> bool:
        match = _STAGED_NAME.fullmatch(name)
        return (
            match is not None
            and match["vertex"] == self._vertex
            and int(match["task"]) == self._context.task.index
            and int(match["epoch"]) < self._context.epoch
        )

    def _checked(self, handle: JSON) -> _Handle:
        """Return the handle with its paths, or raise ConnectorError if it is not one of ours."""
        match handle:
            case {"staged": str(staged), "final": str(final), "bytes": int(size), "records": int(count)}:
                named = _FINAL_NAME.fullmatch(final)
                if named is not None and self._is_in_stage(staged):
                    number = CheckpointId(int(named["checkpoint"]))
                    return _Handle(self._directory / staged, self._directory / final, size, count, number)
            case _:
                pass
        raise ConnectorError(
            f"{handle!r} is not a transaction of the file sink in {self._directory}: expected staged and "
            f"final paths inside that directory; is the checkpoint of another sink?",
            directory=str(self._directory),
        )

    def _is_in_stage(self, staged: str) -> bool:
        """Tell if `staged` has the form of our names and, symbolic links resolved, is in the stage."""
        stage, *names, name = staged.split("/")
        return (
            stage == STAGE_DIRECTORY
            and len(names) == 2
            and all(PLAIN_NAME.fullmatch(part) for part in names)
            and _STAGED_NAME.fullmatch(name) is not None
            and (self._directory / staged).resolve().is_relative_to(self._directory.resolve())
        )

    def _link(self, handle: _Handle) -> bool:
        """Give the staged file its final name; True if the staged name is still to be removed.

        False: somebody has committed it already, in full.
        """
        try:
            staged = _stat(handle.staged)
            if staged is not None:
                self._check_size(handle, handle.staged, staged)
                try:
                    os.link(handle.staged, handle.final)
                    return True
                except FileExistsError:
                    # A crash between link and unlink, or an NFS reply that came twice, looks like this.
                    final = _stat(handle.final)
                    if final is not None and os.path.samestat(staged, final):
                        return True
                    raise ConnectorError(
                        f"can't commit {handle.staged}: {handle.final} exists and is another file; "
                        f"move it away, nothing but this sink may use such names",
                        path=str(handle.final),
                    ) from None
                except FileNotFoundError:
                    # Another attempt has committed and removed it since we looked.
                    staged = None
            final = _stat(handle.final)
        except OSError as error:
            raise _failed("commit", handle.final, error) from error
        if final is None:
            raise ConnectorError(
                f"output is lost: {handle.record_count} records ({handle.size_bytes} bytes) of checkpoint "
                f"{handle.checkpoint_id} are neither staged ({handle.staged}) nor committed "
                f"({handle.final}); restore one of the two from a backup (a committed file must stay until "
                f"a later checkpoint is complete)",
                path=str(handle.final),
                checkpoint_id=handle.checkpoint_id,
            )
        self._check_size(handle, handle.final, final)
        return False

    def _check_size(self, handle: _Handle, path: Path, found: os.stat_result) -> None:
        if found.st_size != handle.size_bytes:
            raise ConnectorError(
                f"{path} has {found.st_size} bytes, expected {handle.size_bytes} ({handle.record_count} "
                f"records of checkpoint {handle.checkpoint_id}): it was damaged or changed after it was "
                f"prepared; restore it from a backup",
                path=str(path),
                checkpoint_id=handle.checkpoint_id,
            )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _remove(path: str | Path) -> None:
    """Remove a file that nobody needs. A failure costs space, not correctness, so it is only told."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("could not remove %s (%s); it is not needed any more", path, error)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directories_above(directory: Path) -> None:
    """Make the entries on the way to `directory` durable, as far as they can be ours."""
    for parent in directory.parents:
        try:
            _sync_directory(parent)
        except PermissionError:
            return
        if os.path.ismount(parent):
            return


def _failed(action: str, path: str | Path, error: OSError) -> ConnectorError:
    advice = _ADVICE.get(error.errno or 0, "see the cause, then start the job again")
    return ConnectorError(
        f"file sink could not {action} {path}: {error.strerror or error}; {advice}",
        path=str(path),
        errno=error.errno,
    )
