"""Processes that user code starts in a worker: they do not outlive it (L3)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1

_host: int | None = None
"""Pid of the process in which a worker runs now: it may have been something else, and be so again."""
_prctl: Callable[..., int] | None = None


def tie_children() -> None:
    """Have processes that are forked from now on die with this one, however it dies. Linux only.

    A fork shares the sockets: it would keep the connections of a killed worker open, so that no peer hears
    of its death. A process that calls `exec` at once (`subprocess`) shares none, and runs no code of ours.
    """
    global _host, _prctl
    _host = os.getpid()
    if _prctl is None and sys.platform == "linux":
        _prctl = ctypes.CDLL(None).prctl
        os.register_at_fork(after_in_child=_forked)


def end_children() -> None:
    """Kill whatever this process has started and not ended, and the children of those. Linux only."""
    global _host
    _host = None
    for pid in _children_of(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            # Only our own can be waited for; theirs are another's then.
            os.waitpid(pid, 0)


def _forked() -> None:
    if _prctl is None or _host != os.getppid():
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != _host:
        # It died before the line above.
        os._exit(1)


def _children_of(pid: int) -> list[int]:
    """Return the processes below `pid`, the deepest first: a parent must not see them go."""
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listing.read_text().split()):
                found += [*_children_of(child), child]
    return found
