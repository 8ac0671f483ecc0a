"""Which changes are in the rows already that were read before them. Pure decisions.

The rows that a table has at first are read in the order of a hash of their key, in one transaction. If a
failure comes between, another transaction reads the rest: so there are *parts*, each with the snapshot
of its transaction. A change of the log belongs to the part in which its key lies. If the snapshot of that
part has seen the transaction, the rows that were read have the change in them, and it is left out; else it
goes on. So each row comes once, with all that becomes of it later, and nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from crosscut.connectors.postgres.changes.pgoutput import lsn_number, lsn_text
from crosscut.contracts.connectors import JSON
from crosscut.errors import ConnectorError


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a table that one transaction has read: those after the part before, up to a hash.

    Attributes:
        to: The hash of the last row; None: up to the end of the table.
        snapshot: Of the transaction, as `pg_current_snapshot()` writes it.
    """

    table: str
    to: str | None
    snapshot: str


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader has come.

    Attributes:
        lsn: Where the transaction begins, in the order of commits, that is read next.
        skip: So many changes of it have been read.
        parts: How much of the tables has been read before; empty once that plays no part any more.
        is_reading_rows: Not all of it has.
        until: After this place no transaction is in any part.
    """

    lsn: int
    skip: int = 0
    parts: tuple[Part, ...] = ()
    is_reading_rows: bool = False
    until: int | None = None

    def as_json(self) -> JSON:
        """Return it in the form that `position_of` takes."""
        found: dict[str, JSON] = {"lsn": lsn_text(self.lsn), "skip": self.skip}
        if self.is_reading_rows or self.parts:
            found["parts"] = [[one.table, one.to, one.snapshot] for one in self.parts]
            found["until"] = None if self.until is None else lsn_text(self.until)
        return found


def position_of(value: JSON) -> Position:
    """Return the position that `Position.as_json` has written.

    Raises:
        ConnectorError: It is none.
    """
    match value:
        case {"lsn": str(lsn), "skip": int(skip), **rest} if not rest:
            return Position(lsn_number(lsn), skip)
        case {"lsn": str(lsn), "skip": int(skip), "parts": list(rows), "until": None | str() as until}:
            parts = tuple(map(_part, rows))
            end = None if until is None else lsn_number(until)
            return Position(lsn_number(lsn), skip, parts, until is None, end)
        case _:
            pass
    raise ConnectorError(f"{value!r:.200} is not a position in the changes of Postgres tables")


def _part(row: JSON) -> Part:
    match row:
        case [str(table), None | str() as to, str(snapshot)]:
            return Part(table, to, snapshot)
        case _:
            raise ConnectorError(f"{row!r:.200} is not a part of a Postgres table")


def key_hash(key: Iterable[bytes | None]) -> str:
    """Return the place of a row in the order in which tables are read; see `key_hash_sql`."""
    return "".join([hashlib.md5(value or b"", usedforsecurity=False).hexdigest() for value in key])


def key_hash_sql(columns: Iterable[str]) -> str:
    """Return `key_hash` in SQL, of columns that are quoted.

    `format` writes values as replication does; a cast to text cuts blanks, and has other words for booleans.
    """
    hashes = [f"md5(convert_to(format('%s', {column}), 'UTF8'))" for column in columns]
    return f'({" || ".join(hashes)}) collate "C"'


def rows_left(parts: Sequence[Part], tables: Iterable[str]) -> list[tuple[str, str]]:
    """Return the tables that are still to be read, each with the hash after which."""
    ended = {one.table for one in parts if one.to is None}
    reached: dict[str, str] = {}
    for one in parts:
        if one.to is not None:
            reached[one.table] = max(one.to, reached.get(one.table, ""))
    return [(table, reached.get(table, "")) for table in tables if table not in ended]


def has_seen(snapshot: str, xid: int) -> bool:
    """Return whether a transaction that has been committed is in a snapshot.

    Args:
        snapshot: "xmin:xmax:xid,xid,...", with numbers of 64 bits.
        xid: The lower 32 bits.
    """
    _, high, running = snapshot.split(":")
    xmax = int(high)
    distance = (xid - xmax) & 0xFFFFFFFF
    whole = xmax + distance - ((distance & 0x80000000) << 1)
    return whole < xmax and str(whole) not in running.split(",")


class Verdict(Enum):
    """What becomes of a change that comes after rows have been read."""

    AS_IT_IS = "the rows that were read don't have it"
    LEFT_OUT = "they have it"
    AS_DELETE = "they have the new row of an update, read at its new key, and the old one at its old key"
    AS_INSERT = "they have neither row of an update that moved it between parts"


class Seen:
    """The parts of one table, asked about its changes."""

    def __init__(self, parts: Iterable[Part], table: str) -> None:
        self._parts = [one for one in parts if one.table == table]
        self._table = table

    def of_row(self, xid: int, key: str) -> Verdict:
        """Decide on a row that is new or gone."""
        return Verdict.LEFT_OUT if self._has(xid, key) else Verdict.AS_IT_IS

    def of_update(self, xid: int, old_key: str, new_key: str) -> Verdict:
        """Decide on a row that has changed, perhaps its key."""
        match self._has(xid, old_key), self._has(xid, new_key):
            case True, True:
                return Verdict.LEFT_OUT
            case False, False:
                return Verdict.AS_IT_IS
            case False, _:
                return Verdict.AS_DELETE
            case _:
                return Verdict.AS_INSERT

    def of_truncate(self, xid: int) -> Verdict:
        """Decide on all rows at once.

        Raises:
            ConnectorError: It came between two parts.
        """
        seen = {has_seen(one.snapshot, xid) for one in self._parts}
        if len(seen) > 1:
            raise ConnectorError(
                f"table {self._table} was truncated after a part of its first rows had been read: which "
                f"of them were removed is unknown. Start over with another checkpoint_dir",
                is_permanent=True,
            )
        return Verdict.LEFT_OUT if seen == {True} else Verdict.AS_IT_IS

    def _has(self, xid: int, key: str) -> bool:
        for one in self._parts:
            if one.to is None or key <= one.to:
                return has_seen(one.snapshot, xid)
        return False
