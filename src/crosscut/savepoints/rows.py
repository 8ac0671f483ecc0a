"""The files of a savepoint: Parquet, rows of text."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from crosscut.errors import StoreError
from crosscut.savepoints.folder import Folder
from crosscut.store.blocks import in_blocks
from crosscut.store.files import failed

STATE_COLUMNS = ("key_group", "operator", "state", "key", "name", "value")
IN_FLIGHT_COLUMNS = (
    "input", "source", "source_index", "target", "target_index", "by_sender", "batch",
    "key", "is_key", "timestamp", "record",
)  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class RowFile:
    """One Parquet file. `path` is relative to the savepoint."""

    path: str
    rows: int
    size_bytes: int
    sha256: str


def write_rows(folder: Folder, path: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> RowFile:
    """Write one file, durably, `_GROUP_ROWS` rows at a time.

    Raises:
        StoreError: It could not be written; nothing is left of it.
    """
    arrow, parquet = pyarrow("pyarrow"), pyarrow("pyarrow.parquet")
    schema = arrow.schema([(name, arrow.type_for_alias(_TYPES.get(name, "string"))) for name in columns])
    digest = sha256()
    size_bytes = row_count = 0

    def pieces() -> Iterator[bytes]:
        nonlocal size_bytes, row_count
        made = _Pieces()
        with parquet.ParquetWriter(made, schema) as writer:
            for group in _groups(rows):
                writer.write_table(_table(arrow, schema, columns, group))
                row_count += len(group)
                yield made.taken()
        yield made.taken()

    def measured() -> Iterator[bytes]:
        nonlocal size_bytes
        for piece in in_blocks(pieces()):
            digest.update(piece)
            size_bytes += len(piece)
            yield piece

    try:
        folder.write_new(path, measured())
    except OSError as error:
        raise failed(f"after {size_bytes} bytes, can't write", folder, path, error) from error
    return RowFile(path, row_count, size_bytes, digest.hexdigest())


def measured(folder: Folder, path: str) -> tuple[int, str]:
    """Return size and SHA-256 of a file as it is now.

    Raises:
        StoreError: It is missing, or can't be read.
    """
    data = content_of(folder, path)
    return len(data), sha256(data).hexdigest()


def content_of(folder: Folder, path: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        StoreError: It is missing, or can't be read; the error says so.
    """
    try:
        return folder.read(path)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing in {folder.root}", path=path) from error
    except OSError as error:
        raise failed("can't read", folder, path, error) from error


def decoded_rows(data: bytes, columns: Sequence[str], where: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file with these bytes, in order, as dictionaries of these columns.

    Raises:
        StoreError: pyarrow is not installed, or the file is no Parquet, or has no such columns.
    """
    arrow, parquet = pyarrow("pyarrow"), pyarrow("pyarrow.parquet")
    try:
        with parquet.ParquetFile(arrow.BufferReader(data)) as file:
            if missing := sorted(set(columns) - set(file.schema_arrow.names)):
                raise StoreError(f"{where} has no column {', '.join(missing)}")
            for batch in file.iter_batches(columns=list(columns)):
                yield from batch.to_pylist()
    except (OSError, arrow.ArrowException) as error:
        raise StoreError(f"{where} can't be read: {error}") from error


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


class _Pieces(io.RawIOBase):
    """A file that is written, and taken away piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        """Return what was written since this was last called."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def _groups(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Yield rows in groups; a table without rows has one group."""
    group: list[Sequence[Any]] = []
    is_empty = True
    for row in rows:
        group.append(row)
        if len(group) == _GROUP_ROWS:
            yield group
            group, is_empty = [], False
    if group or is_empty:
        yield group


def _table(arrow: Any, schema: Any, columns: Sequence[str], rows: list[Sequence[Any]]) -> Any:
    arrays = [
        arrow.array([row[position] for row in rows], schema.field(name).type)
        for position, name in enumerate(columns)
    ]
    return arrow.Table.from_arrays(arrays, schema=schema)
