"""Packages that were installed beside the program: `pip install --target`, archives for `--py-files`."""

from __future__ import annotations

import os
import sys
import zipfile
from contextlib import suppress

from crosscut.foundation.user_files import note_installed

_seen: set[str] = set()


def note_packages_beside() -> None:
    """Note where on the path of this process packages were installed, for what tells the user's code apart.

    It looks at each entry of the path once.
    """
    for entry in sys.path:
        if entry and entry not in _seen:
            _seen.add(entry)
            if _holds_packages(entry):
                note_installed(entry)


def _holds_packages(entry: str) -> bool:
    # An `.egg-info` may be of a package that is being written.
    if os.path.isfile(entry):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(entry) as archive:
            return any(".dist-info/" in name for name in archive.namelist())
        return False
    with suppress(OSError), os.scandir(entry) as files:
        return any(one.name.endswith(".dist-info") for one in files)
    return False
