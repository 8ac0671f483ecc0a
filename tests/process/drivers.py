"""A job whose driver is a process of its own, so that it can be killed or stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import jobs
from jobs import DEADLINE_S, NumberedJob, children_of, is_gone, shaken, until
from passed_settings import as_argument


class Driver:
    """A job in a process of its own, and what it has reported so far."""

    def __init__(
        self, numbered: NumberedJob, environment: dict[str, str] | None = None, **settings: Any
    ) -> None:
        settings |= {"held": numbered.held, "branches": numbered.branches, "shaken": numbered.hook is shaken}
        arguments = [str(numbered.directory), str(numbered.count), str(numbered.rate), as_argument(settings)]
        self._process = subprocess.Popen(
            [sys.executable, jobs.__file__, *arguments],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.reports: list[dict[str, Any]] = []
        self.errors = ""
        self.family: set[int] = set()
        self._readers = [
            threading.Thread(target=self._read_reports),
            threading.Thread(target=self._read_errors),
        ]
        for reader in self._readers:
            reader.start()

    def _read_reports(self) -> None:
        for line in self._process.stdout or ():
            self.reports.append(json.loads(line))
            # The JVM, Spark's daemon and the workers, as long as somebody can say who they are.
            self.family.update(children_of(self.pid))

    def _read_errors(self) -> None:
        self.errors = self._process.stderr.read() if self._process.stderr else ""

    @property
    def workers(self) -> list[int]:
        found = [report["pids"] for report in self.reports if "pids" in report]
        return found[-1] if found else []

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        code = self._process.wait(deadline_s)
        for reader in self._readers:
            reader.join(deadline_s)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self.wait()

    def family_is_gone(self) -> None:
        """I11: nothing that this driver started has outlived it."""
        until(lambda: all(map(is_gone, self.family)), f"processes {self.family} to end")
