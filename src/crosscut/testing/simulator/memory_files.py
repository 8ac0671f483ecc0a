"""Files in memory, with faults."""

from __future__ import annotations

import errno
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Literal

from crosscut.store.files import Files, Put, UncertainError, checked_path

Operation = Literal["put_if_absent", "write_new", "replace", "read", "delete", "settle"]


class Fault(Enum):
    """A fault of one operation."""

    REFUSED = "an error, certainly not applied (the disk is full)"
    NOT_APPLIED = "an error after which nothing is known; it was not applied"
    APPLIED = "an error after which nothing is known; it was applied"
    LATE = "an error after which nothing is known; it is applied when `arrive` is called"
    TORN = "a write reports success, but only its first half is stored (a broken promise of the disk)"
    FLIPPED = "a read returns one wrong bit; what is stored is right"


class MemoryFiles(Files):
    """Files in memory. Give one instance to several stores to have them share a place.

    Attributes:
        content: The stored bytes, by path; tests may damage them.
        calls: Every operation that was carried out, with its path, in order.
    """

    root = "in-memory"

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.calls: list[tuple[Operation, str]] = []
        self._faults: dict[Operation, deque[Fault]] = defaultdict(deque)
        self._late: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()

    def fail_next(self, operation: Operation, *faults: Fault) -> None:
        """Let the next calls of `operation` fail, one for each of `faults`."""
        self._faults[operation].extend(faults)

    def arrive(self) -> None:
        """Apply the late puts, where nobody else was faster."""
        with self._lock:
            for path, data in self._late:
                self.content.setdefault(path, data)
            self._late.clear()

    def make_directory(self, path: str) -> None:
        """Nothing to do."""

    def put_if_absent(self, path: str, data: bytes) -> Put:
        with self._lock:
            fault = self._begin("put_if_absent", path)
            if fault is Fault.LATE:
                self._late.append((path, data))
            if fault in (Fault.LATE, Fault.NOT_APPLIED):
                raise UncertainError(errno.ETIMEDOUT, "no answer")
            if path in self.content:
                return Put.EXISTS
            self.content[path] = data[: len(data) // 2] if fault is Fault.TORN else data
            if fault is Fault.APPLIED:
                raise UncertainError(errno.ETIMEDOUT, "no answer")
            return Put.CREATED

    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        data = b"".join(chunks)
        with self._lock:
            fault = self._begin("write_new", path)
            if path in self.content:
                raise FileExistsError(errno.EEXIST, "written twice", path)
            if fault is not Fault.NOT_APPLIED:
                self.content[path] = data[: len(data) // 2] if fault is Fault.TORN else data
            if fault in (Fault.APPLIED, Fault.NOT_APPLIED):
                raise OSError(errno.EIO, "no answer")

    def replace(self, path: str, data: bytes) -> None:
        with self._lock:
            fault = self._begin("replace", path)
            if fault is not Fault.NOT_APPLIED:
                self.content[path] = data[: len(data) // 2] if fault is Fault.TORN else data
            if fault in (Fault.APPLIED, Fault.NOT_APPLIED):
                raise OSError(errno.EIO, "no answer")

    def read(self, path: str) -> bytes:
        with self._lock:
            fault = self._begin("read", path)
            if path not in self.content:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            data = self.content[path]
            if fault is Fault.FLIPPED:
                return bytes((data[0] ^ 1,)) + data[1:]
            return data

    def delete(self, path: str) -> None:
        with self._lock:
            self._begin("delete", path)
            if self.content.pop(path, None) is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def delete_directory(self, path: str) -> None:
        """Nothing to do: there are no directories."""

    def walk(self, path: str) -> Iterator[str]:
        with self._lock:
            return iter([name for name in self.content if name.startswith(f"{path}/")])

    def settle(self, path: str) -> None:
        with self._lock:
            self._begin("settle", path)

    def _begin(self, operation: Operation, path: str) -> Fault | None:
        checked_path(path)
        self.calls.append((operation, path))
        faults = self._faults[operation]
        fault = faults.popleft() if faults else None
        if fault is Fault.REFUSED:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return fault
