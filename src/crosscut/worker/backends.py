"""Where the keyed state of a worker's tasks is kept: in memory, or in RocksDB on its disk."""

from __future__ import annotations

import os
import tempfile
from itertools import count
from typing import Any, Protocol

from crosscut.contracts.settings import BackendName
from crosscut.errors import StateError
from crosscut.foundation.ids import TaskId
from crosscut.host.temporary import TemporaryDirectory
from crosscut.operators.building import NewState
from crosscut.state.keyed import KeyedState
from crosscut.state.rocksdb.database import BLOCK_CACHE_BYTES, Options
from crosscut.state.rocksdb.state import RocksState

_PREFIX = "crosscut-state-"


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
            self._directory = TemporaryDirectory(_PREFIX, parent)
        except OSError as error:
            raise StateError(
                f"can't keep state in {parent}: {error}; set state_dir to a directory that the workers "
                f"can write to"
            ) from error
        self.directory = self._directory.path

    def new_state(self, task: TaskId) -> NewState:
        def new(*args: Any, **kwargs: Any) -> RocksState:
            name = f"{task.vertex}-{task.index}-{next(self._numbers)}"
            directory = os.path.join(self.directory, name)
            return RocksState(directory, self._options, self._max_parallelism, *args, **kwargs)

        return new

    def close(self) -> None:
        """Remove the directory."""
        self._directory.remove()


def backend(
    name: BackendName, directory: str | None, max_parallelism: int, cache_bytes: int = BLOCK_CACHE_BYTES
) -> StateBackend:
    """Return the backend that the settings name.

    Raises:
        StateError: It can't be used here.
    """
    return OnDisk(directory, max_parallelism, cache_bytes) if name == "rocksdb" else MEMORY
