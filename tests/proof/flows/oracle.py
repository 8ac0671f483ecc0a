"""What a described flow has to put out: plain Python over the steps, which knows of no engine.

There are no tasks, channels, batches or barriers here, and no graph of vertices. Steps that lie on one cycle
go on until nothing is left to do for any of them; a cycle comes after all that feeds it. Everything else is a
cycle of one step, and has its say at the end when nothing is left to do for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple, assert_never

from tests.proof.flows import accumulators, functions, letters, processes, timed_functions
from tests.proof.flows.added_steps import Stray, Transform, Trial
from tests.proof.flows.building import source_records
from tests.proof.flows.description import Description
from tests.proof.flows.steps import (
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
    Sum,
    Tally,
    Timed,
    Times,
    Tolerant,
    TopN,
    Union,
    Window,
)
from tests.proof.flows.timed_oracle import Happened, said_of
from tests.proof.flows.ways import cycles, key_by_of, ways

from crosscut.errors import FlowError
from crosscut.foundation.timestamps import TIMESTAMP_MAX

_NOTHING: Any = object()


class _Item(NamedTuple):
    """A record with its time, which counts only where all records have one; `place`: as in `Way`."""

    record: Any
    time: int
    is_round: bool
    place: int


class Expected(NamedTuple):
    """What a run from beginning to end does.

    Attributes:
        records: By the number of the step, what each sink gets, in some order.
        work: How many records all steps together were given.
        called: By step, what the function of each `for_each` is called for, once at least.
        kept: By step and name of the state, what states of tasks hold in the end.
    """

    records: dict[int, list[Any]]
    work: int
    called: dict[int, list[Any]]
    kept: dict[int, dict[str, Any]]


class TooMuchError(FlowError):
    """The flow would do more than it may."""


def expected_output(description: Description, parallelism: int, work_max: int = 1_000_000) -> Expected:
    """Return what the sinks have to get.

    Args:
        parallelism: Of the job: what is broadcast comes so often.
        work_max: How many records the steps may be given.

    Raises:
        TooMuchError: They would be given more.
    """
    run = _Run(description, parallelism, work_max)
    return Expected(run.out, run.work, run.called, run.kept)


class _Run:
    def __init__(self, description: Description, parallelism: int, work_max: int) -> None:
        self._steps = description.steps
        self._parallelism = parallelism
        self._work_max = work_max
        self._states: dict[int, dict[Any, Any]] = {}
        self._gathered: dict[int, list[_Item]] = {}
        self._ways = ways(self._steps)
        self.out: dict[int, list[Any]] = {
            number: [] for number, step in enumerate(self._steps) if isinstance(step, Sink)
        }
        self.called: dict[int, list[Any]] = {}
        self.kept: dict[int, dict[str, Any]] = {}
        self.work = 0
        # By step, what is still to be done there.
        self._todo: list[deque[_Item]] = [deque() for _ in self._steps]
        for cycle in cycles(self._steps):
            self._settle(cycle)
            for number in cycle:
                self._say_at_the_end(number)
                self._settle(cycle)

    def _settle(self, cycle: tuple[int, ...]) -> None:
        """Go on until no step of `cycle` has anything left to do."""
        todo = self._todo
        while busy := [number for number in cycle if todo[number]]:
            for number in busy:
                while todo[number]:
                    item = todo[number].popleft()
                    self.work += 1
                    if self.work > self._work_max:
                        raise TooMuchError(f"a run is given more than {self._work_max} records")
                    self._send(number, self._processed(number, item), item.time)

    def _send(self, number: int, records: Iterable[Any], time: int, part: int | None = None) -> None:
        for one in records:
            for way in self._ways[number]:
                if way.part == part:
                    self._todo[way.target].append(_Item(one, time, way.is_round, way.place))

    def _processed(self, number: int, item: _Item) -> Iterable[Any]:
        step = self._steps[number]
        one, is_round = item.record, item.is_round
        match step:
            case Map():
                return (functions.map_function(step)(one),)
            case Filter():
                return (one,) if functions.filter_function(step)(one) else ()
            case FlatMap():
                return functions.flat_map_function(step)(one)
            case Split(_, parts):
                part = functions.number_of(one) % (parts + 1)
                if part == parts:
                    return (one,)
                self._send(number, (one,), item.time, part)
                return ()
            case Attempt(_, _, modulus):
                if functions.number_of(one) % modulus:
                    return (one,)
                self._send(number, (one,), item.time, 0)
                return ()
            case MapAsync():
                if functions.has_no_answer(one):
                    self._send(number, (one,), item.time, 0)
                    return ()
                return (functions.answer(one),)
            case ForEach(_, modulus):
                self.called.setdefault(number, []).append(one)
                if functions.number_of(one) % modulus == 0:
                    self._send(number, (one,), item.time, 0)
                return ()
            case Side() | Union() | Rebalance() | Times() | RateLimit():
                return (one,)
            case Remember() | Merge():
                return self._noted(number, step, item)
            case Hold() | Mortal() | Sift():
                # Sooner or later each record leaves, once.
                return (one[1],)
            case Patient() | Tolerant():
                return (functions.of_key(one[0], 1),)
            case Newest():
                return () if item.place else (one[1],)
            case Deduplicate() | Counted() | Pairs() | Rules():
                return self._known(number, step, item)
            case Broadcast():
                return (one,) * self._parallelism
            case KeyBy():
                return ((functions.key_function(step)(one), one),)
            case Loop():
                return functions.tired(one) if is_round or step.tire == "flat_map first" else (one,)
            case Sink():
                self.out[number].append(one)
                return ()
            case Stray():
                if letters.is_multiple(step.unfit, one):
                    return (letters.of_letter(one),)
                return self._counted(number, step, one)
            case Transform():
                return (one,) if "timers" in step.state else self._counted(number, step, one)
            case Count() | Sum() | Reduce() | Aggregate() | Process() | TopN() | Tally() | Trial():
                key, record = one
                return self._folded(number, step, key, record, item.time)
            case Window() | Join():
                self._gathered.setdefault(number, []).append(item)
                return ()
            case Source() | Leave():
                raise TypeError(f"step {number} is given no record")
            case _:
                assert_never(step)

    def _counted(self, number: int, step: Stray | Transform, one: Any) -> Iterable[Any]:
        state = self._states.setdefault(number, {})
        key = functions.key_of(step.key, step.modulus, one)
        state[key] = count = state.get(key, 0) + 1
        return ((key, count),)

    def _noted(self, number: int, step: Remember | Merge, item: _Item) -> Iterable[Any]:
        kept = self.kept.setdefault(number, {})
        if isinstance(step, Merge) and not item.place:
            return (item.record,)
        for name in ("dealt", "shared") if isinstance(step, Remember) else ("dealt",):
            kept.setdefault(name, []).append(item.record)
        return (item.record if isinstance(step, Remember) else functions.of_other(item.record),)

    def _known(self, number: int, step: Deduplicate | Counted | Pairs | Rules, item: _Item) -> Iterable[Any]:
        if isinstance(step, Rules) and item.place:
            rules = self.kept.setdefault(number, {}).setdefault("rules", {})
            rule = functions.rule_of(item.record)
            rules[rule] = count = rules.get(rule, 0) + 1
            times = self._parallelism if step.said == "told" else 0
            return (functions.of_rule(rule, count),) * times
        key, record = item.record
        state = self._states.setdefault(number, {})
        match step:
            case Deduplicate():
                alike = (key, item.time) if step.within == "a moment" else key
                is_known = alike in state
                state[alike] = True
                return () if is_known else (functions.of_key(key),)
            case Counted(_, window, rows):
                state[key] = count = state.get(key, 0) + 1
                if window == "global" or count % rows:
                    return ()
                return (functions.of_key(key, rows if window == "count" else count),)
            case Pairs():
                sides = state.setdefault(key, ([], []))
                sides[item.place].append(record)
                pairs = (((record, one), (one, record))[item.place] for one in sides[1 - item.place])
                return [functions.of_pair(key, *pair) for pair in pairs]
            case Rules():
                state[key] = count = state.get(key, 0) + 1
                return ((key, count),)
            case _:
                assert_never(step)

    def _folded(self, number: int, step: Keyed, key: Any, one: Any, time: int) -> Iterable[Any]:
        state = self._states.setdefault(number, {})
        key_by = key_by_of(self._steps, step)
        value = state.get(key, _NOTHING)
        is_first = value is _NOTHING
        result = None
        match step:
            case Process(_, every):
                if functions.is_refused(one):
                    self._send(number, (one,), time, 1)
                    return ()
                value = 1 if is_first else value + 1
                if value % every == 0:
                    self._send(number, ((key, value),), time, 0)
            case Count():
                value = 1 if is_first else value + 1
            case Trial(_, fold, modulus):
                if fold != "result" and letters.is_multiple(modulus, one):
                    return (letters.of_letter(one),)
                value = 1 if is_first else value + 1
            case Tally(_, name):
                value = 1 if is_first else value + 1
                if name == "stateful":
                    value = (value - 1) % processes.ANEW_AFTER + 1
            case TopN(_, n):
                best = sorted([*([] if is_first else value), one], key=functions.rank_of, reverse=True)
                value = best[:n]
            case Sum():
                function = functions.sum_function(step.function, key_by)
                value = (0 if is_first else value) + (one if function is None else function(one))
            case Reduce():
                value = one if is_first else functions.reduce_function(step)(value, one)
            case Aggregate():
                initial, add, result, _ = accumulators.folding(step.function, key_by)
                value = add((initial() if callable(initial) else initial) if is_first else value, one)
            case _:
                assert_never(step)
        state[key] = value
        if step.emit == "final":
            return ()
        return self._said(number, key, value if result is None else result(value))

    def _said(self, number: int, key: Any, value: Any) -> Iterable[Any]:
        step = self._steps[number]
        pair = (key, list(value) if isinstance(value, list) else value)
        if isinstance(step, TopN):
            return (functions.of_top(step.emit, pair),)
        if isinstance(step, Trial) and step.fold == "result" and value % step.modulus == 0:
            return (letters.of_letter(pair),)
        if accumulators.is_followed_by_separation(step):
            return accumulators.separated(pair)
        return (pair,)

    def _say_at_the_end(self, number: int) -> None:
        step = self._steps[number]
        if isinstance(step, Source):
            for one in chain.from_iterable(source_records(number, step)):
                self._send(number, (one,), timed_functions.time_of(one))
        if isinstance(step, Timed):
            gathered = [
                Happened(item.record[0], item.record[1], item.time, item.place)
                for item in self._gathered.get(number, ())
            ]
            for record, time in said_of(step, gathered):
                self._send(number, (record,), time)
        if isinstance(step, Counted):
            for key, count in self._states.get(number, {}).items():
                rest = count % step.rows if step.window == "count" else count
                if rest:
                    self._send(number, (functions.of_key(key, rest),), TIMESTAMP_MAX)
        if not isinstance(step, Keyed) or step.emit != "final":
            return
        result = None
        if isinstance(step, Aggregate):
            result = accumulators.folding(step.function, key_by_of(self._steps, step)).result
        for key, value in self._states.get(number, {}).items():
            said = self._said(number, key, value if result is None else result(value))
            self._send(number, said, TIMESTAMP_MAX)
