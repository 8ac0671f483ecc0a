"""A real text that is on every machine with Python: the sources of its standard library."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from crosscut.errors import SettingsError

CORPUS_BYTES = 48 * 1024 * 1024
_FILE_BYTES = 4 * 1024 * 1024


def write_corpus(directory: Path, size_bytes: int = CORPUS_BYTES) -> str:
    """Write about `size_bytes` of the standard library's sources into files of 4 MiB.

    All sources in order, and all over again until it is enough.

    Returns:
        The pattern that matches the files.

    Raises:
        SettingsError: This Python has no sources.
    """
    directory.mkdir()
    sources = list(_sources())
    if not sources:
        raise SettingsError(
            f"found no sources of the standard library in {sysconfig.get_path('stdlib')}; pass some text "
            f"with --input"
        )
    written = 0
    chunk = bytearray()
    for number in count():
        chunk += Path(sources[number % len(sources)]).read_bytes()
        if len(chunk) >= _FILE_BYTES or written + len(chunk) >= size_bytes:
            (directory / f"text-{written:010d}.txt").write_bytes(chunk)
            written += len(chunk)
            chunk.clear()
        if written >= size_bytes:
            break
    return str(directory / "*.txt")


def _sources() -> Iterator[str]:
    root = sysconfig.get_path("stdlib")
    for name in sorted(glob.glob("**/*.py", root_dir=root, recursive=True)):
        # Packages of others are installed below the standard library.
        if name.split(os.sep)[0] not in ("site-packages", "dist-packages"):
            yield os.path.join(root, name)
