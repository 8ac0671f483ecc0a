"""The arguments of `map_async`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crosscut.contracts.dead_letters import OnError
from crosscut.flow.arguments import flow_error, milliseconds, shown
from crosscut.flow.draft import Draft
from crosscut.foundation.callables import argument_problem, is_generator
from crosscut.foundation.durations import Duration
from crosscut.graph.specs import AsyncMapSpec

_KIND = "map_async"


def async_map_spec(
    draft: Draft,
    function: Callable[[Any], Any],
    capacity: int,
    timeout: Duration,
    retries: int,
    on_error: OnError,
    *,
    ordered: bool,
) -> AsyncMapSpec:
    """Return what is to run; see `Stream.map_async`.

    Raises:
        FlowError: An argument is not as described there.
    """
    if not callable(function):
        raise flow_error(draft, _KIND, f"function={shown(function)}: expected a function")
    if is_generator(function):
        raise flow_error(draft, _KIND, "function yields, but map_async takes one value; return it")
    if problem := argument_problem(function, "record"):
        raise flow_error(draft, _KIND, f"function: {problem}")
    for name, number, least in (("capacity", capacity, 1), ("retries", retries, 0)):
        if type(number) is not int or number < least:
            raise flow_error(draft, _KIND, f"{name}={shown(number)}: expected an int of at least {least}")
    timeout_ms = milliseconds(draft, _KIND, "timeout", timeout)
    if timeout_ms < 1:
        raise flow_error(draft, _KIND, f"timeout={timeout!r}: expected at least 1 ms")
    return AsyncMapSpec(function, capacity, timeout_ms, retries, bool(ordered), on_error)
