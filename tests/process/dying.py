"""Processes that die at any call of the system, for tests of what they leave behind.

A process is code whose calls of `os` go through here: before each one it may die (then no later call of it
happens, as after SIGKILL), and others may do something in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

CALLS = (
    "fsync", "link", "listdir", "makedirs", "mkdir", "open", "pread", "pwrite", "rename", "rmdir", "stat",
    "unlink",
)  # fmt: skip
"""Not `close`: what a process that is killed has open is closed, too."""


class Killed(BaseException):
    """The process is dead."""


@dataclass
class Process:
    """What stands between a writer and the system.

    Attributes:
        dies_at: Number of the call before which it dies, from 0; None: it does not.
        between: What others do before a call.
    """

    dies_at: int | None = None
    between: Callable[[], None] = lambda: None
    calls: int = 0
    is_dead: bool = False

    def pass_call(self) -> None:
        if self.is_dead or self.calls == self.dies_at:
            self.is_dead = True
            raise Killed
        self.calls += 1


class Machine:
    """Routes `os` of the connectors to the process that is running."""

    def __init__(self) -> None:
        self.running: Process | None = None
        self.os = SimpleNamespace(**{name: getattr(os, name) for name in dir(os)})
        # No power fails here, and it would take nearly all of the time.
        self.os.fsync = lambda descriptor: None
        for name in CALLS:
            setattr(self.os, name, self._through(getattr(self.os, name)))

    def _through(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def passed(*args: Any, **kwargs: Any) -> Any:
            process = self.running
            if process is not None:
                process.pass_call()
                with self.as_process(None):
                    process.between()
            return call(*args, **kwargs)

        return passed

    @contextmanager
    def as_process(self, process: Process | None) -> Iterator[None]:
        before, self.running = self.running, process
        try:
            yield
        finally:
            self.running = before
