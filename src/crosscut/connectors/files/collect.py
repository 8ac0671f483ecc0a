"""A sink for tests and notebooks: the committed records as Python objects on the driver."""

from __future__ import annotations

import os
import pickle  # noqa: S403 - see Collect.records
import reprlib
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crosscut.connectors.files.committed_output import committed_output
from crosscut.connectors.files.file_encoders import Plain
from crosscut.connectors.files.local_paths import local_path
from crosscut.connectors.files.stage import check_directory
from crosscut.connectors.files.staged_files import StagedFiles
from crosscut.contracts.connectors import CommittedOutput, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.data_pickles import load_data_from
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.unpickling import RefusedPickleError

_SUFFIX = "pickle"


@checks_options("collect")
def collect(directory: str | os.PathLike[str] | None = None) -> Collect:
    """Return a sink that keeps committed records until you ask for them.

    For tests: everything is read into memory, and all workers must share the driver's file system and
    user. Two-phase commit as for any staged sink: `records()` never shows what could still be undone.

    Args:
        directory: Where to keep them; not removed in the end. Made if missing; must be owned by this
            user and closed to others (mode 0700), because its files are unpickled. Default: a private
            temporary directory that goes with the returned object, or with the process.

    Raises:
        ConnectorError: `directory` is not a path, can't be made, or is open to others.

    Examples:
        >>> import crosscut as cc
        >>> rows = cc.collect()
        >>> rows.records()
        []
    """
    return Collect(directory)


@dataclass(frozen=True, slots=True)
class _CollectTarget(Sink):
    """What workers get of a `Collect`: the path, and no duty to clean up."""

    directory: str

    def writer(self, context: SinkContext) -> SinkWriter:
        return StagedFiles(self.directory, _SUFFIX, partial(Plain, _encoded), context)


class Collect(Sink):
    """See `collect`. Belongs to the process that made it."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._is_temporary = directory is None
        if directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="crosscut-collect-"))
            weakref.finalize(self, _remove_own, str(self._directory), os.getpid())
            return
        self._directory = Path(os.path.abspath(local_path(directory, "directory of collect")))
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConnectorError(
                f"collect could not make {self._directory}: {error.strerror}; choose another directory",
                directory=str(self._directory),
            ) from error
        self._check_private()

    def __reduce__(self) -> tuple[Callable[[str], Sink], tuple[str]]:
        return (_CollectTarget, (str(self._directory),))

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return _CollectTarget(str(self._directory)).writer(context)

    def check(self) -> None:
        """Raise ConnectorError if the directory can't be written or is open to others."""
        self._check_private()
        check_directory(str(self._directory))

    def describe(self) -> str:
        """Return the directory, absolute; "" for a temporary one, which is another one each time."""
        return "" if self._is_temporary else str(self._directory)

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what is known of all that was ever collected here."""
        return committed_output(str(self._directory), _SUFFIX)

    def records(self, *, trust: bool = False) -> list[Any]:
        """Return the committed records: by task, then by checkpoint, then as written.

        Args:
            trust: Unpickle everything, which runs code that a compromised worker may have chosen. By default
                only data is loaded: plain types, data classes and the like, rows of Spark, and the classes of
                this program; import the modules of other classes first.

        Raises:
            ConnectorError: The directory is not private any more, and nothing was unpickled; or a record is
                not only data.
        """
        self._check_private()
        load = pickle.load if trust else load_data_from  # noqa: S301 - as the user says
        records: list[Any] = []
        for path in sorted(self._directory.glob(f"part-*.{_SUFFIX}")):
            with path.open("rb") as file:
                self._check_owner(path, os.fstat(file.fileno()))
                size_bytes = os.fstat(file.fileno()).st_size
                try:
                    while file.tell() < size_bytes:
                        records += load(file)
                except RefusedPickleError as error:
                    raise ConnectorError(
                        f"{path}: {error}. records(trust=True) loads everything", path=str(path)
                    ) from error
        return records

    def clear(self) -> None:
        """Forget all records and everything staged. Not while a job writes here.

        The object can be used again afterwards.
        """
        with os.scandir(self._directory) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)

    def _check_private(self) -> None:
        found = os.stat(self._directory)
        self._check_owner(self._directory, found)
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise ConnectorError(
                f"{self._directory} has mode {stat.S_IMODE(found.st_mode):04o}, expected 0700: its files are "
                f"unpickled, so other users must not enter it; chmod 700 it or choose another directory",
                directory=str(self._directory),
            )

    def _check_owner(self, path: Path, found: os.stat_result) -> None:
        if found.st_uid != os.geteuid():
            raise ConnectorError(
                f"{path} belongs to user id {found.st_uid}, expected {os.geteuid()}: what others wrote is "
                f"not unpickled; choose another directory, and run workers and driver as one user",
                path=str(path),
            )


def _encoded(records: list[Any]) -> bytes:
    try:
        return pickle.dumps(records, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise ConnectorError(
            f"records {reprlib.repr(records)} can't be collected: {error}; map them to something that can be "
            f"pickled before the sink"
        ) from error


def _remove_own(directory: str, owner_pid: int) -> None:
    # A forked child inherits the finalizer but not the right to remove what its parent still reads.
    if os.getpid() == owner_pid:
        shutil.rmtree(directory, ignore_errors=True)
