"""The processes of drawn flows: states of every kind, timers of both times, a time to live, two inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import add
from typing import Any, assert_never

from tests.proof.flows import functions
from tests.proof.flows.functions import MODULUS, is_refused, number_of
from tests.proof.flows.steps import ClockName, Hold, KeyBy, StateName

from crosscut.contracts.connected_process import (
    BroadcastState,
    ConnectedProcess,
    SplitState,
    StreamProcess,
    UnionState,
)
from crosscut.contracts.context import Context
from crosscut.contracts.process import KeyedProcess
from crosscut.contracts.state import AggregatingState, ListState, MapState, ReducingState, ValueState
from crosscut.contracts.windows import Windowed
from crosscut.foundation.timestamps import BEFORE_ALL_TIME, END_OF_TIME


class Counting(KeyedProcess[Any, Any]):
    """The process of a `process`."""

    seen = ValueState(default=0)

    def __init__(self, every: int) -> None:
        self._every = every

    def on_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        count = self.seen.get() + 1
        self.seen.set(count)
        if count % self._every == 0:
            ctx.output("part 0", (ctx.key, count))
        yield (ctx.key, count)
        # The worst moment: all has been said and done.
        if is_refused(record):
            raise ValueError(f"{number_of(record)} is refused")


WRONG = ("r", MODULUS, 0)
"""What a process says if something is wrong with its time: nothing else in a flow has this number."""


class _Hold(KeyedProcess[Any, Any]):
    """Keeps each record until its time has come. Which time that is changes nothing of what it says in all.

    It says what is wrong if a timer fires early, late or twice, or time goes back: its state tells.
    """

    held = MapState[int, list[Any]]()
    seen = ValueState[int](default=BEFORE_ALL_TIME)

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def on_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        yield from self._complaints(ctx)
        time = self._due(record, ctx)
        self.held[time] = [*self.held.get(time, []), record]
        self._set(time, ctx)

    def _fired(self, time: int, ctx: Context) -> Iterator[Any]:
        yield from self._complaints(ctx)
        # When the input has ended, nobody waits.
        is_early = time > self._now(ctx) and ctx.watermark != END_OF_TIME
        held = self.held.pop(time, None)
        if is_early or held is None:
            yield WRONG
        yield from held or ()

    def _complaints(self, ctx: Context) -> Iterator[Any]:
        now = self._now(ctx)
        if now < self.seen.get():
            yield WRONG
        self.seen.set(now)

    @abstractmethod
    def _now(self, ctx: Context) -> int: ...

    @abstractmethod
    def _due(self, record: Any, ctx: Context) -> int: ...

    @abstractmethod
    def _set(self, time: int, ctx: Context) -> None: ...


class HoldByEventTime(_Hold):
    """See `Hold`."""

    def on_timer(self, time: int, ctx: Context) -> Iterator[Any]:
        return self._fired(time, ctx)

    def _now(self, ctx: Context) -> int:
        return BEFORE_ALL_TIME if ctx.watermark is None else ctx.watermark

    def _due(self, record: Any, ctx: Context) -> int:
        assert ctx.timestamp is not None
        return self.delay + ctx.timestamp

    def _set(self, time: int, ctx: Context) -> None:
        ctx.set_timer(time)


class HoldByProcessingTime(_Hold):
    """See `Hold`."""

    def on_processing_timer(self, time: int, ctx: Context) -> Iterator[Any]:
        return self._fired(time, ctx)

    def _now(self, ctx: Context) -> int:
        return ctx.now()

    def _due(self, record: Any, ctx: Context) -> int:
        return ctx.now() + self.delay

    def _set(self, time: int, ctx: Context) -> None:
        ctx.set_processing_timer(time)


class HoldByBoth(KeyedProcess[Any, Any]):
    """Sets a timer of either time for each record; the one that is first deletes the other."""

    held = MapState[int, tuple[Any, int, int]]()
    count = ValueState(default=0)

    def __init__(self, delay: int) -> None:
        self._delay = delay

    def on_record(self, record: Any, ctx: Context) -> Iterable[Any]:
        assert ctx.timestamp is not None
        number = self.count.get()
        self.count.set(number + 1)
        times = ctx.timestamp + self._delay, ctx.now() + self._delay
        self.held[number] = (record, *times)
        ctx.set_timer(times[0])
        ctx.set_processing_timer(times[1])
        return ()

    def on_timer(self, time: int, ctx: Context) -> Iterator[Any]:
        return self._fired(0, time, ctx)

    def on_processing_timer(self, time: int, ctx: Context) -> Iterator[Any]:
        return self._fired(1, time, ctx)

    def _fired(self, clock: int, time: int, ctx: Context) -> Iterator[Any]:
        found = [number for number in self.held if self.held[number][1 + clock] == time]
        if not found:
            # All that it was for has been said by the other, which has deleted it.
            yield WRONG
        for number in found:
            record, *times = self.held.pop(number)
            other = times[1 - clock]
            if not any(row[2 - clock] == other for row in self.held.values()):
                if clock:
                    ctx.delete_timer(other)
                else:
                    ctx.delete_processing_timer(other)
            yield record


def holding(step: Hold) -> KeyedProcess[Any, Any]:
    """Return the process of a `hold`."""
    match step.clock:
        case "event time":
            return HoldByEventTime(step.delay)
        case "processing time":
            return HoldByProcessingTime(step.delay)
        case "both times":
            return HoldByBoth(step.delay)
        case _:
            assert_never(step.clock)


BRIEFLY_MS, LONGER_MS = 20, 200


class _Mortal(KeyedProcess[Any, Any]):
    """Says what is wrong if a value is there when it is dead, or is not when it is not."""

    briefly: ValueState[bool]
    longer: ValueState[bool]
    written = ValueState[int | None]()

    def on_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        written, now = self.written.get(), self._now(ctx)
        # When the input has ended, a run without time knows nothing of what has died.
        if ctx.watermark != END_OF_TIME:
            for state, ttl_ms in ((self.briefly, BRIEFLY_MS), (self.longer, LONGER_MS)):
                lives = written is not None and (now is None or written + ttl_ms > now)
                if state.exists != lives:
                    yield WRONG
        yield record
        self.briefly.set(True)
        self.longer.set(True)
        self.written.set(self._moment(ctx))

    @abstractmethod
    def _now(self, ctx: Context) -> int | None: ...

    @abstractmethod
    def _moment(self, ctx: Context) -> int | None: ...


class MortalByEventTime(_Mortal):
    """See `Mortal`."""

    briefly = ValueState[bool](ttl=BRIEFLY_MS / 1_000)
    longer = ValueState[bool](ttl=LONGER_MS / 1_000)

    def _now(self, ctx: Context) -> int | None:
        return ctx.watermark

    def _moment(self, ctx: Context) -> int | None:
        return ctx.timestamp


class MortalByProcessingTime(_Mortal):
    """See `Mortal`."""

    briefly = ValueState[bool](ttl=BRIEFLY_MS / 1_000, ttl_time="processing")
    longer = ValueState[bool](ttl=LONGER_MS / 1_000, ttl_time="processing")

    def _now(self, ctx: Context) -> int | None:
        return ctx.now()

    def _moment(self, ctx: Context) -> int | None:
        return ctx.now()


def mortal(clock: ClockName) -> KeyedProcess[Any, Any]:
    """Return the process of a `mortal`."""
    return MortalByEventTime() if clock == "event time" else MortalByProcessingTime()


class _Tallying(KeyedProcess[Any, Any]):
    """Counts the records of each key."""

    def on_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        yield (ctx.key, self._counted(record))

    @abstractmethod
    def _counted(self, record: Any) -> int: ...


class TallyingByList(_Tallying):
    """In a list."""

    seen = ListState[Any]()

    def _counted(self, record: Any) -> int:
        self.seen.append(record)
        return len(self.seen)


class TallyingByMap(_Tallying):
    """In a map, of which some entries go and come back."""

    seen = MapState[str, Any]()

    def _counted(self, record: Any) -> int:
        count = len(self.seen)
        if count % 2:
            self.seen[str(count - 1)] = self.seen.pop(str(count - 1))
        self.seen[str(count)] = record
        return len(self.seen)


class TallyingByValue(_Tallying):
    """In a value that can be changed, and is the caller's own."""

    seen = ValueState[list[int]](default=list)

    def _counted(self, record: Any) -> int:
        seen = self.seen.get()
        seen.append(number_of(record))
        self.seen.set(seen)
        return len(seen)


class TallyingByReducing(_Tallying):
    """In a sum."""

    seen = ReducingState[int](add)

    def _counted(self, record: Any) -> int:
        self.seen.add(1)
        return self.seen.get() or 0


def _with_another(numbers: list[int], record: Any) -> list[int]:
    numbers.append(number_of(record))
    return numbers


class TallyingByAggregating(_Tallying):
    """In an accumulator that is changed where it is."""

    seen = AggregatingState[Any, int](list, _with_another, len)

    def _counted(self, record: Any) -> int:
        self.seen.add(record)
        return self.seen.get() or 0


_TALLYING: dict[StateName, type[_Tallying]] = {
    "value": TallyingByValue,
    "list": TallyingByList,
    "map": TallyingByMap,
    "reducing": TallyingByReducing,
    "aggregating": TallyingByAggregating,
}
ANEW_AFTER = 3
"""A "stateful" tally then begins from one again."""


def tallied(keyed: Any, state: StateName, key_by: KeyBy) -> Any:
    """Return the stream of a `tally`."""
    if state == "stateful":
        return keyed.stateful(partial(_next_tally, functions.key_function(key_by)))
    return keyed.process(_TALLYING[state]())


def _next_tally(key_of: Callable[[Any], Any], state: int | None, record: Any) -> tuple[int | None, list[Any]]:
    count = (state or 0) + 1
    return None if count == ANEW_AFTER else count, [(key_of(record), count)]


LATE = "late"


class Pairing(ConnectedProcess[Any, Any, Any]):
    """The process of a `pairs`."""

    left = ListState[Any]()
    right = MapState[int, Any]()

    def on_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        self.left.append(record)
        for number in self.right:
            yield functions.of_pair(ctx.key, record, self.right[number])

    def on_other(self, record: Any, ctx: Context) -> Iterator[Any]:
        self.right[len(self.right)] = record
        for one in self.left:
            yield functions.of_pair(ctx.key, one, record)


class Ruled(ConnectedProcess[Any, Any, Any]):
    """The process of a `rules`."""

    rules = BroadcastState[int, int]()
    seen = ValueState(default=0)

    def __init__(self, *, tells: bool) -> None:
        self._tells = tells

    def on_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        self.seen.set(self.seen.get() + 1)
        yield (ctx.key, self.seen.get())

    def on_other(self, record: Any, ctx: Context) -> Iterator[Any]:
        rule = functions.rule_of(record)
        self.rules[rule] = self.rules.get(rule, 0) + 1
        if self._tells:
            yield functions.of_rule(rule, self.rules[rule])


class Remembering(StreamProcess[Any, Any]):
    """The process of a `remember`."""

    dealt = SplitState[Any]()
    shared = UnionState[Any]()

    def on_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        self.dealt.append(record)
        self.shared.append(record)
        yield record


class Merging(ConnectedProcess[Any, Any, Any]):
    """The process of a `merge`."""

    dealt = SplitState[Any]()

    def on_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        yield record

    def on_other(self, record: Any, ctx: Context) -> Iterator[Any]:
        self.dealt.append(record)
        yield functions.of_other(record)


FOR_EVER = "876000h"
"""So late is no record of any flow."""


def window_of(one: Windowed[Any, Any]) -> Any:
    """Return which window a result is of."""
    return (one.key, one.start)


class Increments(KeyedProcess[Any, Any]):
    """Makes a record of each that is new in a window, of results that may come any number of times."""

    known = ValueState(default=0)

    def on_record(self, record: Windowed[Any, Any], ctx: Context) -> Iterator[Any]:
        known = self.known.get()
        if record.value < known:
            yield WRONG
        self.known.set(max(known, record.value))
        for _ in range(known, record.value):
            yield functions.of_key(record.key, 1)
