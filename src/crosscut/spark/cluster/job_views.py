"""How a job is seen and reached while it runs: its record in the checkpoint directory, its page, commands."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from crosscut.contracts.settings import Settings
from crosscut.foundation.data_pickles import only_data
from crosscut.foundation.urls import local_path
from crosscut.monitoring.metrics import JobMetrics
from crosscut.monitoring.status import CheckpointStatus
from crosscut.web.answers import Actions, StateSeen
from crosscut.web.commands import CommandPort
from crosscut.web.recorder import Recorder

if TYPE_CHECKING:
    from pyspark import SparkContext

    from crosscut.spark.cluster.ui import InSparkUi
    from crosscut.web.endpoint import Endpoint
    from crosscut.web.page import Page

LOGGER = logging.getLogger("crosscut.job")

CHECKPOINT_PATIENCE_S = 300.0
ROWS_SHOWN = 50
CELL_MAX = 1_000
"""Characters."""


class ShownJob(Protocol):
    """A job, as far as its page acts on it; see `Job`."""

    @property
    def checkpoint_dir(self) -> str: ...

    def stop(self, timeout: float | None = None, *, savepoint: str | None = None) -> bool: ...

    def restart(self) -> None: ...

    def checkpoint(self, timeout: float | None = None) -> CheckpointStatus: ...

    def savepoint(self, path: str, timeout: float | None = None) -> str: ...


class JobActions:
    """What the page of a job can do to it."""

    def __init__(self, job: ShownJob) -> None:
        self._job = job
        self._looking = threading.Lock()

    def stop(self) -> None:
        """Take a last checkpoint, and end; returns at once."""
        self._job.stop(timeout=0)

    def stop_with_savepoint(self, path: str) -> str:
        """Take a last checkpoint, write it as a savepoint, and end."""
        # A thread that the end of the program waits for: it may come as soon as the job has ended.
        with_savepoint = ThreadPoolExecutor(1, "crosscut-last-savepoint")
        stopping = with_savepoint.submit(self._job.stop, None, savepoint=path)
        with_savepoint.shutdown(wait=False)
        try:
            stopping.result(CHECKPOINT_PATIENCE_S)
        except TimeoutError:
            return f"the job is stopping; the savepoint is written to {path} when it has ended"
        return f"the job has stopped; its savepoint is in {path}"

    def restart(self) -> None:
        """Have the job go back to its newest checkpoint; returns at once."""
        self._job.restart()

    def take_checkpoint(self) -> str:
        """Take a checkpoint."""
        taken = self._job.checkpoint(CHECKPOINT_PATIENCE_S)
        return f"checkpoint {taken.checkpoint_id} is complete"

    def take_savepoint(self, path: str) -> str:
        """Write a savepoint."""
        return f"the savepoint is written: {self._job.savepoint(path, CHECKPOINT_PATIENCE_S)}"

    def state_of(self, uid: str, key: str | None) -> StateSeen:
        """Return the first rows of an operator's state."""
        from crosscut.savepoints.tables import state_at

        wanted = None if key is None else {key, json.dumps(key)}
        # One at a time: each reads parts of a checkpoint into the driver.
        with self._looking, only_data():
            rows = state_at(self._job.checkpoint_dir, uid, None).rows()
            found = list(islice((one for one in rows if wanted is None or one.key in wanted), ROWS_SHOWN + 1))
        shown = tuple(
            (one.state, one.key[:CELL_MAX], (one.name or "")[:CELL_MAX], one.value[:CELL_MAX])
            for one in found[:ROWS_SHOWN]
        )
        return StateSeen(shown, len(found) > ROWS_SHOWN)


class Seeing:
    """The record of a job that runs, and its page, or else its port for commands.

    Raises:
        SettingsError: The page can't be served.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], JobMetrics],
        status: Callable[[], str],
        actions: Actions,
        checkpoint_dir: str,
        settings: Settings,
        context: SparkContext,
    ) -> None:
        self._recorder = Recorder(name, look, checkpoint_dir)
        self.page: Page | None = None
        self._in_ui: InSparkUi | None = None
        self._name = name
        self._directory = checkpoint_dir
        self._endpoint: Endpoint | None = None
        self._has_proxy = bool(settings.web_url)
        is_found = local_path(checkpoint_dir) is not None
        self._commands = CommandPort(name, checkpoint_dir, actions) if is_found and not settings.web else None
        if settings.web:
            # No job is started slower because it could have a page.
            from crosscut.web.page import Page
            from crosscut.web.shared import Shared

            recorder, shared = self._recorder, Shared(look)
            self.page = Page(
                lambda: recorder.document_of(shared()),
                shared,
                actions,
                host=settings.web_host,
                port=settings.web_port,
                url=settings.web_url,
                in_spark_ui=settings.web_in_spark_ui,
                status=status,
            )
            if settings.web_port not in (0, self.page.port):
                LOGGER.warning(
                    "job %r: port %s is taken, its page is on port %s",
                    name,
                    settings.web_port,
                    self.page.port,
                )
            LOGGER.info("job %r: its page is at %s", name, self.page.address)
            if settings.web_in_spark_ui:
                self._show_in_ui(context, name, self.page.local_address)

    def start(self) -> None:
        """The job owns its checkpoint directory."""
        self._recorder.start()
        if self._commands is not None:
            self._commands.start()
        if self.page is not None:
            from crosscut.web.endpoint import write_endpoint

            self._endpoint = self.page.endpoint
            try:
                write_endpoint(self._directory, self._endpoint)
            except OSError as error:
                LOGGER.warning(
                    "job %r: `crosscut stop` and `crosscut savepoint` can't find it: %s", self._name, error
                )

    @property
    def link(self) -> str:
        """What to open in a browser, "" if there is no page."""
        if self.page is None:
            return ""
        if self._in_ui is None or self._has_proxy or not self._in_ui.is_there:
            return self.page.link
        return self.page.link_at(self._in_ui.url)

    def close_page(self) -> None:
        """Close the port of the page, if there is one."""
        page, self.page = self.page, None
        in_ui, self._in_ui = self._in_ui, None
        if in_ui is not None:
            in_ui.close()
        if page is not None:
            page.close()

    def _show_in_ui(self, context: SparkContext, name: str, address: str) -> None:
        from crosscut.spark.cluster.ui import InSparkUi

        try:
            self._in_ui = InSparkUi(context, name, address)
        except BaseException:
            # It has no handle.
            self.close_page()
            raise
        LOGGER.info("job %r: its page is at %s, too", name, self._in_ui.url)

    def close(self) -> None:
        """The job has ended. Its page stays, as long as the program does or somebody closes it."""
        self._recorder.close()
        if self._commands is not None:
            self._commands.close()
        if self._endpoint is not None:
            from crosscut.web.endpoint import remove_endpoint

            remove_endpoint(self._directory, self._endpoint)
