"""Which code is the user's: neither installed nor Python's own."""

from __future__ import annotations

import os
import site
import sysconfig
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

_SCHEMES = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = ("/site-packages/", "/dist-packages/", "/pyspark.zip/")


@cache
def installed_roots() -> tuple[str, ...]:
    """Return the directories of installed code, as this interpreter names them in its frames."""
    return tuple({*(sysconfig.get_path(name) for name in _SCHEMES), *site.getsitepackages()})


def is_user_file(file: str, roots: Iterable[str]) -> bool:
    """Tell whether a file of source lies in none of `roots`, nor where packages are installed elsewhere."""
    path = file.replace("\\", "/")
    if any(part in path for part in _INSTALLED):
        return False
    return not any(path.startswith(f"{root}/") for root in roots)


def is_user_code(filename: str) -> bool:
    """Tell whether code with this `co_filename` is the user's; a console and generated code have no file."""
    if filename.startswith("<"):
        return not filename.startswith("<frozen ")
    return is_user_file(filename, installed_roots())


def is_written_by_user(file: str) -> bool:
    """Return False also for packages that were installed beside the program: a copy of a client, say."""
    return is_user_file(file, installed_roots()) and not _is_beside_metadata(os.path.dirname(file))


@cache
def _is_beside_metadata(directory: str) -> bool:
    """Tell whether packages were installed there or above: by `pip install --target`, or into an archive."""
    if directory.endswith((".zip", ".whl")) and os.path.isfile(directory):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(directory) as archive:
            return any(".dist-info/" in name for name in archive.namelist())
        return False
    with suppress(OSError), os.scandir(directory) as entries:
        # An `.egg-info` may be of a package that is being written.
        if any(one.name.endswith(".dist-info") for one in entries):
            return True
    above = os.path.dirname(directory)
    return above != directory and _is_beside_metadata(above)
