"""What windows and joins do when nothing is late: records one after the other, and all results at the end.

It goes on from the rows of a snapshot, or from none; in the end it has said what those rows and the records
come to together, whatever the watermark was. Windows with a trigger say their last results only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from crosscut.contracts.windows import (
    CountWindow,
    GlobalWindow,
    OnCount,
    Session,
    Sliding,
    Tumbling,
    Windowed,
)
from crosscut.foundation.timestamps import TIMESTAMP_MAX
from crosscut.graph.joins import (
    LEFT,
    IntervalJoinSpec,
    LatestJoinSpec,
    WindowJoinSpec,
    keeps_left,
    keeps_right,
)
from crosscut.graph.windows import WindowSpec
from crosscut.operators.windows.folding import Folding, folding

TimedSpec = WindowSpec | WindowJoinSpec | IntervalJoinSpec | LatestJoinSpec
Rows = dict[Any, Any]


class Emitted(NamedTuple):
    """A record, and when it happened; None without event time."""

    record: Any
    time: int | None


class TimedRun:
    """One operator.

    Args:
        table: Returns the rows of one of its tables, by key; they may be changed.
    """

    def __init__(self, spec: TimedSpec, table: Callable[[str], Rows]) -> None:
        self._spec = spec
        self._table = table

    def take(self, record: Any, key: Any, time: int | None, side: int) -> Iterable[Emitted]:
        """Return what is said at once."""
        match self._spec:
            case WindowSpec(CountWindow() | GlobalWindow()):
                return self._counted(self._spec, record, key, time)
            case WindowSpec() | WindowJoinSpec():
                return tuple(self._add(record, key, _timed(time), side))
            case IntervalJoinSpec():
                return self._met(self._spec, record, key, _timed(time), side)
            case LatestJoinSpec():
                return self._joined(self._spec, record, key, time, side)

    def end(self) -> Iterator[Emitted]:
        """Yield what is said at the end."""
        match self._spec:
            case WindowSpec(CountWindow() | GlobalWindow(), fold):
                for key, (_, start, end, value) in self._table("").items():
                    for one in folding(fold).results(key, start, end, value):
                        yield Emitted(one, TIMESTAMP_MAX)
            case WindowSpec() | WindowJoinSpec():
                yield from self._windows()
            case IntervalJoinSpec(_, _, how):
                keeps = (keeps_left(how), keeps_right(how))
                reach = (self._spec.upper_ms, -self._spec.lower_ms)
                for side, name in enumerate(("left", "right")):
                    for key, time, (record, has_met) in _each(self._table(name)):
                        if keeps[side] and not has_met:
                            settled = min(max(time, time + reach[side]), TIMESTAMP_MAX)
                            yield Emitted(_pair(key, side, record, None), settled)
            case LatestJoinSpec():
                for key, time, record in _each(self._table("waiting")):
                    yield from self._with_version(self._spec, record, key, time)

    # Windows.

    def _add(self, record: Any, key: Any, time: int, side: int) -> Iterator[Emitted]:
        window, fold = self._window, self._fold(side)
        if isinstance(window, Session):
            self._add_to_session(window, fold, record, key, time)
            return
        kept = self._table("windows kept for late records").get(key, {})
        rows = self._table("windows").setdefault(key, {})
        for start in window.starts(time):
            if start in kept:
                # It has said its last punctual result: each late record is followed by another.
                kept[start] = value = fold.add(kept[start], record)
                end = start + window.size_ms
                for one in fold.results(key, start, end, copy.deepcopy(value)):
                    yield Emitted(one, min(end - 1, TIMESTAMP_MAX))
                continue
            found, news = self._unpacked(rows[start]) if start in rows else (fold.initial(), 0)
            value = fold.add(found, record)
            rows[start] = value if self._trigger is None else (value, news)

    def _add_to_session(self, window: Session, fold: Folding, record: Any, key: Any, time: int) -> None:
        rows = self._table("sessions").setdefault(key, {})
        start, end, value = time, time + window.gap_ms, fold.initial()
        met = sorted(at for at, row in rows.items() if at < end and time < row[0])
        for at in met:
            other_end, _, _, other = rows.pop(at)
            start, end = min(start, at), max(end, other_end)
            # The record comes last, and there is nothing before the first session.
            value = other if at == met[0] else _present(fold.merge)(value, other)
        rows[start] = (end, False, 0, fold.add(value, record))

    def _windows(self) -> Iterator[Emitted]:
        window, fold = self._window, self._fold(LEFT)
        for key, rows in self._table("sessions" if isinstance(window, Session) else "windows").items():
            for start, row in rows.items():
                if isinstance(window, Session):
                    end, is_emitted, _, value = row
                else:
                    end, is_emitted, value = start + window.size_ms, False, self._unpacked(row)[0]
                if not is_emitted:
                    for one in fold.results(key, start, end, value):
                        yield Emitted(one, min(end - 1, TIMESTAMP_MAX))

    @property
    def _window(self) -> Tumbling | Sliding | Session:
        window = getattr(self._spec, "window", None)
        if not isinstance(window, Tumbling | Sliding | Session):
            raise TypeError(f"{self._spec} has no windows in event time")
        return window

    @property
    def _trigger(self) -> Any:
        return self._spec.trigger if isinstance(self._spec, WindowSpec) else None

    def _unpacked(self, row: Any) -> tuple[Any, int]:
        return (row, 0) if self._trigger is None else row

    def _fold(self, side: int) -> Folding:
        if isinstance(self._spec, WindowSpec):
            return folding(self._spec.fold)
        how = self._spec.how

        def add(both: Any, record: Any) -> Any:
            both[side].append(record)
            return both

        def results(key: Any, start: int, end: int, both: Any) -> Iterable[Any]:
            lefts, rights = both
            lefts = lefts or ([None] if keeps_right(how) else [])
            rights = rights or ([None] if keeps_left(how) else [])
            return [Windowed(key, start, end, pair) for pair in product(lefts, rights)]

        def merge(one: Any, other: Any) -> Any:
            return one[0] + other[0], one[1] + other[1]

        return Folding(lambda: ([], []), add, merge, results)

    def _counted(self, spec: WindowSpec, record: Any, key: Any, time: int | None) -> Iterable[Emitted]:
        table, fold = self._table(""), folding(spec.fold)
        news, start, end, value = table.get(key) or (0, 0, 0, fold.initial())
        news, value = news + 1, fold.add(value, record)
        if time is not None:
            start, end = min(start, time) if end else time, max(end, time + 1)
        table[key] = (news, start, end, value)
        most = spec.window.rows if isinstance(spec.window, CountWindow) else 0
        if isinstance(spec.trigger, OnCount):
            most = spec.trigger.rows
        if news != most:
            return ()
        if isinstance(spec.window, CountWindow):
            del table[key]
        else:
            table[key] = (0, start, end, value)
        return [Emitted(one, time) for one in fold.results(key, start, end, value)]

    # Joins.

    def _met(self, spec: IntervalJoinSpec, record: Any, key: Any, time: int, side: int) -> Iterable[Emitted]:
        mine, theirs = (self._table(name) for name in (("left", "right"), ("right", "left"))[side])
        emitted = []
        for other_time, others in theirs.get(key, {}).items():
            distance = other_time - time if side == LEFT else time - other_time
            if spec.lower_ms <= distance <= spec.upper_ms:
                emitted += [
                    Emitted(_pair(key, side, record, other), max(time, other_time)) for other, _ in others
                ]
                theirs[key][other_time] = [(other, True) for other, _ in others]
        mine.setdefault(key, {}).setdefault(time, []).append((record, bool(emitted)))
        return emitted

    def _joined(
        self, spec: LatestJoinSpec, record: Any, key: Any, time: int | None, side: int
    ) -> Iterable[Emitted]:
        if side != LEFT:
            self._table("versions").setdefault(key, {})[time or 0] = record
            return ()
        if time is None:
            return self._with_version(spec, record, key, None)
        self._table("waiting").setdefault(key, {}).setdefault(time, []).append(record)
        return ()

    def _with_version(
        self, spec: LatestJoinSpec, record: Any, key: Any, time: int | None
    ) -> Iterable[Emitted]:
        versions = self._table("versions").get(key, {})
        valid = [at for at in versions if time is None or at <= time]
        if valid:
            return (Emitted((key, (record, versions[max(valid)])), time),)
        return (Emitted((key, (record, None)), time),) if spec.how == "left" else ()


def _each(rows: Rows) -> Iterator[tuple[Any, int, Any]]:
    for key, by_time in rows.items():
        for time, records in by_time.items():
            for record in records:
                yield key, time, record


def _pair(key: Any, side: int, record: Any, other: Any) -> Any:
    return (key, (record, other)) if side == LEFT else (key, (other, record))


def _timed(time: int | None) -> int:
    if time is None:
        raise TypeError("a record without event time")
    return time


def _present(merge: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
    if merge is None:
        raise TypeError("sessions without merge")
    return merge
