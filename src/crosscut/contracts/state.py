"""The kinds of state that a process may declare, and what a running one keeps their values in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, cast, get_args

from crosscut.contracts.context import ABSENT, Context
from crosscut.contracts.serializers import VERSION_MAX, Serializer
from crosscut.errors import FlowError
from crosscut.foundation.callables import function_problem
from crosscut.foundation.durations import Duration, duration_ms

TtlTime = Literal["event", "processing"]
T = TypeVar("T")
V = TypeVar("V")


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
        if self._cells is None or self._context is None or self._context.key is ABSENT:
            raise self._nowhere()
        return self._cells, self._context.key

    def _nowhere(self) -> FlowError:
        return FlowError(
            f"state {self._name!r} was used outside of a key: it has a value for each key, and only what a "
            f"running job calls for a record or a timer is at one, which open() and __init__() are not"
        )


class ValueState(State, Generic[T]):
    """One value for each key.

    Args:
        default: What `get` returns for a key without a value: something that can't change, or a function of
            no arguments that makes it.

    Examples:
        >>> import crosscut as cc
        >>> class Last(cc.KeyedProcess[int, int]):
        ...     last = cc.ValueState(default=0)
        ...
        ...     def on_record(self, number, ctx):
        ...         yield number - self.last.get()
        ...         self.last.set(number)
        >>> from crosscut.testing import ProcessHarness
        >>> harness = ProcessHarness(Last(), key=lambda record: "k")
        >>> harness.record(3), harness.record(5)
        ([3], [2])
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
        if callable(default) and (problem := function_problem(default)):
            raise FlowError(f"default: {problem}")
        self._default = default

    def bound(self, name: str, cells: Cells, context: Context) -> Self:
        one = super().bound(name, cells, context)
        if type(self) is not ValueState:
            # Its methods may be a user's own.
            return one
        own, put, default = cells.own, cells.put, self._default

        def get() -> T:
            key = context.key
            if key is ABSENT:
                raise one._nowhere()
            found = own(key, ABSENT)
            if found is ABSENT:
                found = default() if callable(default) else default
            return found  # type: ignore[no-any-return]

        def set_value(value: T) -> None:
            key = context.key
            if key is ABSENT:
                raise one._nowhere()
            put(key, value)

        # What nearly every record calls: as methods the two take half as long again.
        one.get, one.set = get, set_value  # type: ignore[method-assign]
        return one

    def get(self) -> T:
        """Return the key's value, or the default, as the caller's own: set what you change in it."""
        cells, key = self._at()
        found = cells.own(key, ABSENT)
        if found is ABSENT:
            found = self._default() if callable(self._default) else self._default
        return found  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        """Set the key's value."""
        cells, key = self._at()
        cells.put(key, value)

    @property
    def exists(self) -> bool:
        """Whether the key has a value."""
        cells, key = self._at()
        return cells.get(key, ABSENT) is not ABSENT


class ListState(State, Generic[T]):
    """A list for each key; empty until something is added, and no state while it is empty.

    Examples:
        >>> import crosscut as cc
        >>> class Pairs(cc.KeyedProcess[str, list]):
        ...     waiting = cc.ListState()
        ...
        ...     def on_record(self, name, ctx):
        ...         self.waiting.append(name)
        ...         if len(self.waiting) == 2:
        ...             yield self.waiting.get()
        ...             self.waiting.clear()
        >>> from crosscut.testing import ProcessHarness
        >>> harness = ProcessHarness(Pairs(), key=lambda record: "k")
        >>> harness.record("a"), harness.record("b")
        ([], [['a', 'b']])
    """

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
        """Return the items, all of them the caller's own: set what you change."""
        cells, key = self._at()
        found: list[T] | None = cells.own(key)
        return [] if found is None else found

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

    Names may be anything that has a hash and can be pickled. Numbers that are equal are one name; an entry
    keeps the first until it is deleted. Of classes of your own and the like, names that are equal have to be
    pickled alike.

    Examples:
        >>> import crosscut as cc
        >>> class Baskets(cc.KeyedProcess[tuple[str, int], int]):
        ...     counts = cc.MapState()
        ...
        ...     def on_record(self, item, ctx):
        ...         self.counts[item[0]] = self.counts.get(item[0], 0) + item[1]
        ...         yield len(self.counts)
        >>> from crosscut.testing import ProcessHarness
        >>> harness = ProcessHarness(Baskets(), key=lambda record: "k")
        >>> harness.record(("tea", 1)), harness.record(("cup", 2))
        ([1], [2])
    """

    kind = "map"

    _last: tuple[Any, Any] = (ABSENT, ABSENT)
    """The row of the last entry: most are set right after they were read, which a table sees by identity."""

    def __getitem__(self, name: T) -> V:
        cells, row = self._entry(name)
        found = cells.own(row, ABSENT)
        if found is ABSENT:
            raise KeyError(name)
        return found  # type: ignore[no-any-return]

    def get(self, name: T, default: Any = None) -> Any:
        """Return the value of an entry, or `default`."""
        # The one of `MutableMapping` raises and catches a KeyError for each entry that is not there.
        cells, row = self._entry(name)
        return cells.own(row, default)

    def __setitem__(self, name: T, value: V) -> None:
        cells, row = self._entry(name)
        cells.put(row, value)

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

    def _entry(self, name: Any) -> tuple[Cells, tuple[Any, Any]]:
        cells, key = self._at()
        row = self._last
        if row[0] is not key or row[1] is not name:
            row = self._last = (key, name)
        return cells, row


class AggregatingState(State, Generic[T, V]):
    """What the values added so far come to, for each key.

    Args:
        initial: Makes the accumulator of a new key.
        add: `add(accumulator, value)` returns the next accumulator; it may be the same object.
        result: What `get` makes of it; the accumulator itself if None.

    Examples:
        >>> import crosscut as cc
        >>> class Mean(cc.KeyedProcess[float, float]):
        ...     mean = cc.AggregatingState(
        ...         initial=lambda: (0, 0.0),
        ...         add=lambda so_far, number: (so_far[0] + 1, so_far[1] + number),
        ...         result=lambda so_far: so_far[1] / so_far[0],
        ...     )
        ...
        ...     def on_record(self, number, ctx):
        ...         self.mean.add(number)
        ...         yield self.mean.get()
        >>> from crosscut.testing import ProcessHarness
        >>> harness = ProcessHarness(Mean(), key=lambda record: "k")
        >>> harness.record(1.0), harness.record(4.0)
        ([1.0], [2.5])
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
        found = cells.get(key, ABSENT)
        cells.put(key, self._add(self._initial() if found is ABSENT else found, value))

    def get(self) -> V | None:
        """Return the result for the key, as the caller's own; None if nothing has been added."""
        cells, key = self._at()
        found = cells.own(key, ABSENT)
        if found is ABSENT:
            return None
        return found if self._result is None else self._result(found)


class ReducingState(State, Generic[T]):
    """The values added so far, combined two at a time, for each key.

    Args:
        function: `function(value so far, value)` returns the next one. The first value is taken as it is.

    Examples:
        >>> import crosscut as cc
        >>> class Highest(cc.KeyedProcess[int, int]):
        ...     highest = cc.ReducingState(max)
        ...
        ...     def on_record(self, bid, ctx):
        ...         self.highest.add(bid)
        ...         yield self.highest.get()
        >>> from crosscut.testing import ProcessHarness
        >>> harness = ProcessHarness(Highest(), key=lambda record: "k")
        >>> harness.record(9), harness.record(5)
        ([9], [9])
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
        found = cells.get(key, ABSENT)
        cells.put(key, value if found is ABSENT else self._function(found, value))

    def get(self) -> T | None:
        """Return what the values come to, as the caller's own; None if nothing has been added."""
        cells, key = self._at()
        return cells.own(key)  # type: ignore[no-any-return]
