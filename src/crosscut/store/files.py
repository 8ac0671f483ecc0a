"""The few file operations the checkpoint store needs, and how a local directory provides them."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum

from crosscut.errors import StoreError
from crosscut.store.blocks import in_blocks, write_fully
from crosscut.store.reading import read_at_once

TEMPORARY = "temporary-"
"""So begins the name of a file that is not whole yet."""


class Put(Enum):
    """What became of a put-if-absent whose outcome is known."""

    CREATED = "the file did not exist; it does now, and is durable"
    EXISTS = "the file existed already and is untouched"


class UncertainError(OSError):
    """A put-if-absent may or may not have been applied, now or later."""


class Files(ABC):
    """Files under one root; paths are relative, their components separated by "/".

    All methods block and may be called from any thread. They raise OSError as the operating system
    does, with two meanings fixed: FileNotFoundError is "there is no such file", and from
    `put_if_absent` anything but UncertainError is "certainly not applied".
    """

    root: str
    """Directory or URL, as messages call it."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make directory `path` durably, if there is none. It need not be made before `write_new`."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> Put:
        """Create `path` with `data`, durably and in one step: no reader ever sees a part of it."""

    @abstractmethod
    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        """Create `path`, a name never used before, and return when it is durable.

        If that fails, or `chunks` raises, the file is removed if possible.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write `path` in one step, durably, whether it exists or not. Its directory must exist."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of `path`. Never answered from a cache."""

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the content of each path, None where there is no such file."""
        return [self._read_if_there(path) for path in paths]

    def _read_if_there(self, path: str) -> bytes | None:
        try:
            return self.read(path)
        except FileNotFoundError:
            return None

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete `path`."""

    @abstractmethod
    def delete_directory(self, path: str) -> None:
        """Delete directory `path` if there is one and it is empty."""

    @abstractmethod
    def walk(self, path: str) -> Iterator[str]:
        """Return the paths of all files below directory `path` ("": all), in any order."""

    @abstractmethod
    def settle(self, path: str) -> None:
        """Make durable that the files now visible in directory `path` exist.

        Needed before acting on a file that another process created: that process may have died
        between making it visible and making it durable.
        """


# Errors of link(2) that say it was not done. After any other one (EIO, ESTALE, ETIMEDOUT, ...) a file
# system, above all a remote one, may have done it or still do it.
_NOT_LINKED = frozenset(
    (
        errno.EACCES,
        errno.EDQUOT,
        errno.ELOOP,
        errno.EMLINK,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOSYS,
        errno.ENOTDIR,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    )
)


class LocalFiles(Files):
    """A directory of a POSIX file system with hard links and directory fsync.

    Args:
        root: Made, mode 0700, if it does not exist.
        create: Make the directory and require that it can be written.
        called: What messages call it.
        fsync: How to make a file descriptor durable; a seam for tests.

    Raises:
        StoreError: No permission, or `root` is not a directory.
    """

    def __init__(
        self,
        root: str,
        *,
        create: bool = True,
        called: str = "checkpoint store",
        fsync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.root = os.path.abspath(root)
        self._called = called
        self._real_root = os.path.realpath(root)
        self._fsync = fsync
        try:
            if create and not os.path.isdir(self._real_root):
                self._make(self._real_root)
        except (FileExistsError, NotADirectoryError) as error:
            raise self._refused(
                f"{error.filename} is not a directory; move that file away, or choose another directory"
            ) from error
        except OSError as error:
            raise self._refused(
                f"can't make {error.filename}: {error.strerror}; choose a directory that this user may "
                f"write to"
            ) from error
        if not os.path.isdir(self._real_root):
            raise self._refused("there is no such directory")
        if not os.access(self._real_root, os.R_OK | os.X_OK | (os.W_OK if create else 0)):
            raise self._refused(
                f"no permission to {'write' if create else 'read'} there, or it is mounted read-only; "
                f"change that, or choose another directory"
            )

    def make_directory(self, path: str) -> None:
        self._make(self._resolved(path))

    def put_if_absent(self, path: str, data: bytes) -> Put:
        final = self._resolved(path)
        temporary = _temporary_name(final)
        self._write(temporary, (data,))
        try:
            # The content is durable before the name exists: a name never leads to a torn file. link,
            # not rename, since rename would replace what another driver wrote.
            os.link(temporary, final)
        except FileExistsError:
            return Put.EXISTS
        except OSError as error:
            if error.errno in _NOT_LINKED:
                raise
            raise UncertainError(error.errno, error.strerror, final) from error
        finally:
            _unlink_if_possible(temporary)
        try:
            self._sync_directory(os.path.dirname(final))
        except OSError as error:
            raise UncertainError(error.errno, error.strerror, final) from error
        return Put.CREATED

    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        final = self._resolved(path)
        directory = os.path.dirname(final)
        self._make(directory)
        self._write(final, chunks)
        try:
            self._sync_directory(directory)
        except OSError:
            _unlink_if_possible(final)
            raise

    def replace(self, path: str, data: bytes) -> None:
        final = self._resolved(path)
        temporary = _temporary_name(final)
        self._write(temporary, (data,))
        try:
            os.replace(temporary, final)
        except OSError:
            _unlink_if_possible(temporary)
            raise
        self._sync_directory(os.path.dirname(final))

    def read(self, path: str) -> bytes:
        with open(self._resolved(path), "rb", opener=_regular) as file:
            return file.read()

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]:
        # The directory may be on a network, where each call takes milliseconds.
        return read_at_once(self._read_if_there, paths)

    def delete(self, path: str) -> None:
        os.unlink(self._resolved(path))

    def delete_directory(self, path: str) -> None:
        try:
            os.rmdir(self._resolved(path))
        except FileNotFoundError:
            return
        except OSError as error:
            # POSIX allows both for "not empty".
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def walk(self, path: str) -> Iterator[str]:
        for directory, _, names in os.walk(self._resolved(path) if path else self._real_root):
            for name in names:
                yield os.path.relpath(os.path.join(directory, name), self._real_root)

    def settle(self, path: str) -> None:
        self._sync_directory(self._resolved(path))

    def _refused(self, reason: str) -> StoreError:
        return StoreError(f"{self._called} {self.root}: {reason}", path=self.root, damaged=False)

    def _resolved(self, path: str) -> str:
        """Return the absolute path, or raise StoreError if it would lead out of the root (rule S10)."""
        full = os.path.join(self._real_root, checked_path(path))
        if os.path.commonpath((os.path.realpath(full), self._real_root)) != self._real_root:
            raise StoreError(
                f"{full} leads out of the {self._called} {self.root} through a symbolic link; replace "
                f"the link by the directory itself",
                path=path,
                damaged=False,
            )
        return full

    def _make(self, directory: str) -> None:
        parent = os.path.dirname(directory)
        try:
            try:
                os.mkdir(directory, 0o700)
            except FileNotFoundError:
                # A parent that exists but can't hold new directories, such as /proc, gives the same error.
                if os.path.isdir(parent):
                    raise
                self._make(parent)
                os.mkdir(directory, 0o700)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
        # Also if it existed: its maker may not have come to this line yet.
        self._sync_directory(parent)

    def _write(self, path: str, chunks: Iterable[bytes]) -> None:
        # Not a file object of Python's, which lets the interpreter lock go three more times.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                for block in in_blocks(chunks):
                    write_fully(descriptor, block)
                self._fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            _unlink_if_possible(path)
            raise

    def _sync_directory(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._fsync(descriptor)
        finally:
            os.close(descriptor)


_COMPONENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")


def checked_path(path: str) -> str:
    """Return `path` if it is a relative path of plain names, else raise.

    Raises:
        StoreError: It is absolute, climbs ("..") or has characters that some store reads differently.
    """
    if not all(map(_COMPONENT.fullmatch, path.split("/"))):
        raise StoreError(
            f"{path!r} is not a path of the checkpoint store: expected names of letters, digits, '_', '-' "
            f"and '.' (not first), separated by '/'",
            path=path,
            damaged=False,
        )
    return path


def _temporary_name(final: str) -> str:
    return os.path.join(os.path.dirname(final), f"{TEMPORARY}{secrets.token_hex(8)}")


def _regular(path: str, flags: int) -> int:
    """Open a regular file only: opening a FIFO would wait for a writer, for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def _unlink_if_possible(path: str) -> None:
    # A file that can't be removed is an orphan under a name that nothing refers to: no outcome depends on it.
    with suppress(OSError):
        os.unlink(path)


NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


def delete_all(
    files: Files, paths: Iterable[str], has_directory: Callable[[str], bool] = lambda path: True
) -> list[str]:
    """Delete files, and their directories when empty; return what went wrong, as text.

    Those that are gone already are fine.

    Args:
        has_directory: Whether it is asked for a path that its directory be deleted, too. What it raises
            is what is wrong with that path, which is not deleted then.
    """
    errors: list[str] = []
    directories: dict[str, None] = {}
    for path in paths:
        try:
            if has_directory(path):
                directories[path.rpartition("/")[0]] = None
            with suppress(FileNotFoundError):
                files.delete(path)
        except (OSError, StoreError) as error:
            errors.append(f"can't delete {files.root}/{path}: {error}")
    for directory in directories:
        try:
            files.delete_directory(directory)
        except (OSError, StoreError) as error:
            errors.append(f"can't delete directory {files.root}/{directory}: {error}")
    return errors


def failed(what: str, files: Files, path: str, error: OSError) -> StoreError:
    """Return `error`, which `files` has raised about `path`, with advice."""
    advice = "check the file system and its credentials"
    if error.errno in NO_SPACE:
        advice = "free space there, or raise the quota"
    elif error.errno in _NO_PERMISSION:
        advice = "give this user permission to write there, or renew its credentials"
    elif error.errno in (errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
        advice = "choose a checkpoint_dir on a file system with hard links"
    reason = error.strerror or str(error) or type(error).__name__
    return StoreError(f"{what} {files.root}/{path}: {reason}; {advice}", path=path, damaged=False)
