"""The pages of a Parquet file: how large they say they are, before anything is unpacked.

What the footer says of them is not enough: pyarrow believes the header of each page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_HEADER_BYTES = 512
_HEADER_BYTES_MAX = 16 * 1024 * 1024
"""It may hold the smallest and the largest value of its page."""

_UNPACKED, _PACKED = 2, 3


def page_sizes(raw: Any, start: int, size: int) -> Iterator[int]:
    """Yield the unpacked sizes of the pages of a column chunk.

    Args:
        raw: The file; it is moved to another place.
        start: Where the chunk is.
        size: How many bytes it has.

    Raises:
        ValueError: They are no pages.
    """
    at = start
    while at < start + size:
        unpacked, packed, header = _header(raw, at, start + size - at)
        yield unpacked
        at += header + packed


def _header(raw: Any, at: int, left: int) -> tuple[int, int, int]:
    """Return the unpacked and packed sizes of a page, and that of its header."""
    length = _HEADER_BYTES
    while True:
        raw.seek(at)
        data = raw.read(min(length, left))
        try:
            sizes: dict[int, int] = {}
            end = _struct(data, 0, sizes)
            unpacked, packed = sizes[_UNPACKED], sizes[_PACKED]
        except KeyError as error:
            raise ValueError(f"the header of the page at byte {at} says no size") from error
        except (IndexError, RecursionError) as error:
            if (
                isinstance(error, IndexError)
                and len(data) < min(left, _HEADER_BYTES_MAX)
                and len(data) == length
            ):
                length *= 8
                continue
            raise ValueError(f"there is no header of a page at byte {at}") from error
        if unpacked < 0 or packed < 0:
            raise ValueError(f"the page at byte {at} has a size below 0")
        return unpacked, packed, end


# Thrift's compact protocol.


def _struct(data: bytes, at: int, numbers: dict[int, int] | None = None) -> int:
    """Return where the struct at `at` ends; put its numbers into `numbers`, by field."""
    field = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(data, at)
        kind = head & 15
        if kind in (4, 5, 6):
            value, at = _number(data, at)
            if numbers is not None:
                numbers[field] = value
        else:
            at = _skipped(data, at, kind)
    return at + 1


def _skipped(data: bytes, at: int, kind: int) -> int:
    match kind:
        case 1 | 2:  # a bool, which is the kind itself
            return at
        case 3:
            return at + 1
        case 7:
            return at + 8
        case 8:
            size, at = _unsigned(data, at)
            return at + size
        case 12:
            return _struct(data, at)
        case _:
            raise ValueError(f"byte {at} of the header of a page: there is no field of kind {kind}")


def _number(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"byte {at} of the header of a page: a number without an end")
