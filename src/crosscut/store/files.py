"""The few file operations the checkpoint store needs, and how a local directory provides them."""

from __future__ import annotations

import errno
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import BinaryIO

from crosscut.errors import SettingsError, StoreError


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
    def put_if_absent(self, path: str, data: bytes) -> Put:
        """Create `path` with `data`, durably and in one step: nobody ever sees a part of it."""

    @abstractmethod
    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        """Create `path`, a name never used before, and return when it is durable.

        If that fails, or `chunks` raises, what was written is removed if possible.
        """

    @abstractmethod
    def overwrite(self, path: str, data: bytes) -> None:
        """Write a small file that may be lost or stale after a crash, but is never half of two."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of `path`. Never answered from a cache."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete `path`."""

    @abstractmethod
    def delete_directory(self, path: str) -> None:
        """Delete directory `path` if there is one and it is empty."""

    @abstractmethod
    def walk(self, path: str) -> Iterator[str]:
        """Return the paths of all files below directory `path`, in any order."""

    @abstractmethod
    def settle(self, path: str) -> None:
        """Make durable that the files now visible in directory `path` exist.

        Whoever acts on a file that another process created needs this: that process may have died
        between making it visible and making it durable.
        """


# Errors of link(2) that say it was not done. After any other one (EIO, ESTALE, ETIMEDOUT, ...) a file
# system, above all a remote one, may have done it or still do it.
_NOT_LINKED = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
) | frozenset((errno.EMLINK, errno.ENAMETOOLONG, errno.ELOOP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV))


class LocalFiles(Files):
    """A directory of a POSIX file system with hard links and directory fsync.

    Args:
        root: Made, mode 0700, if it does not exist.
        create: Make the directory and require that it can be written.
        fsync: How to make a file descriptor durable; a seam for tests.

    Raises:
        StoreError: No permission, or `root` is not a directory.
    """

    def __init__(
        self, root: str, *, create: bool = True, fsync: Callable[[int], None] = os.fsync
    ) -> None:
        self.root = os.path.abspath(root)
        self._fsync = fsync
        try:
            if create:
                self._make_directory(self.root)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(
                f"checkpoint store {self.root}: {error.filename} is not a directory; choose another "
                f"checkpoint_dir, or move that file away",
                path=self.root,
            ) from error
        except OSError as error:
            raise StoreError(
                f"checkpoint store {self.root}: can't make {error.filename}: {error.strerror}; choose a "
                f"checkpoint_dir that this user may write to",
                path=self.root,
            ) from error
        if not os.path.isdir(self.root):
            raise StoreError(
                f"checkpoint store {self.root}: expected a directory, found "
                f"{'a file' if os.path.exists(self.root) else 'nothing'}",
                path=self.root,
            )
        wanted = os.R_OK | os.X_OK | (os.W_OK if create else 0)
        if not os.access(self.root, wanted):
            raise StoreError(
                f"checkpoint store {self.root}: this user may not {'write' if create else 'read'} there; "
                f"grant it, or choose another checkpoint_dir",
                path=self.root,
            )
        self._real_root = os.path.realpath(self.root)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        final = self._resolved(path)
        directory = os.path.dirname(final)
        self._make_directory(directory)
        temporary = os.path.join(directory, f"temporary-{secrets.token_hex(8)}")
        with self._new_file(temporary) as file:
            file.write(data)
        try:
            # The content is durable before the name exists: a name never leads to a torn file.
            os.link(temporary, final)
        except FileExistsError:
            return Put.EXISTS
        except OSError as error:
            if error.errno in _NOT_LINKED:
                raise
            raise UncertainError(error.errno, error.strerror, final) from error
        finally:
            # A leftover is an orphan that nobody reads; the outcome does not depend on it.
            with suppress(OSError):
                os.unlink(temporary)
        try:
            self._sync_directory(directory)
        except OSError as error:
            raise UncertainError(error.errno, error.strerror, directory) from error
        return Put.CREATED

    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        final = self._resolved(path)
        directory = os.path.dirname(final)
        for _ in range(3):
            self._make_directory(directory)
            try:
                file_context = self._new_file(final)
                file = file_context.__enter__()
                break
            except FileNotFoundError:
                # A sweep deleted the directory in between, because it was empty.
                continue
