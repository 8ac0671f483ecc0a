"""Forked copies of this process, in which an operator tries the records that may end it."""

from __future__ import annotations

import faulthandler
import gc
import logging
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from crosscut.foundation.batch import Batch
from crosscut.operators.operator import Operator
from crosscut.operators.probing import Died, Tried, part_of

_LOG = logging.getLogger("crosscut")

_PROGRESS = struct.Struct("=Q?")
"""What a copy says in the memory that it shares with us: records that it is through with, and whether that
is all that it wanted to do."""

_WORKING_SHARE = 0.1
"""Share of the heartbeat timeout after which a copy takes no other record."""

_WAITING_SHARE = 0.2
"""Share after which a copy is killed: nothing else runs here while it is waited for."""

_TRACE_CHARS = 4_000
_FATAL = "Fatal Python error: "
"""How faulthandler begins what it writes."""

_PAUSE_MIN_S = 0.000_1
_PAUSE_MAX_S = 0.005

_OURS = f'  File "{Path(__file__).parents[1]}{os.sep}'


class ForkedCopies:
    """See `crosscut.operators.probing.Copies`.

    A copy has the memory of this process and one thread. What it does to memory is gone with it. It shares
    open connections, and whatever user code does outside of the process is done.

    Args:
        heartbeat_timeout_s: A part of it is what an attempt takes at most.
    """

    def __init__(self, heartbeat_timeout_s: float) -> None:
        self._working_s = heartbeat_timeout_s * _WORKING_SHARE
        self._waiting_s = heartbeat_timeout_s * _WAITING_SHARE
        self._progress: mmap.mmap | None = None

    def attempt(self, operator: Operator, batch: Batch) -> Tried:
        return self._tried(
            partial(operator.process, part_of(batch, number, number + 1)) for number in range(len(batch))
        )

    def attempt_due(self, operator: Operator, watermark: int | None) -> Tried:
        return self._tried(iter([partial(operator.advance, watermark)]))

    def _tried(self, steps: Iterator[Callable[[], object]]) -> Tried:
        """Let a copy carry out `steps`, and return how many it was through with."""
        progress = self._progress = self._progress or mmap.mmap(-1, _PROGRESS.size)
        _PROGRESS.pack_into(progress, 0, 0, False)
        with ExitStack() as stack:
            try:
                crash_output = stack.enter_context(tempfile.TemporaryFile())
                pid = _fork()
            except OSError as error:
                # No memory for two, or no room on the disk: the job is to run all the same.
                _LOG.warning("no record that ends the process can be looked for: %s", error)
                return Tried(0)
            if pid == 0:
                self._be_copy(steps, progress, crash_output.fileno())
            status = self._status(pid)
            passed, is_done = _PROGRESS.unpack_from(progress)
            if is_done or status is None:
                return Tried(passed)
            crash_output.seek(0)
            return Tried(passed, Died(_how(status), _trace(crash_output.read().decode(errors="replace"))))

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def _status(self, pid: int) -> int | None:
        """Wait for a copy to end; return its wait status, or None if it had to be killed."""
        give_up_s = time.monotonic() + self._waiting_s
        pause_s = _PAUSE_MIN_S
        ended = 0
        try:
            while not ended:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return status
                if time.monotonic() > give_up_s:
                    return None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        finally:
            # Also if the watchdog has interrupted us.
            if not ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return None

    def _be_copy(
        self, steps: Iterator[Callable[[], object]], progress: mmap.mmap, crash_output: int
    ) -> NoReturn:
        """Carry out the steps, and end this process, which is a copy, whatever happens."""
        passed = 0
        try:
            stop_s = time.monotonic() + self._working_s
            _settle(crash_output)
            for step in steps:
                # Also if it raises: then it does so in the worker, which knows what to do.
                passed += 1
                step()
                _PROGRESS.pack_into(progress, 0, passed, False)
                if time.monotonic() > stop_s:
                    break
        except BaseException:  # noqa: BLE001 - whatever user code raises, also to end the process
            pass
        finally:
            _PROGRESS.pack_into(progress, 0, passed, True)
            os._exit(0)


def _fork() -> int:
    with warnings.catch_warnings():
        # Of a fork beside other threads: the copy may wait for one of them, and we don't wait for ever.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _settle(crash_output: int) -> None:
    """Silence this copy: the worker prints and logs the same when it processes the records."""
    gc.freeze()
    logging.disable()
    # If the machine runs out of memory, it is the copy that goes.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(crash_output, 2)
    # They may lead elsewhere, as in a notebook.
    sys.stdout = open(nowhere, "w", closefd=False)  # noqa: SIM115 - until the process ends
    sys.stderr = open(crash_output, "w", closefd=False)  # noqa: SIM115 - until the process ends
    faulthandler.enable(crash_output, all_threads=False)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _trace(crash_output: str) -> str:
    """Return what a copy has written when it crashed, up to the first frame that is ours."""
    before, fatal, frames = crash_output.rpartition(_FATAL)
    if not fatal:
        before, frames = frames, before
    lines = before[-_TRACE_CHARS:].splitlines()
    # The innermost frame comes first, so a deep stack is cut at its end.
    for line in (fatal + frames)[:_TRACE_CHARS].splitlines():
        if line.startswith(_OURS):
            break
        lines.append(line)
    return "\n".join(lines).strip()
