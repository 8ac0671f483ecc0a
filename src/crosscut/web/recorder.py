"""Looks at a job once a second, in a thread of its own: notes a point for plots, and renews its record."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from crosscut.errors import CrosscutError
from crosscut.foundation.urls import Redaction
from crosscut.monitoring.metrics import JobMetrics
from crosscut.web.record import write_record
from crosscut.web.series import Series, point_of
from crosscut.web.shared import pause_s

LOGGER = logging.getLogger("crosscut.job")

EVERY_S = 1.0
SHARE_MAX = 0.05
"""Of one processor: a job with thousands of tasks is looked at less often."""
REMOTE_EVERY_S = 10.0
LAST_TIMEOUT_S = 5.0
BYTES_PER_S = 64 * 1024
"""A larger record is written less often."""


class Recorder:
    """The record of one job.

    Args:
        look: Returns the job as it is now.
        directory: Its checkpoint directory, a path or a URL.
    """

    def __init__(self, name: str, look: Callable[[], JobMetrics], directory: str) -> None:
        self._name = name
        self._look = look
        self._directory = directory
        self._series = Series()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"crosscut-record-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """The job has ended: write the record for the last time."""
        self._is_over.set()
        if self._thread.ident is not None:
            # A store that hangs keeps its thread, and no job from its end.
            self._thread.join(LAST_TIMEOUT_S)

    def document(self) -> dict[str, Any]:
        """Return the job as it is now, with its course until now, as JSON-like data."""
        return self.document_of(self._look())

    def document_of(self, metrics: JobMetrics) -> dict[str, Any]:
        """Return the job as it was then, as above."""
        with self._lock:
            return {"job": metrics.as_dict(), "series": self._series.as_dict()}

    def _run(self) -> None:
        due_in_s, every_s = 0.0, EVERY_S
        is_over = False
        while not is_over:
            # The last look comes after the end.
            is_over = self._is_over.wait(every_s)
            due_in_s -= every_s
            began_s = time.thread_time()
            try:
                metrics = self._look()
                every_s = pause_s(EVERY_S, time.thread_time() - began_s, SHARE_MAX)
            except CrosscutError as error:
                # A job that could not even begin has nothing to show.
                LOGGER.debug("job %r can't be looked at: %s", self._name, error)
                continue
            except Exception:  # a mistake of ours, which must not end the record of a job that runs
                if not self._has_failed:
                    self._has_failed = True
                    LOGGER.exception("job %r can't be looked at", self._name)
                continue
            with self._lock:
                self._series.note(point_of(metrics))
            if metrics.status == "fenced":
                # The record is that of the driver which has taken the job over.
                continue
            if is_over or due_in_s <= 0:
                least_s = REMOTE_EVERY_S if "://" in self._directory else EVERY_S
                due_in_s = max(least_s, self._write(metrics) / BYTES_PER_S)

    def _write(self, metrics: JobMetrics) -> int:
        try:
            return write_record(self._directory, self.document_of(metrics))
        except Exception as error:  # noqa: BLE001 - a file system's package may raise anything
            if not self._has_failed:
                self._has_failed = True
                why = Redaction(self._directory)(str(error))
                LOGGER.info("job %r: what it looks like can't be written down: %s", self._name, why)
            return 0
