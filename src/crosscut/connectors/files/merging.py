"""Small committed files made into large ones, while jobs write and readers read.

A merge has a directory `.crosscut/merges/<name>`, a plan beside it, and goes on from any line where it died:

1. The content of the files is written to `merged` there, and made durable. Readers may take files meanwhile.
2. The plan, which names the files and the final name, is made durable.
3. Each file is renamed into the directory. One that is gone has been taken by a reader: the others go back.
4. `merged` gets its final name. *This rename is the merge.* Then the old files and the plan are deleted.

Between 3 and 4, some renames long, who lists the directory finds the records of these files not at all;
no reader ever finds one twice. A reader such as crosscut's own (`merges_done`) waits for that moment to pass.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

from crosscut.connectors.files.committed_output import visible_files
from crosscut.connectors.files.local_paths import is_remote, local_path
from crosscut.connectors.files.merged_content import Contents, contents_of
from crosscut.connectors.files.partitions import is_partition
from crosscut.connectors.files.stage import Stage, failed, opened_below
from crosscut.connectors.files.staged_names import STAGE_DIRECTORY, committed_file, merged_name
from crosscut.errors import ConnectorError
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options

MERGES = "merges"
TARGET_BYTES = 128 * 1024 * 1024

_MERGES = (STAGE_DIRECTORY, MERGES)
_MERGED = "merged"
_DRAFT = "plan"
_PLAN = ".json"
_AT_WORK, _MOVING = "at-work.lock", "moving.lock"
_WAIT_S = 10.0
_LOOK_S = 0.01
_ATTEMPTS = 64


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A committed file, small or large.

    Attributes:
        path: Below the sink's directory.
        first: The oldest checkpoint that it has output of.
        last: The newest one.
    """

    path: str
    sink_uid: str
    suffix: str
    first: CheckpointId
    last: CheckpointId
    index: int
    size_bytes: int

    @property
    def group(self) -> tuple[str, str, str]:
        """What files that are merged have in common: directory, sink and format."""
        return os.path.dirname(self.path), self.sink_uid, self.suffix


@dataclass(frozen=True, slots=True)
class Merged:
    """One file in the place of others.

    Attributes:
        path: Below the sink's directory.
        replaced: The paths of the others.
    """

    path: str
    replaced: tuple[str, ...]
    size_bytes: int


@checks_options("files.compact", asks_a_service=True)
def compact(
    directory: str | os.PathLike[str],
    *,
    target_bytes: int = TARGET_BYTES,
    older_than: Duration = "10m",
    csv_header: bool | None = None,
) -> list[Merged]:
    """Merge the small files that file sinks have committed into `directory`, while jobs write there.

    For JSON lines, text, CSV and Parquet, packed or not, in a local or shared directory. Files of one sink
    and of one `partition_by` directory are merged, in the order of their checkpoints. What a run that died
    has left half-done is finished first.

    Args:
        directory: Of the sink.
        target_bytes: Files of less than half of it are merged, into files of about that at most.
        older_than: How long a file has been there: readers that have just listed the directory shall find it.
            Who follows the output (`spark.readStream.format("crosscut")`) must not be further behind. Where
            `crosscut.files.watch` reads, nothing may be merged: it would read a merged file as a new one.
        csv_header: Whether each CSV file begins with the names of its columns. Without it CSV is left alone.

    Returns:
        What has been merged.

    Raises:
        ConnectorError: It is no directory of files, another run is at work there, or a file can't be read or
            written; then that merge is undone, or finished by the next run.

    Examples:
        >>> import crosscut as cc
        >>> merged = cc.files.compact("out")  # doctest: +SKIP
    """
    if is_remote(directory):
        raise ConnectorError(f"{directory!s:.100}: files are merged in a local or shared directory only")
    root = Path(os.path.abspath(local_path(directory, "directory to compact")))
    if not isinstance(target_bytes, int) or target_bytes < 2:
        raise ConnectorError(f"target_bytes={target_bytes!r}: expected a whole number of bytes")
    before = time.time() - duration_ms(older_than, "older_than") / 1_000
    if not root.is_dir():
        raise ConnectorError(f"{root} is no directory")
    try:
        with closing(Stage.made(root, _MERGES)) as stage, _locked(stage, _AT_WORK) as is_alone:
            if not is_alone:
                raise ConnectorError(f"{root}: another run merges files there; wait for it")
            _finish_others(root, stage)
            merges = (
                _Merge.of(root, stage, bin_of, contents)
                for group in groups(list(_files(root, before)))
                if (small := [one.path for one in group if not is_large(one, target_bytes)])
                for contents in contents_of(root, small, csv_header)
                for bin_of in bins(
                    [one for one in group if one.path in contents.paths or is_large(one, target_bytes)],
                    target_bytes,
                )
            )
            return [made for merge in merges if merge is not None and (made := merge.finish()) is not None]
    except OSError as error:
        raise failed("merge files in", root, error) from error


def groups(files: Sequence[OutputFile]) -> list[list[OutputFile]]:
    """Return the files that may be merged with each other, in the order of their checkpoints."""
    found: dict[tuple[str, str, str], list[OutputFile]] = {}
    for one in sorted(files, key=lambda one: (one.first, one.last, one.index, one.path)):
        found.setdefault(one.group, []).append(one)
    return [group for _, group in sorted(found.items())]


def is_large(one: OutputFile, target_bytes: int) -> bool:
    """Tell whether `one` stays as it is."""
    return one.size_bytes * 2 >= target_bytes


def bins(files: Sequence[OutputFile], target_bytes: int) -> list[list[OutputFile]]:
    """Return which of the files become one: small ones, at least two, next to each other.

    Never from both sides of a large one: who reads in the order of checkpoints would read that too late.
    """
    found: list[list[OutputFile]] = [[]]
    size_bytes = 0
    for one in files:
        stays = is_large(one, target_bytes)
        if stays or size_bytes + one.size_bytes > target_bytes:
            found.append([])
            size_bytes = 0
        if not stays:
            found[-1].append(one)
            size_bytes += one.size_bytes
    return [one for one in found if len(one) > 1]


@contextmanager
def merges_done(directory: str, timeout_s: float = _WAIT_S) -> Iterator[None]:
    """Keep merges from moving files in a directory, so that a listing finds each record once.

    Raises:
        ConnectorError: A merge has died while it moved files, or takes longer than `timeout_s`. At the end:
            the first merge of all has begun meanwhile.
        OSError: The directory can't be read.
    """
    root = Path(directory)
    if not _has_moved(root):
        # Nothing has ever been moved, so there is nothing to hold; readers may not make files here.
        yield
        if _has_moved(root):
            raise ConnectorError(
                f"{directory}: files were merged there for the first time while it was listed, so a record "
                f"may have been found twice, or not at all; read it again"
            )
        return
    deadline = time.monotonic() + timeout_s
    while True:
        with _merges_of(root) as merges:
            if merges is None:
                yield
                return
            with _locked(merges, _MOVING, shared=True) as is_still:
                if is_still and not _is_half_moved(root, merges):
                    yield
                    return
        if time.monotonic() >= deadline:
            raise ConnectorError(
                f"{directory}: files are being merged, and that was interrupted or takes longer than "
                f"{timeout_s:g} s; run `crosscut files compact` there, which finishes it"
            )
        time.sleep(_LOOK_S)


@contextmanager
def _merges_of(root: Path) -> Iterator[Stage | None]:
    """Open the directory of merges; None if there is none."""
    merges = Stage.found(root, _MERGES)
    try:
        yield merges
    finally:
        if merges is not None:
            merges.close()


def _has_moved(root: Path) -> bool:
    with _merges_of(root) as merges:
        return merges is not None and merges.look(_MOVING) is not None


def _finish_others(root: Path, merges: Stage) -> None:
    """Finish what has a plan, and remove what has none."""
    for name in _plans(merges):
        _Merge.planned(root, merges, name).finish()
    for name in merges.names():
        found = merges.look(name)
        if found is not None and stat.S_ISDIR(found.st_mode):
            _Merge(root, merges, name, "", []).remove_directory()


def _is_half_moved(root: Path, merges: Stage) -> bool:
    return any(_Merge.planned(root, merges, name).has_claimed() for name in _plans(merges))


def _files(root: Path, before: float) -> Iterator[OutputFile]:
    for entry in visible_files(root):
        found = entry.stat(follow_symlinks=False)
        name = committed_file(entry.name)
        # A file is as old as its last write or its rename: after an outage it is committed long after that.
        if name is None or not stat.S_ISREG(found.st_mode) or max(found.st_mtime, found.st_ctime) > before:
            continue
        path = os.path.relpath(entry.path, root)
        yield OutputFile(
            path, name.sink_uid, name.suffix, name.first, name.checkpoint_id, name.index, found.st_size
        )


def _plans(merges: Stage) -> list[str]:
    return [name.removesuffix(_PLAN) for name in merges.names() if name.endswith(_PLAN)]


class _Merge:
    """One merge, whatever has been done of it. Its files are reached through open directories and no link.

    Args:
        merges: The directory of all merges.
        name: Of its directory, and plan.
        final: Path of the merged file, below the sink's directory.
        files: Paths of the old ones, and their sizes, in order.
    """

    def __init__(
        self, root: Path, merges: Stage, name: str, final: str, files: Sequence[tuple[str, int]]
    ) -> None:
        self._root = root
        self._merges = merges
        self._name = name
        self._plan = f"{name}{_PLAN}"
        self._final = final
        self._files = list(files)

    @classmethod
    def of(cls, root: Path, merges: Stage, small: Sequence[OutputFile], contents: Contents) -> _Merge | None:
        """Write the merged file and the plan, both durable; None if a reader has taken one of the files."""
        name, (folder, uid, suffix) = secrets.token_hex(8), small[0].group
        final = os.path.join(
            folder, merged_name(min(s.first for s in small), max(s.last for s in small), uid, name, suffix)
        )
        merge = cls(root, merges, name, final, [(one.path, one.size_bytes) for one in small])
        directory = Stage.made(root, (*_MERGES, name))
        try:
            with BufferedWriter(directory.created(_MERGED)) as file:
                contents.write([one.path for one in small], file)
                file.flush()
                directory.store(file)
            with BufferedWriter(directory.created(_DRAFT)) as file:
                file.write(json.dumps({"final": final, "files": merge._files}).encode())
                file.flush()
                directory.store(file)
            directory.publish(_DRAFT, merges.descriptor, merge._plan)
        except FileNotFoundError:
            merge.remove_directory()
            return None
        except (OSError, ConnectorError):
            merge.remove_directory()
            raise
        finally:
            directory.close()
        merges.sync()
        return merge

    @classmethod
    def planned(cls, root: Path, merges: Stage, name: str) -> _Merge:
        """Return a merge that has a plan.

        Raises:
            ConnectorError: It is damaged.
        """
        try:
            with open(merges.opened(f"{name}{_PLAN}", os.O_RDONLY), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return cls(root, merges, name, "", [])
        try:
            match json.loads(data):
                case {"final": str(final), "files": [*files]}:
                    listed = [(str(path), int(size)) for path, size in files]
                    if all(map(_is_inside, (final, *(path for path, _ in listed)))):
                        return cls(root, merges, name, final, listed)
                case _:
                    pass
        except (ValueError, TypeError, RecursionError):
            pass
        path = merges.path / f"{name}{_PLAN}"
        raise ConnectorError(
            f"{path} is damaged: it says which files a merge has moved away; they are in the directory "
            f"beside it, by number. Restore it from a backup",
            path=str(path),
        )

    def has_claimed(self) -> bool:
        """Return whether files have been moved out of sight."""
        with self._opened() as directory:
            return directory is not None and any(self._claimed(directory))

    def finish(self) -> Merged | None:
        """Do what is left to do; return what has been merged, None if a reader has taken one of the files."""
        with self._opened() as directory:
            with _locked(self._merges, _MOVING, wait=True):
                is_merged = (
                    directory is None or directory.look(_MERGED) is None or self._is_moved_in(directory)
                )
            if directory is not None:
                for name in self._claimed(directory):
                    directory.drop(name)
                directory.sync()
        self._merges.drop(self._plan)
        self._merges.sync()
        self.remove_directory()
        replaced = tuple(path for path, _ in self._files)
        return Merged(self._final, replaced, sum(size for _, size in self._files)) if is_merged else None

    @contextmanager
    def _opened(self) -> Iterator[Stage | None]:
        """Open its directory, if it has one."""
        directory = Stage.found(self._root, (*_MERGES, self._name))
        try:
            yield directory
        finally:
            if directory is not None:
                directory.close()

    def _claimed(self, directory: Stage) -> Iterator[str]:
        """Yield the names of what has been moved out of sight."""
        for number in range(len(self._files)):
            if directory.look(str(number)) is not None:
                yield str(number)

    def _is_moved_in(self, directory: Stage) -> bool:
        """Move the old files away and the merged one in, or all back; return which it was."""
        if all(self._claim(directory, number) for number in range(len(self._files))):
            self._rename(directory, _MERGED, self._final)
            return True
        for name in self._claimed(directory):
            self._rename(directory, name, self._files[int(name)][0])
        directory.drop(_MERGED)
        return False

    def _claim(self, directory: Stage, number: int) -> bool:
        path, size_bytes = self._files[number]
        name = str(number)
        if directory.look(name) is None:
            try:
                with _folder_of(self._root, path) as folder:
                    base = os.path.basename(path)
                    os.rename(base, name, src_dir_fd=folder, dst_dir_fd=directory.descriptor)
            except FileNotFoundError:
                return False
        found = directory.look(name)
        return found is not None and stat.S_ISREG(found.st_mode) and found.st_size == size_bytes

    def _rename(self, directory: Stage, name: str, path: str) -> None:
        for _ in range(_ATTEMPTS):
            # Readers that take files away may remove directories, too.
            with suppress(FileNotFoundError), _folder_of(self._root, path, create=True) as folder:
                directory.publish(name, folder, os.path.basename(path))
                os.fsync(folder)
                return
        raise OSError(errno.EBUSY, "directory was removed repeatedly", os.path.dirname(path))

    def remove_directory(self) -> None:
        """Remove what is no longer needed."""
        with self._opened() as directory:
            if directory is None:
                return
            for name in directory.names():
                directory.drop(name)
        with suppress(FileNotFoundError):
            os.rmdir(self._name, dir_fd=self._merges.descriptor)


def _is_inside(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return committed_file(name) is not None and (not folder or is_partition(folder))


@contextmanager
def _folder_of(root: Path, path: str, *, create: bool = False) -> Iterator[int]:
    """Open the directory of a file below the sink's directory."""
    folder = os.path.dirname(path)
    descriptor = opened_below(root, folder.split("/") if folder else (), create=create)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked(merges: Stage, name: str, *, shared: bool = False, wait: bool = False) -> Iterator[bool]:
    """Hold a lock that goes with the process; yield whether it could be had."""
    flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
    try:
        descriptor = merges.opened(name, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        # Nothing has ever been moved.
        yield True
        return
    try:
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
