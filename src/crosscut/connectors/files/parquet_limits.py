"""How many rows of a Parquet file may be decoded at once: some bytes can stand for gigabytes.

A value of a dictionary is stored once, and comes out in every row that names it, and so does the beginning
that values share; a list of a hundred million equal numbers takes a few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import FileIO
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.parquet_pages import Page, pages_of
from crosscut.errors import ConnectorError

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Of rows that are decoded at once; as many are decoded ahead."""

ROW_BYTES_MAX = 256 * 1024 * 1024

PAGE_BYTES_MAX = 256 * 1024 * 1024
"""Of a page, which is unpacked as a whole; writers make pages of about 1 MiB."""

_UNKNOWN = 1 << 62


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}


def rows_at_once(
    file: Any, raw: Any, group: int, columns: Sequence[str] | None, rows_max: int, path: str
) -> int:
    """Return how many rows of a row group fit into `BATCH_BYTES_MAX`, as far as the file can be believed.

    Args:
        file: A `pyarrow.parquet.ParquetFile`.
        raw: What it reads.
        columns: Those that are read; None: all.
        rows_max: More are not needed.
        path: For errors.

    Raises:
        ConnectorError: A row is larger than `ROW_BYTES_MAX`, or a page than `PAGE_BYTES_MAX`.

    """
    found = file.metadata.row_group(group)
    row_count = max(1, found.num_rows)
    row_bytes = batch_row_bytes = 0.0
    for index in range(found.num_columns):
        chunk, leaf = found.column(index), file.schema.column(index)
        name = chunk.path_in_schema
        if columns is not None and not any(name == one or name.startswith(f"{one}.") for one in columns):
            continue
        pages = _checked_pages(raw, chunk, group, path)
        values, stored = chunk.num_values / row_count, chunk.total_uncompressed_size / row_count
        if leaf.physical_type in _WIDTHS:
            size = values * _WIDTHS[leaf.physical_type]
        elif leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
            size = values * leaf.length
        elif chunk.total_uncompressed_size * values * min(rows_max, row_count) <= BATCH_BYTES_MAX:
            # Even if every row names a value that is all that is stored.
            size = stored
        else:
            largest_page = max((one.unpacked_bytes for one in pages), default=chunk.total_uncompressed_size)
            longest = 0
            if _has_dictionary(chunk) or any(one.is_dictionary for one in pages):
                longest = min(_longest(file, raw, group, name, rows_max), largest_page)
            size = max(stored, values * longest)
            if "DELTA_BYTE_ARRAY" in chunk.encodings or any(one.has_prefixes for one in pages):
                # A value may repeat all that its page has. It mostly does not, so no row is refused.
                batch_row_bytes += values * largest_page
        row_bytes += size
        if row_bytes > ROW_BYTES_MAX:
            raise ConnectorError(
                f"{path}: row group {group}, column {name!r}: rows of about {row_bytes:.3g} bytes, expected "
                f"at most {ROW_BYTES_MAX}: write the file with smaller values, or leave the column out with "
                f"columns=",
                path=path,
                column=name,
                is_permanent=True,
            )
    return max(1, min(rows_max, int(BATCH_BYTES_MAX / max(row_bytes + batch_row_bytes, 1))))


def start_of(chunk: Any) -> int:
    """Return where the first page of a column chunk is, as pyarrow finds it."""
    start, dictionary = int(chunk.data_page_offset), chunk.dictionary_page_offset
    return int(dictionary) if dictionary is not None and 0 < dictionary < start else start


def _checked_pages(raw: Any, chunk: Any, group: int, path: str) -> list[Page]:
    """Return the pages of a column chunk, none if the footer has to be believed.

    Raises:
        ConnectorError: A page is too large, whatever the footer says.
    """
    if chunk.total_uncompressed_size <= PAGE_BYTES_MAX and not isinstance(raw, FileIO):
        # Over a network it would take a request for each page.
        return []
    what = f"{path}: row group {group}, column {chunk.path_in_schema!r}"
    try:
        pages = list(pages_of(raw, start_of(chunk), chunk.total_compressed_size))
    except ValueError as error:
        raise ConnectorError(f"{what} is damaged: {error}", path=path, is_permanent=True) from error
    largest = max((one.unpacked_bytes for one in pages), default=0)
    if largest > PAGE_BYTES_MAX:
        raise ConnectorError(
            f"{what}: a page of {largest} bytes, expected at most {PAGE_BYTES_MAX}: write the file with "
            f"smaller pages, or leave the column out with columns=",
            path=path,
            column=chunk.path_in_schema,
            is_permanent=True,
        )
    return pages


def _has_dictionary(chunk: Any) -> bool:
    # Older writers have a dictionary without saying where.
    return chunk.has_dictionary_page or any("DICTIONARY" in one for one in chunk.encodings)


def _longest(file: Any, raw: Any, group: int, name: str, rows_max: int) -> int:
    """Return the size of the longest value in the dictionary of a column; if in doubt, more than that."""
    arrow, library = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
    compute = required("pyarrow.compute", "parquet")
    again = library.ParquetFile(raw, metadata=file.metadata, read_dictionary=[name])
    batch = next(again.iter_batches(rows_max, row_groups=[group], columns=[name], use_threads=False), None)
    values = None if batch is None else batch.column(0)
    while values is not None and not arrow.types.is_dictionary(values.type):
        types = arrow.types
        if types.is_struct(values.type):
            values = values.field(0)
        elif types.is_map(values.type):
            values = values.keys if name.endswith(".key") else values.items
        elif types.is_list(values.type) or types.is_large_list(values.type):
            values = values.values
        else:
            values = None
    if values is None or not len(values.dictionary):
        # No value among the first rows.
        return _UNKNOWN
    return int(compute.max(compute.binary_length(values.dictionary)).as_py())
