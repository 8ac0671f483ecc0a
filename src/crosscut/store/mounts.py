"""Which file system a directory is on."""

from __future__ import annotations

import errno
import os
import re

from crosscut.errors import SettingsError

LOCAL = frozenset(("ext4", "xfs", "btrfs", "tmpfs"))
"""File systems where a process sees at once what another one of the same host has written. Attribute caches
of network file systems break that, and an overlay says nothing about its upper layer."""

_ESCAPED = re.compile(r"\\([0-7]{3})")


def check_is_local(directory: str, mounts: str | None = None) -> None:
    """Raise SettingsError unless `directory`, an existing one, is on one of `LOCAL`.

    Args:
        mounts: Content of /proc/mounts; None: read it.
    """
    path = os.path.realpath(directory)
    try:
        kind, point = mounted_at(path, _proc_mounts() if mounts is None else mounts)
    except OSError as error:
        kind, point = "an unknown file system", f"/proc/mounts: {error.strerror}"
    if kind not in LOCAL:
        raise SettingsError(
            f"unit log in {directory}: found {kind} ({point}), expected a local file system, one of "
            f"{', '.join(sorted(LOCAL))}, where the log is segment files; choose a directory on a local "
            f"disk, or choose log='objects', an object for each entry"
        )


def mounted_at(path: str, mounts: str) -> tuple[str, str]:
    """Return the type of the file system that holds the absolute path `path`, and where it is mounted.

    Raises:
        OSError: `mounts` does not say.
    """
    found: tuple[str, str] | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3 or not fields[1].startswith("/"):
            continue
        point, kind = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[1]), fields[2]
        # A later mount at the same place hides the one before.
        if os.path.commonpath((point, path)) == point and (found is None or len(point) >= len(found[1])):
            found = kind, point
    if found is None:
        raise OSError(errno.ENODEV, f"no mount holds {path}")
    return found


def _proc_mounts() -> str:
    with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
