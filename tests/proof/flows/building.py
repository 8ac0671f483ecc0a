"""From a description to the flow, through the public API and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, assert_never

from tests.proof.flows import accumulators, functions, letters, processes, timed_functions
from tests.proof.flows.added_steps import Stray, Transform, Trial
from tests.proof.flows.description import Description
from tests.proof.flows.steps import (
    OPERATOR_OF,
    Aggregate,
    Attempt,
    Broadcast,
    Count,
    Counted,
    Deduplicate,
    Filter,
    FlatMap,
    ForEach,
    Hold,
    Join,
    KeyBy,
    Keyed,
    Leave,
    Loop,
    Map,
    MapAsync,
    Merge,
    Mortal,
    Newest,
    Pairs,
    Patient,
    Process,
    RateLimit,
    Rebalance,
    Reduce,
    Remember,
    Rules,
    Side,
    Sift,
    Sink,
    Source,
    Split,
    Step,
    Sum,
    Tally,
    TimedSource,
    Times,
    Tolerant,
    TopN,
    Union,
    Window,
    part_name,
)
from tests.proof.flows.ways import inputs_of, key_by_of, resolved

import crosscut as cc
from crosscut.contracts.dead_letters import DEAD_LETTERS
from crosscut.errors import invariant

MakeSource = Callable[[int, Source], cc.Source]
MakeSink = Callable[[int], cc.Sink]


def source_records(number: int, source: Source) -> list[list[Any]]:
    """Return what the splits of step `number` hold."""
    return [
        [functions.record(10_000 * number + 100 * split + i, i % (source.energy + 1)) for i in range(count)]
        for split, count in enumerate(source.splits)
    ]


def step_uid(description: Description, number: int) -> str:
    """Return what the operator of a step is called in the flow."""
    return f"{OPERATOR_OF[type(description.steps[number])]}{number}"


def built_flow(
    description: Description,
    source: MakeSource,
    sink: MakeSink,
    calls: Callable[[int], list[Any] | None] = lambda number: None,
) -> cc.Flow:
    """Return the flow of `description`.

    Args:
        source: Makes the source of a step; its records have to be those of `source_records`, in that order
            within a split.
        sink: Makes the sink of a step.
        calls: Gives the list in which the function of a `for_each` notes its calls. None: it notes none.
    """
    return _Building(description, source, sink, calls).flow


class _Building:
    def __init__(
        self,
        description: Description,
        source: MakeSource,
        sink: MakeSink,
        calls: Callable[[int], list[Any] | None],
    ) -> None:
        self.flow = cc.Flow("drawn")
        self._description = description
        self._source = source
        self._sink = sink
        self._calls = calls
        self._streams: dict[int, Any] = {}
        # What the operators themselves return, whatever is made of it.
        self._said: dict[int, Any] = {}
        end = self._build(0)
        invariant(end == len(description.steps), f"{description} ends at step {end}")

    def _build(self, first: int) -> int:
        """Make the operators from step `first` to the end, or to where the loop that it is in is left."""
        number = first
        steps = self._description.steps
        while number < len(steps) and not isinstance(steps[number], Leave):
            step = steps[number]
            number = self._loop(number, step) if isinstance(step, Loop) else self._one(number)
        return number

    def _loop(self, number: int, step: Loop) -> int:
        """Write a loop and its body; return the number of the step after it."""
        left = number
        uid = step_uid(self._description, number)

        def body(loop: Any) -> tuple[Any, Any]:
            nonlocal left
            loop.named(uid)
            is_first = step.tire == "flat_map first"
            self._streams[number] = loop.flat_map(functions.tired).named(f"{uid}-tire") if is_first else loop
            left = self._build(number + 1)
            leave = self._description.steps[left]
            if not isinstance(leave, Leave):
                raise TypeError(f"step {left} does not leave the loop {number}")
            again, out = (self._streams[one] for one in (leave.again, leave.out))
            match step.tire:
                case "flat_map first":
                    return again, out
                case "flat_map last":
                    return again.flat_map(functions.tired).named(f"{uid}-tire"), out
                case "filter and map last":
                    kept = again.filter(functions.energy_of).named(f"{uid}-tire1")
                    return kept.map(functions.weaker).named(f"{uid}-tire2"), out
                case _:
                    assert_never(step.tire)

        out = self._streams[step.stream].iterate(body)
        self._streams[left] = out
        return left + 1

    def _one(self, number: int) -> int:
        uid = step_uid(self._description, number)
        step = self._description.steps[number]
        stream = self._made(number)
        # These are no operators of their own, or have their names.
        if not isinstance(step, Rebalance | Broadcast | Split | Side | Trial | Stray | Transform):
            stream = stream.named(uid)
        self._said[number] = stream
        as_record = _as_record(self._description.steps, step)
        if as_record is not None:
            stream = stream.map(as_record).named(f"{uid}-records")
        if isinstance(step, Sift):
            late = self._said[number].side_output(processes.LATE)
            stream = stream.union(late).named(f"{uid}-all")
        if isinstance(step, Patient | Tolerant):
            by_window = stream.key_by(processes.window_of).named(f"{uid}-windows")
            stream = by_window.process(processes.Increments()).named(f"{uid}-increments")
        if isinstance(step, Tolerant):
            counted = partial(functions.counted_once, key_by_of(self._description.steps, step))
            late = self._said[number].side_output(processes.LATE).map(counted).named(f"{uid}-late")
            stream = stream.union(late).named(f"{uid}-all")
        if isinstance(step, Attempt) and step.operator == "split":
            stream = stream.union(stream.side_output("odd")).named(f"{uid}-all")
        if accumulators.is_followed_by_separation(step):
            stream = stream.flat_map(accumulators.separated).named(f"{uid}-separated")
        self._streams[number] = stream
        return number + 1

    def _waits_for_slower_ones(self, times: Times) -> bool:
        """Whether splits are aligned: where they can be, for one of the distances that are drawn."""
        steps = self._description.steps
        readers = [one for one in steps if times.stream in inputs_of(one)]
        return times.out_of_orderness == 3 and isinstance(steps[times.stream], Source) and readers == [times]

    def _made(self, number: int) -> Any:
        step = self._description.steps[number]
        uid = step_uid(self._description, number)
        match step:
            case TimedSource():
                source = self._source(number, step)
                # A split that comes later is as old as those that have been read.
                is_growing = isinstance(source, cc.DynamicSource)
                disorder_ms = timed_functions.SPREAD_MS if is_growing else timed_functions.DISORDER_MS
                stream = self.flow.source(source).named(f"{step_uid(self._description, number)}-splits")
                return stream.assign_timestamps(timed_functions.time_of, out_of_orderness=f"{disorder_ms}ms")
            case Source():
                return self.flow.source(self._source(number, step))
            case Map(stream):
                return self._streams[stream].map(functions.map_function(step))
            case Filter(stream):
                return self._streams[stream].filter(functions.filter_function(step))
            case FlatMap(stream):
                return self._streams[stream].flat_map(functions.flat_map_function(step))
            case Split(stream, parts):
                names = {part_name(step, i): functions.part_predicate(parts, i) for i in range(parts)}
                return self._streams[stream].split(**names).named(step_uid(self._description, number)).rest
            case Attempt(stream, "split"):
                predicate = functions.attempt_function(step)
                return self._streams[stream].split(odd=predicate, on_error=DEAD_LETTERS).rest
            case Attempt(stream, operator):
                make = getattr(self._streams[stream], operator)
                return make(functions.attempt_function(step), on_error=DEAD_LETTERS)
            case MapAsync(stream, call, capacity, order):
                return self._streams[stream].map_async(
                    functions.awaited if call == "coroutine" else functions.returned,
                    capacity=capacity,
                    timeout=functions.CALL_TIMEOUT_S,
                    retries=functions.CALL_RETRIES,
                    ordered=order == "ordered",
                    on_error=DEAD_LETTERS,
                )
            case RateLimit(stream, records):
                return self._streams[stream].rate_limit(records, per="1ms")
            case ForEach(stream, modulus):
                noting = functions.refusing(modulus, self._calls(number))
                return self._streams[stream].for_each(noting, on_error=DEAD_LETTERS)
            case Remember(stream):
                return self._streams[stream].process(processes.Remembering())
            case Merge(stream, other):
                return self._streams[stream].connect(self._streams[other]).process(processes.Merging())
            case Side(stream, part):
                said_by = resolved(self._description.steps, stream)
                name = part_name(self._description.steps[said_by], part)
                side = self._said[said_by].side_output(name)
                if name == DEAD_LETTERS:
                    side = side.map(functions.record_of).named(
                        f"{step_uid(self._description, number)}-records"
                    )
                return side
            case Union(streams):
                first, *others = self._all(streams)
                return first.union(*others)
            case Rebalance(stream):
                return self._streams[stream].rebalance()
            case Broadcast(stream):
                return self._streams[stream].broadcast()
            case KeyBy(stream):
                return self._streams[stream].key_by(functions.key_function(step))
            case Times(stream, _, out_of_orderness):
                function = timed_functions.time_function(step)
                spread = f"{out_of_orderness}ms"
                idle_after = timed_functions.IDLE_AFTER if step.function == "idle soon" else None
                is_aligned = self._waits_for_slower_ones(step)
                if is_aligned and idle_after is None:
                    idle_after = "1h"
                return self._streams[stream].assign_timestamps(
                    function,
                    out_of_orderness=spread,
                    idle_after=idle_after,
                    align_within="2ms" if is_aligned else None,
                    align_group="drawn" if is_aligned else "",
                )
            case Hold(keyed):
                return self._streams[keyed].process(processes.holding(step))
            case Mortal(keyed, clock):
                return self._streams[keyed].process(processes.mortal(clock))
            case Deduplicate(keyed, within):
                return self._streams[keyed].deduplicate(within=timed_functions.within(within))
            case Counted(keyed):
                return self._streams[keyed].window(*timed_functions.counted_window(step)).count()
            case Sift(keyed, size):
                windows = self._streams[keyed].window(cc.tumbling(f"{size}ms"), late=processes.LATE)
                return windows.process(timed_functions.listed)
            case Patient(keyed, size):
                early = cc.early(f"{max(size // 4, 1)}ms")
                windows = self._streams[keyed].window(
                    cc.tumbling(f"{size}ms"), trigger=early, allowed_lateness=processes.FOR_EVER
                )
                return windows.count()
            case Tolerant(keyed, size):
                windows = self._streams[keyed].window(
                    cc.tumbling(f"{size}ms"),
                    trigger=cc.early(f"{max(size // 4, 1)}ms"),
                    allowed_lateness=f"{size}ms",
                    late=processes.LATE,
                )
                return windows.count()
            case Pairs(keyed, other):
                return self._streams[keyed].connect(self._streams[other]).process(processes.Pairing())
            case Rules(keyed, other, said):
                rules = self._streams[other].broadcast()
                return self._streams[keyed].connect(rules).process(processes.Ruled(tells=said == "told"))
            case Newest(keyed, other):
                return self._streams[keyed].latest_join(self._streams[other], how="left")
            case Sink(stream):
                return self._streams[stream].sink(self._sink(number))
            case Count() | Sum() | Reduce() | Aggregate() | Process() | TopN() | Tally() | Trial():
                return self._keyed(step, uid)
            case Stray(stream):
                return letters.strayed(self._streams[stream], step, uid)
            case Transform(stream):
                from tests.proof.flows.spark_rows import transformed

                return transformed(self._streams[stream], step, uid)
            case Window(keyed, _, _, fold):
                return timed_functions.folded(
                    self._streams[keyed].window(timed_functions.window_of(step)), fold
                )
            case Join():
                return self._joined(step)
            case Loop() | Leave():
                raise TypeError(f"step {number} is no operator by itself")
            case _:
                assert_never(step)

    def _joined(self, step: Join) -> Any:
        left, right = self._streams[step.keyed], self._streams[step.other]
        match step.join:
            case "interval":
                return left.interval_join(right, f"-{step.size}ms", f"{step.size}ms", how=step.how)
            case "window":
                return left.window_join(right, cc.tumbling(f"{step.size}ms"), how=step.how)
            case "latest":
                return left.latest_join(right, how=step.how)
            case _:
                assert_never(step.join)

    def _keyed(self, step: Keyed, uid: str) -> Any:
        keyed = self._streams[step.keyed]
        key_by = key_by_of(self._description.steps, step)
        match step:
            case Count():
                return keyed.count(emit=step.emit)
            case Sum():
                return keyed.sum(functions.sum_function(step.function, key_by), emit=step.emit)
            case Reduce():
                return keyed.reduce(functions.reduce_function(step), emit=step.emit)
            case Aggregate():
                initial, add, result, merge = accumulators.folding(step.function, key_by)
                return keyed.aggregate(initial, add, result, emit=step.emit, merge=merge)
            case Process():
                return keyed.process(processes.Counting(step.every), on_error=DEAD_LETTERS)
            case TopN(_, n, emit):
                return keyed.top_n(n, functions.rank_of, emit=emit)
            case Tally(_, state):
                return processes.tallied(keyed, state, key_by)
            case Trial():
                return letters.tried(keyed, step, uid)
            case _:
                assert_never(step)

    def _all(self, streams: Sequence[int]) -> list[Any]:
        return [self._streams[one] for one in streams]


def _as_record(steps: Sequence[Step], step: Step) -> Callable[[Any], Any] | None:
    """Return what makes a record of what `step` says, None if it says records."""
    match step:
        case Window():
            return timed_functions.of_window
        case Counted():
            return timed_functions.of_counted
        case Sift():
            return timed_functions.value_of
        case Join(_, _, join):
            return partial(timed_functions.of_join, join)
        case Newest():
            return functions.without_version
        case TopN(_, _, emit):
            return partial(functions.of_top, emit)
        case Deduplicate(keyed):
            key_by = steps[keyed]
            return partial(functions.only_key, key_by) if isinstance(key_by, KeyBy) else None
        case _:
            return None
