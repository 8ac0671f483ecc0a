"""Output that is divided by the values of columns, as Hive does it: `country=DE/day=2026-11-22/part-...`.

Pure: from records to the names of directories, and from such names back to values. What a name says is what
Spark, Polars and DuckDB read from it: text is escaped as Spark escapes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from operator import itemgetter
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.files.rows import checked_columns
from crosscut.errors import ConnectorError

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""In the place of None."""

PARTITIONS_MAX = 200
ROLL_BYTES_MIN = 1024 * 1024

_NAME_BYTES_MAX = 255
_NAMES_MAX = 10_000

_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_LEVEL = re.compile(r"(?P<column>[^/=]+)=(?P<value>[^/=]+)")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")

_KINDS: frozenset[type] = frozenset((type(None), bool, int, str, date))


@dataclass(frozen=True, slots=True)
class Layout:
    """How the output of a task and checkpoint is spread over files.

    Attributes:
        partition_by: Columns whose values name directories; they are not in the files.
        partitions_max: How many of those one task may write to in one checkpoint: each has an open file.
        roll_bytes: Of a file that has so many bytes no more is written to; None: one file a checkpoint.
    """

    partition_by: tuple[str, ...] = ()
    partitions_max: int = PARTITIONS_MAX
    roll_bytes: int | None = None


ONE_FILE = Layout()


def layout_of(
    partition_by: str | Sequence[str],
    partitions_max: int,
    roll_bytes: int | None,
    columns: Sequence[str] = (),
) -> Layout:
    """Return the layout that the arguments of a sink describe.

    Args:
        columns: That the rows have; empty: it is not known.

    Raises:
        ConnectorError: They describe none.
    """
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if names:
        checked_columns(names)
        if columns and not set(names) < set(columns):
            raise ConnectorError(
                f"partition_by={partition_by!r}: expected some of the columns {', '.join(columns)}, not all"
            )
        for name in names:
            if name.startswith("."):
                raise ConnectorError(
                    f"partition_by={partition_by!r}: a directory that begins with a dot is hidden; give the "
                    f"column another name"
                )
            _fitting(_escaped(name), name)
    if type(partitions_max) is not int or partitions_max < 1:
        raise ConnectorError(f"partitions_max={partitions_max!r}: expected a whole number from 1 on")
    if roll_bytes is not None and (type(roll_bytes) is not int or roll_bytes < ROLL_BYTES_MIN):
        raise ConnectorError(
            f"roll_bytes={roll_bytes!r}: expected a whole number of bytes from {ROLL_BYTES_MIN:,} on, or None"
        )
    return Layout(names, partitions_max, roll_bytes)


Divider = Callable[[list[Any]], Iterable[tuple[str, list[Any]]]]
"""Takes records; gives each directory once, "" for none, with what goes there, in order."""


def undivided(records: list[Any]) -> Iterable[tuple[str, list[Any]]]:
    """Put all records into the sink's own directory."""
    return (("", records),)


class Division:
    """Divides records by the values of columns.

    Args:
        columns: That name directories.
        before: Makes a row of a record, for all that follow.
        values: Gives those values of a row: the value, or a tuple if there are several columns.
        rest: Gives what a file holds of a row.
        location: What errors call the place.
        check: Raises ConnectorError for values, in a tuple, that the columns can't hold.
    """

    def __init__(
        self,
        columns: Sequence[str],
        values: Callable[[Any], Hashable],
        rest: Callable[[Any], Any],
        location: str,
        *,
        before: Callable[[Any], Any],
        check: Callable[[tuple[Any, ...]], None] = lambda values: None,
    ) -> None:
        self._columns = tuple(columns)
        self._kind: Callable[[Any], Any] = type if len(self._columns) == 1 else _types
        self._values = values
        self._rest = rest
        self._location = location
        self._before = before
        self._check = check
        self._names: dict[tuple[Any, ...], str] = {}

    def __call__(self, records: list[Any]) -> list[tuple[str, list[Any]]]:
        """Return the directories, each once, in the order of their first rows, and what their files get."""
        values, rows = self._values, list(map(self._before, records))
        groups: dict[Any, list[Any]] = defaultdict(list)
        row: Any = None  # for the message
        try:
            for row in rows:
                groups[values(row)].append(row)
        except TypeError as error:
            raise ConnectorError(
                f"{self._location}: row {shortened(row)} has a value that can't name a directory: {error}",
                is_permanent=True,
            ) from error
        named = [one for group in groups.values() for one in self._named(group)]
        if len({name for name, _ in named}) < len(named):
            # 1 and "1" are two keys of a dict, and one directory: it has one file, with the rows in order.
            named = list(self._by_name(rows))
        return [(name, [self._rest(row) for row in found]) for name, found in named]

    def _by_name(self, rows: list[Any]) -> Iterable[tuple[str, list[Any]]]:
        found: dict[str, list[Any]] = defaultdict(list)
        for row in rows:
            values = self._values(row)
            found[self._name(values if len(self._columns) > 1 else (values,))].append(row)
        return found.items()

    def _named(self, group: list[Any]) -> Iterable[tuple[str, list[Any]]]:
        # 1 and True are one key of a dict, and two directories.
        kinds = set(map(self._kind, map(self._values, group)))
        for kind in sorted(kinds, key=str):
            rows = (
                group if len(kinds) == 1 else [row for row in group if self._kind(self._values(row)) == kind]
            )
            found = self._values(rows[0])
            yield self._name(found if len(self._columns) > 1 else (found,)), rows

    def _name(self, values: Any) -> str:
        known = (*_types(values), *values)
        name = self._names.get(known)
        if name is None:
            self._check(values)
            name = partition_name(self._columns, values, self._location)
            if len(self._names) >= _NAMES_MAX:
                self._names.clear()
            self._names[known] = name
        return name


def _types(values: Any) -> tuple[type, ...]:
    return tuple(map(type, values))


def row_division(
    columns: Sequence[str],
    names: Sequence[str],
    location: str,
    before: Callable[[Any], tuple[Any, ...]],
    check: Callable[[tuple[Any, ...]], None] = lambda values: None,
) -> Division:
    """Return what divides records that become tuples.

    Args:
        names: Of all values of a tuple, in order.
    """
    rest = [index for index, name in enumerate(names) if name not in columns]
    rest_of: Callable[[Any], Any] = itemgetter(*rest) if len(rest) > 1 else lambda row: (row[rest[0]],)
    values = itemgetter(*(list(names).index(column) for column in columns))
    return Division(columns, values, rest_of, location, before=before, check=check)


def partition_name(columns: Sequence[str], values: Sequence[Any], location: str) -> str:
    """Return the path of the directory for some values of the columns.

    Raises:
        ConnectorError: A value has no name that would be read as the same.
    """
    return "/".join(
        _fitting(f"{_escaped(column)}={_text(column, value, location)}", f"{location}: {column}")
        for column, value in zip(columns, values, strict=True)
    )


def _text(column: str, value: Any, location: str) -> str:
    if type(value) not in _KINDS:
        raise ConnectorError(
            f"{location} is partitioned by {column}, and {shortened(value)} of type {type(value).__name__} "
            f"has no name there: expected None, bool, int, str or date; map it to a text",
            is_permanent=True,
        )
    if value is None:
        return NO_VALUE
    if value in ("", NO_VALUE):
        raise ConnectorError(
            f"{location} is partitioned by {column}, and {value!r} there would be read as None: map it to "
            f"None, or to another text",
            is_permanent=True,
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return _escaped(str(value))


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _fitting(name: str, what: str) -> str:
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConnectorError(
            f"{what}: {shortened(name)} is not valid Unicode: {error}", is_permanent=True
        ) from error
    if size > _NAME_BYTES_MAX:
        raise ConnectorError(
            f"{what}: {shortened(name)} has {size} bytes, and the name of a directory at most "
            f"{_NAME_BYTES_MAX}: map it to a shorter text, such as a hash",
            is_permanent=True,
        )
    return name


def is_partition(name: str) -> bool:
    """Whether a path is that of a directory which a division has named: nothing that leads elsewhere."""
    return all(
        _LEVEL.fullmatch(level) is not None and not level.startswith(".") and "\0" not in level
        for level in name.split("/")
    )


def values_of(name: str) -> dict[str, str | None]:
    """Return the columns and the texts of their values that the path of a directory says."""
    found: dict[str, str | None] = {}
    for level in name.split("/") if name else ():
        column, _, value = level.partition("=")
        found[_unescaped(column)] = None if value == NO_VALUE else _unescaped(value)
    return found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
