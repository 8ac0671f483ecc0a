"""transform_with_state: PySpark's own `StatefulProcessor`, unmodified, in its form for rows.

In Structured Streaming it is called once for each key of a micro-batch; here once for each record, as soon as
the record is there. State, timers and what it yields are part of each checkpoint, as of any keyed process.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from crosscut.contracts.context import Context
from crosscut.contracts.process import KeyedProcess
from crosscut.contracts.state import ListState, MapState, State, ValueState
from crosscut.errors import FlowError
from crosscut.foundation.callables import several
from crosscut.foundation.keys import encoded_key, plain_key

_INITIALISED = "initial state taken in"


def processor_as_process(
    processor: Any, output_type: Any, time_mode: str, initial_state: Any
) -> KeyedProcess[Any, Any]:
    """Return the process that calls `processor`.

    Raises:
        FlowError: An argument is not what it has to be; it says what was expected.
    """
    if not isinstance(processor, StatefulProcessor):
        hint = f": make one, as in {processor.__name__}()" if isinstance(processor, type) else ""
        raise FlowError(f"expected a pyspark.sql.streaming.StatefulProcessor, found {processor!r:.100}{hint}")
    mode = str(time_mode).lower()
    if mode not in _KINDS:
        raise FlowError(f"time_mode is 'None', 'ProcessingTime' or 'EventTime', found {time_mode!r:.100}")
    return _KINDS[mode](processor, _names(output_type), mode, _by_key(initial_state))


class _SparkProcess(KeyedProcess[Any, Row]):
    _lists_timers = True

    def __init__(
        self,
        processor: StatefulProcessor,
        fields: tuple[str, ...],
        time_mode: str,
        initial: Mapping[Any, Row],
    ) -> None:
        self._processor = processor
        self._fields = fields
        self._initial = initial
        self._initial_keys = tuple(initial)
        self._handle = _Handle(time_mode)
        # A copy learns which states there are: whatever else `init` does is for the worker.
        learning = _Handle(time_mode)
        copy.deepcopy(processor).init(learning)
        self._declared = dict(sorted(learning.states.items()))
        # Also if there is no initial state: it may be taken out of the program once it has been given.
        self._declared[_INITIALISED] = ValueState[bool]()
        self._takes_timers = _takes(processor.handleInputRows, 3)

    def _further_states(self) -> Mapping[str, State]:
        return self._declared

    def _bind(self, name: str, state: State) -> None:
        self._handle.states[name] = state

    def open(self) -> None:
        self._processor.init(self._handle)

    def close(self) -> None:
        self._processor.close()

    def on_record(self, record: Any, ctx: Context) -> Iterator[Row]:
        # The first record or timer of a key looks for its initial state.
        self._begin_key(ctx)
        key = _grouping_key(ctx.key)
        values = self._handle.at(ctx)
        rows = iter((_as_row(record),))
        arguments = (key, rows, values) if self._takes_timers else (key, rows)
        return self._results(self._processor.handleInputRows(*arguments), self._processor.handleInputRows)

    def _begin_key(self, ctx: Context) -> None:
        if ctx.key not in self._initial:
            return
        done = self._handle.states[_INITIALISED]
        assert isinstance(done, ValueState)
        if not done.get():
            done.set(True)
            values = self._handle.at(ctx)
            self._processor.handleInitialState(_grouping_key(ctx.key), self._initial[ctx.key], values)

    def _expired(self, time: int, ctx: Context) -> Iterator[Row]:
        values = self._handle.at(ctx)
        found = self._processor.handleExpiredTimer(_grouping_key(ctx.key), values, ExpiredTimerInfo(time))
        return self._results(found, self._processor.handleExpiredTimer)

    def _results(self, found: Any, method: Any) -> Iterator[Row]:
        for row in several(found if found is not None else (), method):
            yield self._result(row)

    def _result(self, row: Any) -> Row:
        fields = self._fields
        if isinstance(row, Row) and hasattr(row, "__fields__"):
            if tuple(row.__fields__) == fields:
                return row
            if set(row.__fields__) == set(fields):
                return Row(**{name: row[name] for name in fields})
        elif isinstance(row, tuple) and len(row) == len(fields):
            return Row(**dict(zip(fields, row, strict=True)))
        raise TypeError(
            f"{type(self._processor).__qualname__} yielded {row!r:.200}: expected a pyspark.sql.Row with the "
            f"fields of output_type, {', '.join(fields)}"
        )


class _ByEventTime(_SparkProcess):
    def on_timer(self, time: int, ctx: Context) -> Iterator[Row]:
        return self._expired(time, ctx)


class _ByProcessingTime(_SparkProcess):
    def on_processing_timer(self, time: int, ctx: Context) -> Iterator[Row]:
        return self._expired(time, ctx)


_KINDS: dict[str, type[_SparkProcess]] = {
    "none": _SparkProcess,
    "eventtime": _ByEventTime,
    "processingtime": _ByProcessingTime,
}


class _Handle(StatefulProcessorHandle):
    """What `init` gets in place of PySpark's own handle, which talks to a JVM."""

    def __init__(self, time_mode: str) -> None:
        # Not super().__init__(): that takes the connection to a JVM.
        self.states: dict[str, State] = {}
        self._has_time = time_mode != "none"
        self._is_event_time = time_mode == "eventtime"
        self._context: Context | None = None

    def at(self, context: Context) -> TimerValues:
        """A call for the key of `context` begins; return what it is told of time."""
        self._context = context
        watermark = context.watermark if self._is_event_time else None
        return TimerValues(context.now(), -1 if watermark is None else watermark)

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        state = self._declared(stateName, ValueState, ttlDurationMs)
        return _Value(state, _Shape(stateName, schema))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        state = self._declared(stateName, ListState, ttlDurationMs)
        shape = _Shape(stateName, schema)
        return _ExpiringList(state, shape, ttlDurationMs, self._now) if ttlDurationMs else _List(state, shape)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        state = self._declared(stateName, MapState, ttlDurationMs)
        return _Map(state, _Shape(stateName, userKeySchema), _Shape(stateName, valueSchema))

    def deleteIfExists(self, stateName: str) -> None:
        if self._context is None:
            self.states.pop(stateName, None)
        elif stateName in self.states:
            self.states[stateName].clear()

    def registerTimer(self, expiryTimestampMs: int) -> None:
        context = self._at()
        (context.set_timer if self._is_event_time else context.set_processing_timer)(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        context = self._at()
        (context.delete_timer if self._is_event_time else context.delete_processing_timer)(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return iter(self._at()._timers(is_event_time=self._is_event_time))

    def _declared(self, name: str, kind: type[State], ttl_ms: int | None) -> Any:
        if name not in self.states:
            if self._context is not None:
                raise FlowError(f"state {name!r} is used outside of init(): declare it there")
            self.states[name] = kind(ttl=ttl_ms / 1000 if ttl_ms else None, ttl_time="processing")
        return self.states[name]

    def _now(self) -> int:
        if self._context is None:
            raise FlowError("a state belongs to a key: use it in handleInputRows or handleExpiredTimer")
        return self._context.now()

    def _at(self) -> Context:
        if not self._has_time:
            raise FlowError("timers need a time mode: set time_mode='ProcessingTime' or 'EventTime'")
        if self._context is None:
            raise FlowError("a timer belongs to a key: set it in handleInputRows or handleExpiredTimer")
        return self._context


class _Shape:
    """How many values a tuple of a state has, where that is known."""

    def __init__(self, name: str, schema: Any) -> None:
        self._name = name
        self._fields = _names(schema)

    def checked(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list) or len(value) != len(self._fields):
            raise TypeError(
                f"state {self._name!r} was given {value!r:.200}: expected a tuple of {len(self._fields)} "
                f"({', '.join(self._fields)})"
            )
        return tuple(value)


class _Value:
    def __init__(self, state: ValueState[Any], shape: _Shape) -> None:
        self._state, self._shape = state, shape

    def exists(self) -> bool:
        return self._state.exists

    def get(self) -> Any:
        return self._state.get()

    def update(self, newValue: Any) -> None:
        self._state.set(self._shape.checked(newValue))

    def clear(self) -> None:
        self._state.clear()


class _List:
    def __init__(self, state: ListState[Any], shape: _Shape) -> None:
        self._state, self._shape = state, shape

    def exists(self) -> bool:
        return bool(self._state)

    def get(self) -> Iterator[Any]:
        return iter(self._state.get())

    def put(self, newState: Iterable[Any]) -> None:
        self._state.set([self._shape.checked(one) for one in newState])

    def appendValue(self, newState: Any) -> None:
        self._state.append(self._shape.checked(newState))

    def appendList(self, newState: Iterable[Any]) -> None:
        self._state.extend([self._shape.checked(one) for one in newState])

    def clear(self) -> None:
        self._state.clear()


class _ExpiringList:
    """A list whose items expire one by one, as in Structured Streaming.

    The state has them with the time at which they were written, in that order. As a whole it lives as long
    as the newest.
    """

    def __init__(self, state: ListState[Any], shape: _Shape, ttl_ms: int, now: Callable[[], int]) -> None:
        self._state, self._shape, self._ttl_ms, self._now = state, shape, ttl_ms, now

    def exists(self) -> bool:
        return bool(self._alive())

    def get(self) -> Iterator[Any]:
        return iter([value for _, value in self._alive()])

    def put(self, newState: Iterable[Any]) -> None:
        self._state.set(self._written(newState))

    def appendValue(self, newState: Any) -> None:
        self.appendList((newState,))

    def appendList(self, newState: Iterable[Any]) -> None:
        new = self._written(newState)
        if not new:
            return
        # Not at each item that expires: every one of them would cost as much as the list is long.
        known = self._state._items()
        if known and known[0][0] + self._ttl_ms + self._ttl_ms // 4 <= self._now():
            self._state.set([*self._alive(), *new])
        else:
            self._state.extend(new)

    def clear(self) -> None:
        self._state.clear()

    def _written(self, items: Iterable[Any]) -> list[tuple[int, Any]]:
        now = self._now()
        return [(now, self._shape.checked(one)) for one in items]

    def _alive(self) -> list[tuple[int, Any]]:
        expired = self._now() - self._ttl_ms
        return [one for one in self._state if one[0] > expired]


class _Map:
    def __init__(self, state: MapState[Any, Any], keys: _Shape, values: _Shape) -> None:
        self._state, self._keys, self._values = state, keys, values

    def exists(self) -> bool:
        return bool(self._state)

    def getValue(self, key: Any) -> Any:
        return self._state.get(self._keys.checked(key))

    def containsKey(self, key: Any) -> bool:
        return self._keys.checked(key) in self._state

    def updateValue(self, key: Any, value: Any) -> None:
        self._state[self._keys.checked(key)] = self._values.checked(value)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._state.items()))

    def keys(self) -> Iterator[Any]:
        return iter(list(self._state))

    def values(self) -> Iterator[Any]:
        return iter(list(self._state.values()))

    def removeKey(self, key: Any) -> None:
        self._state.pop(self._keys.checked(key), None)

    def clear(self) -> None:
        self._state.clear()


def _grouping_key(key: Any) -> tuple[Any, ...]:
    # As in Structured Streaming, where one may group by several columns.
    return key if isinstance(key, tuple) else (key,)


def _as_row(record: Any) -> Row:
    if isinstance(record, Row):
        return record
    if isinstance(record, Mapping):
        return Row(**record)
    if isinstance(record, tuple) and hasattr(record, "_asdict"):
        return Row(**record._asdict())
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return Row(**{one.name: getattr(record, one.name) for one in dataclasses.fields(record)})
    raise TypeError(
        f"a StatefulProcessor takes rows, found {record!r:.100} of type {type(record).__name__}: make rows "
        f"of the records first, as in .map(lambda r: Row(id=r[0], value=r[1])); dicts, dataclasses and named "
        f"tuples are taken as they are"
    )


def _takes(method: Any, count: int) -> bool:
    """Whether `method` takes so many arguments: PySpark's documentation has one without `timerValues`."""
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    return True


def _names(schema: Any) -> tuple[str, ...]:
    """Return the names of the fields of a schema, a StructType or DDL.

    The types are not looked at: values are kept and sent on as they are.
    """
    if isinstance(schema, StructType):
        return tuple(schema.fieldNames())
    if isinstance(schema, str):
        names = tuple(_name_of_column(column) for column in _columns(schema))
        if names and all(names):
            return names
    raise FlowError(f"expected a StructType or text like 'id STRING, count INT', found {schema!r:.200}")


def _columns(ddl: str) -> Iterator[str]:
    """Yield the columns of a DDL text: what stands between commas that stand in no brackets."""
    depth, is_quoted, column = 0, False, ""
    for sign in ddl:
        is_quoted ^= sign == "`"
        if not is_quoted:
            depth += (sign in "<(") - (sign in ">)")
            if sign == "," and not depth:
                yield column
                column = ""
                continue
        column += sign
    yield column


def _name_of_column(column: str) -> str:
    column = column.strip()
    if column.startswith("`"):
        return column[1:].partition("`")[0]
    name, _, kind = column.replace(":", " ", 1).partition(" ")
    return name if kind.strip() else ""


def _by_key(initial_state: Any) -> dict[Any, Row]:
    if initial_state is None:
        return {}
    try:
        pairs = dict(initial_state)
        for key in pairs:
            encoded_key(key)
        return {plain_key(key): _as_row(row) for key, row in pairs.items()}
    except (TypeError, ValueError) as error:
        raise FlowError(f"initial_state is a dict of rows by key, found {initial_state!r:.100}") from error
