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
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from crosscut.contracts.context import Context
from crosscut.contracts.state import Cells, State, ValueState
from crosscut.errors import FlowError
from crosscut.foundation.callables import function_problem, name_of, several

RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")

EVENT_TIMERS = "event timers"
PROCESSING_TIMERS = "processing timers"
TIMERS = "timers"
"""The kind of these two tables. No attribute of a process is called like them."""


class KeyedProcess(ABC, Generic[RecordT, ResultT]):
    """What `keyed.process` calls. One object for each task; it is pickled on the driver, as functions are.

    Examples:
        >>> import crosscut as cc
        >>> class Reminder(cc.KeyedProcess[dict, str]):
        ...     open_orders = cc.MapState()
        ...
        ...     def on_record(self, order, ctx):
        ...         self.open_orders[order["id"]] = order
        ...         ctx.set_timer(ctx.timestamp + 60_000)
        ...
        ...     def on_timer(self, time, ctx):
        ...         yield f"{ctx.key} has {len(self.open_orders)} open orders"
        >>> from crosscut.testing import ProcessHarness
        >>> harness = ProcessHarness(Reminder(), key="customer")
        >>> harness.record({"id": 1, "customer": "ada"}, timestamp=0)
        []
        >>> harness.watermark(60_000)
        ['ada has 1 open orders']
    """

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
        at once, and those that are set then, too. What is yielded has `ctx.timestamp` as its own: the timer's
        time, if that was not past when it was set.
        """
        return None

    def on_processing_timer(self, time: int, ctx: Context) -> Iterable[ResultT] | None:
        """As `on_timer`, for processing time; what is yielded has the watermark as its timestamp."""
        return None

    _initial_keys: Collection[Any] = ()
    """Keys that have state before their first record: `_begin_key` makes it."""

    def _begin_key(self, ctx: Context) -> None:
        """Make the state that `ctx.key` begins with, unless that has been done; sends nothing on."""

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


def call_problem(process: KeyedProcess[Any, Any]) -> str:
    """Return why methods that a process has besides `on_record` can't be called, "" if they can."""
    calls: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
        (process.open, ()),
        (process.on_timer, ("time", "ctx")),
        (process.on_processing_timer, ("time", "ctx")),
        (process.close, ()),
    )
    for method, arguments in calls:
        if problem := function_problem(method, *arguments):
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
        FlowError: One of them is not declared in the class.
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
