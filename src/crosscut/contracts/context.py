"""What a process is told along with a record: its key, the time, how to be called later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from crosscut.contracts.metrics import Metrics
from crosscut.errors import FlowError
from crosscut.foundation.timestamps import Moment, as_timer_time

ABSENT: Any = object()
"""Stands for no key, and for no value."""


class Clocks(Protocol):
    """What a running process has of time."""

    def now(self) -> int:
        """Return the processing time, in milliseconds since 1970."""

    def set_timer(self, key: Any, time: int, *, is_event_time: bool) -> object:
        """Have the process called at `time`."""

    def delete_timer(self, key: Any, time: int, *, is_event_time: bool) -> object:
        """Take that back."""

    def timers(self, key: Any, *, is_event_time: bool) -> list[int]:
        """Return the times for which `set_timer` was called, of a process that `lists_timers`."""


class Context:
    """What a process is told along with a record, and how it has itself called later.

    Times are whole milliseconds since 1970 in UTC; a `datetime` with a time zone is taken as well.

    Attributes:
        key: The key of the record, or of the timer.
        timestamp: When the record happened, or the time of the timer (for one that was past when it was set,
            the watermark of then); what is yielded has it, too. None in a flow without event time.
        watermark: No record older than this will come. None as long as nothing is known, `cc.END_OF_TIME`
            after the end of all input.
        metrics: Counters, gauges and histograms of this operator: see `Metrics`.
    """

    __slots__ = ("_clocks", "_emit", "key", "metrics", "timestamp", "watermark")

    def __init__(self, emit: Callable[[str, Any, int | None], None], clocks: Clocks | None = None) -> None:
        self._emit = emit
        self._clocks = clocks
        self.key: Any = ABSENT
        self.timestamp: int | None = None
        self.watermark: int | None = None
        self.metrics = Metrics()

    def output(self, name: str, record: Any) -> None:
        """Send a record to those who read `stream.side_output(name)`, beside what `on_record` returns.

        Raises:
            FlowError: No stream reads that name, so the record would be lost.
        """
        self._emit(name, record, self.timestamp)

    def leave_key(self) -> None:
        """The next record has no key."""
        self.key = ABSENT

    def now(self) -> int:
        """Return the processing time: the worker's clock, but it never goes back, also after a failure."""
        if self._clocks is None:
            raise FlowError("the processing time was asked for outside of a running job")
        return self._clocks.now()

    def set_timer(self, time: int | Moment) -> None:
        """Have `on_timer` called for this key, once the watermark has come to `time`.

        A key has one timer for each time, however often it is set. One that is past is called soon; what it
        yields has the watermark as its timestamp, so no operator takes it for late.
        """
        self._set(time, is_event_time=True)

    def delete_timer(self, time: int | Moment) -> None:
        """Take a timer of this key back, if it is set."""
        self._delete(time, is_event_time=True)

    def set_processing_timer(self, time: int | Moment) -> None:
        """Have `on_processing_timer` called for this key, once `now` has come to `time`; see `set_timer`."""
        self._set(time, is_event_time=False)

    def delete_processing_timer(self, time: int | Moment) -> None:
        """Take a timer of processing time back, if it is set."""
        self._delete(time, is_event_time=False)

    def _set(self, time: Any, *, is_event_time: bool) -> None:
        self._of_job("a timer").set_timer(self.key, as_timer_time(time), is_event_time=is_event_time)

    def _delete(self, time: Any, *, is_event_time: bool) -> None:
        self._of_job("a timer").delete_timer(self.key, as_timer_time(time), is_event_time=is_event_time)

    def _timers(self, *, is_event_time: bool) -> list[int]:
        return self._of_job("a timer").timers(self.key, is_event_time=is_event_time)

    def _of_job(self, what: str) -> Clocks:
        if self._clocks is None or self.key is ABSENT:
            raise FlowError(f"{what} was asked for outside of a key: only a process in a running job has it")
        return self._clocks
