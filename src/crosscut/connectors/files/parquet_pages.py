"""The pages of a Parquet file: how large they say they are, before anything is unpacked.

What the footer says of them is not enough: pyarrow believes the header of each page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

_HEADER_BYTES = 512
_HEADER_BYTES_MAX = 16 * 1024 * 1024
"""It may hold the smallest and the largest value of its page."""

_KIND, _UNPACKED, _PACKED = 1, 2, 3
_DICTIONARY = 2
_DELTA_BYTE_ARRAY = 7
_ENCODINGS = {5: 2, 8: 4}
"""The fields with the header of a data page, of both versions, and where each has its encoding."""


class Page(NamedTuple):
    """What the header of a page says.

    Attributes:
        unpacked_bytes: Of its content.
        is_dictionary: Its values are named by others.
        has_prefixes: Its values share their beginnings: each says how much of the one before it repeats.
    """

    unpacked_bytes: int
    is_dictionary: bool
    has_prefixes: bool


def pages_of(raw: Any, start: int, size: int) -> Iterator[Page]:
    """Yield the pages of a column chunk.

    Args:
        raw: The file; it is moved to another place.
        start: Where the chunk is.
        size: How many bytes it has.

    Raises:
        ValueError: They are no pages.
    """
    at = start
    while at < start + size:
        page, length = _page(raw, at, start + size - at)
        yield page
        at += length


def _page(raw: Any, at: int, left: int) -> tuple[Page, int]:
    """Return a page, and the packed size of it and its header."""
    length = _HEADER_BYTES
    while True:
        raw.seek(at)
        data = raw.read(min(length, left))
        try:
            found: dict[tuple[int, ...], int] = {}
            end = _struct(data, 0, found)
            unpacked, packed = found[_UNPACKED,], found[_PACKED,]
        except KeyError as error:
            raise ValueError(f"the header of the page at byte {at} has no size") from error
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
        encodings = {found.get(where) for where in _ENCODINGS.items()}
        page = Page(unpacked, found.get((_KIND,)) == _DICTIONARY, _DELTA_BYTE_ARRAY in encodings)
        return page, end + packed


# Thrift's compact protocol.
_STRUCT = 12


def _struct(
    data: bytes, at: int, numbers: dict[tuple[int, ...], int] | None = None, within: tuple[int, ...] = ()
) -> int:
    """Return where the struct at `at` ends; put its numbers, and those of structs in it, into `numbers`.

    Args:
        numbers: By the fields that lead to them.
        within: The fields that lead to this struct.
    """
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
                numbers[*within, field] = value
        elif kind == _STRUCT and numbers is not None and not within:
            at = _struct(data, at, numbers, (field,))
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
        case _ if kind == _STRUCT:
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
            raise ValueError(f"byte {at} of the header of a page: an unterminated number")
