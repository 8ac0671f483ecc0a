"""Processes without keys or with two inputs, and the states of a task that belong to no key.

    class Alerts(cc.ConnectedProcess[Click, Rule, str]):
        rules = cc.BroadcastState()
        seen = cc.ValueState(default=0)

        def on_record(self, click, ctx):
            self.seen.set(self.seen.get() + 1)
            if self.seen.get() > self.rules.get(click.page, 1000):
                yield f"{ctx.key} on {click.page}"

        def on_other(self, rule, ctx):
            self.rules[rule.page] = rule.limit

    clicks.key_by(lambda click: click.user).connect(rules.broadcast()).process(Alerts())

A job may be restored at another parallelism. Each kind of state says who has it then.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from crosscut.contracts.context import ABSENT, Context
from crosscut.contracts.process import KeyedProcess
from crosscut.contracts.state import NamedCells, State
from crosscut.errors import FlowError

RecordT = TypeVar("RecordT")
OtherT = TypeVar("OtherT")
ResultT = TypeVar("ResultT")
T = TypeVar("T")
V = TypeVar("V")

_NO_KEY = None
"""Stands for the key in the rows of states that belong to none."""


class ListCells(Protocol):
    """Where the items of a list of one task are kept, by row."""

    def get(self, row: Any, default: Any = None) -> Any:
        """Return the item in `row`, or `default`."""

    def own(self, row: Any, default: Any = None) -> Any:
        """Return the item in `row` as the caller's own, or `default`."""

    def put(self, row: Any, item: Any) -> None:
        """Set the item in `row`."""

    def delete(self, row: Any) -> None:
        """Take the item in `row` away."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return all rows with their items, which are only to be looked at."""

    def __len__(self) -> int: ...


class ConnectedContext(Context):
    """The context of a record in a connected process.

    Attributes:
        is_other: The record is one of the connected stream.
    """

    __slots__ = ("is_other",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_other = False


class TaskState(State):
    """A state that belongs to a task and to no key."""

    is_shared = False
    """At another parallelism each task gets the rows of all tasks; else each row goes to one of them."""

    def __init__(self) -> None:
        # No time to live, and no serializer.
        super().__init__()

    def _found(self) -> Any:
        if self._cells is None:
            raise FlowError(
                f"state {self._name!r} was used outside of a running job: only on_record and on_other, "
                f"called by one, find it"
            )
        return self._cells


class BroadcastState(TaskState, MutableMapping[T, V]):
    """A dictionary that is the same in every task: `on_other` makes it from a stream that is broadcast.

    Only `on_other` may change it, and must do the same in every task; `on_record` reads it. At another
    parallelism each task has it again.

    Examples:
        >>> import crosscut as cc
        >>> class Limited(cc.ConnectedProcess[int, int, int]):
        ...     limits = cc.BroadcastState()
        ...
        ...     def on_record(self, amount, ctx):
        ...         if amount <= self.limits.get("most", 100):
        ...             yield amount
        ...
        ...     def on_other(self, limit, ctx):
        ...         self.limits["most"] = limit
    """

    kind = "broadcast"
    is_shared = True

    def __getitem__(self, name: T) -> V:
        found = self._rows().own((_NO_KEY, name), ABSENT)
        if found is ABSENT:
            raise KeyError(name)
        return found  # type: ignore[no-any-return]

    def __setitem__(self, name: T, value: V) -> None:
        self._writable().put((_NO_KEY, name), value)

    def __delitem__(self, name: T) -> None:
        rows = self._writable()
        if not rows.has((_NO_KEY, name)):
            raise KeyError(name)
        rows.delete((_NO_KEY, name))

    def __contains__(self, name: object) -> bool:
        return self._rows().has((_NO_KEY, name))

    def __iter__(self) -> Iterator[T]:
        # Of a list, so that entries may be deleted meanwhile.
        return iter(self._rows().names(_NO_KEY))

    def __len__(self) -> int:
        return self._rows().count(_NO_KEY)

    def clear(self) -> None:
        """Take all entries away."""
        rows = self._writable()
        for name in rows.names(_NO_KEY):
            rows.delete((_NO_KEY, name))

    def _rows(self) -> NamedCells:
        return cast(NamedCells, self._found())

    def _writable(self) -> NamedCells:
        rows = self._rows()
        if not (isinstance(self._context, ConnectedContext) and self._context.is_other):
            raise FlowError(
                f"state {self._name!r} is a BroadcastState, and is the same in every task because only "
                f"on_other changes it, which every task calls for the same records: change it there"
            )
        return rows


class Begins(NamedTuple):
    """Where a task begins: rows of its lists are called by that, so each name is given once ever.

    Attributes:
        restored: The checkpoint that it goes on from; 0: from none.
        task: Its index.
    """

    restored: int
    task: int


FROM_NOTHING = Begins(0, 0)


class _ListOfTask(TaskState, Generic[T]):
    """A list for each task."""

    def __init__(self) -> None:
        super().__init__()
        self._origin = FROM_NOTHING
        self._next = 0

    def begin(self, begins: Begins) -> None:
        """Say where the task begins."""
        self._origin = begins
        self._next = 0

    def append(self, item: T) -> None:
        """Add one item."""
        self._items().put((*self._origin, self._next), item)
        self._next += 1

    def extend(self, items: Iterable[T]) -> None:
        """Add several items."""
        for item in list(items):
            self.append(item)

    def set(self, items: Iterable[T]) -> None:
        """Replace the list."""
        new = list(items)
        self.clear()
        self.extend(new)

    def clear(self) -> None:
        """Take all items away."""
        items = self._items()
        for row in self._rows():
            items.delete(row)

    def get(self) -> list[T]:
        """Return the items, oldest first, all of them the caller's own."""
        items = self._items()
        return [items.own(row) for row in self._rows()]

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self._items())

    def _rows(self) -> list[Any]:
        return sorted(row for row, _ in self._items().items())

    def _items(self) -> ListCells:
        return cast(ListCells, self._found())


class SplitState(_ListOfTask[T]):
    """A list for each task. At another parallelism its items are dealt out: each to one task.

    Examples:
        >>> import crosscut as cc
        >>> class Seen(cc.StreamProcess[str, int]):
        ...     lines = cc.SplitState()
        ...
        ...     def on_record(self, line, ctx):
        ...         self.lines.append(line)
        ...         yield len(self.lines)
    """

    kind = "split"


class UnionState(_ListOfTask[T]):
    """A list for each task. At another parallelism each task gets the items of all tasks, each item once.

    Examples:
        >>> import crosscut as cc
        >>> class Names(cc.StreamProcess[str, list]):
        ...     names = cc.UnionState()
        ...
        ...     def on_record(self, name, ctx):
        ...         if name not in self.names.get():
        ...             self.names.append(name)
        ...             yield self.names.get()
    """

    kind = "union"
    is_shared = True


class StreamProcess(KeyedProcess[RecordT, ResultT]):
    """A process without keys, which `stream.process` calls.

    Its states are those of a task: SplitState and UnionState.

    Examples:
        >>> import crosscut as cc
        >>> class Numbered(cc.StreamProcess[str, tuple[int, str]]):
        ...     lines = cc.SplitState()
        ...
        ...     def on_record(self, line, ctx):
        ...         self.lines.append(line)
        ...         yield len(self.lines), line
        >>> numbered = cc.Flow("numbered").source(cc.items(["a", "b"])).process(Numbered())
    """


class ConnectedProcess(KeyedProcess[RecordT, ResultT], Generic[RecordT, OtherT, ResultT]):
    """A process of the records of two streams, which `connect(...).process` calls.

    Records come in the order in which they arrive, from either stream: nothing says which comes first.

    Examples:
        >>> import crosscut as cc
        >>> from crosscut.testing import ProcessHarness
        >>> class Known(cc.ConnectedProcess[str, str, str]):
        ...     known = cc.ValueState(default=False)
        ...
        ...     def on_record(self, visitor, ctx):
        ...         if self.known.get():
        ...             yield visitor
        ...
        ...     def on_other(self, customer, ctx):
        ...         self.known.set(True)
        >>> harness = ProcessHarness(Known(), key=str, other_key=str)
        >>> harness.record("ada"), harness.other("ada"), harness.record("ada")
        ([], [], ['ada'])
    """

    @abstractmethod
    def on_other(self, record: OtherT, ctx: Context) -> Iterable[ResultT] | None:
        """Return or yield the results of one record of the stream that was connected.

        If that was broadcast, every task is called for the record, at no key; the results go on from
        every task. If it is keyed, the states are those of the record's key, the same as in `on_record`.
        """


TASK_STATES: tuple[type[TaskState], ...] = (BroadcastState, SplitState, UnionState)
SHARED_KINDS = frozenset(one.kind for one in TASK_STATES if one.is_shared)
TASK_KINDS = frozenset(one.kind for one in TASK_STATES)


def begin_lists(process: KeyedProcess[Any, Any], begins: Begins) -> None:
    """Let the lists of an attached process call new rows by where the task begins."""
    for state in vars(process).values():
        if isinstance(state, _ListOfTask):
            state.begin(begins)


def state_problem(
    process: KeyedProcess[Any, Any], states: Iterable[tuple[str, str]], *, keyed: bool, broadcast: bool
) -> str:
    """Return what is wrong with the states that `process` declares, "" if nothing is.

    Args:
        states: Name and kind of each.
        keyed: Its records have keys.
        broadcast: It is connected to a stream that is broadcast.
    """
    has_lists = isinstance(process, StreamProcess | ConnectedProcess)
    for name, kind in states:
        if kind in TASK_KINDS and not has_lists:
            return (
                f"{type(process).__qualname__}.{name} belongs to a task, and a KeyedProcess has states of "
                f"keys alone: declare it in a StreamProcess or in a ConnectedProcess"
            )
        if kind in TASK_KINDS and keyed and not broadcast:
            return (
                f"{type(process).__qualname__}.{name} belongs to a task, and two streams with keys have "
                f"states of keys alone: declare a ValueState, ListState or MapState"
            )
        if kind == BroadcastState.kind and not broadcast:
            return (
                f"{type(process).__qualname__}.{name} is a BroadcastState, which only records of a stream "
                f"that is broadcast may change: connect one, as in .connect(rules.broadcast()).process(...)"
            )
        if kind not in TASK_KINDS and not keyed:
            return (
                f"{type(process).__qualname__}.{name} has a value for each key, and these records have none: "
                f"give them keys first, as in .key_by(function), or declare a state of the task (SplitState, "
                f"UnionState)"
            )
    return ""
