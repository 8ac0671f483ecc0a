"""The content of several committed files as that of one."""

from __future__ import annotations

import gzip
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.file_encoders import SUFFIXES, Compression, packer
from crosscut.connectors.files.lines import LINE_BYTES_MAX
from crosscut.connectors.files.parquet_limits import rows_at_once
from crosscut.connectors.files.stage import file_below
from crosscut.connectors.files.zstd import ZstdFile
from crosscut.errors import ConnectorError

_ROW_GROUP_ROWS = 131_072
_ROW_GROUP_BYTES = 256 * 1024 * 1024
_COPY_BYTES = 1024 * 1024
_PACKED = {suffix: compression for compression, suffix in SUFFIXES.items()}


class Contents(ABC):
    """Files whose contents can be put together.

    Attributes:
        paths: Theirs, below the directory.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self._root = root
        self.paths = frozenset(paths)

    @abstractmethod
    def write(self, paths: Sequence[str], file: IO[bytes]) -> None:
        """Write what some of them hold, in order, into a new file.

        Raises:
            OSError: One can't be read; it may have been taken away meanwhile.
            ConnectorError: One is not what its name says.
        """


class Lines(Contents):
    """Lines of text, JSON or CSV.

    Args:
        has_header: Each file begins with the same line, which the merged one has once.
        packed: What is packed is so again, as a whole: not every reader knows that a file may have parts.
    """

    def __init__(
        self, root: Path, paths: Sequence[str], *, has_header: bool, packed: Compression | None = None
    ) -> None:
        super().__init__(root, paths)
        self._has_header = has_header
        self._packed = packed

    def write(self, paths: Sequence[str], file: IO[bytes]) -> None:
        pack = None if self._packed is None else packer(self._packed)
        for data in self._all(paths):
            file.write(data if pack is None else pack.compress(data))
        if pack is not None:
            file.write(pack.flush())

    def _all(self, paths: Sequence[str]) -> Iterator[bytes]:
        header: bytes | None = None
        for path in paths:
            found = self._content(path)
            if self._has_header:
                first, found = _first_line(found, self._root / path)
                if header is None:
                    yield first
                elif first != header:
                    raise ConnectorError(
                        f"{self._root / path} begins with {first[:200]!r}, and others with "
                        f"{header[:200]!r}: their columns differ, or they have no header"
                    )
                header = first
            yield from found

    def _content(self, path: str) -> Iterator[bytes]:
        with BufferedReader(file_below(self._root, path)) as stored:
            source: Any = stored
            if self._packed is not None:
                source = ZstdFile(stored) if self._packed == "zstd" else gzip.GzipFile(fileobj=stored)
            try:
                while data := source.read(_COPY_BYTES):
                    yield data
            except (EOFError, zlib.error) as error:
                raise ConnectorError(
                    f"{self._root / path} can't be unpacked: {error}; restore it from a backup, or take it "
                    f"away",
                    path=path,
                ) from error


def _first_line(content: Iterator[bytes], path: Path) -> tuple[bytes, Iterator[bytes]]:
    """Return the first line, and all that comes after it."""
    read = b""
    while b"\n" not in read and (data := next(content, b"")):
        read += data
        if len(read) > LINE_BYTES_MAX:
            raise ConnectorError(
                f"{path}: the first line is longer than {LINE_BYTES_MAX} bytes, so it is not a header; "
                f"move the file away",
                path=str(path),
            )
    line, newline, rest = read.partition(b"\n")
    return line + newline, chain((rest,), content)


class Tables(Contents):
    """Parquet of one schema."""

    def __init__(self, root: Path, paths: Sequence[str], schema: Any, codec: str) -> None:
        super().__init__(root, paths)
        self._schema = schema
        self._codec = codec

    def write(self, paths: Sequence[str], file: IO[bytes]) -> None:
        arrow, library = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
        batches: list[Any] = []
        count = size_bytes = 0
        with library.ParquetWriter(file, self._schema, compression=self._codec) as writer:
            for batch in self._batches(paths, library):
                batches.append(batch)
                count, size_bytes = count + batch.num_rows, size_bytes + batch.nbytes
                if count >= _ROW_GROUP_ROWS or size_bytes >= _ROW_GROUP_BYTES:
                    writer.write_table(arrow.Table.from_batches(batches), _ROW_GROUP_ROWS)
                    batches, count, size_bytes = [], 0, 0
            if batches:
                writer.write_table(arrow.Table.from_batches(batches), _ROW_GROUP_ROWS)

    def _batches(self, paths: Sequence[str], library: Any) -> Iterator[Any]:
        """Yield the rows, a bounded number at a time: small files may hold large ones."""
        for path in paths:
            with file_below(self._root, path) as source, library.ParquetFile(source) as found:
                for group in range(found.metadata.num_row_groups):
                    at_once = rows_at_once(
                        found, source, group, None, _ROW_GROUP_ROWS, str(self._root / path)
                    )
                    yield from found.iter_batches(at_once, row_groups=[group], use_threads=False)


def contents_of(root: Path, paths: Sequence[str], csv_header: bool | None) -> Iterator[Contents]:
    """Yield the files, which are of one format, as those that can be put together; others are left out."""
    stem, _, suffix = os.path.basename(paths[0]).rpartition(".")
    packed = _PACKED.get(suffix)
    match stem.rpartition(".")[2] if packed is not None else suffix:
        case "jsonl" | "txt":
            yield Lines(root, paths, has_header=False, packed=packed)
        case "csv" if csv_header is not None:
            yield Lines(root, paths, has_header=csv_header, packed=packed)
        case "parquet":
            yield from _tables(root, paths)
        case _:
            # What nobody has said enough of.
            pass


def _tables(root: Path, paths: Sequence[str]) -> Iterator[Tables]:
    arrow, library = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
    kinds: list[tuple[Any, str, list[str]]] = []
    for path in paths:
        try:
            with BufferedReader(file_below(root, path)) as source, library.ParquetFile(source) as found:
                schema, metadata = found.schema_arrow, found.metadata
                codec = metadata.row_group(0).column(0).compression.lower()
        except FileNotFoundError:
            # A reader has taken it.
            continue
        except arrow.ArrowException as error:
            raise ConnectorError(f"{root / path} is not a Parquet file: {error}", path=path) from error
        for known, _, others in kinds:
            if known.equals(schema, check_metadata=True):
                others.append(path)
                break
        else:
            kinds.append((schema, "none" if codec == "uncompressed" else codec, [path]))
    for schema, codec, alike in kinds:
        yield Tables(root, alike, schema, codec)
