"""process: a user's own stateful operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

from crosscut.contracts.context import Context
from crosscut.contracts.metrics import Metrics
from crosscut.contracts.process import EVENT_TIMERS, PROCESSING_TIMERS, KeyedProcess, attached
from crosscut.contracts.state import Cells
from crosscut.errors import FlowError, InternalError
from crosscut.foundation.batch import Batch
from crosscut.foundation.callables import several
from crosscut.foundation.timestamps import BEFORE_ALL_TIME, END_OF_TIME, TIMESTAMP_MAX
from crosscut.operators.cells import cells_of
from crosscut.operators.operator import Operator, user_code_error
from crosscut.operators.sides import Sides
from crosscut.state.expiry import UNDATED
from crosscut.state.keyed import KeyedState
from crosscut.state.timers import Timers, TimerTable

TIMERS_AT_ONCE_MAX = 10_000
"""That timers of one key may set so that they are due at once, until they are taken for ones without end."""

AT_THE_END_EACH = 10
"""At the end of input there may be that many for each timer that is left then, if that is more."""

_SEVERAL = frozenset({GeneratorType, list, tuple})
"""What nearly every process returns, and `several` would have nothing to say to."""

LOOK_EVERY_MS = 5
"""Expired values are removed some at a time, with each batch and else as often: there may be millions."""

OnTimer = Callable[[int, Context], Iterable[Any] | None]

Call = Callable[[Any, Any], Iterable[Any] | None]


class Process(Operator):
    """Calls the user's process for each record, at the record's key, and for each timer that is due."""

    uses_watermarks = True
    uses_clock = True

    def __init__(self, uid: str, process: KeyedProcess[Any, Any], state: KeyedState, sides: Sides) -> None:
        super().__init__(uid, sides)
        self._context = self._new_context(sides)
        self.metrics = self._context.metrics = Metrics(uid)
        self._state = state
        cells, self._timed = cells_of(process, self._cells(state), state.tables, self, uid)
        self._process = attached(process, cells, self._context)
        self._event_timers = _timers(state, EVENT_TIMERS)
        self._processing_timers = _timers(state, PROCESSING_TIMERS)
        # What the next operator has been told of.
        self._passed: int | None = None
        # What it may have been told of by the task that this one goes on from.
        self._restored: int | None = None
        # What is due is said turn by turn. By this processing time, as long as one lasts: the clock goes on,
        # and timers that come as fast would leave no time for anything else.
        self._turn_ms: int | None = None
        # The timer that is called, and whether it is one of event time.
        self._calling: tuple[int, bool] | None = None
        # How far event time has come: to the watermark, or to the timer that is called by it.
        self._event_ms: int | None = None
        # Which methods have been called for a timer, in this epoch.
        self._called: set[bool] = set()
        self._set_at_once: Counter[Any] = Counter()
        self._at_once_max = TIMERS_AT_ONCE_MAX
        self._has_ended = False
        # Those that have state before their first record, and may not have it yet; the first one last.
        self._to_begin: list[Any] = []
        # When expired values were last removed.
        self._looked_ms = 0
        self._is_open = False

    def _new_context(self, sides: Sides) -> Context:
        return Context(sides.emit, self)

    def _cells(self, state: KeyedState) -> Mapping[str, Cells]:
        return state.tables

    def loading(self) -> Iterator[None]:
        for timers in (self._event_timers, self._processing_timers):
            if timers is not None:
                yield from timers.loading()

    def own(self, owns: Callable[[Any], bool]) -> None:
        self._to_begin = [key for key in self._process._initial_keys if owns(key)][::-1]

    def begin_at(self, watermark: int | None) -> None:
        self._restored = watermark

    def process(self, batch: Batch) -> Batch:
        return self._each(batch, batch.keys, self._process.on_record)

    def _each(self, batch: Batch, keys: Sequence[Any] | None, call: Call) -> Batch:
        """Call `call` for the records, each at its key; return all results."""
        if keys is None:
            raise InternalError(f"operator {self.uid!r} got records without keys")
        self._state.fetch(keys)
        results: list[Any] = []
        timestamps: list[int] | None = None
        extend, context = results.extend, self._context
        with self.over(batch) as remaining:
            self._open_once()
            if batch.timestamps is None:
                # A timer may have left its own there.
                context.timestamp = None
                for key, record in zip(keys, remaining, strict=True):
                    context.key = key
                    found = call(record, context)
                    if found is not None:
                        extend(found if type(found) in _SEVERAL else several(found, call))
            else:
                timestamps = []
                for key, record, timestamp in zip(keys, remaining, batch.timestamps, strict=True):
                    context.key = key
                    context.timestamp = timestamp
                    found = call(record, context)
                    if found is not None:
                        extend(found if type(found) in _SEVERAL else several(found, call))
                        timestamps += [timestamp] * (len(results) - len(timestamps))
        return Batch(results, None, timestamps)

    def advance(self, watermark: int | None) -> Batch | None:
        context = self._context
        if watermark is not None:
            context.watermark = watermark
        if self._to_begin:
            self._begin_keys()
            return Batch([], None, [])
        if self._turn_ms is None:
            self._turn_ms = self.time_budget.now_ms
        has_ended = context.watermark == END_OF_TIME
        if has_ended and not self._has_ended:
            # Each of those that are left may set some more, and all of them may be of one key.
            self._has_ended = True
            self._at_once_max = max(TIMERS_AT_ONCE_MAX, AT_THE_END_EACH * self.timer_count)
        due_now = END_OF_TIME if has_ended else self._turn_ms
        is_event = _is_due(self._event_timers, context.watermark)
        if not is_event and not _is_due(self._processing_timers, due_now):
            self._turn_ms = None
            if not has_ended:
                self._set_at_once.clear()
            if watermark is not None:
                self._passed = watermark
            self._come_to_watermark()
            for timed in self._timed:
                timed.remove_expired()
            self._looked_ms = self.time_budget.now_ms
            return None
        made = Batch([], None, [])
        # An item for each timer that may fire in this slice.
        turns = self.time_budget.through(Batch([None] * self.time_budget.rows_max))
        if is_event and self._event_timers is not None:
            up_to = BEFORE_ALL_TIME if context.watermark is None else context.watermark
            self._fire(turns, self._event_timers, up_to, self._process.on_timer, made)
        if self._processing_timers is not None:
            on_timer = self._process.on_processing_timer
            self._fire(turns, self._processing_timers, due_now, on_timer, made, is_event_time=False)
        return made

    @property
    def timer_count(self) -> int:
        return sum(len(one) for one in (self._event_timers, self._processing_timers) if one is not None)

    @property
    def next_alarm_ms(self) -> int | None:
        if self._to_begin:
            return 0
        timer_ms = self._processing_timers.next_time if self._processing_timers is not None else None
        expired = [due for timed in self._timed if (due := timed.next_alarm_ms) is not None]
        if not expired:
            return timer_ms
        look_ms = max(min(expired), self._looked_ms + LOOK_EVERY_MS)
        return look_ms if timer_ms is None else min(look_ms, timer_ms)

    def _fire(
        self,
        turns: Iterator[None],
        timers: Timers,
        up_to: int,
        on_timer: OnTimer,
        made: Batch,
        *,
        is_event_time: bool = True,
    ) -> None:
        context, results, timestamps = self._context, made.records, made.timestamps
        passed = _later(BEFORE_ALL_TIME, self._passed)
        # A result of the clock, of which no event time is known, has that of 1970.
        known = _known_later(self._passed, self._restored)
        of_clock = 0 if known is None else known
        if self._state.main.reads_ahead:
            self._state.fetch(timers.next_keys(up_to, self.time_budget.rows_max))
        # In this order: where there is no turn left, no timer is taken out.
        for _, (time, key) in zip(turns, timers.due(up_to), strict=False):
            context.key = key
            # The next operator must get nothing older than the watermark that it knows, nor anything that
            # no window has an end for.
            context.timestamp = (
                min(max(time, passed, timers.not_before), TIMESTAMP_MAX) if is_event_time else of_clock
            )
            self._calling = time, is_event_time
            if is_event_time:
                self._event_ms = _later(context.timestamp, self._event_ms)
            else:
                # All that the watermark has made due has been called.
                self._come_to_watermark()
            try:
                self._open_once()
                results.extend(self._called_at(on_timer, time))
            except BaseException as error:
                # However many records have got through: what the method for timers needs may be down.
                is_first = is_event_time not in self._called
                about = {"timer": time, "key": key}
                raise user_code_error(self.uid, error, about, is_first=is_first) from error
            self._calling = None
            self._called.add(is_event_time)
            if timestamps is not None:
                timestamps += [context.timestamp] * (len(results) - len(timestamps))

    def _called_at(self, on_timer: OnTimer, time: int) -> Iterable[Any]:
        """Call for the timer that the context is at; return what it says."""
        found = on_timer(time, self._context)
        return () if found is None else several(found, on_timer)

    def _begin_keys(self) -> None:
        """Make the state that some keys begin with, as many as this slice has time for."""
        context = self._context
        context.timestamp = None
        self._state.fetch(self._to_begin[-self.time_budget.rows_max :])
        # In this order: where there is no turn left, no key is taken out.
        turns = self.time_budget.through(Batch([None] * min(len(self._to_begin), self.time_budget.rows_max)))
        for _ in turns:
            context.key = self._to_begin[-1]
            try:
                self._open_once()
                self._process._begin_key(context)
            except BaseException as error:
                raise user_code_error(self.uid, error, {"initial state of": context.key}) from error
            self._to_begin.pop()

    def _open_once(self) -> None:
        if not self._is_open:
            # It is called for the first record or timer, whose key is nothing to it.
            key = self._context.key
            self._context.leave_key()
            self._process.open()
            self._context.key = key
            self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._context.leave_key()
            try:
                self._process.close()
            except BaseException as error:
                raise user_code_error(self.uid, error, None) from error

    # What its context has of time.

    def now(self) -> int:
        return self.time_budget.now_ms

    def event_time(self) -> int | None:
        """See `Times`. A timer sees what is alive at its own time, however far the watermark has jumped."""
        return self._event_ms

    def written_at(self) -> int | None:
        """See `Times`. A timer of processing time has no event time but the one that is known."""
        is_of_clock = self._calling is not None and not self._calling[1]
        if not is_of_clock or self._context.timestamp is None:
            return self._context.timestamp
        return UNDATED if self._event_ms is None else self._event_ms

    def _come_to_watermark(self) -> None:
        # The end of all input is no time at which anything expires.
        watermark = self._context.watermark
        if watermark is not None and watermark != END_OF_TIME:
            self._event_ms = _later(watermark, self._event_ms)

    def set_timer(self, key: Any, time: int, *, is_event_time: bool) -> bool:
        """See `Clocks.set_timer`; return whether it is new."""
        # A snapshot may be taken before, and does not say which watermark the next operator knows.
        known_ms = self._passed if self._calling is None else self._context.timestamp
        if self._calling is not None and not self._calling[1]:
            # What had expired for it has not come back when that timer is called.
            known_ms = _known_later(known_ms, self._event_ms)
        not_before = BEFORE_ALL_TIME if known_ms is None else known_ms
        is_new = self._timers_of(is_event_time=is_event_time).register(key, time, not_before)
        if is_new and self._is_without_progress(time, is_event_time=is_event_time):
            self._set_at_once[key] += 1
            if self._set_at_once[key] > self._at_once_max:
                raise FlowError(
                    f"key {key!r:.100} has set {self._at_once_max} timers, each of them due at once, "
                    f"{self._hint()}",
                    operator=self.uid,
                )
        return is_new

    def _is_without_progress(self, time: int, *, is_event_time: bool) -> bool:
        """Whether timers that set such ones may go on for ever, without a record or watermark in between."""
        watermark = self._context.watermark
        if watermark == END_OF_TIME:
            return True
        if self._calling is None:
            return False
        of, is_of_event_time = self._calling
        if is_event_time != is_of_event_time:
            # Those that go by turns need both directions, so one of them is enough.
            return is_event_time and watermark is not None and time <= watermark
        return time <= of

    def _hint(self) -> str:
        if self._context.watermark == END_OF_TIME:
            return (
                "after the end of input: a timer that always sets the next one has no end; set none when "
                "ctx.watermark is crosscut.END_OF_TIME"
            )
        return (
            "with nothing in between: a timer that sets one for its own time, or an older one, is called "
            "again before any record; set it for a later time"
        )

    def delete_timer(self, key: Any, time: int, *, is_event_time: bool) -> Any:
        """See `Clocks.delete_timer`; return what `Timers.put_back` takes, None if there was none."""
        return self._timers_of(is_event_time=is_event_time).delete(key, time)

    def timers(self, key: Any, *, is_event_time: bool) -> list[int]:
        return self._timers_of(is_event_time=is_event_time).of_key(key)

    def _timers_of(self, *, is_event_time: bool) -> Timers:
        timers = self._event_timers if is_event_time else self._processing_timers
        if timers is None:
            method = "on_timer" if is_event_time else "on_processing_timer"
            raise FlowError(
                f"{type(self._process).__qualname__} sets a timer and has no {method}(self, time, ctx): "
                f"write the method that is to be called then",
                operator=self.uid,
            )
        return timers


def _timers(state: KeyedState, table: str) -> Timers | None:
    found = state.named.get(table)
    return Timers(found) if isinstance(found, TimerTable) else None


def _is_due(timers: Timers | None, up_to: int | None) -> bool:
    if timers is None or up_to is None:
        return False
    next_time = timers.next_time
    return next_time is not None and next_time <= up_to


def _later(time: int, other: int | None) -> int:
    return time if other is None else max(time, other)


def _known_later(one: int | None, other: int | None) -> int | None:
    return other if one is None else _later(one, other)
