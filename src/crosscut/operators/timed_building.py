"""From the specs of windows and joins to running operators; loaded by workers whose graph has some."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from crosscut.graph.windows import WindowSpec
from crosscut.operators.joins.building import JoinSpec, join_operator, join_state
from crosscut.operators.sides import Sides
from crosscut.operators.timed import TimedOperator
from crosscut.operators.windows.building import window_operator, window_state
from crosscut.operators.windows.folding import folding
from crosscut.state.keyed import KeyedState


def timed_state(spec: WindowSpec | JoinSpec, new: Callable[..., KeyedState]) -> KeyedState:
    """Return the empty state of the operator, made by `new`."""
    return window_state(spec.window, new) if isinstance(spec, WindowSpec) else join_state(spec, new)


def timed_operator(uid: str, spec: WindowSpec | JoinSpec, state: KeyedState, sides: Sides) -> TimedOperator:
    """Return the running operator."""
    emit_late = partial(sides.emit, spec.late) if spec.late is not None else None
    operator: TimedOperator
    if isinstance(spec, WindowSpec):
        operator = window_operator(
            uid, state, folding(spec.fold), spec.window, spec.trigger, spec.lateness_ms, emit_late
        )
    else:
        operator = join_operator(uid, state, spec, emit_late)
    operator.sides = sides
    return operator
