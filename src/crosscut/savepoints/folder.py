"""The directory of a savepoint: local, or in any file system that fsspec knows.

Writers don't contend for it, as two drivers may for a checkpoint directory: so a file system that can't
create a file in one step will do.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass

from crosscut.errors import StoreError
from crosscut.foundation.urls import local_path, path_text
from crosscut.store.files import LocalFiles, Put, failed
from crosscut.store.objects import ObjectFiles

Folder = LocalFiles | ObjectFiles

UNFINISHED = "unfinished"
"""A file that is there while a savepoint is written, and says by whom: so that two don't write into one
directory."""


def folder_of(path: str | os.PathLike[str], *, create: bool = False) -> Folder:
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


@dataclass(frozen=True, slots=True)
class Claim:
    """What `UNFINISHED` says of who writes.

    Attributes:
        lineage: Of the job.
        token: Unique to this writer.
    """

    lineage: str
    token: str


def check_free(path: str | os.PathLike[str], unless_of: Container[str] = ()) -> None:
    """Make sure that there is nothing at `path` yet: said before a job takes a checkpoint for it, or stops.

    Args:
        unless_of: Jobs that may go on there with a savepoint that they have not finished.

    Raises:
        StoreError: There is, or it can't be looked at.
        SettingsError: As in `folder_of`.
    """
    directory = local_path(path_text(path, "savepoint"))
    if directory is not None and not os.path.lexists(directory):
        return
    folder = folder_of(path)
    if _files(folder) and _lineage(claim_at(folder)) not in unless_of:
        raise _taken(folder)


def new_folder(path: str | os.PathLike[str], lineage: str, *, goes_on: bool = False) -> tuple[Folder, Claim]:
    """Return the directory or URL at `path` for a savepoint to be written into by this writer only.

    Args:
        lineage: Of the job.
        goes_on: What this job has left there unfinished is removed.

    Raises:
        StoreError: There are files in it, or it can't be written.
        SettingsError: As in `folder_of`.
    """
    folder, own = folder_of(path, create=True), Claim(lineage, secrets.token_hex(8))
    found = _files(folder)
    if found and goes_on and _lineage(claim_at(folder)) == lineage:
        # Who has claimed it goes last: a program that dies meanwhile is followed by one that may go on.
        remove(folder, [*(one for one in found if one != UNFINISHED), UNFINISHED])
        folder, found = folder_of(path, create=True), []
    if found or not _claimed(folder, own):
        raise _taken(folder)
    return folder, own


def claim_at(folder: Folder) -> Claim | None:
    """Return the writer of a savepoint there, alive or dead; None if there is none, or it is unknown."""
    try:
        data = folder.read(UNFINISHED)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failed("can't read", folder, UNFINISHED, error) from error
    # A lineage may have blanks, a token has none.
    lineage, _, token = data.decode(errors="replace").rpartition(" ")
    return Claim(lineage, token) if lineage else None


def _lineage(claim: Claim | None) -> str | None:
    return claim.lineage if claim is not None else None


def _files(folder: Folder) -> list[str]:
    try:
        return list(folder.walk(""))
    except OSError as error:
        raise failed("can't list", folder, "", error) from error


def _claimed(folder: Folder, own: Claim) -> bool:
    data = f"{own.lineage} {own.token}".encode()
    try:
        if isinstance(folder, ObjectFiles):
            return folder.put_if_absent(UNFINISHED, data) is Put.CREATED
        # Not with a link, as the job log: a file system that is mounted here may have none.
        folder.write_new(UNFINISHED, (data,))
    except FileExistsError:
        return False
    except OSError as error:
        raise failed("can't write", folder, UNFINISHED, error) from error
    return True


def _taken(folder: Folder) -> StoreError:
    is_unfinished = UNFINISHED in _files(folder)
    return StoreError(
        f"{folder.root} is there already, and not empty: a savepoint needs a directory of its own"
        + (
            f"; what is there was not finished: unless a program is still at it, remove {folder.root}"
            if is_unfinished
            else ""
        ),
        path=folder.root,
    )


def remove(folder: Folder, paths: Iterable[str]) -> None:
    """Remove files, and directories that are empty then; best effort."""
    directories: set[str] = set()
    for path in paths:
        with suppress(OSError, StoreError):
            folder.delete(path)
        parts = path.split("/")[:-1]
        directories |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
    for directory in sorted(directories, key=len, reverse=True):
        with suppress(OSError, StoreError):
            folder.delete_directory(directory)
    if isinstance(folder, LocalFiles):
        with suppress(OSError):
            os.rmdir(folder.root)
