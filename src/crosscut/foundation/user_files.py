"""Which code is the user's: neither installed nor Python's own."""

from __future__ import annotations

import site
import sysconfig
from collections.abc import Iterable
from functools import cache

_SCHEMES = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = ("/site-packages/", "/dist-packages/", "/pyspark.zip/")
_beside: set[str] = set()


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


def note_installed(root: str) -> None:
    """Note that packages were installed into `root`, a directory or archive on the path of this process."""
    _beside.add(root)


def is_written_by_user(file: str) -> bool:
    """Return False also for packages that were installed beside the program: a copy of a client, say."""
    return is_user_file(file, installed_roots()) and is_user_file(file, _beside)
