"""The process of a server that tests start: with a log, asked until it answers, and ended."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crosscut.errors import ConnectorError

_PAUSE_S = 0.02
_END_TIMEOUT_S = 60.0
_LOG_SHOWN = 2_000


class ServerProcess:
    """One process at a time.

    Args:
        name: What errors call it.
        log: Where it writes what it has to say.
        start_timeout_s: For so long it may be silent.
    """

    def __init__(self, name: str, log: Path, start_timeout_s: float) -> None:
        self._name = name
        self._log = log
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], answers: Callable[[], bool], **user: Any) -> None:
        """Start it, and wait until it answers.

        Args:
            answers: Whether it does, asked again and again.
            user: More for `subprocess.Popen`: where it runs, and as whom.

        Raises:
            ConnectorError: It has ended, or is silent; with the end of its log.
        """
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                # Ctrl-C in the terminal is for the test, which then ends the server.
                start_new_session=True,
                **user,
            )
        deadline_s = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline_s and self._process.poll() is None:
            if answers():
                return
            time.sleep(_PAUSE_S)
        self.end(signal.SIGKILL)
        raise ConnectorError(f"the {self._name} does not answer; its log ends: {self.last_output}")

    @property
    def pid(self) -> int:
        """The process it runs in.

        Raises:
            ConnectorError: It does not run.
        """
        if self._process is None:
            raise ConnectorError(f"the {self._name} does not run: it was not started, or has been stopped")
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended although nobody has ended it."""
        return self._process is not None and self._process.poll() is not None

    @property
    def last_output(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-_LOG_SHOWN:]

    def end(self, number: signal.Signals) -> None:
        """Send it a signal that ends it, and wait until it has; nothing if there is none."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
