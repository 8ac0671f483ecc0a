"""The local files that a pattern matches, each once, however many links lead to it."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_ANY_DEPTH = re.compile(r"(?:\A|/)\*\*(?=/|\Z)")


@dataclass(frozen=True, slots=True)
class LocalMatch:
    """A regular file that was found.

    Attributes:
        name: As it was matched; if symbolic links lead to it, as its own path reads.
        path: As it was matched, absolute.
    """

    name: str
    path: str
    size_bytes: int


def local_matches(pattern: str, directory: str, *, may_vanish: bool) -> list[LocalMatch]:
    """Return the files that match, by name.

    Args:
        directory: Where a relative pattern starts.
        may_vanish: A file that goes while it is looked at is none.

    Raises:
        OSError: One can't be looked at; `filename` is its path.
    """
    # A file may really be called "a[1].txt".
    is_literal = os.path.isfile(os.path.join(directory, pattern))
    root = os.path.dirname(pattern)
    while not is_literal and glob.has_magic(root):
        root = os.path.dirname(root)
    naming = _Naming(root, directory)
    found: list[tuple[bool, LocalMatch, tuple[int, int]]] = []
    for name in {pattern} if is_literal else set(_names(pattern, directory)):
        path = os.path.join(directory, name)
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                continue
            own = naming.name(name)
        except FileNotFoundError:
            if may_vanish:
                # Moved away since it was listed, as files may be that have been read.
                continue
            raise
        found.append((own != name, LocalMatch(own, path, status.st_size), (status.st_dev, status.st_ino)))
    # Of several ways to a file the one without links counts: a link that is made later changes nothing.
    found.sort(key=lambda one: (one[0], one[1].name, one[1].path))
    once: dict[str, LocalMatch] = {}
    known: set[tuple[int, int]] = set()
    for _, match, identity in found:
        if match.name not in once and identity not in known:
            once[match.name] = match
            # Some file systems have no numbers.
            known |= {identity} if identity[1] else set()
    return [once[name] for name in sorted(once)]


class _Naming:
    """Names files by their own paths.

    Args:
        root: The part of the pattern that has no wildcards. Links up to there are how the user names the
            place.
    """

    def __init__(self, root: str, directory: str) -> None:
        self._root = root
        self._directory = directory
        self._real_root = os.path.realpath(os.path.join(directory, root))
        self._real: dict[str, str] = {}

    def name(self, name: str) -> str:
        """Return `name` if no link below the root leads there, else that of the file itself."""
        path = os.path.join(self._directory, name)
        above, last = os.path.split(path)
        if (real_above := self._real.get(above)) is None:
            real_above = self._real[above] = os.path.realpath(above)
        real = os.path.realpath(path) if os.path.islink(path) else os.path.join(real_above, last)
        if real == os.path.join(self._real_root, name[len(self._root) :].lstrip("/")):
            return name
        below = os.path.relpath(real, self._real_root)
        return real if below.startswith("../") else os.path.join(self._root, below)


def _names(pattern: str, directory: str) -> Iterator[str]:
    """Yield the names that match, perhaps some of them twice."""
    deep = _ANY_DEPTH.search(pattern)
    if deep is None:
        yield from glob.glob(pattern, root_dir=directory)
        return
    head, rest = pattern[: deep.start()], pattern[deep.end() :].lstrip("/") or "*"
    head = head or "/" * pattern.startswith("/")
    for base in glob.glob(head, root_dir=directory) if glob.has_magic(head) else (head,):
        for below in _directories(os.path.join(directory, base)):
            place = os.path.join(base, below)
            for name in _names(rest, os.path.join(directory, place)):
                yield os.path.join(place, name)


def _directories(root: str) -> Iterator[str]:
    """Yield the directories from `root` on, relative to it, each once; hidden ones are not looked at.

    glob follows a link to a parent until the path is too long, and two of them without end.
    """
    real, linked, known = deque([""]), deque[str](), set[tuple[int, int]]()
    while real or linked:
        name = real.popleft() if real else linked.popleft()
        path = os.path.join(root, name)
        try:
            status = os.stat(path)
            identity = status.st_dev, status.st_ino
            if identity in known:
                continue
            known |= {identity} if identity[1] else set()
            with os.scandir(path) as entries:
                below = [
                    (one.name, one.is_symlink()) for one in entries if one.name[0] != "." and one.is_dir()
                ]
        except OSError:
            # Gone, no directory, or closed to this user: as with the wildcards of a shell.
            continue
        yield name
        for one, is_link in below:
            (linked if is_link else real).append(os.path.join(name, one))
