"""What `Stream.lookup` needs of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class LookupTable(ABC):
    """Rows by key, in the memory of each process that looks something up. `crosscut.lookup` makes one."""

    @abstractmethod
    def open(self) -> None:
        """Make the table ready. Called in a thread, before a task takes its first record; it may block.

        Called for each task; only the first call in a process loads the table.

        Raises:
            ConnectorError: It can't be read, or is too large.
        """

    @abstractmethod
    def get(self, key: Any) -> Any:
        """Return the row of `key`, None if there is none.

        The first call opens the table if `open` was not called; no other call may block.

        A row that is a dict, a list or a set belongs to the caller: what it does to the row must not be seen
        by the next caller. Values inside of it, and rows of other classes, are shared.

        Raises:
            TypeError: `key` can't be hashed.
        """
