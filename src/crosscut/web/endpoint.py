"""Where a running job takes commands: a file in its checkpoint directory, readable for its owner only.

Commands in another terminal find the job with it, at its page or, without one, at a port that is for them
only. Only the user who runs the job can read the file; a reader can do what the page can do. The token in it
is made for one run. One that the user has set (`CROSSCUT_WEB_TOKEN`) is neither written nor sent by commands:
after a crash the file names a port that anybody may have taken. In an object store there is no such file,
since others may read it there.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from crosscut.errors import StoreError
from crosscut.foundation.text import escaped
from crosscut.foundation.urls import local_path, shown_url
from crosscut.store.files import TEMPORARY

NAME = "page.json"
BYTES_MAX = 4_096
_LOOPBACK = ("http://127.0.0.1:", "http://[::1]:", "http://localhost:")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a job takes commands.

    Attributes:
        address: A URL, without the token.
        token: What it takes from commands, until the job ends.
        host: The name of the machine that the driver runs on.
    """

    address: str
    token: str
    host: str = ""


def write_endpoint(directory: str, endpoint: Endpoint) -> None:
    """Replace the file in one step; nothing is written for a directory that is a URL.

    Raises:
        OSError: It can't be written.
    """
    local = local_path(directory)
    if local is None:
        return
    temporary = os.path.join(local, f"{TEMPORARY}{NAME}")
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(json.dumps(asdict(endpoint)).encode())
    os.replace(temporary, os.path.join(local, NAME))


def remove_endpoint(directory: str, endpoint: Endpoint) -> None:
    """Remove the file, unless it is of another driver by now."""
    local = local_path(directory)
    if local is not None:
        with suppress(OSError, StoreError):
            if read_endpoint(directory) == endpoint:
                os.unlink(os.path.join(local, NAME))


def read_endpoint(directory: str) -> Endpoint:
    """Return where the job in `directory` takes commands.

    Raises:
        StoreError: There is no such job on this machine, or somebody else may have written the file.
    """
    local = local_path(directory)
    if local is None:
        raise StoreError(
            f"{shown_url(directory)} is not local, so no command finds the job: call job.stop() or "
            f"job.savepoint(path) in its program, interrupt `crosscut run` with Ctrl-C to stop it, or start "
            f"it with web=True (crosscut run --web) and use its page"
        )
    path = os.path.join(local, NAME)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise StoreError(
            f"{path} is not there, so no command finds the job: is it running, with this checkpoint_dir?"
        ) from None
    except OSError as error:
        raise StoreError(f"{path} can't be opened: {error.strerror}", path=path) from error
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            # A token would be sent to wherever it says.
            raise StoreError(
                f"{path} belongs to user id {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}: "
                f"expected a file that only you, user id {os.geteuid()}, may write; run the command as the "
                f"user who runs the job",
                path=path,
            )
        data = file.read(BYTES_MAX)
    match _json(data):
        case {"address": str(address), "token": str(token), "host": str(host)} if token and (
            address.startswith("http://")
        ):
            here = socket.gethostname()
            if host not in ("", here) and address.startswith(_LOOPBACK):
                # On this machine another program may have the port, and would be sent the token.
                raise StoreError(
                    f"the job in {shown_url(directory)} runs on {escaped(host)}, and this is {here}: run the "
                    f"command there",
                    path=path,
                )
            return Endpoint(address, token, host)
        case _:
            raise StoreError(f"{path} is not of a job of this release", path=path)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
