"""Where the keyed state of a worker's tasks is kept: in memory, or in RocksDB on its disk."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from crosscut.errors import StateError
from crosscut.ids import TaskId
from crosscut.operators.building import NewState
from crosscut.settings import BackendName
from crosscut.state.keyed import KeyedState
from crosscut.state.rocksdb.database import BLOCK_CACHE_BYTES, Options
from crosscut.state.rocksdb.state import RocksState

_PREFIX = "crosscut-state-"
_LOCK = "lock"


class StateBackend(Protocol):
    """Makes the state of tasks."""

    def new_state(self, task: TaskId) -> NewState:
        """Return what makes empty state for `task`."""

    def close(self) -> None:
        """Give back what is taken outside of memory."""


class InMemory:
    """See `StateBackend`."""

    def new_state(self, task: TaskId) -> NewState:
        return KeyedState

    def close(self) -> None:
        """Nothing is taken."""


MEMORY = InMemory()


class OnDisk:
    """RocksDB, in a directory that this process has for itself, and locks: see `StateBackend`.

    What a killed process has left is removed by the next one that starts here.

    Args:
        directory: None: the system's directory for temporary files.
        cache_bytes: Memory for blocks that have been read.

    Raises:
        StateError: The library is missing, or the directory can't be used.
    """

    def __init__(
        self, directory: str | None, max_parallelism: int, cache_bytes: int = BLOCK_CACHE_BYTES
    ) -> None:
        self._options = Options(cache_bytes)
        self._max_parallelism = max_parallelism
        self._numbers = count()
        parent = directory or tempfile.gettempdir()
        try:
            os.makedirs(parent, exist_ok=True)
            _sweep(parent)
            self.directory = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
            # Under another name until it is locked: whoever finds a lock that nobody holds removes all this.
            path = os.path.join(self.directory, _LOCK)
            self._lock = os.open(f"{path}.new", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(f"{path}.new", path)
        except OSError as error:
            raise StateError(
                f"can't keep state in {parent}: {error}; set state_dir to a directory on the workers' "
                f"machines in which they may write"
            ) from error

    def new_state(self, task: TaskId) -> NewState:
        def new(*args: Any, **kwargs: Any) -> RocksState:
            name = f"{task.vertex}-{task.index}-{next(self._numbers)}"
            directory = os.path.join(self.directory, name)
            return RocksState(directory, self._options, self._max_parallelism, *args, **kwargs)

        return new

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)


def backend(
    name: BackendName, directory: str | None, max_parallelism: int, cache_bytes: int = BLOCK_CACHE_BYTES
) -> StateBackend:
    """Return the backend that the settings name.

    Raises:
        StateError: It can't be used here.
    """
    return OnDisk(directory, max_parallelism, cache_bytes) if name == "rocksdb" else MEMORY


def _sweep(parent: str) -> None:
    """Remove directories whose process is gone: nobody holds their lock."""
    for entry in os.scandir(parent):
        if not entry.name.startswith(_PREFIX):
            continue
        # Another one may be sweeping, or it may belong to somebody else.
        with suppress(OSError):
            lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(lock)
