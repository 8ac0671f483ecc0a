"""Windowed streams: what `keyed.window(...)` gives, until a method says what is done with the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from crosscut.contracts.windows import (
    CountWindow,
    Early,
    GlobalWindow,
    LocalDays,
    OnCount,
    Session,
    Sliding,
    Trigger,
    Tumbling,
    Window,
    Windowed,
    whole_ms,
)
from crosscut.errors import FlowError
from crosscut.flow.arguments import (
    check_neutral,
    checked_function,
    field_or_function,
    flow_error,
    initial_value,
    itself,
    output_name,
    shown,
)
from crosscut.flow.draft import Draft, DraftInput, DraftOperator
from crosscut.flow.tail import Advised
from crosscut.foundation.durations import Duration
from crosscut.foundation.type_variables import Key, Record
from crosscut.graph.ready_folds import distinct_of, extreme_of, list_of, mean_of
from crosscut.graph.windows import (
    AggregateFold,
    CountFold,
    Fold,
    ProcessFold,
    ReduceFold,
    SumFold,
    WindowSpec,
)

if TYPE_CHECKING:
    from crosscut.flow.stream import Stream

Result = TypeVar("Result")
Value = TypeVar("Value")

_WINDOWS = (Tumbling, LocalDays, Sliding, Session, CountWindow, GlobalWindow)
_TIMED = (Tumbling, LocalDays, Sliding, Session)


class WindowedStream(Advised, Generic[Key, Record]):
    """The records of each key by windows: what follows says what they come to.

    Every method returns a stream of `crosscut.Windowed`. A result has the time of the last millisecond
    of its window, so windows over windows are right. `name=` names the operator, as `named` does.

    Examples:
        >>> import crosscut as cc
        >>> clicks = cc.Flow("clicks").source(cc.items([{"at": 1_000, "user": "ada", "ms": 5}]))
        >>> timed = clicks.assign_timestamps(lambda click: click["at"])
        >>> windows = timed.key_by("user").window(cc.tumbling("1m"))
        >>> counts, slowest = windows.count(name="counts"), windows.max("ms", name="slowest")
    """

    def __init__(self, draft: Draft, keyed: DraftOperator, spec: WindowSpec) -> None:
        self._draft = draft
        self._keyed = keyed
        self._spec = spec

    def __repr__(self) -> str:
        return f"<WindowedStream {self._spec.window} of flow {self._draft.name!r}>"

    def count(self, *, name: str | None = None) -> Stream[Windowed[Key, int]]:
        """Count the records of each window."""
        return self._then(CountFold(), name=name)

    @overload
    def sum(self, function: None = None, *, name: str | None = None) -> Stream[Windowed[Key, Record]]: ...

    @overload
    def sum(
        self, function: Callable[[Record], Value], *, name: str | None = None
    ) -> Stream[Windowed[Key, Value]]: ...

    @overload
    def sum(self, function: str, *, name: str | None = None) -> Stream[Windowed[Key, Any]]: ...

    def sum(
        self, function: Callable[[Record], Any] | str | None = None, *, name: str | None = None
    ) -> Stream[Any]:
        """Add up `function(record)`, the field of that name, or the records themselves."""
        return self._then(SumFold(self._chosen(function)), name=name)

    def min(
        self, function: Callable[[Record], Any] | str | None = None, *, name: str | None = None
    ) -> Stream[Windowed[Key, Any]]:
        """Keep the least `function(record)`, field of that name, or record."""
        return self._extreme(min, function, name=name)

    def max(
        self, function: Callable[[Record], Any] | str | None = None, *, name: str | None = None
    ) -> Stream[Windowed[Key, Any]]:
        """Keep the greatest `function(record)`, field of that name, or record."""
        return self._extreme(max, function, name=name)

    def _extreme(
        self,
        choose: Callable[..., Any],
        function: Callable[[Record], Any] | str | None,
        *,
        name: str | None = None,
    ) -> Stream[Windowed[Key, Any]]:
        return self._then(AggregateFold(*extreme_of(choose, self._chosen(function))), name=name)

    def mean(
        self, function: Callable[[Record], Any] | str | None = None, *, name: str | None = None
    ) -> Stream[Windowed[Key, Any]]:
        """Give the mean of `function(record)`, of the field of that name, or of the records."""
        return self._then(AggregateFold(*mean_of(self._chosen(function))), name=name)

    def collect_list(
        self, function: Callable[[Record], Any] | str | None = None, *, name: str | None = None
    ) -> Stream[Windowed[Key, list[Any]]]:
        """Keep the list of `function(record)`, of the field of that name, or of the records, as they came.

        If a record joins two sessions, the list has all of the earlier session before those of the later one.
        """
        return self._then(AggregateFold(*list_of(self._chosen(function))), name=name)

    def approx_distinct(
        self, function: Callable[[Record], Any] | str | None = None, *, name: str | None = None
    ) -> Stream[Windowed[Key, int]]:
        """Count the distinct `function(record)`, fields of that name, or records, about.

        See `KeyedStream.approx_distinct`.
        """
        return self._then(AggregateFold(*distinct_of(self._chosen(function))), name=name)

    def reduce(
        self, function: Callable[[Record, Record], Record], *, name: str | None = None
    ) -> Stream[Windowed[Key, Record]]:
        """Combine the records of each window: `function(value so far, record)` is the next value.

        The first record is the first value. Of sessions that become one the values are combined, too.
        """
        return self._then(
            ReduceFold(self._function("function", function, "value so far", "record")), name=name
        )

    @overload
    def aggregate(
        self,
        initial: Callable[[], Value],
        add: Callable[[Value, Record], Value],
        result: None = None,
        merge: Callable[[Value, Value], Value] | None = None,
        *,
        name: str | None = None,
    ) -> Stream[Windowed[Key, Value]]: ...

    @overload
    def aggregate(
        self,
        initial: Callable[[], Value],
        add: Callable[[Value, Record], Value],
        result: Callable[[Value], Result],
        merge: Callable[[Value, Value], Value] | None = None,
        *,
        name: str | None = None,
    ) -> Stream[Windowed[Key, Result]]: ...

    @overload
    def aggregate(
        self,
        initial: Value,
        add: Callable[[Value, Record], Value],
        result: None = None,
        merge: Callable[[Value, Value], Value] | None = None,
        *,
        name: str | None = None,
    ) -> Stream[Windowed[Key, Value]]: ...

    @overload
    def aggregate(
        self,
        initial: Value,
        add: Callable[[Value, Record], Value],
        result: Callable[[Value], Result],
        merge: Callable[[Value, Value], Value] | None = None,
        *,
        name: str | None = None,
    ) -> Stream[Windowed[Key, Result]]: ...

    def aggregate(
        self,
        initial: Any,
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        *,
        name: str | None = None,
    ) -> Stream[Any]:
        """Fold the records of each window into an accumulator.

        Args:
            initial: The accumulator of a new window: a function that makes one, or a value that can't change;
                see `KeyedStream.aggregate`.
            add: `add(accumulator, record)` returns the next accumulator; it may be the same object.
            result: Turns the accumulator into the value that is sent; must not change it.
            merge: `merge(accumulator, accumulator)` returns that of both. Sessions need it: a record that
                lies between two of them makes them one. `merge(initial, initial)` has to equal `initial`,
                which is checked.

        Raises:
            FlowError: An argument is not as described.

        Examples:
            >>> import crosscut as cc
            >>> numbers = cc.Flow("spans").source(cc.items([("a", 5), ("a", 9)])).key_by(lambda one: one[0])
            >>> pairs = numbers.window(cc.count_window(2)).aggregate(
            ...     tuple, lambda so_far, one: (*so_far, one[1]), max
            ... )
        """
        if merge is None and isinstance(self._spec.window, Session):
            raise self._error(
                "aggregate over sessions needs merge: a record between two sessions joins them, and "
                "merge(accumulator, accumulator) combines their accumulators"
            )
        begin = initial_value(self._draft, "window", initial)
        fold = AggregateFold(
            begin,
            self._function("add", add, "accumulator", "record"),
            None if result is None else self._function("result", result, "accumulator"),
            None if merge is None else self._function("merge", merge, "accumulator", "accumulator"),
        )
        if merge is not None:
            check_neutral(self._draft, "window", begin, merge)
        return self._then(fold, name=name)

    def process(
        self,
        function: Callable[[Windowed[Key, list[Record]]], Iterable[Result] | None],
        *,
        name: str | None = None,
    ) -> Stream[Windowed[Key, Result]]:
        """Keep the records of each window, and hand them to `function` all at once.

        Args:
            function: Gets a `crosscut.Windowed` whose value is the list of the records, in the order of
                `collect_list`. Each value that it returns or yields goes on as a `crosscut.Windowed` of that
                window; it may return None for nothing.

        Examples:
            >>> import crosscut as cc
            >>> def spans(windowed):
            ...     times = [at for _, at in windowed.value]
            ...     yield max(times) - min(times)
            >>> clicks = cc.Flow("spans").source(cc.items([("ada", 1_000), ("ada", 4_000)]))
            >>> timed = clicks.assign_timestamps(lambda click: click[1]).key_by(lambda click: click[0])
            >>> visits = timed.window(cc.session("30m")).process(spans)
        """
        return self._then(
            ProcessFold(self._function("function", function, "windowed", may_yield=True)), name=name
        )

    def _function(
        self, name: str, function: Callable[..., Any], *arguments: str, may_yield: bool = False
    ) -> Callable[..., Any]:
        return checked_function(self._draft, "window", name, function, *arguments, may_yield=may_yield)

    def _chosen(self, function: Callable[[Record], Any] | str | None) -> Callable[[Any], Any]:
        return itself if function is None else field_or_function(self._draft, "window", function)

    def _error(self, problem: str) -> FlowError:
        return flow_error(self._draft, "window", problem)

    def _then(self, fold: Fold, *, name: str | None = None) -> Stream[Any]:
        from crosscut.flow.stream import Stream

        spec = replace(self._spec, fold=fold)
        return Stream(
            self._draft, self._draft.add("window", spec, DraftInput(self._keyed, "hash"), name=name)
        )


def windowed(
    draft: Draft,
    keyed: DraftOperator,
    window: Window,
    trigger: Trigger | None,
    allowed_lateness: Duration,
    late: str | None,
) -> WindowedStream[Any, Any]:
    """Return the windowed stream of a keyed one; see `KeyedStream.window`."""
    if not isinstance(window, _WINDOWS):
        raise flow_error(
            draft,
            "window",
            f"expected a window, as in cc.tumbling('1m'), cc.sliding('1h', every='5m'), cc.session('30m'), "
            f"cc.count_window(100) or cc.global_window(), found {shown(window)}",
        )
    if trigger is not None and not isinstance(trigger, OnCount | Early):
        raise flow_error(
            draft, "window", f"trigger={shown(trigger)}: expected cc.on_count(n), cc.early(every=...) or None"
        )
    if trigger is not None and isinstance(window, CountWindow):
        problem = f"a count window speaks when it is full: leave trigger={trigger} out"
        raise flow_error(draft, "window", problem)
    lateness_ms = whole_ms(allowed_lateness, "allowed_lateness")
    if (lateness_ms or late is not None) and not isinstance(window, _TIMED):
        what = "allowed_lateness" if lateness_ms else "late"
        raise flow_error(draft, "window", f"{what}: nothing is ever late for a {window} window: leave it out")
    if late is not None:
        output_name(draft, "window", late)
    return WindowedStream(draft, keyed, WindowSpec(window, CountFold(), trigger, lateness_ms, late))
