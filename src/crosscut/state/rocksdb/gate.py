"""Which threads are inside RocksDB, so that the process does not end meanwhile.

A thread that comes back from a library into an interpreter that is at its end is unwound there. Through
frames of RocksDB's binding that can't be done: it would end the process with SIGABRT, whatever its exit code.
"""

from __future__ import annotations

import atexit
import os
from threading import Condition

from crosscut.errors import StateError

EXIT_WAIT_S = 30.0
"""How long the end of the process waits for a flush that is under way."""


class Gate:
    """`with gate:` around each call; any number of threads may be inside."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """This is a child that was forked: the threads of its parent, who may be inside, are not here."""
        self._changed = Condition()
        self._inside = 0
        self._is_shut = False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_shut:
                raise StateError("this process is at its end: keyed state can't be used any more")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._is_shut:
                self._changed.notify_all()

    def shut(self) -> None:
        """Close the gate, and wait until all are out."""
        with self._changed:
            self._is_shut = True
            self._changed.wait_for(lambda: not self._inside, EXIT_WAIT_S)


GATE = Gate()
"""Of this process."""

atexit.register(GATE.shut)
os.register_at_fork(after_in_child=GATE.forget)
