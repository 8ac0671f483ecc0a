"""Who else can write to a directory whose content is loaded as code."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from crosscut.foundation.urls import local_path


def foreign_write(url: str, within: tuple[str, ...] | None = None) -> str:
    """Return why other users can write to the local directory at `url` or below it; "" if they can't.

    Args:
        within: Look only at these directories in it; None: at all.
    """
    directory = local_path(url)
    if directory is None or not os.path.isdir(directory):
        return ""
    inside = _below(directory) if within is None else (os.path.join(directory, one) for one in within)
    for path in (directory, *inside):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            # A job that runs removes directories.
            continue
        if not stat.S_ISDIR(found.st_mode):
            continue
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid == os.geteuid() and not mode & 0o022:
            continue
        return (
            f"{path} belongs to user id {found.st_uid} and has mode {mode:04o}, expected user id "
            f"{os.geteuid()} and no write permission for others"
        )
    return ""


def _below(directory: str) -> Iterator[str]:
    for path, names, _ in os.walk(directory):
        yield from (os.path.join(path, name) for name in names)
