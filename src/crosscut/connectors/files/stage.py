"""The directories of a file sink: where it stages and where it publishes, opened so that no symbolic link
leads out of them."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from pathlib import Path

from crosscut.connectors.files.staged_names import STAGE_DIRECTORY
from crosscut.errors import ConnectorError

_OPEN_ATTEMPTS = 16
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NO_LINK = _DIRECTORY | os.O_NOFOLLOW
_ADVICE = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota or free space",
    errno.EMFILE: "raise the limit of open files of the workers (ulimit -n), or write to fewer directories",
    errno.EFBIG: "raise the file size limit of the workers (ulimit -f)",
    errno.EACCES: "let the user that runs the workers write there",
    errno.EPERM: "let the user that runs the workers write there",
    errno.EXDEV: "keep the directory and its .crosscut on one file system",
    errno.EROFS: "choose a directory that can be written",
    errno.ENOTDIR: "choose a path on which every component is a directory",
    errno.ELOOP: "replace the symbolic link by the directory itself",
    errno.EEXIST: "choose a path that is a directory or does not exist yet",
}

_log = logging.getLogger(__name__)


class Stage:
    """An open directory below the sink's own one; its files are reached by their names alone.

    Args:
        path: For messages only.
        descriptor: Of the directory.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def made(cls, directory: Path, names: Sequence[str]) -> Stage:
        """Make the directories `names`, one below the other, in `directory`, and open the last one.

        A writer that ends removes empty directories, so one may go between being made and being opened.

        Raises:
            OSError: That is not possible; for instance, one of them is a symbolic link.
        """
        path = directory.joinpath(*names)
        for _ in range(_OPEN_ATTEMPTS):
            try:
                os.makedirs(directory, exist_ok=True)
                return cls(path, opened_below(directory, names, create=True))
            except FileNotFoundError:
                continue
        raise FileNotFoundError(errno.ENOENT, "directory was removed repeatedly", str(path))

    @classmethod
    def found(cls, directory: Path, names: Sequence[str]) -> Stage | None:
        """Open the directory if it exists and no symbolic link leads to it."""
        try:
            return cls(directory.joinpath(*names), opened_below(directory, names, create=False))
        except (FileNotFoundError, NotADirectoryError):
            return None

    @property
    def descriptor(self) -> int:
        """The open directory, for calls that take one."""
        return self._descriptor

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
        return sorted(os.listdir(self._descriptor))

    def look(self, name: str) -> os.stat_result | None:
        """Return what has that name, a symbolic link itself if it is one; None if nothing has."""
        return looked_at(name, self._descriptor)

    def created(self, name: str) -> FileIO:
        """Make a new file and open it to write."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        return FileIO(os.open(name, flags, 0o666, dir_fd=self._descriptor), "wb")

    def opened(self, name: str, flags: int) -> int:
        """Open a regular file, not a link, without waiting for anybody."""
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=self._descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return descriptor

    def publish(self, name: str, target: int, final: str) -> None:
        """Move a file to its final name in the directory `target`: visible and not staged, in one step."""
        os.rename(name, final, src_dir_fd=self._descriptor, dst_dir_fd=target)

    def drop(self, name: str) -> None:
        """Remove the staged one of two names: while it exists, a second commit would move it again.

        Raises:
            OSError: It may be there still.
        """
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove an unneeded file. A failure costs space, not correctness, so it is only logged."""
        try:
            self.drop(name)
        except OSError as error:
            _log.warning("could not remove %s (%s); it is not needed any more", self.path / name, error)

    def store(self, file: BufferedWriter[FileIO]) -> int:
        """Make a file durable, its name too, close it, and return its size."""
        size = os.fstat(file.fileno()).st_size
        os.fsync(file.fileno())
        file.close()
        self.sync()
        return size

    def sync(self) -> None:
        """Make durable which names are in it."""
        os.fsync(self._descriptor)

    def sync_above(self) -> None:
        """Make the entries on the way to it durable, as far as they can be ours."""
        for parent in self.path.parents:
            try:
                with directory_at(parent) as descriptor:
                    os.fsync(descriptor)
            except PermissionError:
                return
            if os.path.ismount(parent):
                return

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def close_and_tidy(self, *, levels: int) -> None:
        """Close it; remove it and the directories above it, `levels` in all, if they are empty."""
        self.close()
        with suppress(OSError):
            for one in (self.path, *self.path.parents[: levels - 1]):
                os.rmdir(one)


def opened_below(directory: Path, names: Sequence[str], *, create: bool) -> int:
    """Open the directory that `names` lead to, one below the other, through no symbolic link.

    Args:
        create: Make those that are missing.
    """
    descriptor = os.open(directory, _DIRECTORY)
    for name in names:
        above = descriptor
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o777, dir_fd=above)
            descriptor = os.open(name, _NO_LINK, dir_fd=above)
        except NotADirectoryError as error:
            # Opening a link fails with ENOTDIR, too: the user needs to know which of the two it is.
            found = looked_at(name, above)
            if found is not None and stat.S_ISLNK(found.st_mode):
                raise OSError(errno.ELOOP, "a symbolic link in the stage", name) from error
            raise
        finally:
            os.close(above)
    return descriptor


def file_below(directory: Path, path: str) -> FileIO:
    """Open a regular file below a directory to read it, through no symbolic link.

    Raises:
        OSError: It is missing, a link or no file, or a link leads to it.
    """
    *folders, name = path.split("/")
    stage = Stage(directory, opened_below(directory, folders, create=False))
    try:
        return FileIO(stage.opened(name, os.O_RDONLY), "rb")
    finally:
        stage.close()


@contextmanager
def directory_at(path: Path) -> Iterator[int]:
    """Open a directory, wherever a link leads."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def looked_at(name: str, directory: int) -> os.stat_result | None:
    """Return what has that name in an open directory, a symbolic link itself if it is one."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def check_directory(directory: str) -> None:
    """Find out if `directory` can hold committed files: make it, write into it, rename, remove all again.

    Raises:
        ConnectorError: It cannot; says why and what to do.
    """
    token = secrets.token_hex(8)
    names, name, final = (STAGE_DIRECTORY, f"check-{token}"), "check.staged", f".check-{token}"
    is_new = not os.path.exists(directory)
    try:
        stage = Stage.made(Path(directory), names)
        try:
            stage.created(name).close()
            with directory_at(Path(directory)) as target:
                stage.publish(name, target, final)
        finally:
            stage.remove(name)
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, final))
            # The job may still be refused, or be finished already: leave no trace.
            stage.close_and_tidy(levels=3 if is_new else 2)
    except OSError as error:
        raise failed("write staged files into", directory, error) from error


def failed(action: str, path: str | Path, error: OSError) -> ConnectorError:
    """Return what to raise for an error of the file system."""
    advice = _ADVICE.get(error.errno or 0, "see the cause, then start the job again")
    return ConnectorError(
        f"file sink could not {action} {path}: {error.strerror or error}; {advice}",
        path=str(path),
        errno=error.errno,
    )
