"""The files of a source: which match a pattern, and their bytes, wherever they are and however packed."""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from crosscut.connectors.files.local_matches import local_matches
from crosscut.connectors.files.local_paths import is_remote, local_path
from crosscut.connectors.files.packed_file import XzFile
from crosscut.connectors.files.zstd import ZstdFile
from crosscut.contracts.connectors import Source, Split
from crosscut.errors import ConnectorError
from crosscut.foundation.type_variables import Record
from crosscut.foundation.urls import Redaction, shown_url

P = ParamSpec("P")
R = TypeVar("R")

_UNPACK: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": XzFile,
    ".zst": ZstdFile,
}
_NOT_READ = (".zip", ".7z", ".lz4", ".snappy")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that was found.

    Attributes:
        name: As it was matched; see `LocalMatch`.
        path: What it is opened by: an absolute path, or a key of a remote file system.
    """

    name: str
    path: str
    size_bytes: int

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed: then reading can't begin in the middle of it."""
        return os.path.splitext(self.path)[1] in _UNPACK


def input_pattern(pattern: object, what: str) -> str:
    """Return `pattern` as `InputFiles` takes it: a path, or a URL of a file system that fsspec knows.

    Raises:
        ConnectorError: It is neither, or a place that only one process can see.
    """
    if not is_remote(pattern):
        return local_path(pattern, what)
    url = str(pattern)
    if url.startswith("memory:"):
        raise ConnectorError(
            f"{what} {shown_url(url)!r}: each worker process has a memory file system of its own; expected "
            f"files that all of them can read"
        )
    return url


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files that match a pattern.

    Attributes:
        pattern: A path or URL with `*`, `?`, `[...]`, `**`.
        directory: Where a relative path starts.
    """

    pattern: str
    directory: str

    def __repr__(self) -> str:
        return f"InputFiles({self.describe()!r})"

    def found(self, *, may_be_none: bool = False) -> Sequence[InputFile]:
        """Return all files, each once, by name; hidden ones are not looked at.

        Raises:
            ConnectorError: There are none, or they can't be looked at.
        """
        found = list(self._remote() if is_remote(self.pattern) else self._local(may_vanish=may_be_none))
        if not found and not may_be_none:
            raise ConnectorError(
                f"no file matches {shown_url(self.pattern)!r}, looked for in {self._root()}: expected at "
                f"least one regular file; use ** for files in subdirectories",
                pattern=shown_url(self.pattern),
            )
        for one in found:
            if os.path.splitext(one.path)[1] in _NOT_READ:
                raise ConnectorError(
                    f"{one.path} is packed in a way that can't be read: expected plain files, or *.gz, "
                    f"*.bz2, *.xz or *.zst",
                    path=one.path,
                )
        return found

    def opened(self, path: str) -> InputStream:
        """Open a file that was found.

        Raises:
            ConnectorError: It can't be opened.
        """
        raw = self.raw(path)
        try:
            return InputStream(raw, path, is_slow=is_remote(self.pattern))
        except Exception as error:
            raw.close()
            raise self._unreadable(path, error) from error

    def raw(self, path: str) -> Any:
        """Open a file that was found, as it is stored; it can be read and searched.

        Raises:
            ConnectorError: It can't be opened.
        """
        try:
            if is_remote(self.pattern):
                return self._system()[0].open(path, "rb")
            return open(path, "rb", buffering=0)
        except ConnectorError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unreadable(path, error) from None

    def describe(self) -> str:
        """Return the pattern, absolute, without secrets."""
        if is_remote(self.pattern):
            return shown_url(self.pattern)
        return os.path.join(self.directory, self.pattern)

    def _system(self) -> tuple[Any, str]:
        # Here and not at the top: local files need no fsspec.
        from fsspec.core import url_to_fs

        try:
            system, pattern = url_to_fs(self.pattern)
        except Exception as error:  # noqa: BLE001 - whatever its package raises, with the URL in it perhaps
            raise self._unreadable(self.pattern, error) from None
        return system, pattern

    def _remote(self) -> Iterator[InputFile]:
        system, pattern = self._system()
        try:
            # Who watches asks again, and a listing that was kept shows nothing new.
            system.invalidate_cache()
            found = system.glob(pattern, detail=True)
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unreadable(self.pattern, error) from None
        for key in sorted(found):
            parts = key[len(pattern.split("*")[0].rpartition("/")[0]) :].split("/")
            if found[key]["type"] == "file" and not any(part.startswith(".") for part in parts):
                yield InputFile(key, key, int(found[key]["size"]))

    def _local(self, *, may_vanish: bool) -> Iterator[InputFile]:
        try:
            found = local_matches(self.pattern, self.directory, may_vanish=may_vanish)
        except OSError as error:
            raise unreadable(error.filename, error) from error
        for one in found:
            yield InputFile(one.name, one.path, one.size_bytes)

    def _root(self) -> str:
        """Return the directory that the first wildcard, or the file, is looked for in."""
        if is_remote(self.pattern):
            return "its file system"
        root = os.path.dirname(os.path.join(self.directory, self.pattern))
        while glob.has_magic(root):
            root = os.path.dirname(root)
        return root if os.path.isdir(root) else f"{root}, which is not a directory"

    def _unreadable(self, path: str, error: Exception) -> ConnectorError:
        if not is_remote(self.pattern):
            return unreadable(path, error)
        hidden = Redaction(self.pattern)
        advice = ""
        if isinstance(error, ImportError):
            is_s3 = path.startswith(("s3:", "s3a:"))
            ours = "it with pip install 'crosscut[s3]', on the workers too"
            advice = f"; install {ours if is_s3 else 'the fsspec package for it'}"
        return ConnectorError(
            f"can't read {hidden(path)}: {type(error).__name__}: {hidden(str(error))}{advice}",
            path=hidden(path),
        )


class FileSource(Source[Record]):
    """A source of files: each is one split or several."""

    # In all kinds of it, too: the repr of a dataclass would show the credentials of a URL.
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()!r})"

    @property
    @abstractmethod
    def files(self) -> InputFiles:
        """Where they are."""

    @abstractmethod
    def parts(self, one: InputFile) -> Iterator[Split]:
        """Yield the splits of a file, in order."""

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Find the files, and their splits."""
        return [split for one in self.files.found() for split in self.parts(one)]

    def describe(self) -> str:
        """Return the pattern, absolute, without secrets."""
        return self.files.describe()


class InputStream:
    """The bytes of one file, unpacked; read forward by one thread.

    Args:
        raw: The file as it is stored.
        is_slow: It is read in a thread of its own, one block ahead, since the reader may not wait.
    """

    def __init__(self, raw: Any, path: str, *, is_slow: bool) -> None:
        unpack = _UNPACK.get(os.path.splitext(path)[1])
        self._raw = raw
        self._path = path
        self._file = raw if unpack is None else unpack(raw)
        self._is_packed = unpack is not None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="crosscut-read") if is_slow else None
        self._next: Future[bytes] | None = None
        self._offset = 0
        self._has_ended = False

    def size(self) -> int | None:
        """Return how many bytes there are now; None if only who has read all of them knows.

        Raises:
            OSError: It can't be found out.
        """
        if self._is_packed:
            return None
        if self._thread is not None:
            return int(self._raw.size)
        return os.fstat(self._raw.fileno()).st_size

    def seek(self, offset: int) -> None:
        """Go to byte `offset`; in a packed file it takes as long as reading up to there."""
        self._offset = offset
        if self._thread is None:
            self._guarded(self._go_to, offset)

    def read(self, size: int) -> bytes | None:
        """Return at most `size` bytes, none at the end; None: not there yet, ask again.

        Raises:
            ConnectorError: They can't be read.
        """
        if self._thread is None:
            data: bytes = self._guarded(self._file.read, size)
            return data
        if self._has_ended:
            return b""
        if self._next is None:
            self._next = self._thread.submit(self._read_at, self._offset, size)
        if not self._next.done():
            return None
        future, self._next = self._next, None
        data = future.result()
        self._offset += len(data)
        self._has_ended = not data
        if data:
            self._next = self._thread.submit(self._read_at, self._offset, size)
        return data

    def close(self) -> None:
        """Close it; a read that is under way comes to its end alone."""
        if self._thread is None:
            self._close()
        else:
            self._thread.submit(self._close)
            self._thread.shutdown(wait=False)

    def _close(self) -> None:
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):
            self._raw.close()

    def _go_to(self, offset: int) -> None:
        self._file.seek(offset)
        # What unpacks goes no further than to the end, and says nothing.
        if (end := self._file.tell()) < offset:
            raise EOFError(
                f"its content has {end} bytes, expected at least {offset}: it was cut or replaced while the "
                f"job was reading it"
            )

    def _read_at(self, offset: int, size: int) -> bytes:
        def read() -> bytes:
            if self._file.tell() != offset:
                self._go_to(offset)
            data: bytes = self._file.read(size)
            return data

        return self._guarded(read)

    def _guarded(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        try:
            return call(*arguments, **named)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise unreadable(self._path, error) from error


def unreadable(path: str, error: Exception) -> ConnectorError:
    """Return what to raise for a file that can't be read."""
    why = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
    return ConnectorError(
        f"can't read {path}: {why}; every worker must be able to read it under this path", path=path
    )
