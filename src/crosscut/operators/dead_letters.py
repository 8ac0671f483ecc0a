"""Operators with `on_error="dead letters"`: a record for which user code raises leaves by a side output.

A record has all of its effects or is a dead letter: what was said for it before user code raised is not
sent, and what was changed in state is changed back. That costs a loop with a call more for each record, and
a copy of each mutable value in state that one touches; the operators that fail pay nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import repeat
from typing import Any

from crosscut.contracts.dead_letters import DeadLetter
from crosscut.contracts.process import KeyedProcess
from crosscut.contracts.state import Cells
from crosscut.errors import CrosscutError, InternalError
from crosscut.foundation.batch import Batch
from crosscut.foundation.callables import several
from crosscut.foundation.keys import encoded_key
from crosscut.foundation.timestamps import as_timestamp
from crosscut.graph.specs import AssignTimestampsSpec, Emit
from crosscut.operators.keyed import KeyedOperator
from crosscut.operators.operator import Operator, text_of, traceback_of
from crosscut.operators.process import OnTimer, Process
from crosscut.operators.sides import Sides
from crosscut.operators.stateless import Split
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.state.encoding import owned_copy
from crosscut.state.keyed import KeyedState

_ABSENT: Any = object()
_TRACEBACK_MAX = 4_000

Attempt = Callable[[Any], Iterable[Any]]
"""What goes on of a record; it has done nothing yet if it raises."""

Call = partial[Iterable[Any] | None]


def is_about_record(error: Exception) -> bool:
    """Return whether `error` concerns a record: else the flow is wrong, or the memory is full."""
    return not isinstance(error, CrosscutError | MemoryError)


def set_aside(
    sides: Sides,
    uid: str,
    record: Any,
    error: Exception,
    *,
    key: Any = None,
    timestamp: int | None = None,
    timer: int | None = None,
) -> None:
    """Say that `record`, or the time of a timer, is a dead letter.

    Raises:
        Exception: `error` itself, if it is not about the record.
    """
    if not is_about_record(error):
        raise error
    trace = traceback_of(error)
    if len(trace) > _TRACEBACK_MAX:
        trace = f"{trace[: _TRACEBACK_MAX // 2]}\n  ...\n{trace[-_TRACEBACK_MAX // 2 :]}"
    sides.set_aside(DeadLetter(record, text_of(error), uid, key, timer, trace), timestamp)


class Attempts(Operator):
    """An operator without state: each record is attempted by itself."""

    def __init__(self, uid: str, attempt: Attempt, sides: Sides) -> None:
        super().__init__(uid, sides)
        self._attempt = attempt
        self._sides = sides

    def process(self, batch: Batch) -> Batch:
        results: list[Any] = []
        timestamps: list[int] | None = None if batch.timestamps is None else []
        extend, attempt = results.extend, self._attempt
        with self.over(batch) as remaining:
            for record, timestamp in zip(remaining, _times(batch), strict=False):
                try:
                    extend(attempt(record))
                except Exception as error:  # noqa: BLE001 - user code may raise anything
                    set_aside(self._sides, self.uid, record, error, timestamp=timestamp)
                if timestamps is not None and timestamp is not None:
                    timestamps += [timestamp] * (len(results) - len(timestamps))
        return Batch(results, None, timestamps)


def _times(batch: Batch) -> Iterable[int | None]:
    return repeat(None) if batch.timestamps is None else batch.timestamps


def mapping(function: Callable[[Any], Any]) -> Attempt:
    """Return what `map` makes of a record."""
    return lambda record: (function(record),)


def filtering(function: Callable[[Any], Any]) -> Attempt:
    """Return what `filter` makes of a record."""
    return lambda record: (record,) if function(record) else ()


def flat_mapping(function: Callable[[Any], Iterable[Any]]) -> Attempt:
    """Return what `flat_map` makes of a record: all of it, or nothing if it raises in the middle."""

    def attempt(record: Any) -> Iterable[Any]:
        found = function(record)
        return found if type(found) is list else list(several(found, function))

    return attempt


def inspecting(function: Callable[[Any], object]) -> Attempt:
    """Return what `inspect` makes of a record."""

    def attempt(record: Any) -> Iterable[Any]:
        function(record)
        return (record,)

    return attempt


def only_calling(function: Callable[[Any], object]) -> Attempt:
    """Return what `for_each` makes of a record: nothing."""

    def attempt(record: Any) -> Iterable[Any]:
        function(record)
        return ()

    return attempt


class AttemptedSplit(Split):
    """split: a record for which a predicate raises is a dead letter."""

    def __init__(
        self,
        uid: str,
        predicates: tuple[tuple[str, Callable[[Any], Any]], ...],
        sides: Sides,
        *,
        has_rest: bool,
    ) -> None:
        super().__init__(uid, predicates, sides, has_rest=has_rest)
        self._sides = sides

    def process(self, batch: Batch) -> Batch:
        rest: list[Any] = []
        timestamps: list[int] | None = None if batch.timestamps is None else []
        with self.over(batch) as remaining:
            for record, timestamp in zip(remaining, _times(batch), strict=False):
                try:
                    name = next((name for name, is_so in self._predicates if is_so(record)), None)
                except Exception as error:  # noqa: BLE001 - user code may raise anything
                    set_aside(self._sides, self.uid, record, error, timestamp=timestamp)
                    continue
                if name is not None:
                    self._emit(name, record, timestamp)
                    continue
                if not self._has_rest:
                    raise self._fits_nowhere()
                rest.append(record)
                if timestamps is not None and timestamp is not None:
                    timestamps.append(timestamp)
        return Batch(rest, None, timestamps)


class AttemptedTimestamps(AssignTimestamps):
    """assign_timestamps: a record without a timestamp is a dead letter, and moves no watermark."""

    def __init__(self, uid: str, spec: AssignTimestampsSpec, sides: Sides) -> None:
        super().__init__(uid, spec.function, spec.out_of_orderness_ms, spec.idle_after_ms, spec.hold)
        self.sides = self._sides = sides

    def process(self, batch: Batch) -> Batch:
        records: list[Any] = []
        timestamps: list[int] = []
        function = self._function
        with self.over(batch) as remaining:
            for record, timestamp in zip(remaining, _times(batch), strict=False):
                try:
                    found = as_timestamp(function(record))
                except Exception as error:  # noqa: BLE001 - user code may raise anything
                    set_aside(self._sides, self.uid, record, error, timestamp=timestamp)
                    continue
                records.append(record)
                timestamps.append(found)
        return self._stamped(Batch(records, None, timestamps), timestamps) if records else Batch([])


class AttemptedKeys(Operator):
    """key_by: a record without a key, or with something that can't be one, is a dead letter."""

    def __init__(self, uid: str, function: Callable[[Any], Any], sides: Sides, *, keys_only: bool) -> None:
        super().__init__(uid, sides)
        self._function = function
        self._sides = sides
        self._keys_only = keys_only

    def process(self, batch: Batch) -> Batch:
        keys: list[Any] = []
        records: list[Any] = []
        timestamps: list[int] | None = None if batch.timestamps is None else []
        function = self._function
        with self.over(batch) as remaining:
            for record, timestamp in zip(remaining, _times(batch), strict=False):
                try:
                    key = _checked(function(record))
                except Exception as error:  # noqa: BLE001 - user code may raise anything
                    set_aside(self._sides, self.uid, record, error, timestamp=timestamp)
                    continue
                keys.append(key)
                records.append(record)
                if timestamps is not None and timestamp is not None:
                    timestamps.append(timestamp)
        return Batch(keys if self._keys_only else records, keys, timestamps)


def _checked(key: Any) -> Any:
    if type(key) is not str and type(key) is not int:
        try:
            encoded_key(key)
        except CrosscutError as error:
            raise TypeError(str(error)) from error
    return key


class AttemptedAggregate(KeyedOperator):
    """sum, reduce, aggregate: a record that can't be added changes nothing."""

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        emit: Emit,
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None,
        sides: Sides,
    ) -> None:
        super().__init__(uid, state, emit, sides)
        self._add_one = add
        self._result_of = result
        self._sides = sides

    def _result(self, value: Any) -> Any:
        return value if self._result_of is None else self._result_of(value)

    def _add(self, batch: Batch, keys: list[Any]) -> Batch:
        table, add, initial = self._state.main, self._add_one, self._state.main.initial
        updates: list[Any] = []
        timestamps: list[int] | None = None if batch.timestamps is None else []
        with self.over(batch) as remaining:
            for key, record, timestamp in zip(keys, remaining, _times(batch), strict=False):
                try:
                    known = table.get(key, _ABSENT)
                    value = add(initial() if known is _ABSENT else owned_copy(known), record)
                    update = None if self._is_final_only else (key, owned_copy(self._result(value)))
                except Exception as error:  # noqa: BLE001 - user code may raise anything
                    set_aside(self._sides, self.uid, record, error, key=key, timestamp=timestamp)
                    continue
                table.put(key, value)
                if update is not None:
                    updates.append(update)
                    if timestamps is not None and timestamp is not None:
                        timestamps.append(timestamp)
        return Batch(updates, None, timestamps)

    def _final_results(self, keys: Batch, *, is_first: bool) -> list[Any]:
        results: list[Any] = []
        for key in self.time_budget.through(keys):
            value = self._state.peek(key)
            try:
                results.append((key, self._final_result(value)))
            except Exception as error:  # noqa: BLE001 - user code may raise anything
                set_aside(self._sides, self.uid, (key, owned_copy(value)), error, key=key)
        return results


class _Undoable:
    """Cells whose changes can be taken back. What it gives is the caller's own."""

    def __init__(self, cells: Any, journal: list[tuple[Any, Any, Any]]) -> None:
        self._cells = cells
        self._journal = journal
        self.has, self.names, self.count = (getattr(cells, name, None) for name in ("has", "names", "count"))

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._cells.get(key, _ABSENT)
        return default if value is _ABSENT else owned_copy(value)

    own = get

    def put(self, key: Any, value: Any) -> None:
        self._note(key)
        self._cells.put(key, value)

    def delete(self, key: Any) -> None:
        self._note(key)
        self._cells.delete(key)

    def _note(self, key: Any) -> None:
        self._journal.append((self._cells, key, self._cells.get(key, _ABSENT)))


class AttemptedProcess(Process):
    """process: a record or timer for which it raises changes no state, and says nothing but a dead letter.

    The timer has been called all the same: it is not called again.
    """

    def __init__(self, uid: str, process: KeyedProcess[Any, Any], state: KeyedState, sides: Sides) -> None:
        self._journal: list[tuple[Any, Any, Any]] = []
        # Key, time, whether it is of event time, and what it was if it was deleted.
        self._timer_journal: list[tuple[Any, int, bool, Any]] = []
        super().__init__(uid, process, state, sides)
        self._sides = sides

    def _cells(self, state: KeyedState) -> Mapping[str, Cells]:
        return {name: _Undoable(table, self._journal) for name, table in state.tables.items()}

    def process(self, batch: Batch) -> Batch:
        if batch.keys is None:
            raise InternalError(f"operator {self.uid!r} got records without keys")
        self._state.fetch(batch.keys)
        results: list[Any] = []
        timestamps: list[int] | None = None if batch.timestamps is None else []
        on_record, context = self._process.on_record, self._context
        with self.over(batch) as remaining:
            self._open_once()
            for key, record, timestamp in zip(batch.keys, remaining, _times(batch), strict=False):
                context.key = key
                context.timestamp = timestamp
                results += self._attempted(partial(on_record, record, context), record)
                if timestamps is not None and timestamp is not None:
                    timestamps += [timestamp] * (len(results) - len(timestamps))
        return Batch(results, None, timestamps)

    def _called_at(self, on_timer: OnTimer, time: int) -> Iterable[Any]:
        return self._attempted(partial(on_timer, time, self._context), None, timer=time)

    def _attempted(self, call: Call, record: Any, *, timer: int | None = None) -> Iterable[Any]:
        """Return all that `call` says; if it raises, nothing has happened but that there is a letter."""
        self._journal.clear()
        self._timer_journal.clear()
        position = self._sides.position()
        try:
            found = call()
            return () if found is None else list(several(found, call.func))
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            self._sides.go_back(position)
            self._undo()
            key, timestamp = self._context.key, self._context.timestamp
            set_aside(self._sides, self.uid, record, error, key=key, timestamp=timestamp, timer=timer)
            return ()

    def set_timer(self, key: Any, time: int, *, is_event_time: bool) -> bool:
        is_new = super().set_timer(key, time, is_event_time=is_event_time)
        if is_new:
            self._timer_journal.append((key, time, is_event_time, None))
        return is_new

    def delete_timer(self, key: Any, time: int, *, is_event_time: bool) -> Any:
        known = super().delete_timer(key, time, is_event_time=is_event_time)
        if known is not None:
            self._timer_journal.append((key, time, is_event_time, known))
        return known

    def _undo(self) -> None:
        for key, time, is_event_time, known in reversed(self._timer_journal):
            timers = self._timers_of(is_event_time=is_event_time)
            if known is None:
                timers.delete(key, time)
            else:
                timers.put_back(key, time, known)
        for cells, key, value in reversed(self._journal):
            if value is _ABSENT:
                cells.delete(key)
            else:
                cells.put(key, value)
