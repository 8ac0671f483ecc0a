"""The operators of a task, and the records between them when a slice ends early."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.contracts.dead_letters import DeadLetter
from crosscut.contracts.metrics import Histogram
from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.timestamps import END_OF_TIME, TIMESTAMP_MAX
from crosscut.graph.specs import SideOutput
from crosscut.operators.async_map import AsyncMap
from crosscut.operators.operator import Operator, named_state_error, shortened
from crosscut.operators.probing import Deadly, Probing, dead_letter_of_death, deadly_error, due_error
from crosscut.operators.time_budget import TimeBudget
from crosscut.operators.timed import TimedOperator
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.protocol.telemetry import MetricSample, ShownDeadLetter


class Chain:
    """Passes batches from operator to operator, and hands on the last one's.

    When the course is stopped, the records that an operator has not taken, and what the others have made
    of those before them, wait here and go on first. A snapshot can't see them: none is to be taken while
    the chain `is_halfway`.

    A watermark goes from operator to operator after the records, and waits with each of them until all is
    said that it makes due. A snapshot may be taken meanwhile: a restored chain is told of it again.

    Args:
        emit: Takes the batches of the last operator.
        emit_aside: Takes side outputs.
        has_event_time: Records that leave have timestamps.
        untimed: The operators, by uid, that come before they have.

    Attributes:
        final_progress: How far the operators have come with their final results: the position of the operator
            that emitted last, and its ordinal.
        probing: Tries batches in a copy of the process before an operator takes them; None: nothing does.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        emit: Callable[[Batch], None],
        emit_aside: Callable[[Batch, SideOutput], None],
        *,
        has_event_time: bool = False,
        untimed: Collection[str] = (),
    ) -> None:
        self._operators = operators
        self._assigners = [one for one in operators if isinstance(one, AssignTimestamps)]
        self._emit = emit
        self._emit_aside = emit_aside
        self._has_event_time = has_event_time
        self._untimed = untimed
        # With the position of the operator that is to take it; the last one goes on first: it was ahead.
        self._waiting: list[tuple[int, Batch]] = []
        self.final_progress = (0, "")
        self.probing: Probing | None = None
        self.follow(TimeBudget())

    def follow(self, time_budget: TimeBudget) -> None:
        """Let the operators be stopped by `time_budget`."""
        self._time_budget = time_budget
        for operator in self._operators:
            operator.time_budget = time_budget

    def close(self) -> None:
        """Let the operators release what they hold; the first error is raised after all were tried."""
        with ExitStack() as stack:
            for operator in self._operators:
                stack.callback(operator.close)

    @property
    def is_halfway(self) -> bool:
        """Whether records wait between operators."""
        return bool(self._waiting) and any(batch.records for _, batch in self._waiting)

    @property
    def is_midway(self) -> bool:
        """Whether anything waits here that goes on before new records: also a watermark alone."""
        return bool(self._waiting)

    def counts(self) -> tuple[int, int, int]:
        """Return the records that came too late for an operator and the dead letters, in this epoch, and the
        timers that are set."""
        late = dead_letters = timers = 0
        for one in self._operators:
            late += one.late_count
            timers += one.timer_count
            if one.sides is not None:
                dead_letters += one.sides.dead_letter_count
        return late, dead_letters, timers

    def take_dead_letters(self) -> tuple[ShownDeadLetter, ...]:
        """Return the newest dead letters since this was asked last, as text."""
        found: list[ShownDeadLetter] = []
        for one in self._operators:
            if one.sides is not None and one.sides.dead_letters:
                found += map(_shown, one.sides.dead_letters)
                one.sides.dead_letters.clear()
        return tuple(found)

    @property
    def metric_samples(self) -> tuple[MetricSample, ...]:
        """The metrics of user code."""
        return tuple(
            MetricSample(operator.uid, name, one.kind, one.value, one.bounds, tuple(one.counts))
            if isinstance(one, Histogram)
            else MetricSample(operator.uid, name, one.kind, one.value)
            for operator in self._operators
            if operator.metrics is not None
            for name, one in operator.metrics.metrics.items()
        )

    def begin(self, rows_max: int) -> None:
        """A slice begins; at the end of input operators speak in batches of `rows_max`."""
        self._time_budget.begin(rows_max)

    @property
    def uses_clock(self) -> bool:
        """Whether an operator has use for processing time."""
        return any(operator.uses_clock for operator in self._operators)

    def set_clock(self, now_ms: int) -> None:
        """It is so late now, for all that follows."""
        self._time_budget.now_ms = now_ms

    @property
    def next_alarm_ms(self) -> int | None:
        """When `ring` is to be called next."""
        alarms = [one.next_alarm_ms for one in self._operators if one.uses_clock]
        return min((alarm for alarm in alarms if alarm is not None), default=None)

    def ring(self, *, is_fed: bool) -> None:
        """Let operators say what is due by processing time, when nothing waits.

        Args:
            is_fed: Records wait in the inputs, or for their calls.
        """
        for assigner in self._assigners:
            assigner.look(is_fed=is_fed)
        now_ms = self._time_budget.now_ms
        for position, operator in enumerate(self._operators):
            alarm_ms = operator.next_alarm_ms if operator.uses_watermarks else None
            if alarm_ms is not None and alarm_ms <= now_ms:
                self._waiting.append((position, Batch([])))
        self.forward_assigned()
        if self._waiting:
            self.go_on()

    def process(self, batch: Batch) -> Batch | None:
        """Take a batch in, when nothing waits; return the rest that the first operator has not taken."""
        self._run(batch, 0)
        if self._waiting:
            position, rest = self._waiting[0]
            if position == 0 and rest.records:
                del self._waiting[0]
                return rest
        return None

    def keep(self, rest: Batch) -> None:
        """Let the rest that `process` has returned wait here, after everything else."""
        self._waiting.insert(0, (0, rest))

    def forward_news(self, news: Batch | None, first: int = 0) -> None:
        """Let the operators from `first` on know of a watermark, or idleness, after everything else."""
        if news is None:
            return
        self._waiting.insert(0, (first, news))
        if len(self._waiting) == 1 and not self._time_budget.is_over:
            self.go_on()

    def look_back(self) -> None:
        """All records that were read last have been processed, and nothing waits."""
        if self._assigners:
            for assigner in self._assigners:
                assigner.look_back()
            self.forward_assigned()

    def note_splits(self, origin: str, ended: Iterable[str], waiting: Iterable[str]) -> None:
        """Records of split `origin` come next ("": none do); others have ended, or have nothing to read."""
        for assigner in self._assigners:
            if origin:
                assigner.reads(origin)
            for split in waiting:
                assigner.waits_for(split)
            for split in ended:
                assigner.end_of(split)

    def batch_ends(self, empty: Collection[str]) -> None:
        """No other record comes in this batch, and nothing waits; these splits have nothing to read."""
        for position, operator in enumerate(self._operators):
            if (held := operator.take_held()) is not None:
                self._run(held, position + 1)
        for assigner in self._assigners:
            assigner.batch_ends(empty)
        self.forward_assigned()

    def splits_came(self, splits: Sequence[str], *, is_last: bool) -> None:
        """A source has been given more splits."""
        for assigner in self._assigners:
            assigner.came(splits, is_last=is_last)

    def forward_assigned(self) -> None:
        """Let watermarks go on that have moved though no record has come."""
        for position, operator in enumerate(self._operators):
            if isinstance(operator, AssignTimestamps):
                self.forward_news(operator.take_news(), position + 1)

    @property
    def last_assigned(self) -> tuple[int | None, str] | None:
        """The watermark that is made here, and the split that holds it up; None if none is made."""
        if not self._assigners:
            return None
        last = self._assigners[-1]
        return last.watermark, last.holder

    def awaited(self, splits: Iterable[str]) -> dict[str, int]:
        """Return the watermarks of those of these splits that others may have to wait for."""
        return self._assigners[-1].awaited(splits) if self._assigners else {}

    @property
    def assigned(self) -> JSON:
        """The watermarks that are made here, or that early results go by; None if none are."""
        return {
            one.uid: saved
            for one in self._operators
            if (saved := one.saved if isinstance(one, AssignTimestamps) else one.comes_from) is not None
        } or None

    def restore(
        self,
        watermark: int | None,
        assigned: JSON,
        splits: Sequence[str],
        *,
        is_new: bool,
        is_open: bool = False,
        is_raised_later: bool = False,
    ) -> None:
        """Begin with the watermarks of a snapshot: timers that were due then fire first.

        Args:
            watermark: Of the inputs.
            assigned: See `assigned`.
            splits: Those of a source that have not ended.
            is_new: There is no snapshot.
            is_open: It is a source that may be given more splits.
            is_raised_later: What the inputs hold raises the watermark step by step.

        Raises:
            StateError: `assigned` is something else.
        """
        saved: Any = assigned or {}
        if not isinstance(saved, dict):
            raise StateError(f"a snapshot says of watermarks {assigned!r:.100}: expected one by operator")
        if not is_new and self._has_event_time:
            # Receivers that were told that this task is idle must not go on believing it.
            watermark_sent = None if is_raised_later else watermark
            self._waiting.append((0, Batch([], watermark=watermark_sent, idle=False)))
        for position, operator in enumerate(self._operators):
            if isinstance(operator, AssignTimestamps):
                operator.begin(splits, saved.get(operator.uid), is_open=is_open)
                if not is_new:
                    news = Batch([], watermark=operator.watermark, idle=False)
                    self._waiting.append((position + 1, news))
                watermark = operator.watermark
            else:
                operator.begin_at(watermark)
                match saved.get(operator.uid):
                    case [int() as before, *_] if isinstance(operator, TimedOperator):
                        operator.begin_from(before)

    def forget_news(self) -> None:
        """Nothing leaves any more: what `restore` has begun with is of no use to anybody."""
        self._waiting.clear()

    def pass_on(self, operator: Operator, batch: Batch) -> None:
        """Take a batch to what follows `operator`, which has made it of itself; nothing is halfway."""
        self._take_aside(operator)
        self._forward_aside(operator, batch)
        if batch.records or batch.has_news:
            self._run(batch, self._operators.index(operator) + 1)

    def go_on(self) -> None:
        """Go on with the batch that is furthest ahead."""
        position, batch = self._waiting.pop()
        self._run(batch, position)

    def end(self, *, is_emitted: bool = False) -> Iterator[None]:
        """Tell one operator after the other that no record will come any more, a batch at a time.

        It goes on after `final_progress`. The caller asks for the next step only when nothing is halfway.

        Args:
            is_emitted: All of them have been told. What they hold of records that came again is sent.
        """
        first, after = (len(self._operators), "") if is_emitted else self.final_progress
        for position, operator in enumerate(self._operators):
            if position < first:
                held = operator.take_held()
                if held is not None and held.records:
                    self._run(held, position + 1)
                    yield
                continue
            while operator.uses_watermarks and (due := self._advanced(operator, END_OF_TIME)) is not None:
                self._time_budget.leave()
                self._time_budget.rest = None
                self._take_aside(operator)
                self._run(self._timed(due, operator), position + 1)
                yield
            for batch, ordinal in _ended(operator, after):
                self.final_progress = (position, ordinal)
                if self._is_timed(operator) and batch.timestamps is None:
                    batch.timestamps = [TIMESTAMP_MAX] * len(batch)
                self._take_aside(operator)
                self._run(batch, position + 1)
                yield
            after = ""

    def _is_timed(self, operator: Operator) -> bool:
        """Whether what `operator` says has timestamps: those before `assign_timestamps` have none."""
        return self._has_event_time and operator.uid not in self._untimed

    def _timed(self, due: Batch, operator: Operator) -> Batch:
        if not self._is_timed(operator):
            due.timestamps = None
        return due

    def _run(self, batch: Batch, first: int) -> None:
        time_budget = self._time_budget
        for position in range(first, len(self._operators)):
            if time_budget.is_over:
                self._waiting.append((position, batch))
                return
            operator = self._operators[position]
            if self.probing is not None and batch.records:
                self._probe(self.probing, position, batch)
            if batch.records:
                try:
                    made = operator.process(batch)
                except StateError as error:
                    raise named_state_error(operator.uid, error) from error
            else:
                made = Batch([])
            time_budget.leave()
            if operator.sides is not None:
                self._take_aside(operator)
            if time_budget.rest is not None:
                self._waiting.append((position, time_budget.rest))
                time_budget.rest = None
            if operator.uses_watermarks and (due := self._advanced(operator, batch.watermark)) is not None:
                time_budget.leave()
                time_budget.rest = None
                self._take_aside(operator)
                due = self._timed(due, operator)
                # Last in, first out: the watermark goes on when nothing is due any more.
                self._waiting.append((position, batch.take_news()))
                if made.records:
                    self._waiting.append((position + 1, due))
                else:
                    made = due
            # As `has_news`, without its call: it is asked of every batch, and most have none.
            elif batch.watermark is not None or batch.idle is not None:
                if isinstance(operator, AsyncMap) and operator.is_calling:
                    operator.hold(batch.take_news())
                else:
                    if operator.passes_watermarks:
                        made = Batch(made.records, made.keys, made.timestamps)
                        made.add_news(batch.watermark, idle=batch.idle)
                    # Also of `assign_timestamps`: what it sets aside has the times that it came with.
                    self._forward_aside(operator, batch)
            if not made.records and not made.has_news:
                return
            batch = made
        self._emit(batch)

    def _probe(self, probing: Probing, position: int, batch: Batch) -> None:
        """Leave in `batch` what the operator may take now; the rest waits, without a record that is deadly.

        Raises:
            UserCodeError: A record ends the process, and the operator has no dead letters.
        """
        operator = self._operators[position]
        found = probing.look(operator, batch)
        if not isinstance(found, Deadly):
            if found < len(batch):
                self._waiting.append((position, batch.drop(len(batch) - found)))
            return
        if operator.sides is None or not operator.sides.has_dead_letters:
            raise deadly_error(operator.uid, found)
        key = None if batch.keys is None else batch.keys[0]
        timestamp = None if batch.timestamps is None else batch.timestamps[0]
        operator.sides.set_aside(dead_letter_of_death(operator.uid, found, key), timestamp)
        _, rest = batch.drop(len(batch)).split(1)
        if rest.records or rest.has_news:
            self._waiting.append((position, rest))

    def _advanced(self, operator: Operator, watermark: int | None) -> Batch | None:
        """Return what `operator` has due.

        Raises:
            UserCodeError: It ends the process.
        """
        if self.probing is not None and (died := self.probing.look_at_due(operator, watermark)) is not None:
            raise due_error(operator.uid, died)
        try:
            return operator.advance(watermark)
        except StateError as error:
            raise named_state_error(operator.uid, error) from error

    def _forward_aside(self, operator: Operator, news: Batch) -> None:
        """Let those who read what `operator` says under names have the news that goes on from there."""
        if operator.sides is not None and news.has_news:
            for side in operator.sides.outputs:
                self._emit_aside(Batch([], watermark=news.watermark, idle=news.idle), side)

    def _take_aside(self, operator: Operator) -> None:
        """Hand on an operator's side outputs: no snapshot sees records that are still there."""
        if operator.sides is not None and operator.sides.has_some:
            for side, batch in operator.sides.take():
                if self._is_timed(operator) and batch.timestamps is None:
                    # Said at the end of input, of no record in particular.
                    batch.timestamps = [TIMESTAMP_MAX] * len(batch)
                self._emit_aside(self._timed(batch, operator), side)


def _shown(dead_letter: DeadLetter) -> ShownDeadLetter:
    return ShownDeadLetter(
        dead_letter.operator,
        "" if dead_letter.timer is not None else shortened(dead_letter.record),
        dead_letter.error,
        "" if dead_letter.key is None else shortened(dead_letter.key),
        dead_letter.timer,
    )


def _ended(operator: Operator, after: str) -> Iterator[tuple[Batch, str]]:
    try:
        yield from operator.end(after)
    except StateError as error:
        raise named_state_error(operator.uid, error) from error
