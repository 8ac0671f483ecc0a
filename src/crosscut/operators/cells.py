"""What lies between a declared state and its table: a time to live, and a serializer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from crosscut.contracts.process import KeyedProcess, declared
from crosscut.contracts.serializers import Serializer
from crosscut.contracts.state import Cells, MapState, State
from crosscut.errors import FlowError, StateError
from crosscut.state.encoding import owned_copy
from crosscut.state.expiry import UNDATED, Expiry
from crosscut.state.table import Table

ROWS_PER_BATCH = 200
"""Rows that are looked at with each batch, whether they have expired, beside those for what it writes."""
_VERSION_BYTES = 2
_ABSENT: Any = object()
_Clock = tuple[Callable[[], int | None], Callable[[], int]]


class Times(Protocol):
    """What time it is for the values of a process."""

    def now(self) -> int:
        """Return the processing time."""

    def event_time(self) -> int | None:
        """Return the event time up to which values expire; None: none is known, nothing has expired."""

    def written_at(self) -> int | None:
        """Return the event time of what is written now; None: records have no timestamps."""


def cells_of(
    process: KeyedProcess[Any, Any],
    cells: Mapping[str, Cells],
    tables: Mapping[str, Table],
    times: Times,
    uid: str,
) -> tuple[dict[str, Cells], list[TimedCells]]:
    """Return where the states of a process are kept, by name, and those of them that expire.

    Args:
        cells: What changes the tables.
    """
    found: dict[str, Cells] = {}
    timed: list[TimedCells] = []
    for name, state in declared(process).items():
        one, table = cells[name], tables[name]
        if table.expiry is not None:
            clock = _clock_of(state, times, uid, name)
            is_event_time = state.ttl_time == "event"
            one = TimedCells(one, table, table.expiry, clock, is_event_time=is_event_time)
            timed.append(one)
        if state.serializer is not None:
            one = SerializedCells(one, state.serializer, uid, name)
        found[name] = one
    return found, timed


def visible_values(
    process: KeyedProcess[Any, Any], uid: str, tables: Mapping[str, dict[Any, Any]]
) -> dict[str, dict[Any, Any]]:
    """Return the rows of some states by key, with the values that the process would get.

    Args:
        uid: Of the operator, for errors.
        tables: The stored rows of each state; those of a `MapState` by key and name. Tables that the process
            does not declare, such as that of its timers, are returned as they are.

    Raises:
        StateError: A serializer can't read a value.
    """
    found: dict[str, dict[Any, Any]] = {}
    states = declared(process)
    for name, rows in tables.items():
        state, where = states.get(name), f"operator {uid!r}, state {name!r}"
        if state is None:
            found[name] = rows
        elif isinstance(state, MapState):
            found[name] = {
                key: {one: plain_value(state, value, where, (key, one)) for one, value in entries.items()}
                for key, entries in rows.items()
            }
        else:
            found[name] = {key: plain_value(state, value, where, key) for key, value in rows.items()}
    return found


def plain_value(state: State, value: Any, where: str, row: Any) -> Any:
    """Return the value that a row of `state` holds, as a process sees it.

    Raises:
        StateError: Its serializer can't read it.
    """
    if state.ttl_ms is not None:
        value = value[1]
    return value if state.serializer is None else deserialized(value, state.serializer, where, row)


class TimedCells:
    """The values of a table that have not expired.

    Args:
        cells: What changes the table, whose values are pairs (written at, value).
        clock: Returns the time up to which values expire (None: it is not known, nothing has expired), and
            the time of what is written now.
    """

    def __init__(
        self, cells: Any, table: Table, expiry: Expiry, clock: _Clock, *, is_event_time: bool = True
    ) -> None:
        self._cells = cells
        self._table = table
        self._expiry = expiry
        self._now, self._written = clock
        self._is_event_time = is_event_time
        # Since some were last removed.
        self._put_count = 0

    def get(self, row: Any, default: Any = None) -> Any:
        found = self._cells.get(row, _ABSENT)
        if found is _ABSENT or self._has_expired(found[0]):
            return default
        return found[1]

    def own(self, row: Any, default: Any = None) -> Any:
        found = self.get(row, _ABSENT)
        return default if found is _ABSENT else owned_copy(found)

    def put(self, row: Any, value: Any) -> None:
        written = self._written()
        self._cells.put(row, (written, value))
        self._expiry.note(row, written)
        self._put_count += 1

    def delete(self, row: Any) -> None:
        self._cells.delete(row)

    def has(self, row: Any) -> bool:
        return self._table.has(row) and not self._has_expired(self._table.peek(row)[0])

    def names(self, key: Any) -> list[Any]:
        return [name for name in self._cells.names(key) if self.has((key, name))]

    def count(self, key: Any) -> int:
        return len(self.names(key))

    @property
    def next_alarm_ms(self) -> int | None:
        """The processing time at which `remove_expired` is to be called, whether records come or not."""
        due_ms = self._expiry.next_ms
        if due_ms is None or not self._is_event_time:
            return due_ms
        # Those of one moment may be many, and the next watermark far away.
        now = self._now()
        return 0 if now is not None and due_ms <= now else None

    def remove_expired(self) -> None:
        """Take away some values that have expired, if there are any."""
        now = self._now()
        if now is None:
            return
        count = ROWS_PER_BATCH + self._expiry.looks_per_put * self._put_count
        self._put_count = 0
        for row in self._expiry.due(now, count):
            if not self._table.has(row):
                continue
            written = self._table.peek(row)[0]
            if written == UNDATED:
                self._table.put(row, (now, self._table.get(row)[1]))
                self._expiry.note(row, now)
            elif self._has_expired(written):
                self._table.delete(row)

    def _has_expired(self, written: int) -> bool:
        now = self._now()
        return now is not None and written != UNDATED and written + self._expiry.ttl_ms <= now


class SerializedCells:
    """Values as bytes, with the version of the serializer that wrote them.

    Args:
        cells: Where the bytes are kept.
        uid: Of the operator, for errors.
        name: Of the state.
    """

    def __init__(self, cells: Any, serializer: Serializer[Any], uid: str, name: str) -> None:
        self._cells = cells
        self._serializer = serializer
        self._uid = uid
        self._name = name
        self._version = serializer.version.to_bytes(_VERSION_BYTES, "big")
        # What is decoded anew is not shared.
        self.own = self.get
        self.has = cells.has
        self.delete = cells.delete
        self.names = getattr(cells, "names", None)
        self.count = getattr(cells, "count", None)

    def get(self, row: Any, default: Any = None) -> Any:
        found = self._cells.get(row, _ABSENT)
        if found is _ABSENT:
            return default
        return deserialized(found, self._serializer, f"operator {self._uid!r}, state {self._name!r}", row)

    def put(self, row: Any, value: Any) -> None:
        try:
            data = self._serializer.dumps(value)
        except Exception as error:  # It may be a user's own.
            raise StateError(
                f"operator {self._uid!r}, state {self._name!r}, key {row!r:.120}: a value of type "
                f"{type(value).__qualname__} can't be written by {type(self._serializer).__name__} version "
                f"{self._serializer.version}: {type(error).__name__}: {error}"
            ) from error
        self._cells.put(row, self._version + data)


def _clock_of(state: State, times: Times, uid: str, name: str) -> _Clock:
    if state.ttl_time == "processing":
        return times.now, times.now

    def written() -> int:
        at = times.written_at()
        if at is None:
            raise FlowError(
                f"operator {uid!r}, state {name!r}: its ttl is in event time, which needs records with "
                f"timestamps: call assign_timestamps before key_by, or say ttl_time='processing'",
                operator=uid,
            )
        return at

    return times.event_time, written


def deserialized(found: bytes, serializer: Serializer[Any], where: str, row: Any) -> Any:
    """Return the value that `found` holds.

    Raises:
        StateError: The serializer can't read it.
    """
    version = int.from_bytes(found[:_VERSION_BYTES], "big")
    try:
        return serializer.loads(found[_VERSION_BYTES:], version)
    except Exception as error:  # It may be a user's own.
        raise StateError(
            f"{where}, key {row!r:.120}: a value of version {version} can't be read by "
            f"{type(serializer).__name__} version {serializer.version}: {type(error).__name__}: {error}; "
            f"have it accept what older versions have written"
        ) from error
