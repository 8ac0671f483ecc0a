"""What windows and joins of a described flow have to say: by looking at all records at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, assert_never

from tests.proof.flows import timed_functions
from tests.proof.flows.steps import Join, Timed, Window

from crosscut.contracts.windows import Windowed
from crosscut.foundation.timestamps import TIMESTAMP_MAX


class Happened(NamedTuple):
    """A record with key and time; `place`: which stream of a join it is of."""

    key: Any
    record: Any
    time: int
    place: int


def said_of(step: Timed, records: list[Happened]) -> Iterator[tuple[Any, int]]:
    """Yield the records that come of a step, each with its time."""
    if isinstance(step, Window):
        for key, start, end, found in _windows(step, records):
            for value in timed_functions.folds_to(step.fold, [one.record for one in found]):
                yield timed_functions.of_window(Windowed(key, start, end, value)), min(end - 1, TIMESTAMP_MAX)
        return
    for result, time in _joined(step, records):
        yield timed_functions.of_join(step.join, result), min(time, TIMESTAMP_MAX)


def _by_key(records: Iterable[Happened]) -> dict[Any, list[Happened]]:
    found: dict[Any, list[Happened]] = {}
    for one in records:
        found.setdefault(one.key, []).append(one)
    return found


def _windows(step: Window, records: list[Happened]) -> Iterator[tuple[Any, int, int, list[Happened]]]:
    for key, own in _by_key(records).items():
        if step.window == "session":
            yield from _sessions(key, own, step.size)
            continue
        length = step.size if step.window == "tumbling" else 2 * step.size
        latest = {one.time // step.size * step.size for one in own}
        for start in latest | ({at - step.size for at in latest} if step.window == "sliding" else set()):
            found = [one for one in own if start <= one.time < start + length]
            if found:
                yield key, start, start + length, found


def _sessions(key: Any, own: list[Happened], gap: int) -> Iterator[tuple[Any, int, int, list[Happened]]]:
    session: list[Happened] = []
    for one in sorted(own, key=lambda one: one.time):
        if session and one.time >= session[-1].time + gap:
            yield key, session[0].time, session[-1].time + gap, session
            session = []
        session.append(one)
    yield key, session[0].time, session[-1].time + gap, session


def _joined(step: Join, records: list[Happened]) -> Iterator[tuple[Any, int]]:
    lefts, rights = ([one for one in records if one.place == place] for place in (0, 1))
    match step.join:
        case "window":
            window = Window(0, "tumbling", step.size, "count")
            for key, start, end, found in _windows(window, records):
                own = [[one.record for one in found if one.place == place] for place in (0, 1)]
                for pair in _pairs(step, *own):
                    yield Windowed(key, start, end, pair), end - 1
        case "interval":
            yield from _near(step, lefts, rights)
        case "latest":
            for left in lefts:
                has_version = any(one.key == left.key and one.time <= left.time for one in rights)
                if has_version or step.how == "left":
                    yield (left.key, (left.record, 1 if has_version else None)), left.time
        case _:
            assert_never(step.join)


def _pairs(step: Join, lefts: list[Any], rights: list[Any]) -> Iterator[tuple[Any, Any]]:
    if not rights and step.how in ("left", "outer"):
        rights = [None]
    if not lefts and step.how in ("right", "outer"):
        lefts = [None]
    return ((left, right) for left in lefts for right in rights)


def _near(step: Join, lefts: list[Happened], rights: list[Happened]) -> Iterator[tuple[Any, int]]:
    met: set[tuple[int, int]] = set()
    for i, left in enumerate(lefts):
        for j, right in enumerate(rights):
            if left.key == right.key and abs(left.time - right.time) <= step.size:
                met |= {(0, i), (1, j)}
                yield (left.key, (left.record, right.record)), max(left.time, right.time)
    if step.how in ("left", "outer"):
        for i, left in enumerate(lefts):
            if (0, i) not in met:
                yield (left.key, (left.record, None)), left.time + step.size
    if step.how in ("right", "outer"):
        for j, right in enumerate(rights):
            if (1, j) not in met:
                yield (right.key, (None, right.record)), right.time + step.size
