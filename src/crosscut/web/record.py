"""What a job looked like when it was last seen, in a file of its checkpoint directory.

It is for people, who follow a job from elsewhere or look at one that has ended: nothing is decided by it, and
anyone who can write there can put anything into it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from typing import Any

import fsspec

from crosscut.errors import StoreError
from crosscut.foundation.urls import Redaction, local_path
from crosscut.store.files import TEMPORARY

NAME = "seen.json"
FORMAT = 1
BYTES_MAX = 64 * 1024 * 1024


def write_record(directory: str, document: dict[str, Any]) -> int:
    """Replace the record in `directory`, a path or a URL, in one step; return its size in bytes.

    Raises:
        OSError: It can't be written.
    """
    data = json.dumps({"format": FORMAT, **document}, separators=(",", ":"), allow_nan=False).encode()
    local = local_path(directory)
    if local is None:
        files, path = fsspec.core.url_to_fs(directory)
        files.pipe_file(f"{path.rstrip('/')}/{NAME}", data)
        return len(data)
    # Always the same name: what a killed driver has left there is replaced, and not added to.
    temporary = os.path.join(local, f"{TEMPORARY}{NAME}")
    try:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        with open(temporary, "wb", opener=_private) as file:
            file.write(data)
        os.replace(temporary, os.path.join(local, NAME))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return len(data)


def read_record(directory: str) -> dict[str, Any]:
    """Return the record in `directory`.

    Raises:
        StoreError: There is none, or it can't be read; the message says what to do.
    """
    redacted = Redaction(directory)
    shown = redacted.url
    try:
        data = _content(directory)
        if len(data) > BYTES_MAX:
            raise StoreError(f"{shown}/{NAME} is larger than {BYTES_MAX} bytes: it is not of a job")
        document = json.loads(data)
    except FileNotFoundError:
        raise StoreError(
            f"{shown} holds no {NAME}: is it the checkpoint directory of a job? A job writes one from its "
            f"first second on"
        ) from None
    except (OSError, ValueError, RecursionError, ImportError) as error:
        raise StoreError(f"{shown}/{NAME} can't be read: {redacted(str(error))}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StoreError(f"{shown}/{NAME} is of another release: expected format {FORMAT}")
    return document


def _content(directory: str) -> bytes:
    """Return the bytes of the record, one more than `BYTES_MAX` at most."""
    local = local_path(directory)
    if local is None:
        files, path = fsspec.core.url_to_fs(directory)
        with files.open(f"{path.rstrip('/')}/{NAME}", "rb") as file:
            return bytes(file.read(BYTES_MAX + 1))
    # Anyone may have put it there: no link is followed, and a FIFO is not waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(os.path.join(local, NAME), flags), "rb") as regular:
        if not stat.S_ISREG(os.fstat(regular.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return regular.read(BYTES_MAX + 1)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_EXCL, 0o600)
