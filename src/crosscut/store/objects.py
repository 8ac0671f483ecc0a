"""The checkpoint store's files as objects of a file system that fsspec knows."""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from crosscut.errors import SettingsError
from crosscut.foundation.urls import Redaction
from crosscut.store.files import Files, Put, UncertainError, checked_path
from crosscut.store.reading import read_at_once

ATOMIC_CREATE = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"))
"""Protocols whose `pipe_file(mode="create")` is one conditional request (`If-None-Match: *`,
`ifGenerationMatch=0`). fsspec's own fallback, which the others inherit, is "exists, then write": two
drivers could both win."""

PROOF_WRITERS, _PROOF_ROUNDS = 4, 6
"""A service that looks and then writes is caught by one round if two of the writers look before one has
written: they need only start closer together than one request takes."""

# fsspec's in-memory file system has that fallback too, but it lives in one process: a lock will do.
_memory_lock = threading.Lock()


@contextmanager
def as_os_errors(redacted: Redaction) -> Iterator[None]:
    """Raise whatever an fsspec file system raises as OSError; theirs have no other common base.

    Its text may hold the URL with its credentials: then the error is another one, and does not lead back.
    """
    try:
        yield
    except Exception as error:
        text = str(error)
        shown = redacted(text)
        if not isinstance(error, OSError):
            shown = f"{type(error).__name__}: {shown}"
            raise OSError(errno.EIO, shown) from (error if text in shown else None)
        if shown == text:
            raise
        kind = next(one for one in (FileExistsError, FileNotFoundError, OSError) if isinstance(error, one))
        raise kind(error.errno or errno.EIO, redacted(error.strerror or text)) from None


class ObjectFiles(Files):
    """Objects below a URL. An object is durable, and visible as a whole, when its upload returns.

    Args:
        called: What messages call it.
        is_contended: Two processes may want to create the same file at once, and only one of them may.

    Raises:
        SettingsError: The URL can't be opened, or its file system has no atomic put-if-absent, and it is
            contended.
    """

    def __init__(self, url: str, *, called: str = "checkpoint_dir", is_contended: bool = True) -> None:
        # Here and not at the top: a local store needs no fsspec.
        from fsspec.core import url_to_fs

        self._redacted = Redaction(url)
        self.root = self._redacted.url
        try:
            self._system, root = url_to_fs(url)
        except Exception as error:  # noqa: BLE001 - whatever its package raises, with the URL in it perhaps
            text = f"{type(error).__name__}: {self._redacted(str(error))}"
            raise SettingsError(
                f"{called}={self.root!r} can't be opened: {text}; install the fsspec package for it, "
                f"or use a local directory"
            ) from None
        self._prefix: str = root.rstrip("/")
        found = self._system.protocol
        protocols = frozenset((found,) if isinstance(found, str) else found)
        if is_contended and not protocols & ATOMIC_CREATE:
            raise SettingsError(
                f"checkpoint_dir={self.root!r}: file system {'/'.join(sorted(protocols))} can't create a "
                f"file only if it is absent in one step, so two drivers could both own the job; expected a "
                f"local directory or one of {', '.join(sorted(ATOMIC_CREATE))}"
            )
        self._in_memory = "memory" in protocols
        self._proven = not is_contended

    def make_directory(self, path: str) -> None:
        """Nothing to do: a prefix exists as soon as an object has it."""

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if not self._proven:
            self._prove_put_if_absent(os.path.dirname(path))
        try:
            return self._create(path, data)
        except OSError as error:
            # Even "permission denied" proves nothing: the file system may have repeated, on its own, a
            # request that was applied but whose answer was lost.
            raise UncertainError(error.errno, str(error), path) from error

    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        key = self._key(path)
        with self._as_os_errors():
            file = self._system.open(key, "wb")
        try:
            # The chunks are made outside: what user code in them raises is no error of the store.
            for chunk in chunks:
                with self._as_os_errors():
                    file.write(chunk)
            with self._as_os_errors():
                file.close()
        except BaseException:
            # Closed first, or the garbage collector would, and upload the rest after the removal.
            with suppress(OSError), self._as_os_errors():
                file.close()
            with suppress(OSError), self._as_os_errors():
                self._system.rm_file(key)
            raise

    def replace(self, path: str, data: bytes) -> None:
        with self._as_os_errors():
            self._system.pipe_file(self._key(path), data)

    def read(self, path: str) -> bytes:
        with self._as_os_errors():
            data: bytes = self._system.cat_file(self._key(path))
        return data

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]:
        return read_at_once(self._read_if_there, paths)

    def delete(self, path: str) -> None:
        with self._as_os_errors():
            self._system.rm_file(self._key(path))

    def delete_directory(self, path: str) -> None:
        """Nothing to do: a prefix is gone with its last object."""

    def walk(self, path: str) -> Iterator[str]:
        prefix = self._key(path) if path else self._prefix
        with self._as_os_errors():
            self._system.invalidate_cache()
            found = self._system.find(prefix)
        for name in found:
            yield str(name)[len(self._prefix) + 1 :]

    def settle(self, path: str) -> None:
        """Nothing to do: visible objects are durable."""

    def _as_os_errors(self) -> AbstractContextManager[None]:
        return as_os_errors(self._redacted)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{checked_path(path)}"

    def _create(self, path: str, data: bytes) -> Put:
        lock: Any = _memory_lock if self._in_memory else nullcontext()
        try:
            with lock, self._as_os_errors():
                self._system.pipe_file(self._key(path), data, mode="create")
        except FileExistsError:
            return Put.EXISTS
        return Put.CREATED

    def _prove_put_if_absent(self, directory: str) -> None:
        """Refuse a service that takes the condition and ignores it, as some S3 look-alikes do, and one that
        looks first and writes then.

        Raises:
            SettingsError: It has been caught.
            OSError: It could not be asked.
        """
        proven = unheard = 0
        while proven < _PROOF_ROUNDS:
            path = f"{directory}/probe-{secrets.token_hex(8)}"
            try:
                created = self._raced(path)
                if created == 1 and self._create(path, b"probe") is Put.CREATED:
                    created += 1
            finally:
                with suppress(OSError):
                    self.delete(path)
            if created == 0 and unheard < _PROOF_ROUNDS:
                # Its answer was lost on the way, and it was asked again by the file system, on its own: this
                # says nothing of the service.
                unheard += 1
                continue
            if created == 0:
                raise OSError(
                    errno.EIO, f"no writer of {PROOF_WRITERS} hears that it has created a file", path
                )
            if created != 1:
                raise SettingsError(
                    f"checkpoint_dir={self.root!r}: of {PROOF_WRITERS + 1} writers, {PROOF_WRITERS} of them "
                    f"at once and one after them, {created} have created one file, each asking to create it "
                    f"only if it is absent; expected 1, since two drivers could both own the job; update the "
                    f"service or the fsspec package for it, or choose another checkpoint_dir"
                )
            proven += 1
        self._proven = True

    def _raced(self, path: str) -> int:
        """Return how many of some writers that start together have created `path`."""
        gate = threading.Barrier(PROOF_WRITERS)
        puts: list[Put] = []
        errors: list[OSError] = []

        def write() -> None:
            gate.wait()
            try:
                puts.append(self._create(path, b"probe"))
            except OSError as error:
                errors.append(error)

        # Daemons: a service that hangs must not keep the process from ending.
        threads = [threading.Thread(target=write, daemon=True) for _ in range(PROOF_WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return puts.count(Put.CREATED)
