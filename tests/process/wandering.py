"""A job that wanders from engine to engine and from cluster to cluster, while a test kills what runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from jobs import is_gone, until
from standalone import executors_of
from switched import SHARES, Stretch, Switched, command
from watching import Watcher

ROOT = Path(__file__).parents[2]


class Wandering:
    """A job, the driver that it has now, and a watcher that reads the output whenever something is awaited.

    Args:
        seed: Of the moments.
    """

    def __init__(self, job: Switched, seed: int) -> None:
        self._job = job
        self._dice = Random(seed)
        self._share = 0
        self._driver: subprocess.Popen[bytes] | None = None
        self._clusters: tuple[int, ...] = ()
        self._said = Path()
        self.watcher = Watcher(job.numbered, job.expected())
        self.release()

    def release(self, share: int | None = None) -> None:
        """Let one more share of all sources flow; they have enough of them."""
        self._share = self._share + 1 if share is None else share
        assert self._share <= SHARES
        new = self._job.released.with_suffix(".new")
        new.write_text(str(self._share))
        os.replace(new, self._job.released)

    def drive(self, number: int, master: str, stretches: Sequence[Stretch], clusters: Sequence[int]) -> None:
        """Start a driver.

        Args:
            clusters: Processes that executors are below; none: that of the driver.
        """
        self._said = self._job.directory / f"said-{number}"
        with self._said.open("wb") as said, self._errors.open("wb") as errors:
            self._driver = subprocess.Popen(
                command(self._job, master, stretches),
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
                stdout=said,
                stderr=errors,
                start_new_session=True,
            )
        self._clusters = tuple(clusters) or (self._driver.pid,)

    @property
    def _errors(self) -> Path:
        return self._said.with_suffix(".errors")

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        assert self._driver is not None
        return self._driver

    def said(self) -> list[dict[str, Any]]:
        """Return what the driver has said so far."""
        return [json.loads(line) for line in self._said.read_text().splitlines(keepends=True) if "\n" in line]

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something that happens while the driver lives."""

        def holds() -> Any:
            self.watcher.look()
            if found := condition():
                return found
            assert self.driver.poll() is None, self._errors.read_text()
            return found

        until(holds, what)

    def has_started(self, stretch: int) -> None:
        """Wait until the driver has begun one more of its stretches, and records flow in it."""
        self.wait(lambda: sum("started" in one for one in self.said()) > stretch, "the next stretch")
        self.release()
        self.checkpoints()

    def checkpoints(self) -> None:
        """Wait until some more checkpoints are complete, nobody knows how many."""
        wanted = self.watcher.newest + self._dice.randint(1, 4)
        self.wait(lambda: self.watcher.newest >= wanted, f"checkpoint {wanted}")

    def kill_executor(self) -> None:
        """Kill one that has code of the job in it, while records flow, and wait until the job goes on."""
        self.wait(lambda: executors_of(*self._clusters), "executors")
        self.release()
        self._pause()
        killed = self._dice.choice(executors_of(*self._clusters))
        os.kill(killed, signal.SIGKILL)
        self.wait(lambda: is_gone(killed), "the end of the executor")
        self.release()
        self.checkpoints()

    def kill_driver(self) -> None:
        """Kill it while records flow."""
        self.release()
        self._pause()
        self.driver.kill()
        self.driver.wait()
        self.watcher.judge()

    def _pause(self) -> None:
        """Let so much become visible of what was released: nothing of it, some, or perhaps all."""
        wanted = self.watcher.newest + self._dice.randint(0, 1)
        self.wait(lambda: self.watcher.newest >= wanted, f"checkpoint {wanted}")

    def has_ended(self) -> None:
        """Let all sources come to their end, and wait for that of the job."""
        self.release(SHARES)
        self.wait(lambda: self.driver.poll() is not None, "the end of the job")
        assert self.driver.returncode == 0, self._errors.read_text()

    def end(self) -> None:
        """Leave no driver behind."""
        if self._driver is not None and self._driver.poll() is None:
            self._driver.kill()
            self._driver.wait()
