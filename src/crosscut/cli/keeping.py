"""`crosscut run --keep`: the job runs in a process of its own, and is started again after what can heal."""

from __future__ import annotations

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
"""Set in the process that runs the job."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STABLE_S = 600.0
"""A job that has run for so long begins with the first pause again."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def keep(arguments: Sequence[str], note: Callable[[str], None]) -> int:
    """Run `crosscut` with these arguments until it ends for good; return the exit code for this process.

    It is started again after exit codes that may pass and after a signal that did not come through here,
    with pauses that double from 1 s to 1 min. Ctrl-C and SIGTERM are passed on to it; then it is not started
    again. For the main thread.

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

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self._asked.set()
        process = self._process
        if process is not None:
            process.send_signal(number)

    def run(self, arguments: Sequence[str], note: Callable[[str], None]) -> int:
        pause_s = FIRST_PAUSE_S
        command = [sys.executable, "-m", "crosscut", *arguments]
        while True:
            began_s = time.monotonic()
            # A group of its own: Ctrl-C in a terminal would reach it twice, and the second ends it at once.
            with subprocess.Popen(
                command, env={**os.environ, KEPT_VARIABLE: "1"}, process_group=0
            ) as process:
                self._process = process
                if self._asked.is_set():
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


def _own(code: int) -> int:
    # As a shell has it.
    return code if code >= 0 else 128 - code
