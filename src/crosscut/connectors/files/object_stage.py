"""A directory of a file sink in an object store: where it stages and where it publishes.

An object appears as a whole and replaces what has its key; there is no rename. So a file is published by a
copy that the store makes by itself, after which the staged object goes: whoever comes later, as a zombie or a
repeated commit, finds nothing that it could copy.

Readers may take objects away once the commit that has made them has returned. Who takes one in the moment
between its copy and the removal of the staged one may see it again, if the worker dies in that moment.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from typing import Any

from crosscut.connectors.files.ledger import Entry, entries_of, line_of, newest_in
from crosscut.connectors.files.stage import failed
from crosscut.connectors.files.staged_names import STAGE_DIRECTORY, Published
from crosscut.errors import ConnectorError
from crosscut.foundation.urls import Redaction, shown_url
from crosscut.store.objects import as_os_errors

_PROTOCOLS = ("s3", "s3a", "gs", "gcs")
"""Where reads and lists see every write that has returned, and a copy is one step."""

_MEMORY_BYTES = 8 * 1024 * 1024
"""Of a file that is being written; what is more goes to the disk of the worker."""

_log = logging.getLogger(__name__)


class Location(str):
    """A URL that names are put after; for messages only, so it is without credentials."""

    __slots__ = ()

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self}/{name}")

    def joinpath(self, *names: str) -> Location:
        """Return it with all of `names` after it."""
        return Location("/".join((self, *names)))


class Objects:
    """The objects below a URL, by their paths from there. Any thread may call it; each call may block.

    All errors are OSError, without credentials.

    Raises:
        ConnectorError: The URL can't be opened.
    """

    def __init__(self, url: str) -> None:
        # Here and not at the top: local files need no fsspec.
        from fsspec.core import url_to_fs

        self._redacted = Redaction(url)
        self.location = Location(self._redacted.url.rstrip("/"))
        try:
            self._system, root = url_to_fs(url, use_listings_cache=False)
        except Exception as error:  # noqa: BLE001 - whatever its package raises, with the URL in it perhaps
            text = f"{type(error).__name__}: {self._redacted(str(error))}"
            advice = "install the fsspec package for it" if isinstance(error, ImportError) else "see the URL"
            if url.startswith(("s3:", "s3a:")) and isinstance(error, ImportError):
                advice = "install it with pip install 'crosscut[s3]', on the workers too"
            raise ConnectorError(f"directory {self.location} can't be opened: {text}; {advice}") from None
        self._root: str = root.rstrip("/")

    def names(self, path: str) -> list[str]:
        """Return the names right below `path`, sorted: of objects, and of what has others below it."""
        with as_os_errors(self._redacted):
            self._system.invalidate_cache()
            try:
                found = self._system.ls(self._key(path), detail=False)
            except FileNotFoundError:
                return []
        return sorted({str(one).rstrip("/").rpartition("/")[2] for one in found} - {""})

    def below(self, path: str) -> list[str]:
        """Return the paths of all objects below `path`, sorted."""
        with as_os_errors(self._redacted):
            self._system.invalidate_cache()
            try:
                found = self._system.find(self._key(path))
            except FileNotFoundError:
                return []
        return sorted(str(one)[len(self._root) + 1 :] for one in found)

    def size(self, path: str) -> int | None:
        """Return the size of an object, None if there is none."""
        with as_os_errors(self._redacted):
            self._system.invalidate_cache()
            try:
                found = self._system.info(self._key(path))
            except FileNotFoundError:
                return None
        return int(found["size"]) if found["type"] == "file" else None

    def read(self, path: str) -> bytes:
        """Return the content of an object."""
        with as_os_errors(self._redacted):
            data: bytes = self._system.cat_file(self._key(path))
        return data

    def put(self, path: str, data: bytes) -> None:
        """Make an object, or replace it."""
        with as_os_errors(self._redacted):
            self._system.pipe_file(self._key(path), data)

    def upload(self, path: str, file: Any) -> None:
        """Make an object of what a file holds; it is there when this returns."""
        with as_os_errors(self._redacted), self._system.open(self._key(path), "wb") as target:
            shutil.copyfileobj(file, target, 1024 * 1024)

    def copy(self, path: str, to: str) -> None:
        """Let the store copy an object.

        Raises:
            FileNotFoundError: There is none.
        """
        with as_os_errors(self._redacted):
            self._system.cp_file(self._key(path), self._key(to))

    def delete(self, path: str) -> None:
        """Delete an object; there may be none."""
        with as_os_errors(self._redacted), suppress(FileNotFoundError):
            self._system.rm_file(self._key(path))

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


class ObjectStage:
    """The stage of a task among the objects of a sink: what `Stage` is in a file system."""

    def __init__(self, objects: Objects, names: Sequence[str]) -> None:
        self.path = objects.location.joinpath(*names)
        self.objects = objects
        self._below = "/".join(names)

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
        return self.objects.names(self._below)

    def look(self, name: str) -> os.stat_result | None:
        """Return what has that name; None if nothing has."""
        return looked_at(self.objects, f"{self._below}/{name}")

    def created(self, name: str) -> ObjectFile:
        """Return a file for a new object; nothing is there before it is stored."""
        return ObjectFile(self.objects, f"{self._below}/{name}")

    def publish(self, name: str, target: Objects, final: str) -> None:
        """Copy an object to its final name, and remove the staged one."""
        target.copy(f"{self._below}/{name}", final)
        self.drop(name)

    def drop(self, name: str) -> None:
        """Remove the staged one of two: while it exists, a second commit would publish it again.

        Raises:
            OSError: It may be there still.
        """
        self.objects.delete(f"{self._below}/{name}")

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        return self.objects.read(f"{self._below}/{name}")

    def put(self, name: str, data: bytes) -> None:
        """Make an object, or replace it."""
        self.objects.put(f"{self._below}/{name}", data)

    def remove(self, name: str) -> None:
        """Remove an unneeded object. A failure costs space, not correctness, so it is only logged."""
        try:
            self.drop(name)
        except OSError as error:
            _log.warning("could not remove %s (%s); it is not needed any more", self.path / name, error)

    def close(self) -> None:
        """Nothing is open."""

    def close_and_tidy(self, *, levels: int) -> None:
        """Nothing is open, and what is empty is not there."""


class ObjectFile:
    """A file that is written here and stored as a whole. Used by one thread at a time."""

    def __init__(self, objects: Objects, path: str) -> None:
        self._objects = objects
        self._path = path
        self._file = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - `close` closes it

    def write(self, data: bytes) -> int:
        """Add `data`."""
        return self._file.write(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def store(self) -> int:
        """Upload it, and return its size there; may be repeated if it has failed."""
        self._file.seek(0)
        self._objects.upload(self._path, self._file)
        self._file.seek(0, os.SEEK_END)
        return self._objects.size(self._path) or 0

    def close(self) -> None:
        """Let go of what is here."""
        self._file.close()


class ObjectLedger:
    """The ledger of a writer as an object, which each state replaces; see `Ledger`.

    Args:
        published: What older ledgers say, joined.

    Raises:
        OSError: It can't be written.
    """

    def __init__(self, stage: ObjectStage, name: str, published: Published) -> None:
        self._stage = stage
        self._name = name
        self._number = 0
        try:
            newest = newest_in(stage.read(name), str(stage.path / name))
        except FileNotFoundError:
            newest = None
        if newest is not None:
            # Of this very epoch, which begins a second time.
            self._number, found = newest
            published = published.joined(found)
        self._put(published)

    def write(self, published: Published) -> None:
        """Make `published` durable; may have happened if it raises OSError."""
        if self._stage.look(self._name) is None:
            # A newer epoch has removed it, which the look at the others will tell: it must not come back, or
            # the newer one would find output there that has never been published.
            self.published = published
        else:
            self._put(published)

    def _put(self, published: Published) -> None:
        self._number += 1
        self._stage.put(self._name, line_of(self._number, published, str(self._stage.path / self._name)))
        self.published = published

    def remove(self) -> None:
        """Remove it: this writer owns nothing here any more."""
        self._stage.remove(self._name)

    def close(self) -> None:
        """Nothing is open."""


def object_ledgers(stage: ObjectStage) -> list[Entry]:
    """Return the ledgers of all epochs in the stage of a task, the oldest first; see `ledgers`."""
    return entries_of(stage.names(), stage.read, str(stage.path))


def looked_at(objects: Objects, path: str) -> os.stat_result | None:
    """Return what has that path, None if nothing has. Objects of one size pass for the same."""
    size = objects.size(path)
    return None if size is None else os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, size, 0, 0, 0))


def check_objects(url: str) -> None:
    """Find out if objects can be made, copied, listed and deleted below `url`.

    Raises:
        ConnectorError: They can't; says why.
    """
    objects = Objects(url)
    name = f"check-{secrets.token_hex(8)}"
    probe, copy = f"{STAGE_DIRECTORY}/{name}/probe.staged", f"{STAGE_DIRECTORY}/{name}/copy.staged"
    try:
        try:
            objects.put(probe, b"probe")
            objects.copy(probe, copy)
            found = objects.names(f"{STAGE_DIRECTORY}/{name}")
        finally:
            for one in (probe, copy):
                objects.delete(one)
    except OSError as error:
        raise failed("write staged objects into", objects.location, error) from error
    if found != ["copy.staged", "probe.staged"]:
        raise ConnectorError(
            f"directory {objects.location}: of two new objects the store lists {found}; a sink needs a store "
            f"that lists at once what it holds"
        )


def object_url(url: str, what: str) -> str:
    """Return `url` if it is of a store that objects can be published in.

    Raises:
        ConnectorError: It is of another.
    """
    protocol = url.partition("://")[0].lower()
    if protocol not in _PROTOCOLS or not url.partition("://")[2].strip("/"):
        raise ConnectorError(
            f"directory of the {what} sink {shown_url(url)!r}: expected a path that the driver and all "
            f"workers share, or an object store in which a copy appears as a whole: "
            f"{', '.join(f'{one}://' for one in _PROTOCOLS)}; mount the other one, or copy to it"
        )
    return url.rstrip("/")
