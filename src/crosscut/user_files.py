"""Which code is the user's: neither installed nor Python's own."""

from __future__ import annotations

import site
import sysconfig
from functools import cache
from pathlib import Path


@cache
def is_user_file(file: str | None) -> bool:
    """Tell whether `file` is Python source that is not installed."""
    if not file or not file.endswith(".py"):
        return False
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(root) for root in _installed_roots())


def is_user_code(filename: str) -> bool:
    """Tell whether code with this `co_filename` is the user's; a console and generated code have no file."""
    if filename.startswith("<"):
        return not filename.startswith("<frozen ")
    return is_user_file(filename)


@cache
def _installed_roots() -> tuple[Path, ...]:
    roots = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(Path(root).resolve() for root in [*roots, *site.getsitepackages()])
