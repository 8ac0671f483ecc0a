"""Which columns a table has, and what SQL calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.errors import ConnectorError

Columns = Sequence[str] | Mapping[str, str]
"""Names; with SQL types, if the table is to be made where it is not there."""

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_ ]*(\(\d+(, ?\d+)?\))?(\[\])?")

# Case counts, quoted or not: names are quoted in all statements.
_PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')
_NAME = re.compile(rf"({_PART.pattern})(\.({_PART.pattern}))?")


@dataclass(frozen=True, slots=True)
class Table:
    """What a sink writes to.

    Attributes:
        name: As the user writes it: "counts", "app.counts", '"with.dot"'.
        types: By column, "" where the table must be there already.
        key: Rows with equal values in these columns replace each other; empty: rows are appended.
    """

    name: str
    types: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self.types)

    @property
    def sql(self) -> str:
        """The name in SQL."""
        return qualified(self.name)

    @property
    def target(self) -> str:
        """The name in markers: the same for all spellings of one name."""
        parts = name_parts(self.name)
        return parts[0] if len(parts) == 1 else self.sql

    @property
    def making(self) -> str:
        """The statement that makes the table if it is not there; "" where the types are not known."""
        if not all(self.types.values()):
            return ""
        # SQLite takes NULL in a primary key unless told otherwise.
        columns = [
            f"{quoted(name)} {kind}{' not null' if name in self.key else ''}"
            for name, kind in self.types.items()
        ]
        if self.key:
            columns.append(f"primary key ({', '.join(map(quoted, self.key))})")
        return f"create table if not exists {self.sql} ({', '.join(columns)})"

    @property
    def replacing(self) -> str:
        """The end of an insert: what becomes of a row whose key is there."""
        rest = [name for name in self.columns if name not in self.key]
        changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in rest)
        what = f"update set {changes}" if changes else "nothing"
        return f"on conflict ({', '.join(map(quoted, self.key))}) do {what}"

    def check_columns(self, found: Sequence[str], location: str) -> None:
        """Raise ConnectorError unless the database has the table with all columns.

        Args:
            found: The columns that it has; none: the table is not there.
        """
        if not found:
            raise ConnectorError(
                f"{location} does not exist: create it, or pass columns with types, such as "
                f"{{{self.columns[0]!r}: 'text'}}"
            )
        if missing := sorted(set(self.columns) - set(found)):
            raise ConnectorError(f"{location} has no column {', '.join(missing)}; it has {', '.join(found)}")


def table_of(name: object, columns: object, key: object) -> Table:
    """Return the table that the arguments of a sink describe.

    Raises:
        ConnectorError: They describe none.
    """
    name = checked_name(name)
    if isinstance(columns, Mapping):
        types = dict(columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str):
        types = dict.fromkeys(columns, "")
        if len(types) < len(columns):
            raise ConnectorError(f"columns={columns!r}: a name appears twice")
    else:
        types = {}
    if not types or not all(isinstance(one, str) and one and "\0" not in one for one in types):
        raise ConnectorError(
            f"columns={columns!r}: expected names of columns, or a dict of names and SQL types, such as "
            f"{{'word': 'text', 'count': 'bigint'}}"
        )
    for column, kind in types.items():
        # It goes into a statement as it stands: no place for more than a type.
        if kind and (not isinstance(kind, str) or _TYPE.fullmatch(kind) is None):
            raise ConnectorError(
                f"columns: {kind!r} is no type for {column!r}; expected one such as 'bigint'"
            )
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if key is not None and (not names or not set(names) <= types.keys()):
        raise ConnectorError(f"key={key!r}: expected some of the columns {', '.join(types)}, or None")
    return Table(name, types, names)


def checked_name(name: object) -> str:
    """Return `name` if it can be that of a table.

    Raises:
        ConnectorError: It can't.
    """
    if isinstance(name, str) and "\0" not in name and _NAME.fullmatch(name) is not None:
        return name
    raise ConnectorError(
        f"table={name!r}: expected the name of a table, 'counts' or with its schema 'app.counts'; put a "
        f"part with a dot in double quotes: '\"my.counts\"'"
    )


def name_parts(name: str) -> tuple[str, ...]:
    """Return the schema, if it is given, and the name of a table."""
    found = [part[1:-1].replace('""', '"') if part[0] == '"' else part for part in _PART.findall(name)]
    return tuple(found)


def qualified(name: str) -> str:
    """Return the name of a table, perhaps with its schema, in SQL."""
    return ".".join(map(quoted, name_parts(name)))


def quoted(name: str) -> str:
    """Return `name` as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def size_bytes(value: Any) -> int:
    """Return about what a value takes of a table."""
    match value:
        case str() | bytes():
            return len(value) + 8
        case list() | tuple():
            return sum(map(size_bytes, value)) + 8
        case dict():
            return sum(map(size_bytes, value.values())) + sum(map(size_bytes, value)) + 8
        case _:
            return 8
