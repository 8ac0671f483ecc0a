"""Processes and folds that come with keyed streams: `deduplicate`, `top_n`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from crosscut.contracts.context import Context
from crosscut.contracts.process import KeyedProcess
from crosscut.contracts.state import ListState, ValueState

Ranked = list[tuple[Any, Any]]
"""Records with their ranks, best first."""


class First(KeyedProcess[Any, Any]):
    """Lets the first record of each key go on, and no other."""

    has_passed = ValueState[bool](default=False)

    def on_record(self, record: Any, ctx: Context) -> Iterable[Any]:
        if self.has_passed.get():
            return ()
        self.has_passed.set(True)
        return (record,)


class FirstByEventTime(KeyedProcess[Any, Any]):
    """Lets a record go on unless one of its key has gone on that is less than `within_ms` away.

    What is known of a key is forgotten as soon as it makes no difference to a record that is not late.
    """

    # Each, not only the newest: records come out of order, also by more than `within_ms`.
    passed = ListState[int]()

    def __init__(self, within_ms: int) -> None:
        self._within_ms = within_ms

    def on_record(self, record: Any, ctx: Context) -> Iterable[Any]:
        time = ctx.timestamp or 0
        for known in self.passed.get():
            if abs(time - known) < self._within_ms:
                return ()
        self.passed.append(time)
        ctx.set_timer(time + self._within_ms)
        return (record,)

    def on_timer(self, time: int, ctx: Context) -> None:
        self.passed.set(known for known in self.passed.get() if known != time - self._within_ms)


class FirstByProcessingTime(KeyedProcess[Any, Any]):
    """The same by the clock of the worker."""

    passed = ValueState[int]()

    def __init__(self, within_ms: int) -> None:
        self._within_ms = within_ms

    def on_record(self, record: Any, ctx: Context) -> Iterable[Any]:
        known, now = self.passed.get(), ctx.now()
        if known is not None and now - known < self._within_ms:
            return ()
        self.passed.set(now)
        ctx.set_processing_timer(now + self._within_ms)
        return (record,)

    def on_processing_timer(self, time: int, ctx: Context) -> None:
        if self.passed.get() == time - self._within_ms:
            self.passed.clear()


def first_within(within_ms: int | None, *, has_event_time: bool) -> KeyedProcess[Any, Any]:
    """Return the process of `deduplicate`."""
    if within_ms is None:
        return First()
    return FirstByEventTime(within_ms) if has_event_time else FirstByProcessingTime(within_ms)


def with_ranked(count: int, rank_of: Callable[[Any], Any], best: Ranked, record: Any) -> Ranked:
    """Return the `count` best of `best` and `record`; of two of the same rank the older one is better."""
    rank = rank_of(record)
    if rank != rank:
        raise ValueError(f"the rank of a record is {rank!r}, which is neither more nor less than any other")
    place = len(best)
    while place and best[place - 1][0] < rank:
        place -= 1
    if place < count:
        best.insert(place, (rank, record))
        del best[count:]
    return best


def without_ranks(best: Ranked) -> list[Any]:
    """Return the records alone."""
    return [record for _, record in best]
