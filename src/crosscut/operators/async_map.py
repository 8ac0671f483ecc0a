"""map_async: calls that others make, and whose results go on when they are there.

The operator asks for calls and is told how they ended; it makes none itself, and waits for none. Each
record is in the state of the task from when it comes until its result goes on. So a snapshot never waits
for a call: a restored task makes those again that were under way, and each record belongs to exactly one
task, as keys do.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

from crosscut.contracts.connected_process import Begins
from crosscut.errors import InternalError
from crosscut.foundation.batch import Batch
from crosscut.graph.specs import AsyncMapSpec, dead_letters_of
from crosscut.operators.dead_letters import is_about_record, set_aside
from crosscut.operators.operator import Operator, user_code_error
from crosscut.operators.sides import Sides
from crosscut.state.keyed import KeyedState

CallId = tuple[int, int, int]
"""Where the task began that took the record (a checkpoint, the task's index), and a number. No two records of
a job ever have the same: tasks of another parallelism may come to hold each other's."""

RETRY_DELAY_MS = 100
RETRY_DELAY_MS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class StartCall:
    """Call `function(record)` in `delay_ms`; answer `returned` or `raised`, exactly once.

    A call that has not returned after `timeout_ms` has raised a TimeoutError.
    """

    call_id: CallId
    function: Callable[[Any], Any]
    record: Any
    timeout_ms: float
    delay_ms: float = 0.0


class _Waiting(NamedTuple):
    """A record whose result has not gone on, the how manieth it is in this task and epoch."""

    record: Any
    timestamp: int | None
    number: int


class AsyncMap(Operator):
    """The calls of one task.

    News of event time waits for the results of all records that came before it.

    Args:
        state: Has the records of the restored snapshot.
        begins: Which task it is for, and from where that goes on.

    Attributes:
        requests: Calls to be started; the caller takes them out.
    """

    runs_in_copies = False

    def __init__(self, uid: str, spec: AsyncMapSpec, state: KeyedState, begins: Begins, sides: Sides) -> None:
        super().__init__(uid, sides)
        self._spec = spec
        self._table = state.main
        self._begins = begins
        self._has_dead_letters = dead_letters_of(spec)
        self._sides = sides
        # All that has not gone on, oldest first. A plain dict looks for its first one among all that have
        # been there: with a large capacity that costs more than all else.
        self._records: OrderedDict[CallId, _Waiting] = OrderedDict()
        self._taken = 0
        for call_id, (record, timestamp) in sorted(state.items(), key=_call_id):
            self._taken += 1
            self._records[call_id] = _Waiting(record, timestamp, self._taken)
        self._unasked = deque(self._records)
        # With the number of the record that it came after.
        self._news: deque[tuple[int, Batch]] = deque()
        # How often each call that is under way has been asked for.
        self._asked: dict[CallId, int] = {}
        # What ended, in that order, and has not gone on: the result, or what was raised.
        self._ended: OrderedDict[CallId, tuple[Any, Exception | None]] = OrderedDict()
        self.requests: list[StartCall] = []
        self._has_returned = False
        self._ask()

    @property
    def is_calling(self) -> bool:
        """Whether there are records whose results have not gone on."""
        return bool(self._records)

    @property
    def room(self) -> int:
        """How many records may come in."""
        return self._spec.capacity - len(self._records)

    @property
    def has_results(self) -> bool:
        """Whether something may go on."""
        if not self._spec.ordered:
            return bool(self._ended)
        return bool(self._ended) and next(iter(self._records)) in self._ended

    def process(self, batch: Batch) -> Batch:
        """Take all of the records in, whatever the room: if it is a barrier that waits behind them."""
        restored, task = self._begins
        times: Iterable[int | None] = repeat(None) if batch.timestamps is None else batch.timestamps
        for record, timestamp in zip(batch.records, times, strict=False):
            self._taken += 1
            call_id = (restored, task, self._taken)
            self._records[call_id] = _Waiting(record, timestamp, self._taken)
            self._table.put(call_id, (record, timestamp))
            self._unasked.append(call_id)
        self.taken_count += len(batch)
        self._ask()
        return Batch([])

    def returned(self, call_id: CallId, result: Any) -> None:
        """A call that was asked for has returned."""
        self._end(call_id)
        self._has_returned = True
        self._ended[call_id] = result, None

    def raised(self, call_id: CallId, error: BaseException) -> None:
        """A call that was asked for has raised, or taken too long.

        Raises:
            UserCodeError: It has been made often enough.
        """
        asked = self._end(call_id)
        record = self._records[call_id].record
        is_about_it = isinstance(error, Exception) and is_about_record(error)
        if is_about_it and asked <= self._spec.retries:
            self._start(call_id, asked + 1, retry_delay_ms(asked))
        elif is_about_it and isinstance(error, Exception) and self._has_dead_letters:
            self._ended[call_id] = None, error
        else:
            # Before any call has returned it may be what they call that is to blame, and not the record.
            raise user_code_error(self.uid, error, record, is_first=not self._has_returned) from error

    def hold(self, news: Batch) -> None:
        """Let news go on after the results of all records that are here."""
        if self._news and self._news[-1][0] == self._taken:
            # As many as come while one call is slow would be without bound.
            self._news[-1][1].add_news(news.watermark, idle=news.idle)
        else:
            self._news.append((self._taken, news))

    def release(self, rows_max: int) -> Batch:
        """Return results that may go on, and news that nothing holds up; forget their records."""
        results: list[Any] = []
        timestamps: list[int] = []
        while self.has_results and len(results) < rows_max:
            call_id = next(iter(self._records if self._spec.ordered else self._ended))
            result, error = self._ended.pop(call_id)
            record, timestamp, _ = self._records.pop(call_id)
            self._table.delete(call_id)
            if error is not None:
                set_aside(self._sides, self.uid, record, error, timestamp=timestamp)
                continue
            results.append(result)
            if timestamp is not None:
                timestamps.append(timestamp)
        self._ask()
        made = Batch(results, None, timestamps or None)
        oldest = next(iter(self._records.values())).number if self._records else self._taken + 1
        while self._news and self._news[0][0] < oldest:
            _, news = self._news.popleft()
            made.add_news(news.watermark, idle=news.idle)
        return made

    def _ask(self) -> None:
        while self._unasked and len(self._asked) < self._spec.capacity:
            self._start(self._unasked.popleft(), 1, 0.0)

    def _start(self, call_id: CallId, attempt: int, delay_ms: float) -> None:
        spec = self._spec
        self._asked[call_id] = attempt
        record = self._records[call_id].record
        self.requests.append(StartCall(call_id, spec.function, record, spec.timeout_ms, delay_ms))

    def _end(self, call_id: CallId) -> int:
        asked = self._asked.pop(call_id, 0)
        if not asked:
            raise InternalError(f"operator {self.uid!r} was told of call {call_id}, which is not under way")
        return asked


def retry_delay_ms(asked: int) -> float:
    """Return how long to wait after a call has failed for a record that was asked for `asked` times."""
    return min(RETRY_DELAY_MS * 2.0 ** (asked - 1), RETRY_DELAY_MS_MAX)


def _call_id(row: tuple[CallId, Any]) -> CallId:
    return row[0]
