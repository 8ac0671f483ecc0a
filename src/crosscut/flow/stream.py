"""Streams: every method adds one operator to the flow and returns the stream that leaves it.

Arguments are checked at once, so that an error shows the line that is wrong; nothing runs until
`Flow.start`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, get_args, overload

from crosscut.callables import argument_problem
from crosscut.connected_process import ConnectedProcess, StreamProcess, state_problem
from crosscut.dead_letters import DEAD_LETTERS, OnError
from crosscut.durations import Duration
from crosscut.errors import FlowError
from crosscut.flow.arguments import checked_function as _function
from crosscut.flow.arguments import flow_error as _error
from crosscut.flow.arguments import initial_value as _initial_value
from crosscut.flow.arguments import itself as _itself
from crosscut.flow.arguments import milliseconds as _milliseconds
from crosscut.flow.arguments import output_name as _output_name
from crosscut.flow.arguments import shown as _shown
from crosscut.flow.async_map import async_map_spec
from crosscut.flow.connected import ConnectedStreams
from crosscut.flow.draft import Draft, DraftInput, DraftOperator, has_event_time
from crosscut.flow.joins import interval_join_spec, latest_join_spec, not_to_join, window_join_spec
from crosscut.flow.keyed_processes import first_within, with_ranked, without_ranks
from crosscut.flow.windows import WindowedStream, windowed
from crosscut.graph.joins import How, LatestHow
from crosscut.graph.rate_limit import rate_limit_spec
from crosscut.graph.specs import (
    AggregateSpec,
    AssignTimestampsSpec,
    ConnectSpec,
    CountSpec,
    Emit,
    FilterSpec,
    FlatMapSpec,
    ForEachSpec,
    InspectSpec,
    KeyBySpec,
    LoopSpec,
    MapSpec,
    OperatorSpec,
    Partitioning,
    ProcessSpec,
    ReduceSpec,
    SinkSpec,
    SplitSpec,
    StreamProcessSpec,
    SumSpec,
    UnionSpec,
    dead_letters_of,
)
from crosscut.interfaces import Sink
from crosscut.keyed_process import KeyedProcess, Stateful, kinds_of, states_of, timer_problem
from crosscut.type_variables import Key, Record
from crosscut.windows import Trigger, Window, Windowed

Other = TypeVar("Other")
Result = TypeVar("Result")
Value = TypeVar("Value")
NewKey = TypeVar("NewKey", bound=int | str | bytes | tuple[Any, ...] | None)

_WITH_SIDES = (ProcessSpec, StreamProcessSpec, ConnectSpec)


class _Tail:
    """The last operator of what was written so far."""

    def __init__(self, draft: Draft, operator: DraftOperator) -> None:
        self._draft = draft
        self._operator = operator

    def named(self, uid: str) -> Self:
        """Name the last operator. Name every operator that has state and every source and sink.

        Operators without a name are called by position and kind ("4-count"), which changes when another
        operator is put in before them; state of the old name is then not found.

        Args:
            uid: 1 to 64 letters, digits, `_`, `-` or inner dots; unique within the flow.

        Raises:
            FlowError: `uid` is not usable or taken.
        """
        self._draft.rename(self._operator, uid)
        return self

    if not TYPE_CHECKING:
        # Whoever checks types is told without it.
        def __getattr__(self, name: str) -> Any:
            """Say what to do instead where a method belongs to a stream of another kind."""
            if not name.startswith("_") and (advice := _instead(type(self), name)):
                raise _error(self._draft, name, advice)
            raise AttributeError(f"a {type(self).__name__} has no {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._operator.uid!r} of flow {self._draft.name!r}>"


class _SideOutputs(_Tail):
    """A stream whose operator may say records under names."""

    _output = ""

    def side_output(self, name: str) -> Stream[Any]:
        """Return the stream of what the operator before this says under `name`, beside what it returns.

        Args:
            name: Of a `split`; given to `ctx.output` in a process; or "dead letters".

        Raises:
            FlowError: It says nothing under that name.
        """
        _output_name(self._draft, "side_output", name)
        operator = self._operator
        if self._output:
            raise FlowError(
                f"flow {self._draft.name!r}: side_output({name!r}) of the stream {self._output!r} of "
                f"operator {operator.uid!r}: that has no operator of its own; take both from the operator",
                operator=operator.uid,
            )
        names = [DEAD_LETTERS] if dead_letters_of(operator.spec) else []
        if isinstance(operator.spec, SplitSpec):
            names += [one for one, _ in operator.spec.predicates]
        if (late := getattr(operator.spec, "late", None)) is not None:
            names.append(late)
        if name not in names and not isinstance(operator.spec, _WITH_SIDES):
            advice = ", which needs on_error='dead letters'" if name == DEAD_LETTERS and not names else ""
            raise FlowError(
                f"flow {self._draft.name!r}: operator {operator.uid!r} says nothing under {name!r}{advice}: "
                f"its side outputs are {', '.join(map(repr, names)) or 'none'}",
                operator=operator.uid,
            )
        return Stream(self._draft, operator, output=name)


class StreamEnd(_SideOutputs):
    """A stream that ended in a sink: it can be named, nothing more but its dead letters be read."""


class Stream(_SideOutputs, Generic[Record]):
    """A stream of Python objects, one function call per record.

    A stream may be read by several operators: each gets all records. Records are shared between
    them, so functions must not change a record; return a new one.
    """

    def __init__(
        self, draft: Draft, operator: DraftOperator, how: Partitioning = "forward", output: str = ""
    ) -> None:
        super().__init__(draft, operator)
        self._how = how
        self._output = output

    def named(self, uid: str) -> Self:
        if self._output:
            raise FlowError(
                f"flow {self._draft.name!r}: the stream {self._output!r} of operator {self._operator.uid!r} "
                f"is no operator and can't be named {uid!r}; name the operator",
                operator=self._operator.uid,
            )
        return super().named(uid)

    def map(self, function: Callable[[Record], Result], *, on_error: OnError = "fail") -> Stream[Result]:
        """Replace each record by `function(record)`.

        Args:
            on_error: "dead letters": a record for which `function` raises goes to
                `side_output("dead letters")`, as a `crosscut.DeadLetter`, and does not fail the job.
        """
        checked = _of_one(self._draft, "map", function)
        return self._then("map", MapSpec(checked, _on_error(self._draft, "map", on_error)))

    def filter(self, function: Callable[[Record], object], *, on_error: OnError = "fail") -> Stream[Record]:
        """Keep the records for which `function(record)` is true.

        Args:
            on_error: See `map`.
        """
        checked = _of_one(self._draft, "filter", function)
        return self._then("filter", FilterSpec(checked, _on_error(self._draft, "filter", on_error)))

    def flat_map(
        self, function: Callable[[Record], Iterable[Result]], *, on_error: OnError = "fail"
    ) -> Stream[Result]:
        """Replace each record by all that `function(record)` returns or yields, in order.

        A text (str or bytes) is refused when it is returned: it would fall apart into its characters.

        Args:
            on_error: See `map`. What it has yielded for such a record does not go on.
        """
        checked = _of_one(self._draft, "flat_map", function, may_yield=True)
        return self._then("flat_map", FlatMapSpec(checked, _on_error(self._draft, "flat_map", on_error)))

    def split(self, *, on_error: OnError = "fail", **predicates: Callable[[Record], object]) -> Split[Record]:
        """Part the stream: each record goes to the first name whose predicate is true of it, and to no other.

        Args:
            predicates: One for each stream, by its name, in order.
            on_error: See `map`.

        Returns:
            The streams by name, and as `rest` the one of all other records. Where nobody reads `rest`
            there must be none: a record that fits nowhere fails the job.

        Examples:
            >>> import crosscut as cc
            >>> numbers = cc.Flow("parity").source(cc.generate(lambda i: i, count=10))
            >>> parts = numbers.split(even=lambda n: n % 2 == 0, odd=lambda n: n % 2 == 1)
            >>> halves = parts["even"].map(lambda n: n // 2)
        """
        if not predicates:
            raise _error(self._draft, "split", "expected a predicate for each stream, as in split(large=...)")
        checked = tuple(
            (_output_name(self._draft, "split", name), _function(self._draft, "split", name, one, "record"))
            for name, one in predicates.items()
        )
        spec = SplitSpec(checked, on_error=_on_error(self._draft, "split", on_error))
        return Split(self._draft, self._add("split", spec), tuple(predicates))

    def process(self, process: StreamProcess[Record, Result]) -> Stream[Result]:
        """Call a process of your own for each record, with states that belong to the task.

        Returns:
            What its `on_record` returns or yields, in order.
        """
        states = _states(self._draft, process, keyed=False)
        return self._then("process", StreamProcessSpec(process, states))

    def connect(self, other: Stream[Other]) -> ConnectedStreams[Record, Other]:
        """Let one process read this stream and another: `.connect(other).process(process)`.

        Each task gets the records that are dealt to it. If `other` is broadcast every task gets all of it.
        """
        if isinstance(other, KeyedStream):
            raise _error(
                self._draft,
                "connect",
                "the other stream has keys and this one has none: give this one keys too, with key_by",
            )
        return _connected(self._draft, self._input, other, keyed=False)

    def map_async(
        self,
        function: Callable[[Record], Result | Awaitable[Result]],
        *,
        capacity: int = 100,
        timeout: Duration = "30s",
        retries: int = 0,
        ordered: bool = True,
        on_error: OnError = "fail",
    ) -> Stream[Result]:
        """Replace each record by what `function(record)` returns in its own time: a request, a look-up.

        Many calls are under way at once. An `async def` is awaited on the event loop of the worker, and must
        not block; a plain function is called in a thread. Snapshots do not wait for calls: the records are
        part of them, and after a failure the calls that were under way are made again. So a call may be
        made more than once for a record; its result goes on exactly once.

        Args:
            function: Must not change the record.
            capacity: Calls that each task may have under way; other records wait.
            timeout: After that a call has failed.
            retries: How often a call that has failed is made again, after 0.1 s, 0.2 s, ..., 10 s at most.
            ordered: Results go on in the order of the records; else as they come.
            on_error: See `map`; for a call that has failed so often.

        Raises:
            FlowError: An argument is not as described.
        """
        kind = "map_async"
        spec = async_map_spec(
            self._draft,
            function,
            capacity,
            timeout,
            retries,
            _on_error(self._draft, kind, on_error),
            ordered=ordered,
        )
        return self._then(kind, spec)

    def rate_limit(self, records: int, *, per: Duration = "1s") -> Stream[Record]:
        """Let at most so many records go on in a time, of all tasks together, evenly spread, in order.

        Checkpoints do not wait for it: records that wait their turn are part of them. What waits in front of
        it holds the source up. For rates up to some thousands a second.

        Args:
            records: At least 1.
            per: In this time.

        Raises:
            FlowError: An argument is not as described.
        """
        kind = "rate_limit"
        if type(records) is not int or records < 1:
            raise _error(self._draft, kind, f"records={_shown(records)}: expected an int of at least 1")
        per_ms = _milliseconds(self._draft, kind, "per", per)
        if per_ms < 1:
            raise _error(self._draft, kind, f"per={per!r}: expected at least 1 ms")
        return self._then(kind, rate_limit_spec(records, per_ms))

    def for_each(self, function: Callable[[Record], object], *, on_error: OnError = "fail") -> StreamEnd:
        """Call `function(record)` for each record, and end the stream there.

        It is called in the workers, as soon as a record comes, and again for the same record after a failure:
        at least once. What must happen exactly once belongs into a sink.

        Args:
            on_error: See `map`; read by `side_output("dead letters")` of what this returns.
        """
        checked = _of_one(self._draft, "for_each", function)
        spec = ForEachSpec(checked, _on_error(self._draft, "for_each", on_error))
        return StreamEnd(self._draft, self._add("for_each", spec))

    def inspect(self, function: Callable[[Record], object], *, on_error: OnError = "fail") -> Stream[Record]:
        """Call `function(record)` for each record, and pass the record on: to look at what goes by.

        It is called in the workers, as soon as the record comes, and again for the same record after a
        failure: what it shows has not been committed yet, and may be shown twice.

        Args:
            on_error: See `map`. Such a record is not passed on.
        """
        checked = _of_one(self._draft, "inspect", function)
        return self._then("inspect", InspectSpec(checked, _on_error(self._draft, "inspect", on_error)))

    def assign_timestamps(
        self,
        function: Callable[[Record], int | datetime],
        *,
        out_of_orderness: Duration = 0,
        idle_after: Duration | None = None,
    ) -> Stream[Record]:
        """Say when each record happened: timers and windows go by it, whenever it comes.

        What operators make of a record has its timestamp. The watermark follows the newest record at a
        distance: older ones than that are late. Say it as near to the source as possible, where each split
        has a watermark of its own.

        Args:
            function: `function(record)` returns whole milliseconds since 1970 in UTC, or a `datetime` with a
                time zone; not before 1970 or after 9999.
            out_of_orderness: How much older than the newest one a record of the same split may be.
            idle_after: Nobody waits for a split that has had nothing to read for so long; what it gives
                afterwards may be late. None: a split that gives nothing holds the watermark up.

        Raises:
            FlowError: An argument is not as described.
        """
        kind = "assign_timestamps"
        spec = AssignTimestampsSpec(
            _of_one(self._draft, kind, function),
            _milliseconds(self._draft, kind, "out_of_orderness", out_of_orderness),
            None
            if idle_after is None
            else max(1, _milliseconds(self._draft, kind, "idle_after", idle_after)),
        )
        return self._then(kind, spec)

    def key_by(
        self, function: Callable[[Record], NewKey], *, on_error: OnError = "fail"
    ) -> KeyedStream[NewKey, Record]:
        """Bring together, in one task, all records for which `function(record)` is the same key.

        A key is an int, str, bytes, bool, None or a tuple of those; anything else fails the job at
        the first such record. Keys that are equal in Python are one key: True and 1, too.

        Args:
            on_error: See `map`. Something that can't be a key is an error, too.
        """
        checked = _of_one(self._draft, "key_by", function)
        spec = KeyBySpec(checked, on_error=_on_error(self._draft, "key_by", on_error))
        return KeyedStream(self._draft, self._add("key_by", spec))

    def union(self, *streams: Stream[Other]) -> Stream[Record | Other]:
        """Merge with other streams of the same flow; records of one stream keep their order."""
        for stream in streams:
            if not isinstance(stream, Stream):
                hint = "; end the keyed stream with count, sum, ..." if isinstance(stream, _Tail) else ""
                raise _error(self._draft, "union", f"expected streams, found {_shown(stream)}{hint}")
            if stream._draft is not self._draft:
                raise _error(
                    self._draft,
                    "union",
                    f"stream {stream._operator.uid!r} belongs to flow {stream._draft.name!r}: only streams "
                    f"of one flow can be merged; make both from the same Flow object",
                )
        if not streams:
            raise _error(self._draft, "union", "expected at least one other stream, found none")
        inputs = (stream._input for stream in (self, *streams))
        return Stream(self._draft, self._draft.add("union", UnionSpec(), *inputs))

    def iterate(
        self, body: Callable[[Stream[Record]], tuple[Stream[Record], Stream[Result]]]
    ) -> Stream[Result]:
        """Run a loop: records go round through `body` until it lets them out.

        Args:
            body: Gets the loop's stream (what comes in, and what came around); returns two streams
                made from it: what goes round again, and what leaves.

        Returns:
            What leaves. A bounded job ends when all input is read and the loop is empty.

        Examples:
            >>> import crosscut as cc
            >>> flow = cc.Flow("collatz")
            >>> def step(loop):
            ...     stepped = loop.map(lambda n: n // 2 if n % 2 == 0 else 3 * n + 1)
            ...     return stepped.filter(lambda n: n != 1), stepped.filter(lambda n: n == 1)
            >>> ones = flow.source(cc.generate(lambda i: i + 2, count=100)).iterate(step)
        """
        if callable(body) and (problem := argument_problem(body, "loop")):
            raise _error(self._draft, "loop", f"body: {problem}")
        head = self._draft.add("loop", LoopSpec(), self._input)
        returned = body(Stream(self._draft, head)) if callable(body) else body
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise _error(
                self._draft,
                "loop",
                f"the loop's body must return two streams, (what goes round again, what leaves); it "
                f"returned {_shown(returned)}",
            )
        again, out = returned
        for stream in (again, out):
            if not isinstance(stream, Stream) or stream._draft is not self._draft:
                shown = _shown(stream)
                raise _error(
                    self._draft, "loop", f"the loop's body returned {shown}: expected a stream of this flow"
                )
        self._draft.close_loop(head, again._input)
        return out

    def rebalance(self) -> Stream[Record]:
        """Deal the records out evenly over the tasks of the next operator."""
        return self._distributed("rebalance")

    def broadcast(self) -> Stream[Record]:
        """Give every record to every task of the next operator."""
        return self._distributed("broadcast")

    def sink(self, sink: Sink[Record]) -> StreamEnd:
        """Write the records to `sink`; they become visible when their checkpoint is complete."""
        if not isinstance(sink, Sink):
            raise _error(self._draft, "sink", f"expected a crosscut.Sink, found {_shown(sink)}")
        return StreamEnd(self._draft, self._add("sink", SinkSpec(sink)))

    def _distributed(self, how: Partitioning) -> Stream[Record]:
        if self._how != "forward":
            raise FlowError(
                f"flow {self._draft.name!r}: {how}() after {self._how}(), both after operator "
                f"{self._operator.uid!r}: a stream is distributed in one way; remove one of them",
                operator=self._operator.uid,
            )
        return Stream(self._draft, self._operator, how, self._output)

    @property
    def _input(self) -> DraftInput:
        return DraftInput(self._operator, self._how, self._output)

    def _add(self, kind: str, spec: OperatorSpec) -> DraftOperator:
        return self._draft.add(kind, spec, self._input)

    def _then(self, kind: str, spec: OperatorSpec) -> Stream[Any]:
        return Stream(self._draft, self._add(kind, spec))


class Split(_SideOutputs, Mapping[str, Stream[Record]]):
    """The streams that `split` gives, by name."""

    def __init__(self, draft: Draft, operator: DraftOperator, names: tuple[str, ...]) -> None:
        super().__init__(draft, operator)
        self._names = names

    @property
    def rest(self) -> Stream[Record]:
        """The records for which no predicate is true."""
        return Stream(self._draft, self._operator)

    def __getitem__(self, name: str) -> Stream[Record]:
        if name not in self._names:
            known = ", ".join(map(repr, self._names))
            raise FlowError(
                f"flow {self._draft.name!r}: operator {self._operator.uid!r} has no stream {name!r}: "
                f"expected one of {known}, or `rest` for the others",
                operator=self._operator.uid,
            )
        return Stream(self._draft, self._operator, output=name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class KeyedStream(_SideOutputs, Generic[Key, Record]):
    """A stream whose records have keys: what follows keeps one value per key.

    Every method returns a stream of `(key, value)` tuples. `emit="updates"` sends the key's new value
    after each of its records; `emit="final"` sends one value per key at the end of the input.
    `on_error="dead letters"` sends a record for which a function raises to `side_output("dead letters")`, as
    a `crosscut.DeadLetter`, and the key's state is as it was before that record.
    """

    def count(self, *, emit: Emit = "updates") -> Stream[tuple[Key, int]]:
        """Count the records of each key."""
        return self._then("count", CountSpec(_emit(self._draft, "count", emit)))

    @overload
    def sum(
        self, function: None = None, *, emit: Emit = "updates", on_error: OnError = "fail"
    ) -> Stream[tuple[Key, Record]]: ...

    @overload
    def sum(
        self, function: Callable[[Record], Value], *, emit: Emit = "updates", on_error: OnError = "fail"
    ) -> Stream[tuple[Key, Value]]: ...

    def sum(
        self,
        function: Callable[[Record], Any] | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
    ) -> Stream[Any]:
        """Add up `function(record)`, or the records themselves, for each key."""
        draft = self._draft
        chosen = _itself if function is None else _of_one(draft, "sum", function)
        return self._then(
            "sum", SumSpec(chosen, _emit(draft, "sum", emit), _on_error(draft, "sum", on_error))
        )

    def reduce(
        self,
        function: Callable[[Record, Record], Record],
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
    ) -> Stream[tuple[Key, Record]]:
        """Combine the records of each key: `function(value so far, record)` is the next value.

        The first record of a key is its first value.
        """
        draft = self._draft
        checked = _function(draft, "reduce", "function", function, "value so far", "record")
        spec = ReduceSpec(checked, _emit(draft, "reduce", emit), _on_error(draft, "reduce", on_error))
        return self._then("reduce", spec)

    @overload
    def aggregate(
        self,
        initial: Callable[[], Value],
        add: Callable[[Value, Record], Value],
        result: None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
    ) -> Stream[tuple[Key, Value]]: ...

    @overload
    def aggregate(
        self,
        initial: Callable[[], Value],
        add: Callable[[Value, Record], Value],
        result: Callable[[Value], Result],
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
    ) -> Stream[tuple[Key, Result]]: ...

    @overload
    def aggregate(
        self,
        initial: Value,
        add: Callable[[Value, Record], Value],
        result: None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
    ) -> Stream[tuple[Key, Value]]: ...

    @overload
    def aggregate(
        self,
        initial: Value,
        add: Callable[[Value, Record], Value],
        result: Callable[[Value], Result],
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
    ) -> Stream[tuple[Key, Result]]: ...

    def aggregate(
        self,
        initial: Any,
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
    ) -> Stream[Any]:
        """Fold the records of each key into an accumulator.

        Args:
            initial: The accumulator of a new key: a function of no arguments that makes one (`list`,
                `lambda: [0, 0]`), or a value that can't change (number, str, bytes, None, or a tuple
                or frozenset of those). A list as such is refused, since all keys would share it.
            add: `add(accumulator, record)` returns the next accumulator; it may be the same object.
            result: Turns the accumulator into the value that is sent; must not change it.
            emit: See the class.
            on_error: See the class. A mutable accumulator is then copied for each record.

        Raises:
            FlowError: An argument is not as described.
        """
        draft = self._draft
        spec = AggregateSpec(
            _initial_value(draft, "aggregate", initial),
            _function(draft, "aggregate", "add", add, "accumulator", "record"),
            None if result is None else _function(draft, "aggregate", "result", result, "accumulator"),
            _emit(draft, "aggregate", emit),
            _on_error(draft, "aggregate", on_error),
        )
        return self._then("aggregate", spec)

    def process(self, process: KeyedProcess[Record, Result], *, on_error: OnError = "fail") -> Stream[Result]:
        """Call a process of your own for each record, with as many kinds of state a key as it declares.

        Args:
            process: Its class declares the state.
            on_error: See the class. Each list or other mutable value of state that `on_record` gets is then
                a copy, since it may have to be changed back.

        Returns:
            What its `on_record` returns or yields, in order; not in tuples with the key.
        """
        states = _states(self._draft, process, keyed=True)
        return self._then(
            "process", ProcessSpec(process, states, _on_error(self._draft, "process", on_error))
        )

    def connect(self, other: Stream[Other] | KeyedStream[Key, Other]) -> ConnectedStreams[Record, Other]:
        """Let one process read this stream and another: `.connect(other).process(process)`.

        Args:
            other: Either keyed as well: the two share the states of a key. Or broadcast: each of its records
                goes to every task, at no key.
        """
        if isinstance(other, Stream) and other._how != "broadcast":
            raise _error(
                self._draft,
                "connect",
                "the other stream has no keys: give it some, as in .connect(other.key_by(function)), or send "
                "it to every task, as in .connect(other.broadcast())",
            )
        return _connected(self._draft, DraftInput(self._operator, "hash"), other, keyed=True)

    def stateful(
        self,
        function: Callable[[Any, Record], tuple[Any, Iterable[Result]]],
        *,
        on_error: OnError = "fail",
    ) -> Stream[Result]:
        """Call `function(state, record)` for each record; it returns the key's next state, and what goes on.

        The short form of `process`. The state is None for a new key; None as the next state deletes it.
        """
        checked = _function(self._draft, "stateful", "function", function, "state", "record")
        return self.process(Stateful(checked), on_error=on_error)

    def window(
        self,
        window: Window,
        trigger: Trigger | None = None,
        allowed_lateness: Duration = 0,
        late: str | None = None,
    ) -> WindowedStream[Key, Record]:
        """Take the records of each key together by windows; go on with what they come to.

        Args:
            window: `crosscut.tumbling(size)`, `sliding(size, every=)`, `session(gap)`, `count_window(n)` or
                `global_window()`.
            trigger: When a window speaks before its end as well: `crosscut.early(every)` or `on_count(n)`.
            allowed_lateness: How long after its end a window still takes late records; each is followed by
                a new result.
            late: The side output for records that come even later. None: they are counted and dropped.

        Raises:
            FlowError: An argument is not as described.
        """
        return windowed(self._draft, self._operator, window, trigger, allowed_lateness, late)

    def interval_join(
        self,
        other: KeyedStream[Any, Other],
        lower: Duration,
        upper: Duration,
        how: How = "inner",
        late: str | None = None,
    ) -> Stream[tuple[Key, tuple[Record, Other]]]:
        """Join each record with those of `other` that happened from `lower` to `upper` after it.

        Args:
            other: A keyed stream of the same flow.
            lower: How much later at least; negative ("-5s", -5) for earlier.
            upper: How much later at most; both bounds belong to it.
            how: "inner", "left", "right" or "outer": whose records are sent without a partner as well, with
                None in its place.
            late: The side output for records older than the watermark. None: they are counted and dropped.

        Returns:
            `(key, (record, other's record))`, at the time of the later one.

        Raises:
            FlowError: An argument is not as described.
        """
        return self._joined("interval_join", other, interval_join_spec(self._draft, lower, upper, how, late))

    def window_join(
        self,
        other: KeyedStream[Any, Other],
        window: Window,
        how: How = "inner",
        allowed_lateness: Duration = 0,
        late: str | None = None,
    ) -> Stream[Windowed[Key, tuple[Record, Other]]]:
        """Join the records of both streams that are in the same window, when it ends.

        Args:
            other: A keyed stream of the same flow.
            window: `crosscut.tumbling(size)`, `sliding(size, every=)` or `session(gap)`; a session is one of
                both streams together.
            how: As in `interval_join`.
            allowed_lateness: As in `window`.
            late: As in `window`.

        Raises:
            FlowError: An argument is not as described.
        """
        spec = window_join_spec(self._draft, window, how, allowed_lateness, late)
        return self._joined("window_join", other, spec)

    def latest_join(
        self, other: KeyedStream[Any, Other], how: LatestHow = "inner", late: str | None = None
    ) -> Stream[tuple[Key, tuple[Record, Other]]]:
        """Join each record with the latest one of `other`: a stream with a table that changes.

        In event time that is the newest one that is not younger than the record, which waits until the
        watermark has passed it. Without, it is the one that came last.

        Args:
            other: A keyed stream of the same flow: the versions of each key.
            how: "inner", or "left" to send records without a version as well, with None in its place.
            late: The side output for records older than the watermark. None: they are counted and dropped.

        Returns:
            `(key, (record, other's record))`, at the time of the record.

        Raises:
            FlowError: An argument is not as described.
        """
        return self._joined("latest_join", other, latest_join_spec(self._draft, how, late))

    def _joined(self, kind: str, other: Any, spec: OperatorSpec) -> Stream[Any]:
        if not isinstance(other, KeyedStream) or other._draft is not self._draft:
            raise not_to_join(self._draft, kind, other)
        inputs = (DraftInput(one._operator, "hash") for one in (self, other))
        return Stream(self._draft, self._draft.add(kind, spec, *inputs))

    def deduplicate(self, *, within: Duration | None = None) -> Stream[Record]:
        """Let the first record of each key go on, and no other that is less than `within` away from it.

        Time is event time if the records have timestamps, else processing time. Then `within` counts from
        the record that has gone on: the next one that is as far away goes on, too.

        Args:
            within: None: never another one; then each key that ever came stays in the state.

        Raises:
            FlowError: `within` is no duration, or of less than 1 ms.
        """
        within_ms = None if within is None else _milliseconds(self._draft, "deduplicate", "within", within)
        if within_ms is not None and within_ms < 1:
            raise _error(self._draft, "deduplicate", f"within={within!r}: expected at least 1 ms")
        return self.process(first_within(within_ms, has_event_time=has_event_time(self._operator)))

    def top_n(
        self, n: int, by: Callable[[Record], Any] | None = None, *, emit: Emit = "updates"
    ) -> Stream[tuple[Key, list[Record]]]:
        """Keep the `n` records of each key for which `by(record)` is greatest, best first.

        Args:
            n: At least 1.
            by: Gives something to compare by; the records themselves if None. Of two equal ones the older
                one is better.
            emit: See the class.

        Raises:
            FlowError: An argument is not as described.
        """
        if type(n) is not int or n < 1:
            raise _error(self._draft, "top_n", f"n={_shown(n)}: expected an int of at least 1")
        rank_of = _itself if by is None else _function(self._draft, "top_n", "by", by, "record")
        return self.aggregate(list, partial(with_ranked, n, rank_of), without_ranks, emit=emit)

    def transform_with_state(
        self,
        processor: Any,
        output_type: Any,
        time_mode: str = "ProcessingTime",
        *,
        initial_state: Mapping[Any, Any] | None = None,
    ) -> Stream[Any]:
        """Run a `StatefulProcessor` of PySpark, unmodified, in its form for rows, for each record.

        Records are rows, dicts, dataclasses or named tuples. The key comes as a tuple, as in PySpark.

        Args:
            processor: A `pyspark.sql.streaming.StatefulProcessor`.
            output_type: Schema of the rows that it yields, a `StructType` or DDL; field names are checked.
            time_mode: What timers go by: "ProcessingTime", "EventTime" or "None".
            initial_state: A row for each key, given to `handleInitialState` before the key's first record.
        """
        from crosscut.spark.stateful_processor import processor_as_process

        try:
            process = processor_as_process(processor, output_type, time_mode, initial_state)
        except FlowError as error:
            raise _error(self._draft, "transform_with_state", str(error)) from error
        return self._then(
            "transform_with_state", ProcessSpec(process, _states(self._draft, process, keyed=True))
        )

    def _then(self, kind: str, spec: OperatorSpec) -> Stream[Any]:
        return Stream(self._draft, self._draft.add(kind, spec, DraftInput(self._operator, "hash")))


def _states(draft: Draft, process: Any, *, keyed: bool) -> tuple[tuple[str, str], ...]:
    """Return name and kind of each state of `process`, if it is one for such records."""
    expected = "KeyedProcess" if keyed else "StreamProcess"
    problem = ""
    if not isinstance(process, KeyedProcess):
        hint = f": make one, as in {process.__name__}()" if isinstance(process, type) else ""
        problem = f"expected a crosscut.{expected}, found {_shown(process)}{hint}"
    elif isinstance(process, ConnectedProcess):
        problem = "a ConnectedProcess reads two streams: write .connect(other).process(...)"
    elif isinstance(process, StreamProcess) and keyed:
        problem = "these records have keys, and a StreamProcess knows none: expected a crosscut.KeyedProcess"
    elif not isinstance(process, StreamProcess) and not keyed:
        problem = (
            "a KeyedProcess needs keys, and these records have none: put .key_by(function) in front of it, "
            "or make it a crosscut.StreamProcess"
        )
    elif found := argument_problem(process.on_record, "record", "ctx"):
        problem = f"on_record: {found}"
    else:
        problem = timer_problem(process)
    if problem:
        raise _error(draft, "process", problem)
    if problem := state_problem(process, kinds_of(process), keyed=keyed, broadcast=False):
        raise _error(draft, "process", problem)
    return states_of(process)


def _connected(draft: Draft, first: DraftInput, other: Any, *, keyed: bool) -> ConnectedStreams[Any, Any]:
    if not isinstance(other, Stream | KeyedStream):
        raise _error(draft, "connect", f"expected a stream, found {_shown(other)}")
    if other._draft is not draft:
        raise _error(
            draft,
            "connect",
            f"stream {other._operator.uid!r} belongs to flow {other._draft.name!r}: only streams of one flow "
            f"can be connected; make both from the same Flow object",
        )
    second = other._input if isinstance(other, Stream) else DraftInput(other._operator, "hash")
    return ConnectedStreams(
        draft,
        (first, second),
        lambda operator: Stream(draft, operator),
        keyed=keyed,
        broadcast=second.how == "broadcast",
    )


def _instead(kind: type[_Tail], name: str) -> str:
    """Return what to write where a stream of this kind has no method of this name, "" if none has."""
    if kind is Stream and hasattr(KeyedStream, name):
        return (
            f"a value is kept for each key: give the records keys first, as in .key_by(function).{name}(...)"
        )
    if kind is KeyedStream and hasattr(Stream, name):
        return (
            f"a keyed stream has no {name}(): put {name}() in front of key_by, or end the keyed stream with "
            f"count, sum, reduce or aggregate first"
        )
    if kind is Split and (hasattr(Stream, name) or hasattr(KeyedStream, name)):
        return f"split gives several streams: go on with one of them, as in parts['name'].{name}(...)"
    if kind is StreamEnd and (hasattr(Stream, name) or hasattr(KeyedStream, name)):
        return (
            f"the stream has ended in a sink: to have it go elsewhere as well, keep the stream itself "
            f"(s = ...; s.sink(...); s.{name}(...))"
        )
    return ""


def _of_one(
    draft: Draft, kind: str, function: Callable[..., Any], *, may_yield: bool = False
) -> Callable[..., Any]:
    return _function(draft, kind, "function", function, "record", may_yield=may_yield)


def _on_error(draft: Draft, kind: str, on_error: OnError) -> OnError:
    if on_error not in get_args(OnError):
        raise _error(draft, kind, f"on_error={on_error!r}: expected 'fail' or 'dead letters'")
    return on_error


def _emit(draft: Draft, kind: str, emit: Emit) -> Emit:
    if emit not in get_args(Emit):
        raise _error(draft, kind, f"emit={emit!r}: expected 'updates' or 'final'")
    return emit
