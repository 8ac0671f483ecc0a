"""The records of the source: changes of rows, made of what replication sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.postgres.changes.parts import Seen, Verdict, key_hash
from crosscut.connectors.postgres.changes.pgoutput import (
    UNCHANGED,
    Delete,
    Insert,
    Kind,
    Relation,
    Truncate,
    Unchanged,
    Update,
    Value,
)
from crosscut.connectors.postgres.values import MalformedRecord, row_of, unreadable
from crosscut.errors import ConnectorError


@dataclass(frozen=True, slots=True)
class Change:
    """What has become of a row.

    Attributes:
        kind: "snapshot": it was there at first. "insert", "update", "delete"; "truncate": all rows are gone.
        table: With its schema: "public.orders".
        new: The row by column; None after "delete" and "truncate".
        old: What it was. After "delete", and after an "update" of the key: the columns of the key. With
            `replica identity full` always: the whole row. Else None.
        lsn: Where in the log its transaction was committed; "" of a snapshot.
        time: When, in milliseconds since 1970; None of a snapshot.
        unchanged: Columns that `new` lacks: large values (TOAST) that the update has not touched are not
            sent, unless the table has `replica identity full`.
    """

    kind: Kind
    table: str
    new: dict[str, Any] | None
    old: dict[str, Any] | None = None
    lsn: str = ""
    time: int | None = None
    unchanged: tuple[str, ...] = ()


class ChangedTable:
    """A table as replication describes it, at a time: it makes records of changes.

    Args:
        key: The columns of its primary key; empty if nothing was read before.
        loaders: Make Python values of text, by column.
        seen: What has been read before.
        chosen: The columns that records have; None: all.
    """

    def __init__(
        self,
        relation: Relation,
        key: Iterable[str],
        loaders: Sequence[Callable[[bytes], Any]],
        seen: Seen | None,
        chosen: Iterable[str] | None = None,
    ) -> None:
        self.name = f"{relation.schema}.{relation.name}"
        self._relation = relation
        self._loaders = loaders
        self._seen = seen
        self._identity = frozenset(one.name for one in relation.columns if one.is_key)
        key = tuple(key)
        names = [one.name for one in relation.columns]
        self._chosen = tuple([chosen is None or name in chosen for name in names])
        # Of the change that is being made: why values of it can't be read.
        self._reasons: list[str] = []
        if seen is not None and (missing := [name for name in key if name not in names]):
            raise ConnectorError(
                f"table {self.name} has lost the column {missing[0]} of its key", is_permanent=True
            )
        self._key = tuple([names.index(name) for name in key]) if seen is not None else ()

    def change(
        self, change: Insert | Update | Delete, xid: int, lsn: str, time: int
    ) -> Change | MalformedRecord | None:
        """Return the record, None if the rows that were read have it in them."""
        found = self._change(change, xid, lsn, time)
        if not self._reasons:
            return found
        reasons, self._reasons = self._reasons, []
        return MalformedRecord(found, "; ".join(reasons))

    def _change(self, change: Insert | Update | Delete, xid: int, lsn: str, time: int) -> Change | None:
        match change:
            case Insert(_, new):
                if self._of_row(xid, new) is Verdict.LEFT_OUT:
                    return None
                return Change("insert", self.name, self._row(new), None, lsn, time, self._unchanged(new))
            case Delete(_, old, whole):
                if self._of_row(xid, old) is Verdict.LEFT_OUT:
                    return None
                return Change("delete", self.name, None, self._old(old, whole=whole), lsn, time)
            case Update(_, old, whole, new):
                if old is not None and whole:
                    new = tuple([was if one is UNCHANGED else one for one, was in zip(new, old, strict=True)])
                before = None if old is None else self._old(old, whole=whole)
                match self._of_update(xid, old, new):
                    case Verdict.LEFT_OUT:
                        return None
                    case Verdict.AS_DELETE:
                        return Change("delete", self.name, None, before, lsn, time)
                    case Verdict.AS_INSERT:
                        row = self._row(new)
                        return Change("insert", self.name, row, None, lsn, time, self._unchanged(new))
                    case Verdict.AS_IT_IS:
                        row = self._row(new)
                        return Change("update", self.name, row, before, lsn, time, self._unchanged(new))

    def truncated(self, xid: int, lsn: str, time: int) -> Change | None:
        """Return the record of a truncation of this table."""
        if self._seen is not None and self._seen.of_truncate(xid) is Verdict.LEFT_OUT:
            return None
        return Change("truncate", self.name, None, None, lsn, time)

    def _of_row(self, xid: int, row: Sequence[Value]) -> Verdict:
        return Verdict.AS_IT_IS if self._seen is None else self._seen.of_row(xid, self._hash(row))

    def _of_update(self, xid: int, old: Sequence[Value] | None, new: Sequence[Value]) -> Verdict:
        if self._seen is None:
            return Verdict.AS_IT_IS
        return self._seen.of_update(xid, self._hash(new if old is None else old), self._hash(new))

    def _hash(self, row: Sequence[Value]) -> str:
        found: list[bytes | None] = []
        for index in self._key:
            value = row[index]
            if isinstance(value, Unchanged):
                name = self._relation.columns[index].name
                raise ConnectorError(
                    f"table {self.name}: a change has no value of {name}, which is of its key; "
                    f"'alter table {self.name} replica identity full', and start over",
                    is_permanent=True,
                )
            found.append(value)
        return key_hash(found)

    def _row(self, row: Sequence[Value]) -> dict[str, Any]:
        columns = self._relation.columns
        try:
            return {
                column.name: None if value is None else load(value)
                for column, load, value, is_chosen in zip(
                    columns, self._loaders, row, self._chosen, strict=True
                )
                if is_chosen and not isinstance(value, Unchanged)
            }
        except unreadable():
            there = [
                (value, column.name, load)
                for column, load, value, is_chosen in zip(
                    columns, self._loaders, row, self._chosen, strict=True
                )
                if is_chosen and not isinstance(value, Unchanged)
            ]
            values, names, loaders = zip(*there, strict=True)
            found, reason = row_of(values, names, loaders)
            self._reasons.append(reason)
            return dict(zip(names, found, strict=True))

    def _old(self, row: Sequence[Value], *, whole: bool) -> dict[str, Any]:
        found = self._row(row)
        return found if whole else {name: found[name] for name in found if name in self._identity}

    def _unchanged(self, row: Sequence[Value]) -> tuple[str, ...]:
        columns = zip(self._relation.columns, row, self._chosen, strict=True)
        return tuple(
            [column.name for column, value, is_chosen in columns if is_chosen and value is UNCHANGED]
        )


def change_of(
    message: Insert | Update | Delete | Truncate,
    tables: Mapping[int, ChangedTable],
    xid: int,
    lsn: str,
    time: int,
) -> Change | MalformedRecord | None:
    """Return the record of one message; None if rows that were read have it in them.

    Args:
        message: A truncation is of one table.

    Raises:
        ConnectorError: Replication has not described the table before.
    """
    oid = message.relations[0] if isinstance(message, Truncate) else message.relation
    try:
        table = tables[oid]
    except KeyError:
        raise ConnectorError(
            f"replication sends a change of table {oid}, which it has not announced"
        ) from None
    if isinstance(message, Truncate):
        return table.truncated(xid, lsn, time)
    return table.change(message, xid, lsn, time)
