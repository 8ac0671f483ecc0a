"""Streams: every method adds one operator to the flow and returns the stream that leaves it.

Arguments are checked at once, so that an error shows the line that is wrong; nothing runs until
`Flow.start`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from crosscut.contracts.checkpoint_calls import ForEachCheckpoint
from crosscut.contracts.connected_process import StreamProcess
from crosscut.contracts.connectors import Sink
from crosscut.contracts.dead_letters import DeadLetter, OnError
from crosscut.contracts.lookup_tables import LookupTable
from crosscut.contracts.refused_records import SinkWithDeadLetters
from crosscut.errors import FlowError
from crosscut.flow.arguments import checked_function as _function
from crosscut.flow.arguments import checked_on_error as _on_error
from crosscut.flow.arguments import field_or_function as _field_or_function
from crosscut.flow.arguments import flow_error as _error
from crosscut.flow.arguments import function_of_one as _of_one
from crosscut.flow.arguments import milliseconds as _milliseconds
from crosscut.flow.arguments import output_name as _output_name
from crosscut.flow.arguments import shown as _shown
from crosscut.flow.async_map import async_map_spec
from crosscut.flow.connected_streams import ConnectedStreams, connected
from crosscut.flow.draft import Draft, DraftInput, DraftOperator
from crosscut.flow.processes import states_of_process
from crosscut.flow.split_stream import Split
from crosscut.flow.tail import SideOutputs, StreamEnd, Tail
from crosscut.foundation.callables import function_problem
from crosscut.foundation.durations import Duration
from crosscut.foundation.type_variables import Record
from crosscut.graph.lookup import LookupFunction, LookupSpec
from crosscut.graph.rate_limit import rate_limit_spec
from crosscut.graph.specs import (
    AssignTimestampsSpec,
    FilterSpec,
    FlatMapSpec,
    ForEachSpec,
    InspectSpec,
    KeyBySpec,
    LoopSpec,
    MapSpec,
    OperatorSpec,
    Partitioning,
    SinkSpec,
    SplitSpec,
    StreamProcessSpec,
    UnionSpec,
)

if TYPE_CHECKING:
    from crosscut.flow.frame import Frame
    from crosscut.flow.keyed_stream import KeyedStream

Other = TypeVar("Other")
Result = TypeVar("Result")
NewKey = TypeVar("NewKey", bound=int | str | bytes | tuple[Any, ...] | None)


class Stream(SideOutputs, Generic[Record]):
    """A stream of Python objects, one function call per record.

    A stream may be read by several operators: each gets all records. Records are shared between
    them, so functions must not change a record; return a new one.

    `name=` names the operator that a method adds, as `named` does.

    Examples:
        >>> import crosscut as cc
        >>> lines = cc.Flow("long-words").source(cc.items(["to be or not"]))
        >>> long_words = lines.flat_map(str.split).filter(lambda word: len(word) > 2, name="long")
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

    def map(
        self, function: Callable[[Record], Result], *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream[Result]:
        """Replace each record by `function(record)`.

        Args:
            on_error: "dead letters": a record for which `function` raises goes to
                `side_output("dead letters")`, as a `crosscut.DeadLetter`, and does not fail the job.

        Examples:
            >>> import crosscut as cc
            >>> orders = cc.Flow("totals").source(cc.items([{"price": 5, "count": 2}]))
            >>> totals = orders.map(lambda order: order["price"] * order["count"], name="totals")
        """
        checked = _of_one(self._draft, "map", function)
        return self._then("map", MapSpec(checked, _on_error(self._draft, "map", on_error)), name=name)

    def filter(
        self, function: Callable[[Record], object], *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream[Record]:
        """Keep the records for which `function(record)` is true.

        Args:
            on_error: See `map`.

        Examples:
            >>> import crosscut as cc
            >>> numbers = cc.Flow("evens").source(cc.generate(lambda i: i, count=10))
            >>> evens = numbers.filter(lambda n: n % 2 == 0)
        """
        checked = _of_one(self._draft, "filter", function)
        return self._then(
            "filter", FilterSpec(checked, _on_error(self._draft, "filter", on_error)), name=name
        )

    def flat_map(
        self,
        function: Callable[[Record], Iterable[Result]],
        *,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[Result]:
        """Replace each record by all that `function(record)` returns or yields, in order.

        A text (str or bytes) is refused when it is returned: it would fall apart into its characters.

        Args:
            on_error: See `map`. What it has yielded for such a record does not go on.

        Examples:
            >>> import crosscut as cc
            >>> lines = cc.Flow("words").source(cc.items(["to be or", "not to be"]))
            >>> words = lines.flat_map(str.split)
        """
        checked = _of_one(self._draft, "flat_map", function, may_yield=True)
        return self._then(
            "flat_map", FlatMapSpec(checked, _on_error(self._draft, "flat_map", on_error)), name=name
        )

    def split(self, *, on_error: OnError = "fail", **predicates: Callable[[Record], object]) -> Split[Record]:
        """Part the stream: each record goes to the first name whose predicate is true of it, and to no other.

        Args:
            predicates: One for each stream, by its name, in order.
            on_error: See `map`.

        Returns:
            The streams by name, and as `rest` the one of all other records. If `rest` is not read
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

    def process(self, process: StreamProcess[Record, Result], *, name: str | None = None) -> Stream[Result]:
        """Call a process of your own for each record, with states that belong to the task.

        Returns:
            What its `on_record` returns or yields, in order.

        Examples:
            >>> import crosscut as cc
            >>> class Numbered(cc.StreamProcess[str, tuple[int, str]]):
            ...     lines = cc.SplitState()
            ...
            ...     def on_record(self, line, ctx):
            ...         self.lines.append(line)
            ...         yield len(self.lines), line
            ...
            >>> numbered = cc.Flow("numbered").source(cc.items(["a", "b"])).process(Numbered())
        """
        states = states_of_process(self._draft, process, keyed=False)
        return self._then("process", StreamProcessSpec(process, states), name=name)

    def connect(self, other: Stream[Other]) -> ConnectedStreams[Record, Other]:
        """Let one process read this stream and another: `.connect(other).process(process)`.

        Each task gets the records that are dealt to it. If `other` is broadcast every task gets all of it.

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
            ...
            >>> flow = cc.Flow("limits")
            >>> amounts, limits = flow.source(cc.items([50, 500])), flow.source(cc.items([200]))
            >>> within = amounts.connect(limits.broadcast()).process(Limited())
        """
        from crosscut.flow.keyed_stream import KeyedStream

        if isinstance(other, KeyedStream):
            raise _error(
                self._draft,
                "connect",
                "the other stream has keys and this one has none: add keys to this one with key_by",
            )
        return connected(self._draft, self._input, other, keyed=False)

    def map_async(
        self,
        function: Callable[[Record], Result | Awaitable[Result]],
        *,
        capacity: int = 100,
        timeout: Duration = "30s",
        retries: int = 0,
        ordered: bool = True,
        on_error: OnError = "fail",
        name: str | None = None,
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

        Examples:
            >>> import crosscut as cc
            >>> async def priced(order):
            ...     return {**order, "price": 5}  # await a request here
            >>> orders = cc.Flow("prices").source(cc.items([{"id": 1}]))
            >>> prices = orders.map_async(priced, capacity=200, timeout="2s", retries=3, ordered=False)
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
        return self._then(kind, spec, name=name)

    def lookup(
        self,
        table: LookupTable,
        by: Callable[[Record], Any] | str,
        *,
        join: Callable[[Record, Any], Any] | None = None,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[Any]:
        """Join each record with its row in a table that each process has in memory: see `crosscut.lookup`.

        A record without a row gets None as its row: it is never left out. Nothing of the table is part of
        snapshots; see `crosscut.lookup` for which version a record meets.

        Args:
            table: What `crosscut.lookup` returns.
            by: The key in the table: a function of a record, or the name of a field, as for `key_by`. With
                several columns as key it returns a tuple.
            join: Takes a record and its row, and returns the result. A row is a dict by column, or a value of
                the user's dict. Default: the pair (record, row).
            on_error: See `map`; for what `by` and `join` raise.

        Raises:
            FlowError: An argument is not as described.

        Examples:
            >>> import crosscut as cc
            >>> countries = cc.lookup([{"code": "de", "name": "Germany"}], key="code")
            >>> orders = cc.Flow("orders").source(cc.items([{"id": 1, "country": "de"}]))
            >>> named = orders.lookup(countries, "country", join=lambda order, row: {**order, **(row or {})})
        """
        kind = "lookup"
        if not isinstance(table, LookupTable):
            raise _error(
                self._draft,
                kind,
                f"table={_shown(table)}: expected a table of crosscut.lookup, as in "
                f"lookup(cc.lookup({{'EUR': 1.0}}), 'currency')",
            )
        function = LookupFunction(
            table,
            _field_or_function(self._draft, kind, by),
            None if join is None else _function(self._draft, kind, "join", join, "record", "row"),
        )
        return self._then(
            kind, LookupSpec(function, _on_error(self._draft, kind, on_error), table=table), name=name
        )

    def rate_limit(self, records: int, *, per: Duration = "1s", name: str | None = None) -> Stream[Record]:
        """Let at most so many records go on in a time, of all tasks together, evenly spread, in order.

        Checkpoints do not wait for it: records that wait their turn are part of them. What waits in front of
        it holds the source up. For rates up to some thousands a second.

        Args:
            records: At least 1.
            per: In this time.

        Raises:
            FlowError: An argument is not as described.

        Examples:
            >>> import crosscut as cc
            >>> calls = cc.Flow("calls").source(cc.items([1, 2, 3])).rate_limit(100, per="1m")
        """
        kind = "rate_limit"
        if type(records) is not int or records < 1:
            raise _error(self._draft, kind, f"records={_shown(records)}: expected an int of at least 1")
        per_ms = _milliseconds(self._draft, kind, "per", per)
        if per_ms < 1:
            raise _error(self._draft, kind, f"per={per!r}: expected at least 1 ms")
        return self._then(kind, rate_limit_spec(records, per_ms), name=name)

    def for_each(
        self, function: Callable[[Record], object], *, on_error: OnError = "fail", name: str | None = None
    ) -> StreamEnd:
        """Call `function(record)` for each record, and end the stream there.

        It is called in the workers, as soon as a record comes, and again for the same record after a failure:
        at least once. What must happen exactly once belongs into a sink.

        Args:
            on_error: See `map`; read by `side_output("dead letters")` of what this returns.

        Examples:
            >>> import crosscut as cc
            >>> end = cc.Flow("shown").source(cc.items([1, 2, 3])).for_each(print)
        """
        checked = _of_one(self._draft, "for_each", function)
        spec = ForEachSpec(checked, _on_error(self._draft, "for_each", on_error))
        return StreamEnd(self._draft, self._add("for_each", spec, name=name))

    def for_each_checkpoint(
        self, function: Callable[[list[Record], int], object], *, name: str | None = None
    ) -> StreamEnd:
        """Call `function(records, checkpoint_id)` once for each checkpoint, and end the stream there.

        It is called in one process, a worker or under micro-batches the driver, when the checkpoint is
        complete, with the records that have reached this operator since the checkpoint before; not for
        checkpoints without records. Under micro-batches they must be plain data, as the driver loads no other
        pickles: any other record fails the job, by name. After a failure it may be called again for the
        newest checkpoint, with the same records and the same id, also if the flow is not deterministic. So a
        function that replaces what it has written for that id gives exactly-once results. What it raises
        fails the commit, which is repeated.

        Records are held in the snapshot and in memory until then: map and aggregate before it. For more
        of them write a `crosscut.Sink`.

        Args:
            function: Takes the list of records and the id of the checkpoint, which grows. A job that starts
                with an empty checkpoint directory begins with 1.

        Examples:
            >>> import crosscut as cc
            >>> def write(records, checkpoint_id):
            ...     # In one transaction: delete the rows of checkpoint_id, insert these.
            ...     print(checkpoint_id, len(records))
            >>> flow = cc.Flow("hand-over")
            >>> end = flow.source(cc.items([1, 2, 3])).for_each_checkpoint(write)
        """
        kind = "for_each_checkpoint"
        checked = _function(self._draft, kind, "function", function, "records", "checkpoint_id")
        return self.sink(ForEachCheckpoint(checked), name=name)

    def inspect(
        self, function: Callable[[Record], object], *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream[Record]:
        """Call `function(record)` for each record, and pass the record on: to look at what goes by.

        It is called in the workers, as soon as the record comes, and again for the same record after a
        failure: what it shows has not been committed yet, and may be shown twice.

        Args:
            on_error: See `map`. Such a record is not passed on.

        Examples:
            >>> import crosscut as cc
            >>> stream = cc.Flow("looked-at").source(cc.items([1, 2, 3])).inspect(print)
        """
        checked = _of_one(self._draft, "inspect", function)
        return self._then(
            "inspect", InspectSpec(checked, _on_error(self._draft, "inspect", on_error)), name=name
        )

    def assign_timestamps(
        self,
        function: Callable[[Record], int | datetime],
        *,
        out_of_orderness: Duration = 0,
        idle_after: Duration | None = None,
        align_within: Duration | None = None,
        align_group: str = "",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[Record]:
        """Say when each record happened: timers and windows go by it, whenever it comes.

        What operators make of a record has its timestamp. The watermark follows the newest record at a
        distance: older ones than that are late. Say it as near to the source as possible, where each split
        has a watermark of its own.

        Args:
            function: `function(record)` returns whole milliseconds since 1970 in UTC, or a `datetime` with a
                time zone; not before the year 1 or after 9999; negative before 1970.
            out_of_orderness: How much older than the newest one a record of the same split may be.
            idle_after: A split that has had nothing to read for so long is not waited for; what it gives
                afterwards may be late. None: a split that gives nothing holds the watermark up.
            align_within: A split is not read while its watermark is further ahead of the slowest one of this
                source than that, so that windows and joins don't fill with what can't be finished yet. Needs
                `idle_after`. None: each is read as fast as it goes.
            align_group: All sources with the same name here wait for each other.
            on_error: See `map`. Something that can't be a timestamp is an error, too. What goes to the side
                output has the timestamp that it came with, if it had one.

        Raises:
            FlowError: An argument is not as described.

        Examples:
            >>> import crosscut as cc
            >>> clicks = cc.Flow("clicks").source(cc.items([{"at": 1_000, "page": "/"}]))
            >>> timed = clicks.assign_timestamps(lambda click: click["at"], out_of_orderness="5s")
        """
        kind = "assign_timestamps"
        if not isinstance(align_group, str) or (align_group and align_within is None):
            raise _error(
                self._draft,
                kind,
                f"align_group={_shown(align_group)}: expected a name, together with align_within",
            )
        if align_within is not None and idle_after is None:
            raise _error(
                self._draft,
                kind,
                "align_within needs idle_after: otherwise a split without records would make others wait "
                "for ever; set the time after which it counts as idle, as in idle_after='30s'",
            )
        spec = AssignTimestampsSpec(
            _of_one(self._draft, kind, function),
            _milliseconds(self._draft, kind, "out_of_orderness", out_of_orderness),
            self._least_one(kind, "idle_after", idle_after),
            self._least_one(kind, "align_within", align_within),
            align_group,
            on_error=_on_error(self._draft, kind, on_error),
        )
        return self._then(kind, spec, name=name)

    def _least_one(self, kind: str, name: str, duration: Duration | None) -> int | None:
        return None if duration is None else max(1, _milliseconds(self._draft, kind, name, duration))

    @overload
    def key_by(
        self, function: Callable[[Record], NewKey], *, on_error: OnError = "fail", name: str | None = None
    ) -> KeyedStream[NewKey, Record]: ...

    @overload
    def key_by(
        self, function: str, *, on_error: OnError = "fail", name: str | None = None
    ) -> KeyedStream[Any, Record]: ...

    def key_by(
        self, function: Callable[[Record], Any] | str, *, on_error: OnError = "fail", name: str | None = None
    ) -> KeyedStream[Any, Record]:
        """Bring together, in one task, all records for which `function(record)` is the same key.

        A key is an int, str, bytes, bool, None or a tuple of those; anything else fails the job at
        the first such record. Keys that are equal in Python are one key: True and 1, too.

        Args:
            function: Of a record; or the name of a field: `key_by("card")` takes `record["card"]` of a
                mapping and `record.card` of everything else.
            on_error: See `map`. Something that can't be a key is an error, too.

        Examples:
            >>> import crosscut as cc
            >>> payments = cc.Flow("cards").source(cc.items([{"card": "4711", "amount": 5}]))
            >>> totals = payments.key_by("card").sum("amount")
        """
        from crosscut.flow.keyed_stream import KeyedStream

        checked = _field_or_function(self._draft, "key_by", function)
        spec = KeyBySpec(checked, on_error=_on_error(self._draft, "key_by", on_error))
        return KeyedStream(self._draft, self._add("key_by", spec, name=name))

    def frame(self, schema: Any = None, *, name: str | None = None) -> Frame:
        """Return a frame of the records: their fields as columns, a batch at a time (`crosscut[polars]`).

        A field is taken of a mapping by its key, of any other record by its attribute. A source that has
        columns, such as `crosscut.files.read_parquet`, gives them as they are when nothing else reads it.

        Args:
            schema: Names and types: types of Polars or Arrow, or their names in Arrow, such as "int64",
                "string" or "timestamp[us, tz=UTC]"; a `polars.Schema`, or a `pyarrow.Schema`, which also says
                which columns have no nulls. None: what the first file of a source of columns says.

        Raises:
            FlowError: It is no schema, or is not known; or the records have timestamps. Later, in the job: a
                record lacks a field, or a value would be another one in its column. Names the record.

        Examples:
            >>> import crosscut as cc
            >>> import polars as pl
            >>> orders = cc.Flow("orders").source(cc.items([{"item": "tea", "price": 3}]))
            >>> cheap = orders.frame({"item": pl.String, "price": "int64"}).filter(pl.col("price") < 5)
        """
        from crosscut.flow.frame import frame_of

        return frame_of(self._draft, self._input, schema, name)

    def union(self, *streams: Stream[Other], name: str | None = None) -> Stream[Record | Other]:
        """Merge with other streams of the same flow; records of one stream keep their order.

        Examples:
            >>> import crosscut as cc
            >>> flow = cc.Flow("both")
            >>> numbers = flow.source(cc.items([1, 2])).union(flow.source(cc.items([3])), name="numbers")
        """
        for stream in streams:
            if not isinstance(stream, Stream):
                hint = "; end the keyed stream with count, sum, ..." if isinstance(stream, Tail) else ""
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
        return Stream(self._draft, self._draft.add("union", UnionSpec(), *inputs, name=name))

    def iterate(
        self,
        body: Callable[[Stream[Record]], tuple[Stream[Record], Stream[Result]]],
        *,
        name: str | None = None,
    ) -> Stream[Result]:
        """Run a loop: records go round through `body` until it lets them out.

        Args:
            name: Of the loop, at which records come in and around.
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
        if callable(body) and (problem := function_problem(body, "loop")):
            raise _error(self._draft, "loop", f"body: {problem}")
        head = self._draft.add("loop", LoopSpec(), self._input, name=name)
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
        """Deal the records out evenly over the tasks of the next operator.

        Examples:
            >>> import crosscut as cc
            >>> stream = cc.Flow("even").source(cc.items(range(9))).rebalance().map(str)
        """
        return self._distributed("rebalance")

    def broadcast(self) -> Stream[Record]:
        """Give every record to every task of the next operator.

        Examples:
            >>> import crosscut as cc
            >>> rules = cc.Flow("rules").source(cc.items(["a", "b"])).broadcast()
        """
        return self._distributed("broadcast")

    def sink(
        self, sink: Sink[Record], *, dead_letters: Sink[DeadLetter] | None = None, name: str | None = None
    ) -> StreamEnd:
        """Write the records to `sink`; they become visible when their checkpoint is complete.

        Args:
            dead_letters: Takes, as `crosscut.DeadLetter`, the records that the system behind `sink` refuses:
                a type, a length, a constraint, a limit of size. They become visible with the same
                checkpoint. A refusal that is only known at commit (an HTTP answer) is written at
                once, and may come twice after a failure. Default: a refused record fails the job, by name.

        Raises:
            FlowError: `sink` or `dead_letters` is no sink, or the two can't be committed together.

        Examples:
            >>> import crosscut as cc
            >>> lines = cc.Flow("copied").source(cc.files.read_text("in/*.txt"))
            >>> end = lines.sink(cc.files.write_text("out"), name="copies")
        """
        if not isinstance(sink, Sink):
            raise _error(self._draft, "sink", f"expected a crosscut.Sink, found {_shown(sink)}")
        if dead_letters is not None:
            sink = self._with_dead_letters(sink, dead_letters)
        spec = SinkSpec(sink)
        if not sink.has_one_task:
            return StreamEnd(self._draft, self._add("sink", spec, name=name))
        # One key for all records.
        together = DraftInput(self._add("key_by", KeyBySpec(_together)), "hash", "")
        return StreamEnd(self._draft, self._draft.add("sink", spec, together, name=name))

    def _with_dead_letters(self, sink: Sink[Record], letters: Sink[DeadLetter]) -> Sink[Record]:
        if not isinstance(letters, Sink):
            raise _error(
                self._draft, "sink", f"dead_letters: expected a crosscut.Sink, found {_shown(letters)}"
            )
        if sink.commits_together or letters.commits_together:
            raise _error(
                self._draft,
                "sink",
                f"dead_letters with {_shown(sink)} and {_shown(letters)}: a sink whose tasks commit "
                f"together can't use dead letters. Find such records before the sink, with map(..., "
                f"on_error='dead letters'), or write them to files",
            )
        if letters.has_one_task and not sink.has_one_task:
            raise _error(
                self._draft,
                "sink",
                f"dead_letters: one task writes {_shown(letters)}, but all tasks write the sink; choose a "
                f"sink that every task writes to, such as crosscut.files.write_jsonl",
            )
        return SinkWithDeadLetters(sink, letters)

    def _distributed(self, how: Partitioning) -> Stream[Record]:
        if self._how != "forward":
            raise FlowError(
                f"flow {self._draft.name!r}: {how}() after {self._how}(), both after operator "
                f"{self._operator.uid!r}: a stream can be distributed in one way only; remove one of them",
                operator=self._operator.uid,
            )
        return Stream(self._draft, self._operator, how, self._output)

    @property
    def _input(self) -> DraftInput:
        return DraftInput(self._operator, self._how, self._output)

    def _add(self, kind: str, spec: OperatorSpec, *, name: str | None = None) -> DraftOperator:
        return self._draft.add(kind, spec, self._input, name=name)

    def _then(self, kind: str, spec: OperatorSpec, *, name: str | None = None) -> Stream[Any]:
        return Stream(self._draft, self._add(kind, spec, name=name))


def _together(record: Any) -> int:
    """The key of all records, where one task is to have them."""
    return 0
