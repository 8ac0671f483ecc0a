"""Where commands of another terminal reach a job that has no page: a port on loopback, for them only."""

from __future__ import annotations

import logging
import secrets
import socket
import threading

from crosscut.errors import SettingsError
from crosscut.web.answers import Actions, Answers
from crosscut.web.endpoint import Endpoint, remove_endpoint, write_endpoint

LOGGER = logging.getLogger("crosscut.job")

HOST = "127.0.0.1"
LAST_TIMEOUT_S = 5.0


class CommandPort:
    """Serves the commands of one job, in a thread of its own.

    Args:
        name: The job's.
        directory: Its checkpoint directory, where commands find the port.
    """

    def __init__(self, name: str, directory: str, actions: Actions) -> None:
        self._name = name
        self._directory = directory
        self._actions = actions
        self._is_over = threading.Event()
        self._is_removed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"crosscut-commands-{name}", daemon=True)

    def start(self) -> None:
        """Begin; returns at once. Without a port the job runs on, and a warning says so."""
        self._thread.start()

    def close(self) -> None:
        """The job has ended: no command finds it any more."""
        self._is_over.set()
        if self._thread.ident is not None:
            # A file system that hangs keeps its thread, and no job from its end.
            self._is_removed.wait(LAST_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._serve()
        except (OSError, SettingsError) as error:
            LOGGER.warning(
                "job %r: `crosscut stop`, `checkpoint` and `savepoint` can't find it: %s",
                self._name,
                error,
            )
        finally:
            self._is_removed.set()

    def _serve(self) -> None:
        # Here, in this thread: the import takes long enough to be seen in the start of a job.
        from crosscut.web.server import PageServer

        token = secrets.token_urlsafe(24)
        server = PageServer(HOST, 0, Answers.of_commands(token, self._actions))
        try:
            endpoint = Endpoint(f"http://{HOST}:{server.port}/", token, socket.gethostname())
            write_endpoint(self._directory, endpoint)
            try:
                self._is_over.wait()
            finally:
                remove_endpoint(self._directory, endpoint)
                self._is_removed.set()
        finally:
            server.close()
