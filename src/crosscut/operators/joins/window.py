"""The window join: a window over two streams, whose accumulator is the records of both."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from crosscut.contracts.windows import Windowed
from crosscut.graph.joins import LEFT, How, keeps_left, keeps_right
from crosscut.operators.windows.folding import Folding

Both = tuple[list[Any], list[Any]]
_NOBODY = (None,)


def join_folding(how: How) -> Folding:
    """Return a fold that keeps the records of both sides, and in the end says all pairs of them."""
    joined = _Joined(how)
    return Folding(
        initial=_nothing,
        add=joined.add,
        merge=_merged,
        results=joined.results,
        note_input=joined.note_input,
    )


class _Joined:
    def __init__(self, how: How) -> None:
        self._keeps_left, self._keeps_right = keeps_left(how), keeps_right(how)
        self._side = LEFT

    def note_input(self, side: int) -> None:
        self._side = side

    def add(self, both: Both, record: Any) -> Both:
        both[self._side].append(record)
        return both

    def results(self, key: Any, start: int, end: int, both: Both) -> Iterable[Any]:
        lefts: Iterable[Any] = both[0]
        rights: Iterable[Any] = both[1]
        if not rights and self._keeps_left:
            rights = _NOBODY
        elif not lefts and self._keeps_right:
            lefts = _NOBODY
        return [Windowed(key, start, end, pair) for pair in product(lefts, rights)]


def _nothing() -> Both:
    return [], []


def _merged(one: Both, other: Both) -> Both:
    return one[0] + other[0], one[1] + other[1]
