"""`crosscut run --keep`: the job runs in a process of its own, and is started again after what can heal."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from crosscut.cli.exit_codes import MAY_PASS

KEPT_VARIABLE = "CROSSCUT_KEPT"
"""Holds the process id of the keeper in the process that runs the job."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STABLE_S = 600.0
"""A job that has run for so long begins with the first pause again."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1


def keep(arguments: Sequence[str], note: Callable[[str], None]) -> int:
    """Run `crosscut` with these arguments until it ends for good; return the exit code for this process.

    It is started again after exit codes that may pass and after a signal that did not come through here,
    with pauses that double from 1 s to 1 min. Ctrl-C, SIGTERM, SIGHUP and SIGQUIT are passed on to it; then
    it is not started again. If this process is killed, the job stops with a last checkpoint (on Linux). For
    the main thread.

    Args:
        note: Is told why it is started again.
    """
    keeper = _Keeper()
    before = [signal.signal(number, keeper.pass_on) for number in _SIGNALS]
    try:
        return keeper.run(arguments, note)
    finally:
        for number, previous in zip(_SIGNALS, before, strict=True):
            signal.signal(number, previous)


class _Keeper:
    def __init__(self) -> None:
        self._asked = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._signal = 0
        self._is_passed_on = False

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self._asked.set()
        process = self._process
        if process is not None:
            self._is_passed_on = True
            process.send_signal(number)

    def run(self, arguments: Sequence[str], note: Callable[[str], None]) -> int:
        pause_s = FIRST_PAUSE_S
        command = [sys.executable, "-m", "crosscut", *arguments]
        while True:
            began_s = time.monotonic()
            # A group of its own: Ctrl-C in a terminal would reach it twice, and the second ends it at once.
            with subprocess.Popen(
                command,
                env={**os.environ, KEPT_VARIABLE: str(os.getpid())},
                process_group=0,
                # There is no other thread here.
                preexec_fn=_ends_with(os.getpid()),
            ) as process:
                self._process = process
                if self._asked.is_set() and not self._is_passed_on:
                    # It came before there was a process to pass it on to.
                    process.send_signal(self._signal)
                code = process.wait()
                self._process = None
            if self._asked.is_set() or (code >= 0 and code not in MAY_PASS):
                return _own(code)
            if time.monotonic() - began_s >= STABLE_S:
                pause_s = FIRST_PAUSE_S
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            note(f"the job has ended with {how}; it is started again in {pause_s:g} s")
            if self._asked.wait(pause_s):
                return _own(code)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _ends_with(parent: int) -> Callable[[], None] | None:
    """Return what has a new process stopped when `parent` dies, where the system can do that."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            # It has died before.
            os.kill(os.getpid(), signal.SIGTERM)

    return prepare


def is_kept() -> bool:
    """Tell whether this process is the one that a keeper has started; a process of its own is not."""
    return os.environ.get(KEPT_VARIABLE) == str(os.getppid())


def _own(code: int) -> int:
    # As shells show the end by a signal.
    return code if code >= 0 else 128 - code
