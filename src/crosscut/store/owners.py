"""Who else can write to a directory whose content is loaded as code."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from crosscut.foundation.urls import local_path


def foreign_write(url: str, within: tuple[str, ...] | None = None) -> str:
    """Return why other users can write to the local directory at `url` or what is in it; "" if they can't.

    A file counts like a directory: who has put one there while others could write there owns it still.

    Args:
        within: Look only into these directories in it; None: into all.
    """
    directory = local_path(url)
    if directory is None or not os.path.isdir(directory):
        return ""
    # The user has named the directory, and so trusts a link in its place.
    if reason := _foreign(directory, os.stat(directory)):
        return reason
    if within is None:
        inside = _below(directory)
    else:
        inside = (path for one in within for path in _at_and_below(os.path.join(directory, one)))
    for path in inside:
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid():
                # The mode of a link says nothing: what it leads to counts.
                found = os.stat(path)
        except FileNotFoundError:
            # A job that runs removes files and directories.
            continue
        if reason := _foreign(path, found):
            return reason
    return ""


def _foreign(path: str, found: os.stat_result) -> str:
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and not mode & 0o022:
        return ""
    return (
        f"{path} belongs to user id {found.st_uid} and has mode {mode:04o}, expected user id "
        f"{os.geteuid()} and no write permission for others"
    )


def _at_and_below(directory: str) -> Iterator[str]:
    yield directory
    yield from _below(directory)


def _below(directory: str) -> Iterator[str]:
    for path, names, files in os.walk(directory):
        yield from (os.path.join(path, name) for name in (*names, *files))
