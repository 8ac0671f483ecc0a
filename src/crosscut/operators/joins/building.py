"""From a join's spec to its operator and its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec, WindowJoinSpec
from crosscut.operators.joins import interval, latest
from crosscut.operators.joins.interval import IntervalJoin
from crosscut.operators.joins.latest import LatestJoin
from crosscut.operators.joins.window import join_folding
from crosscut.operators.keyed import nothing_yet
from crosscut.operators.timed import TimedOperator
from crosscut.operators.windows.building import window_operator, window_state
from crosscut.state.keyed import KeyedState

JoinSpec = IntervalJoinSpec | WindowJoinSpec | LatestJoinSpec


def join_state(spec: JoinSpec, new: Callable[..., KeyedState] = KeyedState) -> KeyedState:
    """Return the empty state of a join, made by `new`."""
    match spec:
        case IntervalJoinSpec():
            return new(nothing_yet, named=interval.tables())
        case WindowJoinSpec(window):
            return window_state(window, new)
        case LatestJoinSpec():
            return new(nothing_yet, named=latest.tables())
        case _:
            assert_never(spec)


def join_operator(
    uid: str, state: KeyedState, spec: JoinSpec, emit_late: Callable[[Any, int], None] | None = None
) -> TimedOperator:
    """Return the running join."""
    match spec:
        case IntervalJoinSpec():
            return IntervalJoin(uid, state, spec, emit_late)
        case WindowJoinSpec(window, how, lateness_ms):
            return window_operator(uid, state, join_folding(how), window, None, lateness_ms, emit_late)
        case LatestJoinSpec():
            return LatestJoin(uid, state, spec, emit_late)
        case _:
            assert_never(spec)
