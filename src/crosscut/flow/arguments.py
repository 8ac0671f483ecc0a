"""Arguments of the methods of streams: checked at once, so that an error shows the line that is wrong."""

from __future__ import annotations

import pickle  # noqa: S403 - written, to compare
from collections.abc import Callable
from functools import partial
from reprlib import repr as shortened
from typing import Any, get_args

from crosscut.contracts.dead_letters import OnError
from crosscut.errors import FlowError, SettingsError
from crosscut.flow.draft import Draft
from crosscut.foundation.callables import argument_problem, is_async, is_async_generator, is_generator
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.fields import Field
from crosscut.graph.specs import Emit

_OUTPUT_NAME_MAX = 64
_IMMUTABLE = (bool, int, float, complex, str, bytes, type(None))


def checked_function(
    draft: Draft,
    kind: str,
    name: str,
    function: Callable[..., Any],
    *arguments: str,
    may_yield: bool = False,
) -> Callable[..., Any]:
    """Return `function`, which will be called with `arguments`, if that can be."""
    if not callable(function):
        raise flow_error(draft, kind, f"{name}={shown(function)}: expected a function")
    if is_async(function) or is_async_generator(function):
        raise flow_error(draft, kind, f"{name} is an async function, which {kind} would not await; use def")
    if is_generator(function) and not may_yield:
        raise flow_error(
            draft, kind, f"{name} yields, but {kind} takes one value; return it, or use flat_map"
        )
    if problem := argument_problem(function, *arguments):
        raise flow_error(draft, kind, f"{name}: {problem}")
    return function


def output_name(draft: Draft, kind: str, name: object) -> str:
    """Return `name`, if a side output can be called so."""
    if isinstance(name, str) and 0 < len(name) <= _OUTPUT_NAME_MAX and name.isprintable():
        return name
    raise flow_error(
        draft, kind, f"{shown(name)} is no name: expected 1 to {_OUTPUT_NAME_MAX} printable characters"
    )


def milliseconds(draft: Draft, kind: str, name: str, duration: Duration) -> int:
    """Return a duration in whole milliseconds."""
    try:
        return int(duration_ms(duration, name))
    except SettingsError as error:
        raise flow_error(draft, kind, str(error)) from None


def itself(value: Any) -> Any:
    """Return `value`."""
    return value


def _is_immutable(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_immutable, value))
    return type(value) in _IMMUTABLE


def shown(value: object) -> str:
    """Return a value and its type, for an error."""
    return f"{shortened(value)} of type {type(value).__name__}"


def flow_error(draft: Draft, kind: str, problem: str) -> FlowError:
    """Return an error that names the flow, and the operator by what it would be called."""
    label = draft.label(kind)
    return FlowError(f"flow {draft.name!r}, operator {label!r}: {problem}", operator=label)


def initial_value(draft: Draft, kind: str, initial: Any) -> Callable[[], Any]:
    """Return what makes a new accumulator, if `initial` is such a function or can't be changed."""
    if callable(initial):
        return checked_function(draft, kind, "initial", initial)
    if _is_immutable(initial):
        return partial(itself, initial)
    raise flow_error(
        draft,
        kind,
        f"initial={shown(initial)} could be changed, and all keys would share it: expected a "
        f"number, str, bytes, None, a tuple or frozenset of those, or a function that makes a "
        f"new accumulator for each key, such as initial=list or initial=lambda: [0, 0]",
    )


def check_neutral(
    draft: Draft, kind: str, initial: Callable[[], Any], merge: Callable[[Any, Any], Any]
) -> None:
    """Refuse a `merge` that finds something in accumulators of no records: more parts would count it more.

    Raises:
        FlowError: It does, or it can't merge these.
    """
    try:
        merged = merge(initial(), initial())
    except Exception as error:
        raise flow_error(
            draft,
            kind,
            f"merge(initial, initial) raised {type(error).__name__}: {error}; records are folded in parts, "
            f"each of which is merged with initial: that has to return the part",
        ) from error
    expected = initial()
    if not _are_alike(merged, expected):
        raise flow_error(
            draft,
            kind,
            f"merge(initial, initial) is {shown(merged)}, expected {shown(expected)}: records are folded in "
            f"parts, each of which begins with initial, so it would count once for each part. Begin with a "
            f"value that changes nothing (0 for a sum), and add what is to be there once in result",
        )


def _are_alike(one: Any, other: Any) -> bool:
    """Tell whether two accumulators hold the same; what can't be compared is taken for the same."""
    try:
        if (one == other) is True or pickle.dumps(one) == pickle.dumps(other):
            return True
        if type(one) is type(other) and getattr(type(one), "__eq__", None) is object.__eq__:
            # By identity: pickle may have found parts of them in another order.
            return bool(vars(one) == vars(other))
    except Exception:  # noqa: BLE001 - the user's class is under no duty to be compared
        return True
    return False


def function_of_one(
    draft: Draft, kind: str, function: Callable[..., Any], *, may_yield: bool = False
) -> Callable[..., Any]:
    """Return `function`, which will be called with a record, if that can be."""
    return checked_function(draft, kind, "function", function, "record", may_yield=may_yield)


def field_or_function(draft: Draft, kind: str, given: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return `given` if it can be called with a record; of a name, what gives the field of that name."""
    if isinstance(given, str):
        if not given:
            raise flow_error(draft, kind, "'' names no field")
        return Field(given)
    return function_of_one(draft, kind, given)


def checked_on_error(draft: Draft, kind: str, on_error: OnError) -> OnError:
    """Return `on_error`, if it is one."""
    if on_error not in get_args(OnError):
        raise flow_error(draft, kind, f"on_error={on_error!r}: expected 'fail' or 'dead letters'")
    return on_error


def checked_emit(draft: Draft, kind: str, emit: Emit) -> Emit:
    """Return `emit`, if it is one."""
    if emit not in get_args(Emit):
        raise flow_error(draft, kind, f"emit={emit!r}: expected 'updates' or 'final'")
    return emit
