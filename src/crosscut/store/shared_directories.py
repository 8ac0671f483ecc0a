"""Directories that all hosts of a job have to share: each has a token that driver and workers look for.

If each host has a directory of its own, all looks well for as long as nothing is lost. The job finishes, and
its driver sees none of the output; or a worker starts on another host, and its part of the checkpoint is not
there.

A token is written once and stays. Several drivers may use a directory: those of other jobs that write to it,
or one whose start is refused later. None may replace the token that the workers of another one look for.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crosscut.errors import ConnectorError
from crosscut.foundation.urls import local_path

TOKEN_FILE = ".crosscut-shared"
"""Readers of a directory take no notice of a name that begins with a dot."""

LOOK_S = 5.0
"""For so long a worker looks for the token: a network file system may show new files a little later."""
_LOOK_EVERY_S = 0.25

_NO_LINKS = frozenset((errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP))
"""Errors of link(2) on a file system that has no hard links, where a sink may write all the same."""


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
    """Directories, and the token in each as the driver sees it.

    Attributes:
        host: Of the driver.
        tokens: Of the directories, in their order.
    """

    host: str
    directories: tuple[SharedDirectory, ...]
    tokens: tuple[str, ...]


def local_directories(users: Iterable[tuple[str, str]]) -> tuple[SharedDirectory, ...]:
    """Return those of the given directories and URLs, with what uses each, that are local to a host."""
    return tuple(SharedDirectory(user, path) for user, url in users if (path := local_path(url)) is not None)


def share(
    directories: tuple[SharedDirectory, ...], token: str, sleep: Callable[[float], None] = time.sleep
) -> SharedDirectories:
    """Return `directories` with their tokens: directories are made, and `token` is written, where missing.

    Neither is ever removed, nor a token replaced.

    Args:
        token: A random one.

    Raises:
        ConnectorError: One can't be written or read.
    """
    tokens = tuple(_token_in(one, token, sleep) for one in directories)
    return SharedDirectories(socket.gethostname(), directories, tokens)


def _token_in(one: SharedDirectory, token: str, sleep: Callable[[float], None]) -> str:
    path = Path(one.path, TOKEN_FILE)
    new = Path(one.path, f"{TOKEN_FILE}.{token}.{secrets.token_hex(4)}")
    try:
        Path(one.path).mkdir(
            mode=0o700 if one.user == "checkpoint_dir" else 0o777, parents=True, exist_ok=True
        )
        if not path.exists():
            try:
                with new.open("x") as file:
                    file.write(token)
                    file.flush()
                    # After a power failure there is no empty token under the name.
                    os.fsync(file.fileno())
                # The first one wins: a rename would replace the token of a driver that was faster.
                os.link(new, path)
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _write_in_place(path, token)
            finally:
                new.unlink(missing_ok=True)
        # Where there are no links, another driver may be about to write it.
        found = next((text for _ in _looks(sleep) if (text := path.read_text())), "")
    except OSError as error:
        raise ConnectorError(
            f"{one.user!r}: can't write to {one.path}: {_shown(error)}", operator=one.user
        ) from error
    if not found:
        raise ConnectorError(
            f"{one.user!r}: {path} is empty: delete it, and the next start writes a new one",
            operator=one.user,
        )
    return found


def _write_in_place(path: Path, token: str) -> None:
    try:
        with path.open("x") as file:
            file.write(token)
    except FileExistsError:
        pass


def check_shared(shared: SharedDirectories, sleep: Callable[[float], None] = time.sleep) -> None:
    """Look for the tokens from another process.

    Raises:
        ConnectorError: One is not there, or another one: permanently, as this host has a directory of its
            own. Or the file system can't be read, which may pass.
    """
    for one, token in zip(shared.directories, shared.tokens, strict=True):
        _check(one, token, shared.host, sleep)


def _check(one: SharedDirectory, token: str, host: str, sleep: Callable[[float], None]) -> None:
    where = f"{one.path} on host {socket.gethostname()} (process {os.getpid()})"
    trouble: OSError | None = None
    found = ""
    for _ in _looks(sleep):
        try:
            found, trouble = Path(one.path, TOKEN_FILE).read_text(), None
        except (FileNotFoundError, UnicodeDecodeError):
            found, trouble = "", None
        except OSError as error:
            trouble = error
        if found == token:
            return
    if trouble is not None:
        # It tells nothing of whose directory this is, and a restart may find it well again.
        raise ConnectorError(
            f"{one.user!r}: can't read {where}: {_shown(trouble)}; the driver on {host} could",
            operator=one.user,
        ) from trouble
    raise ConnectorError(
        f"{one.user!r}: {where} is not the directory of the driver on {host}, where there is another token "
        f"(here {'another one is' if found else 'none is'}): mount the same file system on all hosts, or use "
        f"an object store",
        operator=one.user,
        is_permanent=True,
    )


def _looks(sleep: Callable[[float], None]) -> Iterator[None]:
    """Yield each time that somebody should look, for `LOOK_S`."""
    for _ in range(int(LOOK_S / _LOOK_EVERY_S)):
        yield
        sleep(_LOOK_EVERY_S)


def _shown(error: OSError) -> str:
    return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
