"""From what a window is to the operator that has such windows, and to its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from crosscut.contracts.windows import (
    CountWindow,
    GlobalWindow,
    LocalDays,
    Session,
    Sliding,
    Trigger,
    Tumbling,
    Window,
)
from crosscut.operators.keyed import nothing_yet
from crosscut.operators.windows import aligned, sessions
from crosscut.operators.windows.aligned import AlignedWindows
from crosscut.operators.windows.counted import CountedWindows
from crosscut.operators.windows.folding import Folding
from crosscut.operators.windows.operator import WindowOperator
from crosscut.operators.windows.sessions import SessionWindows
from crosscut.state.keyed import KeyedState


def window_state(window: Window, new: Callable[..., KeyedState] = KeyedState) -> KeyedState:
    """Return the empty state of an operator over such windows, made by `new`."""
    match window:
        case Tumbling() | LocalDays() | Sliding():
            return new(nothing_yet, named=aligned.tables())
        case Session():
            return new(nothing_yet, named=sessions.tables())
        case CountWindow() | GlobalWindow():
            return new(nothing_yet)
        case _:
            assert_never(window)


def window_operator(
    uid: str,
    state: KeyedState,
    folding: Folding,
    window: Window,
    trigger: Trigger | None,
    lateness_ms: int = 0,
    emit_late: Callable[[Any, int], None] | None = None,
) -> WindowOperator:
    """Return the running operator."""
    match window:
        case Tumbling() | LocalDays() | Sliding():
            return AlignedWindows(uid, state, folding, window, trigger, lateness_ms, emit_late)
        case Session():
            return SessionWindows(uid, state, folding, window, trigger, lateness_ms, emit_late)
        case CountWindow() | GlobalWindow():
            return CountedWindows(uid, state, folding, window, trigger)
        case _:
            assert_never(window)
