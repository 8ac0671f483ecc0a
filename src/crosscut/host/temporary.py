"""Private temporary directories that the next process removes if their owner was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress

_LOCK = "lock"


class TemporaryDirectory:
    """A new directory with mode 0700, locked for as long as its owner lives.

    Args:
        prefix: Starts the names of all directories of this kind.
        parent: Where to make it. Directories of the same kind there that no process locks are removed.

    Attributes:
        path: Of the directory.

    Raises:
        OSError: The directory cannot be made.
    """

    def __init__(self, prefix: str, parent: str) -> None:
        os.makedirs(parent, exist_ok=True)
        _sweep(prefix, parent)
        self.path = tempfile.mkdtemp(prefix=prefix, dir=parent)
        # It gets its name after it is locked: a sweep removes a directory whose lock is free.
        path = os.path.join(self.path, _LOCK)
        self._lock = os.open(f"{path}.new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(f"{path}.new", path)

    def remove(self) -> None:
        """Remove the directory and what is in it; a second call does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _sweep(prefix: str, parent: str) -> None:
    for entry in os.scandir(parent):
        if not entry.name.startswith(prefix):
            continue
        # Another process may sweep at the same time, or the directory may belong to another user.
        with suppress(OSError):
            if entry.is_symlink() or entry.stat().st_uid != os.geteuid():
                continue
            lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(lock)
