"""Keyed processes: a user's own stateful operator, with as many kinds of state as it declares.

    class Sessions(cc.KeyedProcess[Click, str]):
        last = cc.ValueState(default=0)
        pages = cc.ListState()

        def on_record(self, click, ctx):
            if click.time - self.last.get() > 1800 and self.pages:
                yield f"{ctx.key}: {len(self.pages)} pages"
                self.pages.clear()
            self.last.set(click.time)
            self.pages.append(click.page)

    clicks.key_by(lambda click: click.user).process(Sessions())

State is declared in the class, by name; in `on_record` it is that of the record's key. It is part of each
checkpoint. What a process keeps in other attributes is not: it is gone after a failure, and whatever it
did for one key it may do again.
"""

from __future__ import annotations

import copy
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, cast, get_args

from crosscut.callables import argument_problem, name_of, several
from crosscut.durations import Duration, duration_ms
from crosscut.errors import FlowError
from crosscut.serializers import VERSION_MAX, Serializer
from crosscut.timestamps import Moment, as_timer_time

TtlTime = Literal["event", "processing"]
RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")
T = TypeVar("T")
V = TypeVar("V")

_ABSENT: Any = object()

EVENT_TIMERS = "event timers"
PROCESSING_TIMERS = "processing timers"
TIMERS = "timers"
"""The kind of these two tables. No attribute of a process is called like them."""


class Cells(Protocol):
    """Where the values of one state are kept: one for each key."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, which may be changed in place, or `default`."""

    def own(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key` as the caller's own, or `default`: whatever it does to it, or to the
        state, the other stays as it is."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""

    def delete(self, key: Any) -> None:
        """Take the value of `key` away."""


class NamedCells(Cells, Protocol):
    """Where the values of one state are kept: any number for each key, under pairs `(key, name)`."""

    def has(self, row: tuple[Any, Any]) -> bool:
        """Tell whether there is a value under `row`."""

    def names(self, key: Any) -> list[Any]:
        """Return the names under which `key` has values."""

    def count(self, key: Any) -> int:
        """Return how many values `key` has."""


class Clocks(Protocol):
    """What a running process has of time."""

    def now(self) -> int:
        """Return the processing time, in milliseconds since 1970."""

    def set_timer(self, key: Any, time: int, *, is_event_time: bool) -> None:
        """Have the process called at `time`."""

    def delete_timer(self, key: Any, time: int, *, is_event_time: bool) -> None:
        """Take that back."""

    def timers(self, key: Any, *, is_event_time: bool) -> list[int]:
        """Return the times for which `set_timer` was called, of a process that `lists_timers`."""


class Context:
    """What a process is told along with a record, and how it has itself called later.

    Times are whole milliseconds since 1970 in UTC; a `datetime` with a time zone is taken as well.

    Attributes:
        key: The key of the record, or of the timer.
        timestamp: When the record happened, or the time of the timer; what is yielded has it, too. None in a
            flow without event time.
        watermark: No record older than this will come. None as long as nothing is known, `cc.END_OF_TIME`
            after the end of all input.
    """

    __slots__ = ("_clocks", "_say", "key", "timestamp", "watermark")

    def __init__(self, say: Callable[[str, Any, int | None], None], clocks: Clocks | None = None) -> None:
        self._say = say
        self._clocks = clocks
        self.key: Any = _ABSENT
        self.timestamp: int | None = None
        self.watermark: int | None = None

    def output(self, name: str, record: Any) -> None:
        """Send a record to those who read `stream.side_output(name)`, beside what `on_record` returns.

        Raises:
            FlowError: Nobody reads that name, so the record would be lost.
        """
        self._say(name, record, self.timestamp)

    def leave_key(self) -> None:
        """The next record has no key."""
        self.key = _ABSENT

    def now(self) -> int:
        """Return the processing time: the worker's clock, but it never goes back, also after a failure."""
        if self._clocks is None:
            raise FlowError("the processing time was asked for outside of a running job")
        return self._clocks.now()

    def set_timer(self, time: int | Moment) -> None:
        """Have `on_timer` called for this key, once the watermark has come to `time`.

        A key has one timer for each time, however often it is set. One that is past is called soon.
        """
        self._set(time, is_event_time=True)

    def delete_timer(self, time: int | Moment) -> None:
        """Take a timer of this key back, if it is set."""
        self._delete(time, is_event_time=True)

    def set_processing_timer(self, time: int | Moment) -> None:
        """Have `on_processing_timer` called for this key, once `now` has come to `time`; see `set_timer`."""
        self._set(time, is_event_time=False)

    def delete_processing_timer(self, time: int | Moment) -> None:
        """Take a timer of processing time back, if it is set."""
        self._delete(time, is_event_time=False)

    def _set(self, time: Any, *, is_event_time: bool) -> None:
        self._of_job("a timer").set_timer(self.key, as_timer_time(time), is_event_time=is_event_time)

    def _delete(self, time: Any, *, is_event_time: bool) -> None:
        self._of_job("a timer").delete_timer(self.key, as_timer_time(time), is_event_time=is_event_time)

    def _timers(self, *, is_event_time: bool) -> list[int]:
        return self._of_job("a timer").timers(self.key, is_event_time=is_event_time)

    def _of_job(self, what: str) -> Clocks:
        if self._clocks is None or self.key is _ABSENT:
            raise FlowError(f"{what} was asked for outside of a key: only a process in a running job has it")
        return self._clocks


class State:
    """One declared state. As it stands in the class it belongs to no key; a running process has its own.

    Args:
        ttl: How long a value lives after it was set; then it is as if it had been cleared. An expired value
            is never returned, and is removed after a quarter of that time more. Of a `MapState` each entry
            has a life of its own.
        ttl_time: Whether that is event time, which has passed when the watermark has come so far, or
            processing time, which `Context.now` tells.
        serializer: What values are stored by; pickle if None.
    """

    kind: ClassVar[str] = ""

    def __init__(
        self,
        *,
        ttl: Duration | None = None,
        ttl_time: TtlTime = "event",
        serializer: Serializer[Any] | None = None,
    ) -> None:
        self.ttl_ms = None if ttl is None else int(duration_ms(ttl, "ttl"))
        self.ttl_time = ttl_time
        self.serializer = serializer
        if ttl_time not in get_args(TtlTime):
            raise FlowError(f"ttl_time={ttl_time!r}: expected 'event' or 'processing'")
        if self.ttl_ms is not None and self.ttl_ms < 1:
            raise FlowError(f"ttl={ttl!r}: expected at least 1 ms")
        if serializer is not None and not isinstance(serializer, Serializer):
            raise FlowError(f"serializer={serializer!r:.100}: expected a crosscut.Serializer; make one")
        if serializer is not None and not 0 <= serializer.version <= VERSION_MAX:
            raise FlowError(f"serializer version {serializer.version}: expected 0 to {VERSION_MAX}")
        self._cells: Cells | None = None
        self._context: Context | None = None
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @property
    def form(self) -> str:
        """What is stored: part of what the flow is."""
        made = [self.kind]
        if self.ttl_ms is not None:
            made.append(f"ttl in {self.ttl_time} time")
        if self.serializer is not None:
            made.append(type(self.serializer).__name__)
        return ", ".join(made)

    def bound(self, name: str, cells: Cells, context: Context) -> Self:
        """Return this state over `cells`, at the key that `context` is at."""
        one = copy.copy(self)
        one._name, one._cells, one._context = name, cells, context
        return one

    def clear(self) -> None:
        """Take the key's value away."""
        cells, key = self._at()
        cells.delete(key)

    def _at(self) -> tuple[Cells, Any]:
        if self._cells is None or self._context is None or self._context.key is _ABSENT:
            raise FlowError(
                f"state {self._name!r} was used outside of a key: it has a value for each key, and only "
                f"on_record, called by a running job, is at one"
            )
        return self._cells, self._context.key


class ValueState(State, Generic[T]):
    """One value for each key.

    Args:
        default: What `get` returns for a key without a value: something that can't change, or a function of
            no arguments that makes it.
    """

    kind = "value"

    def __init__(
        self,
        default: T | Callable[[], T] | None = None,
        *,
        ttl: Duration | None = None,
        ttl_time: TtlTime = "event",
        serializer: Serializer[T] | None = None,
    ) -> None:
        super().__init__(ttl=ttl, ttl_time=ttl_time, serializer=serializer)
        self._default = default

    def get(self) -> T:
        """Return the key's value, or the default, as the caller's own: set what you change in it."""
        cells, context = self._cells, self._context
        # Not `_at`: the call costs as much as the look-up.
        if cells is None or context is None or (key := context.key) is _ABSENT:
            cells, key = self._at()
        found = cells.own(key, _ABSENT)
        if found is _ABSENT:
            found = self._default() if callable(self._default) else self._default
        return found  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        """Set the key's value."""
        cells, context = self._cells, self._context
        if cells is None or context is None or (key := context.key) is _ABSENT:
            cells, key = self._at()
        cells.put(key, value)

    @property
    def exists(self) -> bool:
        """Whether the key has a value."""
        cells, key = self._at()
        return cells.get(key, _ABSENT) is not _ABSENT


class ListState(State, Generic[T]):
    """A list for each key; empty until something is added, and no state while it is empty."""

    kind = "list"

    def append(self, item: T) -> None:
        """Add one item."""
        self.extend((item,))

    def extend(self, items: Iterable[T]) -> None:
        """Add several items."""
        more = list(items)
        cells, key = self._at()
        found = cells.get(key)
        if found is not None:
            found += more
            cells.put(key, found)
        elif more:
            cells.put(key, more)

    def set(self, items: Iterable[T]) -> None:
        """Replace the list."""
        new = list(items)
        cells, key = self._at()
        if new:
            cells.put(key, new)
        else:
            cells.delete(key)

    def get(self) -> list[T]:
        """Return the items, in a list of the caller's own."""
        return list(self._items())

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self._items())

    def _items(self) -> list[T]:
        cells, key = self._at()
        return cells.get(key) or []


class MapState(State, MutableMapping[T, V]):
    """A dictionary for each key; no state while it is empty.

    Each entry is stored by itself, so a change of one costs the same however many there are. They come in an
    order that is always the same, and not that in which they were set.

    Names may be anything that has a hash and can be pickled. Numbers that are equal are one name. Of classes
    of your own and the like, names that are equal have to be pickled alike.
    """

    kind = "map"

    def __getitem__(self, name: T) -> V:
        cells, key = self._entries()
        found = cells.own((key, name), _ABSENT)
        if found is _ABSENT:
            raise KeyError(name)
        return found  # type: ignore[no-any-return]

    def __setitem__(self, name: T, value: V) -> None:
        cells, key = self._entries()
        cells.put((key, name), value)

    def __delitem__(self, name: T) -> None:
        cells, key = self._entries()
        if not cells.has((key, name)):
            raise KeyError(name)
        cells.delete((key, name))

    def __contains__(self, name: object) -> bool:
        cells, key = self._entries()
        return cells.has((key, name))

    def __iter__(self) -> Iterator[T]:
        # Of a list, so that entries may be deleted meanwhile.
        cells, key = self._entries()
        return iter(cells.names(key))

    def __len__(self) -> int:
        cells, key = self._entries()
        return cells.count(key)

    def clear(self) -> None:
        """Take all entries of the key away."""
        cells, key = self._entries()
        for name in cells.names(key):
            cells.delete((key, name))

    def _entries(self) -> tuple[NamedCells, Any]:
        cells, key = self._at()
        return cast(NamedCells, cells), key


class AggregatingState(State, Generic[T, V]):
    """What the values added so far come to, for each key.

    Args:
        initial: Makes the accumulator of a new key.
        add: `add(accumulator, value)` returns the next accumulator; it may be the same object.
        result: What `get` makes of it; the accumulator itself if None.
    """

    kind = "aggregating"

    def __init__(
        self,
        initial: Callable[[], Any],
        add: Callable[[Any, T], Any],
        result: Callable[[Any], V] | None = None,
        *,
        ttl: Duration | None = None,
        ttl_time: TtlTime = "event",
        serializer: Serializer[Any] | None = None,
    ) -> None:
        super().__init__(ttl=ttl, ttl_time=ttl_time, serializer=serializer)
        self._initial, self._add, self._result = initial, add, result

    def add(self, value: T) -> None:
        """Add a value."""
        cells, key = self._at()
        found = cells.get(key, _ABSENT)
        cells.put(key, self._add(self._initial() if found is _ABSENT else found, value))

    def get(self) -> V | None:
        """Return the result for the key, as the caller's own; None if nothing has been added."""
        cells, key = self._at()
        found = cells.own(key, _ABSENT)
        if found is _ABSENT:
            return None
        return found if self._result is None else self._result(found)


class ReducingState(State, Generic[T]):
    """The values added so far, combined two at a time, for each key.

    Args:
        function: `function(value so far, value)` returns the next one. The first value is taken as it is.
    """

    kind = "reducing"

    def __init__(
        self,
        function: Callable[[T, T], T],
        *,
        ttl: Duration | None = None,
        ttl_time: TtlTime = "event",
        serializer: Serializer[T] | None = None,
    ) -> None:
        super().__init__(ttl=ttl, ttl_time=ttl_time, serializer=serializer)
        self._function = function

    def add(self, value: T) -> None:
        """Add a value."""
        cells, key = self._at()
        found = cells.get(key, _ABSENT)
        cells.put(key, value if found is _ABSENT else self._function(found, value))

    def get(self) -> T | None:
        """Return what the values come to, as the caller's own; None if nothing has been added."""
        cells, key = self._at()
        return cells.own(key)  # type: ignore[no-any-return]


class KeyedProcess(ABC, Generic[RecordT, ResultT]):
    """What `keyed.process` calls. One object for each task; it is pickled on the driver, as functions are."""

    def open(self) -> None:
        """Called in the worker before the first record of each epoch: connect, load, and so on."""

    def close(self) -> None:
        """Called in the worker when an epoch is over that `open` was called in, unless the worker is lost."""

    @abstractmethod
    def on_record(self, record: RecordT, ctx: Context) -> Iterable[ResultT] | None:
        """Return or yield what is to go on, for one record.

        The records of one key come one after the other, in the order in which they arrive.
        """

    def on_timer(self, time: int, ctx: Context) -> Iterable[ResultT] | None:
        """Return or yield what is to go on, for a timer of `ctx.key` that has come due.

        Timers come in the order of their time, each once. When the input has ended, all that are left come
        at once, and those that are set then, too. What is yielded has the timer's time as its timestamp.
        """
        return None

    def on_processing_timer(self, time: int, ctx: Context) -> Iterable[ResultT] | None:
        """As `on_timer`, for processing time; what is yielded has the watermark as its timestamp."""
        return None

    _lists_timers: ClassVar[bool] = False
    """Whether it asks which timers a key has: that takes memory for each timer."""

    def _further_states(self) -> Mapping[str, State]:
        """Return states that are not declared in the class, by name."""
        return {}

    def _bind(self, name: str, state: State) -> None:
        """Take `state`, which has values, in place of the one that was declared under `name`."""
        setattr(self, name, state)


class Stateful(KeyedProcess[Any, Any]):
    """A function of state and record as a process: `keyed.stateful`."""

    state = ValueState[Any]()

    def __init__(self, function: Callable[[Any, Any], tuple[Any, Iterable[Any]]]) -> None:
        self._function = function

    def on_record(self, record: Any, ctx: Context) -> Iterable[Any]:
        returned = self._function(self.state.get(), record)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                f"{name_of(self._function)} returned {reprlib.repr(returned)}: expected two things, "
                f"(the next state or None, a list of what goes on)"
            )
        state, results = returned
        if state is None:
            self.state.clear()
        else:
            self.state.set(state)
        return several(results, self._function)


def kinds_of(process: KeyedProcess[Any, Any]) -> tuple[tuple[str, str], ...]:
    """Return name and kind of each state that `process` declares, and of its tables of timers.

    Raises:
        FlowError: As in `declared`.
    """
    kinds = ((name, state.kind) for name, state in declared(process).items())
    return (*kinds, *((name, TIMERS) for name in timer_tables(process)))


def states_of(process: KeyedProcess[Any, Any]) -> tuple[tuple[str, str], ...]:
    """Return the same with the form that a state has in snapshots."""
    forms = ((name, state.form) for name, state in declared(process).items())
    return (*forms, *((name, TIMERS) for name in timer_tables(process)))


def timer_problem(process: KeyedProcess[Any, Any]) -> str:
    """Return what is wrong with the methods that timers call, "" if nothing is."""
    for method in (process.on_timer, process.on_processing_timer):
        if problem := argument_problem(method, "time", "ctx"):
            return f"{method.__name__}: {problem}"
    return ""


def timer_tables(process: KeyedProcess[Any, Any]) -> tuple[str, ...]:
    """Return the names of the tables of timers: for each kind for which `process` has a method."""
    kind = type(process)
    event, processing = KeyedProcess.on_timer, KeyedProcess.on_processing_timer
    return (
        *([EVENT_TIMERS] if kind.on_timer is not event else []),
        *([PROCESSING_TIMERS] if kind.on_processing_timer is not processing else []),
    )


def declared(process: KeyedProcess[Any, Any]) -> Mapping[str, State]:
    """Return the states that a process declares, by name, sorted.

    Raises:
        FlowError: One of them is not declared in the class: it would be nobody's.
    """
    for name, one in vars(process).items():
        if isinstance(one, State):
            raise FlowError(
                f"{type(process).__qualname__}: state {name!r} is set on the object: declare it in the body "
                f"of the class, as in `{name} = cc.{type(one).__name__}(...)`"
            )
    names = {name for base in type(process).__mro__ for name in vars(base)}
    found = ((name, getattr(type(process), name, None)) for name in sorted(names))
    states = {name: one for name, one in found if isinstance(one, State)}
    return dict(sorted({**states, **process._further_states()}.items()))


def attached(
    process: KeyedProcess[Any, Any], cells: Mapping[str, Cells], context: Context
) -> KeyedProcess[Any, Any]:
    """Return a copy of `process` whose states are kept in `cells`."""
    # Deep: what it keeps in attributes must not outlive an epoch, of which things may be undone.
    one = copy.deepcopy(process)
    for name, state in declared(process).items():
        one._bind(name, state.bound(name, cells[name], context))
    return one
