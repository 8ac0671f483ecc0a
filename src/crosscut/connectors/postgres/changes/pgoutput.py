"""The messages of logical replication that Postgres' plugin pgoutput sends, version 1. Pure.

Source: the Postgres documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from crosscut.errors import ConnectorError

_MICROSECONDS_OF_2000 = 946_684_800_000_000


class Unchanged(Enum):
    """Stands for a value that is stored apart from its row (TOAST) and was not touched: it is not sent."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED

Value = bytes | None | Unchanged
"""As text, in the encoding of the connection; None is NULL."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The changes of a transaction follow.

    Attributes:
        commit_lsn: Of its commit.
        time_ms: When it was committed, since 1970.
        xid: Its number, the lower 32 bits.
    """

    commit_lsn: int
    time_ms: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """That was all of the transaction; the log goes on at `end_lsn`."""

    commit_lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it is sent."""

    name: str
    type_oid: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, before the first change of it and after each change of its form."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type that is not one of the server's own, before the first table that has it.

    Attributes:
        schema: Of `name`; "" for the server's own types.
        name: Of a domain, that of the type which it restricts.
    """

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A row is new."""

    relation: int
    new: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """A row has changed.

    Attributes:
        old: What it was: None if its key is the same and nothing else is asked for.
        is_old_whole: `old` has all columns; else those of the key, and None for others.
    """

    relation: int
    old: tuple[Value, ...] | None
    is_old_whole: bool
    new: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """A row is gone. See `Update`."""

    relation: int
    old: tuple[Value, ...]
    is_old_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of these tables are gone."""

    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ignored:
    """What says nothing about rows: origins, messages."""

    kind: str


Message = Begin | Commit | ColumnType | Relation | Insert | Update | Delete | Truncate | Ignored


def parsed(data: bytes) -> Message:
    """Return one message.

    Raises:
        ConnectorError: It is none of version 1.
    """
    reader = _Reader(data)
    try:
        found = _message(reader)
    except (struct.error, IndexError, ValueError) as error:
        raise ConnectorError(
            f"a message of logical replication can't be read: {data[:80]!r}: {error}"
        ) from error
    if not isinstance(found, Ignored) and reader.left:
        raise ConnectorError(
            f"a message of logical replication has {reader.left} bytes after its end: {data[:80]!r}"
        )
    return found


def _message(reader: _Reader) -> Message:
    match kind := reader.kind_code():
        case "B":
            lsn, time, xid = reader.numbers(">QqI")
            return Begin(lsn, (time + _MICROSECONDS_OF_2000) // 1_000, xid)
        case "C":
            _, lsn, end_lsn, _ = reader.numbers(">bQQq")
            return Commit(lsn, end_lsn)
        case "R":
            (oid,) = reader.numbers(">I")
            schema, name = reader.text(), reader.text()
            _, count = reader.numbers(">bh")
            return Relation(oid, schema, name, tuple([_column(reader) for _ in range(count)]))
        case "I":
            (oid,) = reader.numbers(">I")
            return Insert(oid, _new_row(reader))
        case "U":
            (oid,) = reader.numbers(">I")
            match part := reader.kind_code():
                case "K" | "O":
                    old = _row(reader)
                    return Update(oid, old, part == "O", _new_row(reader))
                case "N":
                    return Update(oid, None, False, _row(reader))
                case _:
                    raise ValueError(f"unknown part {part!r} of an update")
        case "D":
            (oid,) = reader.numbers(">I")
            part = reader.one_of("KO")
            return Delete(oid, _row(reader), part == "O")
        case "T":
            count, _ = reader.numbers(">Ib")
            return Truncate(tuple([reader.numbers(">I")[0] for _ in range(count)]))
        case "Y":
            (oid,) = reader.numbers(">I")
            return ColumnType(oid, reader.text(), reader.text())
        case "O" | "M":
            return Ignored(kind)
        case _:
            raise ValueError(f"unknown kind {kind!r}")


def _column(reader: _Reader) -> Column:
    (flags,) = reader.numbers(">b")
    name = reader.text()
    oid, _ = reader.numbers(">Ii")
    return Column(name, oid, bool(flags & 1))


def _new_row(reader: _Reader) -> tuple[Value, ...]:
    reader.one_of("N")
    return _row(reader)


def _row(reader: _Reader) -> tuple[Value, ...]:
    (count,) = reader.numbers(">h")
    return tuple([_value(reader) for _ in range(count)])


def _value(reader: _Reader) -> Value:
    match reader.one_of("nut"):
        case "n":
            return None
        case "u":
            return UNCHANGED
        case _:
            (size_bytes,) = reader.numbers(">I")
            return reader.bytes(size_bytes)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._next = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._next

    def bytes(self, count: int) -> bytes:
        if count > self.left:
            raise ValueError(f"{count} bytes were declared, but {self.left} are left")
        self._next += count
        return self._data[self._next - count : self._next]

    def kind_code(self) -> str:
        return self.bytes(1).decode("latin-1")

    def one_of(self, codes: str) -> str:
        found = self.kind_code()
        if found not in codes:
            raise ValueError(f"unknown letter {found!r}, expected one of {codes!r}")
        return found

    def numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._data, self._next)
        self._next += struct.calcsize(form)
        return found

    def text(self) -> str:
        end = self._data.index(b"\0", self._next)
        found = self._data[self._next : end].decode()
        self._next = end + 1
        return found


def lsn_text(lsn: int) -> str:
    """Return a place in the log as Postgres writes it: "16/B374D848"."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: object) -> int:
    """Return a place in the log as a number.

    Raises:
        ConnectorError: `text` is none.
    """
    match text.split("/") if isinstance(text, str) else None:
        case [high, low] if 0 < len(high) <= 8 and 0 < len(low) <= 8:
            try:
                return (int(high, 16) << 32) + int(low, 16)
            except ValueError:
                # Said below, in words.
                pass
    raise ConnectorError(
        f"{text!r} is not a position in the log of Postgres: expected one such as '16/B374D848'"
    )


Kind = Literal["snapshot", "insert", "update", "delete", "truncate"]
