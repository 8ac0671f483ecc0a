"""Parts of one job on the disk of a host, for all processes there.

Spark gives a partition to any process, of the same host where it can. What one process of a host has written
or read, another one has here, and need not read from the store. Every file is a copy: whatever happens to it,
the store has the part.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.snapshots import Part
from crosscut.state.rocksdb.database import FileContent
from crosscut.store.blocks import in_blocks, write_fully
from crosscut.store.checkpoint_store import CheckpointStore

UNUSED_S = 3_600
"""A directory that no batch has used for so long is removed by the next process that starts."""

_PREFIX = "crosscut-parts-"
_LOG = logging.getLogger("crosscut.worker")
_NAME = re.compile(r"(\d{1,20})-([A-Za-z0-9_-][A-Za-z0-9_.-]*-\d+)-\d+-[0-9a-f]{16}(\.[0-9a-f]{8}\.new)?")
"""Of a file: checkpoint and task of its part; with a last piece as long as it is written."""


class HostCache:
    """The parts that the processes of this host have; reads and writes what they have not from the store.

    It is a `LinksParts` and a `PartStore`. All methods block; any thread may call them, and any number of
    processes use the same directory. An error of the directory only means that the store is read.

    Args:
        directory: See `directory_of`; None: nothing is kept.
    """

    def __init__(self, store: CheckpointStore, directory: str | None) -> None:
        self._store = store
        self._directory = directory

    def __call__(self, part: Part) -> bytes:
        """Return the verified content of `part`; keep it.

        Raises:
            StoreError: It was to be read from the store, and is missing or damaged there.
        """
        path = self._path_of(part)
        if path is None:
            return self._store.read_part(part)
        with suppress(OSError), open(path, "rb") as file:
            data = file.read()
            if len(data) == part.size_bytes and hashlib.sha256(data).hexdigest() == part.sha256:
                return data
        data = self._store.read_part(part)
        self._write(path, [data])
        return data

    def link(self, part: Part, path: str) -> bool:
        """Make `path` another name of the file with the content of `part`; return whether that was possible.

        What a process has put here was verified then. Of a file that is here, only the size is looked at: to
        read it would cost what the link saves. See `distrust`.

        Raises:
            StoreError: See `__call__`.
        """
        kept = self._path_of(part)
        if kept is None:
            return False
        if not _has_size(kept, part.size_bytes):
            self._write(kept, [self._store.read_part(part)])
        try:
            os.link(kept, path)
        except OSError:
            return False
        return True

    def write_part(
        self, checkpoint_id: CheckpointId, task: TaskId, epoch: Epoch, chunks: Iterable[bytes]
    ) -> Part:
        """See `PartStore`: what is in the store then is kept here as well."""
        part = self._store.write_part(checkpoint_id, task, epoch, chunks)
        path = self._path_of(part)
        if path is not None and isinstance(chunks, FileContent):
            with suppress(OSError):
                os.link(chunks.path, path)
        elif path is not None and isinstance(chunks, Sequence):
            self._write(path, chunks)
        return part

    def delete_parts(self, paths: Iterable[str]) -> list[str]:
        """See `PartStore`; what is here of them goes with a later batch."""
        return self._store.delete_parts(paths)

    def begin(self, task: TaskId, restore: CheckpointId, wanted: Sequence[Part]) -> None:
        """A batch begins with checkpoint `restore`, where `wanted` is the state of `task`."""
        self._remove(lambda names: outdated(names, task, restore, wanted))
        if self._directory is not None and (reason := _kept_open(self._directory)):
            _LOG.debug("parts of checkpoints are not kept in %s any more: %s", self._directory, reason)
            self._directory = None

    def distrust(self, task: TaskId, wanted: Sequence[Part]) -> None:
        """An attempt that used what is here of `task` has failed: the next one reads the store.

        Args:
            wanted: The parts that it began with. After a rescaling other tasks have written them.
        """
        used = {name_of(part) for part in wanted}
        self._remove(lambda names: [name for name in names if is_of(name, task) or name in used])

    def _remove(self, which: Callable[[Collection[str]], Iterable[str]]) -> None:
        directory = self._directory
        if directory is None:
            return
        with suppress(OSError):
            for name in which(os.listdir(directory)):
                # Another process may be faster.
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))

    def _path_of(self, part: Part) -> str | None:
        name, directory = name_of(part), self._directory
        return os.path.join(directory, name) if name and directory is not None else None

    def _write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Make the file, whole or not at all."""
        unfinished = f"{path}.{secrets.token_hex(4)}.new"
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                for block in in_blocks(chunks):
                    write_fully(descriptor, block)
            finally:
                os.close(descriptor)
            os.rename(unfinished, path)
        except OSError as error:
            _LOG.debug("can't keep a part in %s: %s; it is read from the store again", path, error)
            with suppress(OSError):
                os.unlink(unfinished)


def name_of(part: Part) -> str:
    """Return what the file of a part is called; "": it has none, or was not written by a task."""
    name = f"{part.checkpoint_id}-{os.path.basename(part.path)}"
    return name if part.path and _NAME.fullmatch(name) else ""


def is_of(name: str, task: TaskId) -> bool:
    """Return whether a file with this name is of a part that `task` has written."""
    found = _NAME.fullmatch(name)
    return found is not None and found[2] == f"{task.vertex}-{task.index}"


def outdated(
    names: Iterable[str], task: TaskId, restore: CheckpointId, wanted: Collection[Part]
) -> list[str]:
    """Return which files of `task` no later batch needs, when one begins with `restore`.

    Files of later checkpoints stay: they are of attempts that may be under way, or may be taken yet.
    What was not taken goes when a batch begins with a checkpoint as late as it is.

    Args:
        wanted: The parts of `task` in that checkpoint.
    """
    kept = {name_of(part) for part in wanted}
    return [
        name
        for name in names
        if name not in kept and is_of(name, task) and int(name.partition("-")[0]) <= restore
    ]


def host_cache(store: CheckpointStore, store_url: str, state_dir: str | None) -> HostCache:
    """Return the parts that this host has of the job with the store at `store_url`.

    Directories that no batch uses any more are removed, whosever job it was.
    """
    path = directory_of(store_url, state_dir)
    reason = _kept_open(path)
    if reason:
        _LOG.warning(
            "can't keep parts of checkpoints in %s: %s; batches read state from the checkpoint directory "
            "instead; set state_dir to a directory on the workers' machines in which only you may write",
            path,
            reason,
        )
    else:
        with suppress(OSError):
            # By the clock that the others were marked with.
            _sweep(os.path.dirname(path), os.stat(path).st_mtime - UNUSED_S)
    return HostCache(store, None if reason else path)


def _kept_open(path: str) -> str:
    """Make the directory at `path`, or say that it is used; return why parts can't be kept there, or "".

    At each batch, since one that is unused for long is swept, and another process may make a new one then.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if reason := _why_not_private(path):
            return reason
        os.utime(path)
    except OSError as error:
        return str(error)
    return ""


def directory_of(store_url: str, state_dir: str | None) -> str:
    """Return where the processes of one host, and one user, keep parts of one job.

    Args:
        state_dir: None: the system's directory for temporary files.
    """
    job = hashlib.sha256(store_url.encode()).hexdigest()[:16]
    return os.path.join(state_dir or tempfile.gettempdir(), f"{_PREFIX}{os.getuid()}-{job}")


def remove_host_cache(store_url: str, state_dir: str | None) -> None:
    """Remove what this host has, at the end of a job; what can't be removed is left to the next sweep."""
    shutil.rmtree(directory_of(store_url, state_dir), ignore_errors=True)


def _why_not_private(path: str) -> str:
    """Anybody may write in a directory for temporary files, and could have made this one."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a directory"
    if found.st_uid != os.getuid():
        return f"it belongs to user {found.st_uid}, not to {os.getuid()}"
    if found.st_mode & 0o077:
        return f"others may use it (mode {stat.S_IMODE(found.st_mode):04o}, expected 0700)"
    return ""


def _sweep(parent: str, before_s: float) -> None:
    mine = f"{_PREFIX}{os.getuid()}-"
    for entry in os.scandir(parent):
        if entry.name.startswith(mine):
            # Another one may be sweeping.
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < before_s:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _has_size(path: str, size_bytes: int) -> bool:
    try:
        return os.stat(path).st_size == size_bytes
    except OSError:
        return False
