"""Directories that all hosts of a job have to share: the driver writes a token that each worker looks for.

If each host has a directory of its own, all looks well for as long as nothing is lost. The job finishes, and
its driver sees none of the output; or a worker starts on another host, and its part of the checkpoint is not
there.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from crosscut.errors import ConnectorError
from crosscut.foundation.urls import local_path

TOKEN_FILE = ".crosscut-shared"
"""Readers of a directory take no notice of a name that begins with a dot."""

LOOK_S = 5.0
"""For so long a worker looks for the token: a network file system may show new files a little later."""
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class SharedDirectory:
    """A local directory that the driver and all workers use.

    Attributes:
        user: What uses it, as errors call it: "checkpoint_dir", or the uid of a sink.
    """

    user: str
    path: str


@dataclass(frozen=True, slots=True)
class SharedDirectories:
    """Directories in which the driver has written its token.

    Attributes:
        token: A later driver of the job writes one of its own.
        host: Of the driver.
    """

    token: str
    host: str
    directories: tuple[SharedDirectory, ...]


def local_directories(users: Iterable[tuple[str, str]]) -> tuple[SharedDirectory, ...]:
    """Return those of the given directories and URLs, with what uses each, that are local to a host."""
    return tuple(SharedDirectory(user, path) for user, url in users if (path := local_path(url)) is not None)


def write_tokens(directories: tuple[SharedDirectory, ...], token: str) -> SharedDirectories:
    """Write `token` in `directories`, which are made if they are missing.

    Raises:
        ConnectorError: One can't be written.
    """
    for one in directories:
        try:
            Path(one.path).mkdir(
                mode=0o700 if one.user == "checkpoint_dir" else 0o777, parents=True, exist_ok=True
            )
            new = Path(one.path, f"{TOKEN_FILE}.{token}")
            new.write_text(token)
            os.replace(new, Path(one.path, TOKEN_FILE))
        except OSError as error:
            raise ConnectorError(
                f"{one.user!r}: can't write to {one.path}: {error.strerror}", operator=one.user
            ) from error
    return SharedDirectories(token, socket.gethostname(), directories)


def check_shared(shared: SharedDirectories, sleep: Callable[[float], None] = time.sleep) -> None:
    """Look for the token from another process.

    Raises:
        ConnectorError: It is not there: permanently, as this host has a directory of its own.
    """
    looks = int(LOOK_S / _LOOK_EVERY_S)
    for one in shared.directories:
        for _ in range(looks):
            if _found(one.path) == shared.token:
                break
            sleep(_LOOK_EVERY_S)
        else:
            raise ConnectorError(
                f"{one.user!r}: {one.path} on host {socket.gethostname()} (process {os.getpid()}) is not the "
                f"directory of the driver on {shared.host}, which has written a token there (here "
                f"{'another one is' if _found(one.path) else 'none is'}): mount the same file system on all "
                f"hosts, or use an object store",
                operator=one.user,
                is_permanent=True,
            )


def _found(path: str) -> str:
    try:
        return Path(path, TOKEN_FILE).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
