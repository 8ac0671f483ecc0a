"""Keyed streams: what `key_by` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar, overload

from crosscut.contracts.dead_letters import OnError
from crosscut.contracts.process import KeyedProcess, Stateful
from crosscut.contracts.windows import Trigger, Window, Windowed
from crosscut.errors import FlowError
from crosscut.flow.arguments import check_neutral as _check_neutral
from crosscut.flow.arguments import checked_emit as _emit
from crosscut.flow.arguments import checked_function as _function
from crosscut.flow.arguments import checked_on_error as _on_error
from crosscut.flow.arguments import field_or_function as _field_or_function
from crosscut.flow.arguments import flow_error as _error
from crosscut.flow.arguments import initial_value as _initial_value
from crosscut.flow.arguments import itself as _itself
from crosscut.flow.arguments import milliseconds as _milliseconds
from crosscut.flow.arguments import shown as _shown
from crosscut.flow.builtin_processes import first_within, with_ranked, without_ranks
from crosscut.flow.connected_streams import ConnectedStreams, connected
from crosscut.flow.draft import DraftInput, has_event_time
from crosscut.flow.joins import interval_join_spec, latest_join_spec, not_to_join, window_join_spec
from crosscut.flow.processes import states_of_process
from crosscut.flow.stream import Stream
from crosscut.flow.tail import SideOutputs
from crosscut.flow.windowed_stream import WindowedStream, windowed
from crosscut.foundation.durations import Duration
from crosscut.foundation.type_variables import Key, Record
from crosscut.graph.joins import How, LatestHow
from crosscut.graph.ready_folds import ReadyFold, distinct_of, extreme_of, list_of, mean_of
from crosscut.graph.specs import (
    AggregateSpec,
    CountSpec,
    Emit,
    OperatorSpec,
    ProcessSpec,
    ReduceSpec,
    SumSpec,
)

Other = TypeVar("Other")
Result = TypeVar("Result")
Value = TypeVar("Value")


class KeyedStream(SideOutputs, Generic[Key, Record]):
    """A stream whose records have keys: what follows keeps one value per key.

    Every method returns a stream of `(key, value)` tuples. `emit="updates"` sends the key's new value
    after each of its records; `emit="final"` sends one value per key at the end of the input.
    `on_error="dead letters"` sends a record for which a function raises to `side_output("dead letters")`, as
    a `crosscut.DeadLetter`, and the key's state is as it was before that record. `name=` names the operator
    that a method adds, as `named` does.

    Examples:
        >>> import crosscut as cc
        >>> payments = cc.Flow("cards").source(cc.items([{"card": "4711", "amount": 5}]))
        >>> by_card = payments.key_by("card")
        >>> counts, totals = by_card.count(name="counts"), by_card.sum("amount", name="totals")
    """

    def count(self, *, emit: Emit = "updates", name: str | None = None) -> Stream[tuple[Key, int]]:
        """Count the records of each key.

        Examples:
            >>> import crosscut as cc
            >>> words = cc.Flow("words").source(cc.items(["to", "be", "to"]))
            >>> counts = words.key_by(lambda word: word).count()
        """
        return self._then("count", CountSpec(_emit(self._draft, "count", emit)), name=name)

    @overload
    def sum(
        self,
        function: None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[tuple[Key, Record]]: ...

    @overload
    def sum(
        self,
        function: Callable[[Record], Value],
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[tuple[Key, Value]]: ...

    @overload
    def sum(
        self, function: str, *, emit: Emit = "updates", on_error: OnError = "fail", name: str | None = None
    ) -> Stream[tuple[Key, Any]]: ...

    def sum(
        self,
        function: Callable[[Record], Any] | str | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[Any]:
        """Add up `function(record)`, the field of that name, or the records themselves, for each key.

        Examples:
            >>> import crosscut as cc
            >>> payments = cc.Flow("sums").source(cc.items([{"card": "4711", "amount": 5}]))
            >>> totals = payments.key_by("card").sum("amount", emit="final")
        """
        draft = self._draft
        chosen = self._chosen("sum", function)
        return self._then(
            "sum", SumSpec(chosen, _emit(draft, "sum", emit), _on_error(draft, "sum", on_error)), name=name
        )

    def min(
        self,
        function: Callable[[Record], Any] | str | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[tuple[Key, Any]]:
        """Keep the least `function(record)`, field of that name, or record, for each key.

        Examples:
            >>> import crosscut as cc
            >>> bids = cc.Flow("bids").source(cc.items([("car", 90), ("car", 80)]))
            >>> lowest = bids.key_by(lambda bid: bid[0]).min(lambda bid: bid[1])
        """
        return self._extreme("min", min, function, emit, on_error, name=name)

    def max(
        self,
        function: Callable[[Record], Any] | str | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[tuple[Key, Any]]:
        """Keep the greatest `function(record)`, field of that name, or record, for each key.

        Examples:
            >>> import crosscut as cc
            >>> bids = cc.Flow("bids").source(cc.items([("car", 90), ("car", 80)]))
            >>> highest = bids.key_by(lambda bid: bid[0]).max(lambda bid: bid[1])
        """
        return self._extreme("max", max, function, emit, on_error, name=name)

    def _extreme(
        self,
        kind: str,
        choose: Callable[..., Any],
        function: Callable[[Record], Any] | str | None,
        emit: Emit,
        on_error: OnError,
        *,
        name: str | None = None,
    ) -> Stream[Any]:
        chosen = self._chosen(kind, function)
        return self._folded(kind, extreme_of(choose, chosen), emit, on_error, name=name)

    def mean(
        self,
        function: Callable[[Record], Any] | str | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[tuple[Key, Any]]:
        """Give the mean of `function(record)`, of the field of that name, or of the records, for each key.

        Examples:
            >>> import crosscut as cc
            >>> bids = cc.Flow("bids").source(cc.items([("car", 90), ("car", 80)]))
            >>> means = bids.key_by(lambda bid: bid[0]).mean(lambda bid: bid[1])
        """
        chosen = self._chosen("mean", function)
        return self._folded("mean", mean_of(chosen), emit, on_error, name=name)

    def collect_list(
        self,
        function: Callable[[Record], Any] | str | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[tuple[Key, list[Any]]]:
        """Keep the list of `function(record)`, of the field of that name, or of the records, for each key.

        It has the order in which the records came, and never shrinks: use it for keys with few records, in
        windows, or keep what you need in a process. With `emit="updates"` each record emits the whole list.

        Examples:
            >>> import crosscut as cc
            >>> clicks = cc.Flow("visits").source(cc.items([("ada", "/"), ("bob", "/"), ("ada", "/shop")]))
            >>> pages = clicks.key_by(lambda click: click[0]).collect_list(lambda click: click[1])
        """
        chosen = self._chosen("collect_list", function)
        return self._folded("collect_list", list_of(chosen), emit, on_error, name=name)

    def approx_distinct(
        self,
        function: Callable[[Record], Any] | str | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[tuple[Key, int]]:
        """Count the distinct `function(record)`, fields of that name, or records of each key, about.

        Exact up to 256; then the standard error is 1.6 %, and the state takes 4 KiB a key. Values are what
        can be a key: int, str, bytes, bool, None or a tuple of those.

        Examples:
            >>> import crosscut as cc
            >>> views = cc.Flow("visitors").source(cc.items([("/", "ada"), ("/", "bob"), ("/", "ada")]))
            >>> visitors = views.key_by(lambda view: view[0]).approx_distinct(lambda view: view[1])
        """
        chosen = self._chosen("approx_distinct", function)
        return self._folded("approx_distinct", distinct_of(chosen), emit, on_error, name=name)

    def _chosen(self, kind: str, function: Callable[[Record], Any] | str | None) -> Callable[[Any], Any]:
        return _itself if function is None else _field_or_function(self._draft, kind, function)

    def _folded(
        self, kind: str, fold: ReadyFold, emit: Emit, on_error: OnError, *, name: str | None = None
    ) -> Stream[Any]:
        draft = self._draft
        spec = AggregateSpec(
            fold.initial,
            fold.add,
            fold.result,
            _emit(draft, kind, emit),
            _on_error(draft, kind, on_error),
            fold.merge,
            fold.kind,
        )
        return self._then(kind, spec, name=name)

    def reduce(
        self,
        function: Callable[[Record, Record], Record],
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[tuple[Key, Record]]:
        """Combine the records of each key: `function(value so far, record)` is the next value.

        The first record of a key is its first value.

        Examples:
            >>> import crosscut as cc
            >>> words = cc.Flow("longest").source(cc.items(["so", "say", "all"]))
            >>> longest = words.key_by(lambda word: word[0]).reduce(lambda a, b: max(a, b, key=len))
        """
        draft = self._draft
        checked = _function(draft, "reduce", "function", function, "value so far", "record")
        spec = ReduceSpec(checked, _emit(draft, "reduce", emit), _on_error(draft, "reduce", on_error))
        return self._then("reduce", spec, name=name)

    @overload
    def aggregate(
        self,
        initial: Callable[[], Value],
        add: Callable[[Value, Record], Value],
        result: None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        merge: Callable[[Value, Value], Value] | None = None,
        name: str | None = None,
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
        merge: Callable[[Value, Value], Value] | None = None,
        name: str | None = None,
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
        merge: Callable[[Value, Value], Value] | None = None,
        name: str | None = None,
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
        merge: Callable[[Value, Value], Value] | None = None,
        name: str | None = None,
    ) -> Stream[tuple[Key, Result]]: ...

    def aggregate(
        self,
        initial: Any,
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None = None,
        *,
        emit: Emit = "updates",
        on_error: OnError = "fail",
        merge: Callable[[Any, Any], Any] | None = None,
        name: str | None = None,
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
            merge: `merge(accumulator, accumulator)` returns that of the records of both, of which the first
                came before the second. That of no records changes nothing: `merge(initial, initial)` has
                to equal `initial`, which is checked. With it, and `emit="final"`,
                micro-batches and backfills fold records before they are shuffled. None: they send them all.

        Raises:
            FlowError: An argument is not as described.

        Examples:
            >>> import crosscut as cc
            >>> words = cc.Flow("letters").source(cc.items(["so", "say", "all"]))
            >>> letters = words.key_by(lambda word: word[0]).aggregate(
            ...     set, lambda letters, word: letters | set(word), len
            ... )
        """
        draft = self._draft
        begin = _initial_value(draft, "aggregate", initial)
        spec = AggregateSpec(
            begin,
            _function(draft, "aggregate", "add", add, "accumulator", "record"),
            None if result is None else _function(draft, "aggregate", "result", result, "accumulator"),
            _emit(draft, "aggregate", emit),
            _on_error(draft, "aggregate", on_error),
            None
            if merge is None
            else _function(draft, "aggregate", "merge", merge, "accumulator", "accumulator"),
        )
        if merge is not None:
            _check_neutral(draft, "aggregate", begin, merge)
        return self._then("aggregate", spec, name=name)

    def process(
        self, process: KeyedProcess[Record, Result], *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream[Result]:
        """Call a process of your own for each record, with as many kinds of state a key as it declares.

        Args:
            process: Its class declares the state.
            on_error: See the class. Each list or other mutable value of state that `on_record` gets is then
                a copy, since it may have to be changed back.

        Returns:
            What its `on_record` returns or yields, in order; not in tuples with the key.

        Examples:
            >>> import crosscut as cc
            >>> class Rising(cc.KeyedProcess[tuple[str, int], str]):
            ...     last = cc.ValueState(default=0)
            ...
            ...     def on_record(self, price, ctx):
            ...         if price[1] > self.last.get():
            ...             yield f"{ctx.key} rises to {price[1]}"
            ...         self.last.set(price[1])
            ...
            >>> prices = cc.Flow("prices").source(cc.items([("a", 5), ("a", 7)]))
            >>> rising = prices.key_by(lambda price: price[0]).process(Rising())
        """
        states = states_of_process(self._draft, process, keyed=True)
        return self._then(
            "process", ProcessSpec(process, states, _on_error(self._draft, "process", on_error)), name=name
        )

    def connect(self, other: Stream[Other] | KeyedStream[Key, Other]) -> ConnectedStreams[Record, Other]:
        """Let one process read this stream and another: `.connect(other).process(process)`.

        Args:
            other: Either keyed as well: the two share the states of a key. Or broadcast: each of its records
                goes to every task, at no key.

        Examples:
            >>> import crosscut as cc
            >>> class Known(cc.ConnectedProcess[str, str, str]):
            ...     known = cc.ValueState(default=False)
            ...
            ...     def on_record(self, visitor, ctx):
            ...         if self.known.get():
            ...             yield visitor
            ...
            ...     def on_other(self, customer, ctx):
            ...         self.known.set(True)
            ...
            >>> flow = cc.Flow("known")
            >>> visitors, customers = flow.source(cc.items(["ada"])), flow.source(cc.items(["ada"]))
            >>> known = visitors.key_by(str).connect(customers.key_by(str)).process(Known())
        """
        if isinstance(other, Stream) and other._how != "broadcast":
            raise _error(
                self._draft,
                "connect",
                "the other stream has no keys: add some, as in .connect(other.key_by(function)), or send "
                "it to every task, as in .connect(other.broadcast())",
            )
        return connected(self._draft, self._input, other, keyed=True)

    def stateful(
        self,
        function: Callable[[Any, Record], tuple[Any, Iterable[Result]]],
        *,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[Result]:
        """Call `function(state, record)` for each record; it returns the key's next state, and what goes on.

        The short form of `process`. The state is None for a new key; None as the next state deletes it.

        Examples:
            >>> import crosscut as cc
            >>> def change(last, price):
            ...     return price[1], [] if last is None else [(price[0], price[1] - last)]
            >>> prices = cc.Flow("changes").source(cc.items([("a", 5), ("a", 7)]))
            >>> changes = prices.key_by(lambda price: price[0]).stateful(change)
        """
        checked = _function(self._draft, "stateful", "function", function, "state", "record")
        return self.process(Stateful(checked), on_error=on_error, name=name)

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

        Examples:
            >>> import crosscut as cc
            >>> clicks = cc.Flow("clicks").source(cc.items([{"at": 1_000, "user": "ada"}]))
            >>> timed = clicks.assign_timestamps(lambda click: click["at"])
            >>> each_minute = timed.key_by("user").window(cc.tumbling("1m"), allowed_lateness="10s").count()
        """
        return windowed(self._draft, self._operator, window, trigger, allowed_lateness, late)

    def interval_join(
        self,
        other: KeyedStream[Any, Other],
        lower: Duration,
        upper: Duration,
        how: How = "inner",
        late: str | None = None,
        *,
        name: str | None = None,
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

        Examples:
            >>> import crosscut as cc
            >>> flow = cc.Flow("paid")
            >>> def keyed(records):
            ...     timed = flow.source(cc.items(records)).assign_timestamps(lambda one: one[1])
            ...     return timed.key_by(lambda one: one[0])
            >>> orders, payments = keyed([("o1", 1_000)]), keyed([("o1", 4_000)])
            >>> paid = orders.interval_join(payments, 0, "1h", how="left")
        """
        return self._joined(
            "interval_join", other, interval_join_spec(self._draft, lower, upper, how, late), name=name
        )

    def window_join(
        self,
        other: KeyedStream[Any, Other],
        window: Window,
        how: How = "inner",
        allowed_lateness: Duration = 0,
        late: str | None = None,
        *,
        name: str | None = None,
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

        Examples:
            >>> import crosscut as cc
            >>> flow = cc.Flow("together")
            >>> def keyed(records):
            ...     timed = flow.source(cc.items(records)).assign_timestamps(lambda one: one[1])
            ...     return timed.key_by(lambda one: one[0])
            >>> views, clicks = keyed([("ad", 1_000)]), keyed([("ad", 4_000)])
            >>> together = views.window_join(clicks, cc.tumbling("1m"))
        """
        spec = window_join_spec(self._draft, window, how, allowed_lateness, late)
        return self._joined("window_join", other, spec, name=name)

    def latest_join(
        self,
        other: KeyedStream[Any, Other],
        how: LatestHow = "inner",
        late: str | None = None,
        *,
        name: str | None = None,
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

        Examples:
            >>> import crosscut as cc
            >>> flow = cc.Flow("rates")
            >>> def keyed(records):
            ...     timed = flow.source(cc.items(records)).assign_timestamps(lambda one: one[1])
            ...     return timed.key_by(lambda one: one[0])
            >>> orders, rates = keyed([("USD", 4_000, 5.0)]), keyed([("USD", 1_000, 1.08)])
            >>> priced = orders.latest_join(rates)
        """
        return self._joined("latest_join", other, latest_join_spec(self._draft, how, late), name=name)

    def _joined(self, kind: str, other: Any, spec: OperatorSpec, *, name: str | None = None) -> Stream[Any]:
        if not isinstance(other, KeyedStream) or other._draft is not self._draft:
            raise not_to_join(self._draft, kind, other)
        inputs = (one._input for one in (self, other))
        return Stream(self._draft, self._draft.add(kind, spec, *inputs, name=name))

    def deduplicate(self, *, within: Duration | None = None, name: str | None = None) -> Stream[Record]:
        """Let the first record of each key go on, and no other that is less than `within` away from it.

        Time is event time if the records have timestamps, else processing time. Then `within` counts from
        the record that has gone on: the next one that is as far away goes on, too.

        Args:
            within: None: never another one; then each key that ever came stays in the state.

        Raises:
            FlowError: `within` is no duration, or of less than 1 ms.

        Examples:
            >>> import crosscut as cc
            >>> events = cc.Flow("once").source(cc.items([{"id": 1}, {"id": 1}]))
            >>> once = events.key_by("id").deduplicate(within="1h")
        """
        within_ms = None if within is None else _milliseconds(self._draft, "deduplicate", "within", within)
        if within_ms is not None and within_ms < 1:
            raise _error(self._draft, "deduplicate", f"within={within!r}: expected at least 1 ms")
        return self.process(first_within(within_ms, has_event_time=has_event_time(self._operator)), name=name)

    def top_n(
        self,
        n: int,
        by: Callable[[Record], Any] | None = None,
        *,
        emit: Emit = "updates",
        name: str | None = None,
    ) -> Stream[tuple[Key, list[Record]]]:
        """Keep the `n` records of each key for which `by(record)` is greatest, best first.

        Args:
            n: At least 1.
            by: Gives something to compare by; the records themselves if None. Of two equal ones the older
                one is better.
            emit: See the class.

        Raises:
            FlowError: An argument is not as described.

        Examples:
            >>> import crosscut as cc
            >>> bids = cc.Flow("best").source(cc.items([("car", 90), ("car", 80)]))
            >>> best = bids.key_by(lambda bid: bid[0]).top_n(3, by=lambda bid: bid[1])
        """
        if type(n) is not int or n < 1:
            raise _error(self._draft, "top_n", f"n={_shown(n)}: expected an int of at least 1")
        rank_of = _itself if by is None else _function(self._draft, "top_n", "by", by, "record")
        return self.aggregate(list, partial(with_ranked, n, rank_of), without_ranks, emit=emit, name=name)

    def transform_with_state(
        self,
        processor: Any,
        output_type: Any,
        time_mode: str = "ProcessingTime",
        *,
        initial_state: Mapping[Any, Any] | None = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Run a `StatefulProcessor` of PySpark, unmodified, in its form for rows, for each record.

        Records are rows, dicts, dataclasses or named tuples. The key comes as a tuple, as in PySpark.

        Args:
            processor: A `pyspark.sql.streaming.StatefulProcessor`.
            output_type: Schema of the rows that it yields, a `StructType` or DDL; field names are checked.
            time_mode: What timers go by: "ProcessingTime", "EventTime" or "None".
            initial_state: A row for each key, given to `handleInitialState` before the key's first record.
        """
        from crosscut.spark.data.stateful_processor import processor_as_process

        try:
            process = processor_as_process(processor, output_type, time_mode, initial_state)
        except FlowError as error:
            raise _error(self._draft, "transform_with_state", str(error)) from error
        return self._then(
            "transform_with_state",
            ProcessSpec(process, states_of_process(self._draft, process, keyed=True)),
            name=name,
        )

    @property
    def _input(self) -> DraftInput:
        return DraftInput(self._operator, "hash")

    def _then(self, kind: str, spec: OperatorSpec, *, name: str | None = None) -> Stream[Any]:
        return Stream(self._draft, self._draft.add(kind, spec, self._input, name=name))
