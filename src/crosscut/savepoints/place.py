"""The directory of a savepoint: local, or in any file system that fsspec knows.

Nobody contends for it, as two drivers may for a checkpoint directory: so a file system that can't create a
file in one step will do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from crosscut.errors import StoreError
from crosscut.store.files import LocalFiles, Put, failed
from crosscut.store.objects import ObjectFiles
from crosscut.urls import local_path, path_text

Place = LocalFiles | ObjectFiles

UNFINISHED = "unfinished"
"""A file that is there while a savepoint is written: so that two don't write into one directory."""


def place_of(path: str | os.PathLike[str], *, create: bool = False) -> Place:
    """Return the directory or URL at `path`.

    Args:
        create: Make a local directory (mode 0700) if there is none, and require that it can be written.

    Raises:
        StoreError: There is no such directory, or no permission.
        SettingsError: It is a URL of an unknown file system.
    """
    text = path_text(path, "savepoint")
    directory = local_path(text)
    if directory is None:
        return ObjectFiles(text, called="savepoint", is_contended=False)
    return LocalFiles(directory, create=create, called="savepoint")


def check_free(path: str | os.PathLike[str]) -> None:
    """Make sure that there is nothing at `path` yet: said before a job takes a checkpoint for it, or stops.

    Raises:
        StoreError: There is, or it can't be looked at.
        SettingsError: As in `place_of`.
    """
    directory = local_path(path_text(path, "savepoint"))
    if directory is not None and not os.path.lexists(directory):
        return
    place = place_of(path)
    if not _is_empty(place):
        raise _taken(place)


def new_place(path: str | os.PathLike[str]) -> Place:
    """Return the directory or URL at `path` for a savepoint to be written into: nobody else does.

    Raises:
        StoreError: There are files in it, or it can't be written.
        SettingsError: As in `place_of`.
    """
    place = place_of(path, create=True)
    if not _is_empty(place) or not _claimed(place):
        raise _taken(place)
    return place


def _is_empty(place: Place) -> bool:
    try:
        return next(iter(place.walk("")), None) is None
    except OSError as error:
        raise failed("can't list", place, "", error) from error


def _claimed(place: Place) -> bool:
    try:
        if isinstance(place, ObjectFiles):
            return place.put_if_absent(UNFINISHED, b"") is Put.CREATED
        # Not with a link, as the job log: a file system that is mounted here may have none.
        place.write_new(UNFINISHED, ())
    except FileExistsError:
        return False
    except OSError as error:
        raise failed("can't write", place, UNFINISHED, error) from error
    return True


def _taken(place: Place) -> StoreError:
    return StoreError(
        f"{place.root} is there already, and not empty: a savepoint needs a directory of its own",
        path=place.root,
    )


def remove(place: Place, paths: Iterable[str]) -> None:
    """Remove files, and directories that are empty then; best effort."""
    directories: set[str] = set()
    for path in paths:
        with suppress(OSError, StoreError):
            place.delete(path)
        parts = path.split("/")[:-1]
        directories |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
    for directory in sorted(directories, key=len, reverse=True):
        with suppress(OSError, StoreError):
            place.delete_directory(directory)
    if isinstance(place, LocalFiles):
        with suppress(OSError):
            os.rmdir(place.root)
