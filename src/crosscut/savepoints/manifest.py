"""The directory of a savepoint: a manifest, and Parquet files of rows.

    manifest.json                 what it is of; written last: without it there is no savepoint
    state/<uid>/<task>.parquet    key_group, operator, state, key, name, value
    in-flight/<task>.parquet      records on their way: see `IN_FLIGHT_COLUMNS`

`key`, `name`, `value` and `record` are text; see `crosscut.savepoints.values`. docs/guide/savepoints.md has
the whole of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from crosscut.codec import from_json, to_json
from crosscut.errors import StoreError
from crosscut.ids import CheckpointId, Lineage
from crosscut.protocol.job.entries import Ancestor, OpenOutput
from crosscut.protocol.job.identity import FlowIdentity
from crosscut.protocol.snapshots import TaskSnapshot

VERSION = 1
MANIFEST = "manifest.json"
STATE_COLUMNS = ("key_group", "operator", "state", "key", "name", "value")
IN_FLIGHT_COLUMNS = (
    "input", "source", "source_index", "target", "target_index", "by_sender", "batch",
    "key", "is_key", "timestamp", "record",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowFile:
    """One Parquet file. `path` is relative to the savepoint."""

    path: str
    rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SavepointManifest:
    """What a savepoint is of.

    Attributes:
        version: Of this format.
        release: Of Crosscut, for people.
        flow: Its operators, by uid.
        parallelism: That it was taken at: `tasks` has so many of each vertex.
        tasks: Positions, watermarks, progress at the end of input, counters; no parts, no transactions.
        ancestors: Histories that output may be of: older ones first, last that of the job itself.
        pending: What had not been known to be committed: of a checkpoint that nobody has asked to be a
            savepoint.
        written: ISO time, for people.
    """

    version: int
    release: str
    flow: FlowIdentity
    parallelism: int
    max_parallelism: int
    tasks: tuple[TaskSnapshot, ...]
    files: tuple[RowFile, ...]
    ancestors: tuple[Ancestor, ...]
    pending: tuple[OpenOutput, ...] = ()
    written: str = ""

    @property
    def lineage(self) -> Lineage:
        """Of the job that it was taken of."""
        return self.ancestors[-1].lineage

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The checkpoint that it is a copy of."""
        return self.ancestors[-1].checkpoint_id


def is_savepoint(directory: str | os.PathLike[str]) -> bool:
    """Whether there is a manifest."""
    return (Path(directory) / MANIFEST).is_file()


def read_manifest(directory: str | os.PathLike[str]) -> SavepointManifest:
    """Return the manifest of the savepoint in `directory`.

    Raises:
        StoreError: There is none, or it is of something else.
    """
    path = Path(directory) / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise StoreError(f"{directory} is no savepoint: it has no {MANIFEST}", path=str(path)) from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} can't be read: {error}", path=str(path)) from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        found = content.get("version") if isinstance(content, dict) else None
        raise StoreError(f"{path} is of version {found!r}: expected {VERSION}", path=str(path))
    manifest: SavepointManifest = from_json(content, (SavepointManifest,), StoreError)
    return manifest


def write_manifest(directory: Path, manifest: SavepointManifest) -> None:
    """Write the manifest, durably: from here on there is a savepoint."""
    data = json.dumps(to_json(manifest), indent=1).encode()
    unfinished = directory / f"{MANIFEST}.unfinished"
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(directory / MANIFEST)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def differences(directory: str | os.PathLike[str], manifest: SavepointManifest) -> list[str]:
    """Return which files are not what the manifest says, in words."""
    found = []
    for one in manifest.files:
        path = _inside(Path(directory), one.path)
        if not path.is_file():
            found.append(f"{one.path} is missing")
        elif (now := _measured(path, one.path)).sha256 != one.sha256:
            found.append(f"{one.path} has {now.size_bytes} bytes, sha256 {now.sha256[:12]}..., not "
                         f"{one.size_bytes} bytes, sha256 {one.sha256[:12]}...")  # fmt: skip
    return found


def checked(directory: str | os.PathLike[str]) -> SavepointManifest:
    """Return the manifest, if all files are as it says.

    Raises:
        StoreError: One is not.
    """
    manifest = read_manifest(directory)
    if wrong := differences(directory, manifest):
        raise StoreError(
            f"the savepoint {directory} is not as it was written: {'; '.join(wrong[:3])}. If you have edited "
            f"it on purpose, say so: crosscut.seal_savepoint({str(directory)!r})",
            path=str(directory),
        )
    return manifest


def seal_savepoint(path: str | os.PathLike[str]) -> None:
    """Say that the files of a savepoint are what they should be, after they were edited.

    Raises:
        StoreError: It is no savepoint, or a file is missing.
    """
    manifest = read_manifest(path)
    directory = Path(path)
    for one in manifest.files:
        if not _inside(directory, one.path).is_file():
            raise StoreError(f"{one.path} is missing in {directory}; an empty table has a file, too")
    files = tuple(_measured(_inside(directory, one.path), one.path, one.rows) for one in manifest.files)
    write_manifest(directory, replace(manifest, files=files))


def rows_of(directory: str | os.PathLike[str], path: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one file, in order, as dictionaries.

    Raises:
        ConnectorError: pyarrow is not installed.
        StoreError: It can't be read, or has no such columns.
    """
    parquet = pyarrow("pyarrow.parquet")
    try:
        with parquet.ParquetFile(_inside(Path(directory), path)) as file:
            if missing := sorted(set(columns) - set(file.schema_arrow.names)):
                raise StoreError(f"{path} in {directory} has no column {', '.join(missing)}")
            for batch in file.iter_batches(columns=list(columns)):
                yield from batch.to_pylist()
    except OSError as error:
        raise StoreError(f"{path} in {directory} can't be read: {error}") from error


def write_rows(directory: Path, path: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> RowFile:
    """Write one file, durably, `_GROUP_ROWS` rows at a time."""
    arrow, parquet = pyarrow("pyarrow"), pyarrow("pyarrow.parquet")
    schema = arrow.schema([(name, arrow.type_for_alias(_TYPES.get(name, "string"))) for name in columns])
    where = _inside(directory, path)
    where.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with where.open("xb") as file:
        with parquet.ParquetWriter(file, schema) as writer:
            group: list[Sequence[Any]] = []
            for row in rows:
                group.append(row)
                if len(group) == _GROUP_ROWS:
                    writer.write_table(_table(arrow, schema, columns, group))
                    count, group = count + len(group), []
            writer.write_table(_table(arrow, schema, columns, group))
            count += len(group)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(where.parent)
    return _measured(where, path, count)


def pyarrow(module: str) -> Any:
    """Return a module of pyarrow.

    Raises:
        StoreError: It is not installed.
    """
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise StoreError(
            f"savepoints are Parquet files, and pyarrow can't be imported ({error}): install it with "
            f"pip install 'crosscut[parquet]'"
        ) from error


_GROUP_ROWS = 10_000
_TYPES = {
    "key_group": "int32",
    "input": "int32",
    "source_index": "int32",
    "target_index": "int32",
    "by_sender": "bool",
    "batch": "int64",
    "is_key": "bool",
    "timestamp": "int64",
}


def _table(arrow: Any, schema: Any, columns: Sequence[str], rows: list[Sequence[Any]]) -> Any:
    arrays = [
        arrow.array([row[position] for row in rows], schema.field(name).type)
        for position, name in enumerate(columns)
    ]
    return arrow.Table.from_arrays(arrays, schema=schema)


def _measured(path: Path, name: str, rows: int = 0) -> RowFile:
    digest = sha256()
    size = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return RowFile(name, rows, size, digest.hexdigest())


def _inside(directory: Path, path: str) -> Path:
    """Return where `path` is, if that is in the savepoint (rule S10)."""
    where = (directory / path).resolve()
    if not where.is_relative_to(directory.resolve()):
        raise StoreError(f"{path!r} leads out of the savepoint {directory}: its manifest is not ours")
    return where


def remove_unfinished(directory: Path) -> None:
    """Remove what was written of a savepoint that was never finished; best effort."""
    import shutil

    with suppress(OSError):
        if not is_savepoint(directory):
            shutil.rmtree(directory)
