"""Files that tasks spill to. They have no name, so nothing is left of them, however the process ends."""

from __future__ import annotations

import os
import tempfile
import threading

from crosscut.errors import SpillError


class DiskFile:
    """A spilled file; see `SpillFile`."""

    def __init__(self, space: DiskSpace) -> None:
        self._space = space
        self._holders = 1
        self.size_bytes = 0
        try:
            self._file = tempfile.TemporaryFile(buffering=0, dir=space.directory)  # noqa: SIM115
        except OSError as error:
            raise space.failed("make a file", error) from error

    def write(self, at: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = os.pwrite(self._file.fileno(), rest, at)
                at, rest = at + written, rest[written:]
        except OSError as error:
            raise self._space.failed("write", error) from error
        finally:
            if at > self.size_bytes:
                self._space.take(at - self.size_bytes)
                self.size_bytes = at

    def read(self, at: int, count: int) -> bytes:
        try:
            data = os.pread(self._file.fileno(), count, at)
        except (OSError, ValueError) as error:
            raise self._space.failed("read", error) from error
        if len(data) < count:
            raise self._space.failed("read", OSError(f"{len(data)} of {count} bytes at {at} are there"))
        return data

    def hold(self) -> None:
        with self._space.lock:
            self._holders += 1

    def release(self) -> None:
        with self._space.lock:
            self._holders -= 1
            is_last = not self._holders
        if is_last:
            self.close()

    def close(self) -> None:
        """Give the disk back, even if it is held."""
        with self._space.lock:
            is_open = self._space.files.pop(self, self) is None
        if is_open:
            self._space.take(-self.size_bytes)
            self._file.close()


class DiskSpace:
    """A directory, and how much may be taken there; see `SpillSpace`.

    Args:
        directory: None: the system's directory for temporary files.
        bytes_max: It is full once so much is taken, so it is exceeded by what one queue holds in memory at
            most. None: no limit.
    """

    def __init__(self, directory: str | None = None, bytes_max: int | None = None) -> None:
        self.directory = directory or tempfile.gettempdir()
        self.taken_bytes = 0
        self.lock = threading.Lock()
        self.files: dict[DiskFile, None] = {}
        self._bytes_max = bytes_max

    @property
    def is_full(self) -> bool:
        return self._bytes_max is not None and self.taken_bytes >= self._bytes_max

    def new_file(self) -> DiskFile:
        file = DiskFile(self)
        with self.lock:
            self.files[file] = None
        return file

    def take(self, size_bytes: int) -> None:
        """So much more is taken."""
        with self.lock:
            self.taken_bytes += size_bytes

    def close(self) -> None:
        """Give everything back."""
        for file in list(self.files):
            file.close()

    def failed(self, what: str, error: Exception) -> SpillError:
        """Return the error that says so."""
        return SpillError(
            f"can't {what} in {self.directory}, where channels spill to disk: "
            f"{error}; free some space, set spill_dir to another directory, or lower spill_bytes",
            directory=self.directory,
        )


class DiskSpaces:
    """See `SpillSpaces`.

    Args:
        directory: None: the system's directory for temporary files.
        spill_bytes: For the input of blocked channels.
    """

    def __init__(self, directory: str | None, spill_bytes: int) -> None:
        self.bounded = DiskSpace(directory, spill_bytes)
        self.boundless = DiskSpace(directory)

    def close(self) -> None:
        self.bounded.close()
        self.boundless.close()
