"""The files of the checkpoint store in a simulated world, and their faults."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from crosscut.store.files import Put, UncertainError
from crosscut.testing.simulator.memory_files import Fault, MemoryFiles, Operation
from crosscut.testing.simulator.processes import Call, Process

ReadFault = Literal["flipped", "misdirected"]
Listing = Literal["right", "misses objects", "shows deleted objects"]


class WatchedFiles(MemoryFiles):
    """Files in memory; tells of every entry of the job log that comes into being.

    What a call writes can be read at once, and is durable when the call returns. Before that, a crash of the
    writer's host makes the files forget it, unless somebody else has made its directory durable.

    Args:
        appended: Called with the path and the bytes of a new entry when it is durable.
        deleted: Called with the path of a file that is there no more.
        permit: Called before each operation, with the path: the process that runs may not be there any more.
        under_way: Returns the call in which the running process writes; None: what it writes is durable.
        seen: Gets what has happened.

    Attributes:
        damaged: Parts that differ from the bytes written, though the store has confirmed them.
        next_read: The fault of the next read of a part; the stored bytes are right.
        listing: How far a listing can be relied on.
        is_log_away: Nobody knows what becomes of an append, and nothing can be read.
        has_lost_entries: Of the job log: the store has broken its promise.
    """

    def __init__(
        self,
        appended: Callable[[str, bytes], None],
        deleted: Callable[[str], None],
        permit: Callable[[str, str], None],
        under_way: Callable[[], Call | None],
        seen: Counter[str],
    ) -> None:
        super().__init__()
        self._permit = permit
        self._under_way = under_way
        self._seen = seen
        self._unsynced: dict[str, Call] = {}
        self._unit_entries: dict[str, bytes] = {}
        self.damaged: set[str] = set()
        self.next_read: ReadFault | None = None
        self.listing: Listing = "right"
        self.is_log_away = False
        self.has_lost_entries = False
        self._appended = appended
        self._on_deleted = deleted
        self._deleted: list[str] = []

    def put_if_absent(self, path: str, data: bytes) -> Put:
        """Create an entry, however the answer is."""
        if self.is_log_away:
            raise UncertainError(errno.ETIMEDOUT, "no answer")
        was_there = path in self.content
        try:
            return super().put_if_absent(path, data)
        finally:
            if not was_there and path in self.content:
                self._written(path)

    def _written(self, path: str) -> None:
        """A file is there now, and durable unless a call is under way."""
        call = self._under_way()
        if call is not None and not call.is_over:
            if any(not one.is_over and one is not call for one in self._unsynced.values()):
                self._seen["a file is written while another one is"] += 1
            self._unsynced[path] = call
        else:
            self._is_durable(path)

    def _is_durable(self, path: str) -> None:
        if path.startswith("log/"):
            self._appended(path, self.content[path])
        elif path.startswith("units/"):
            self._unit_entries[path] = self.content[path]

    def synced(self, call: Call) -> None:
        """A call has returned: what it has written is durable."""
        for path in [path for path, one in self._unsynced.items() if one is call]:
            del self._unsynced[path]
            if path in self.content:
                self._is_durable(path)

    def logged(self, path: str) -> bytes | None:
        """Return an entry of the log of a worker if it was ever durable, else None."""
        return self._unit_entries.get(path)

    def is_unsynced(self, call: Call) -> bool:
        """Whether the call has written something that is not durable."""
        return any(one is call for one in self._unsynced.values())

    def settle(self, path: str) -> None:
        """Make durable what is in a directory."""
        super().settle(path)
        for one in [one for one in self._unsynced if one.rpartition("/")[0] == path]:
            self._seen["a file is made durable by its reader"] += 1
            del self._unsynced[one]
            self._is_durable(one)

    def host_crashed(self, process: Process) -> None:
        """Forget what the process has written and not synced."""
        for path in [path for path, call in self._unsynced.items() if call.process is process]:
            del self._unsynced[path]
            if self.content.pop(path, None) is not None:
                self._seen["a write that was not synced is forgotten"] += 1

    def lose_entries(self, count: int) -> None:
        """Forget the newest entries of the job log, as if an older backup had been restored."""
        entries = sorted(path for path in self.content if path.startswith("log/") and path.endswith(".json"))
        for path in (*entries[-count:], "log/hint"):
            self.content.pop(path, None)
        self.has_lost_entries = True

    def arrive(self) -> None:
        """Apply the operations that are late."""
        before = self.content.keys() | set()
        super().arrive()
        for path in sorted(self.content.keys() - before):
            self._is_durable(path)

    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a part, perhaps less than is said."""
        data = b"".join(chunks)
        super().write_new(path, [data])
        if self.content[path] != data:
            self.damaged.add(path)
        self._written(path)

    def read(self, path: str) -> bytes:
        """Read, perhaps other bytes than are stored there."""
        if self.is_log_away and path.startswith("log/"):
            raise OSError(errno.ETIMEDOUT, "no answer", path)
        data = super().read(path)
        if not path.startswith("parts/") or self.next_read is None:
            return data
        fault, self.next_read = self.next_read, None
        if fault == "flipped":
            return bytes((data[0] ^ 1,)) + data[1:] if data else data
        others = [one for one in self.parts if one != path]
        return self.content[others[0]] if others else data

    def delete(self, path: str) -> None:
        """Delete."""
        super().delete(path)
        self._unsynced.pop(path, None)
        self._deleted.append(path)
        self._on_deleted(path)

    def walk(self, path: str) -> Iterator[str]:
        """List: it may miss files that are there, and show files that are gone (D5)."""
        self._permit("walk", path)
        found = list(super().walk(path))
        if self.listing == "misses objects":
            return iter(found[::2])
        if self.listing == "shows deleted objects":
            return iter(found + [one for one in self._deleted if one.startswith(f"{path}/")])
        return iter(found)

    def _begin(self, operation: Operation, path: str) -> Fault | None:
        self._permit(operation, path)
        return super()._begin(operation, path)

    @property
    def parts(self) -> list[str]:
        """The parts that there are."""
        return [path for path in self.content if path.startswith("parts/")]

    def rot(self, path: str) -> None:
        """Let a stored part be another one from now on, for good."""
        data = self.content[path]
        self.content[path] = bytes((data[0] ^ 1,)) + data[1:] if data else b"?"
        self.damaged.add(path)

    def bring_log_back(self) -> None:
        """The log can be used again."""
        self.is_log_away = False

    def heal(self) -> None:
        """No faults any more; damage stays."""
        self._faults.clear()
        self.next_read = None
        self.listing = "right"
        self.bring_log_back()
        self.arrive()
