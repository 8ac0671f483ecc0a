"""What can be told of a user's function before it is called, and of what it returned."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, get_origin


def argument_problem(function: Callable[..., Any], *arguments: str) -> str:
    """Return why `function` can't be called with these positional arguments, or "" if it can.

    Of some functions (many of the standard library's) nothing can be told: these can.

    Args:
        arguments: What they are, for people: "accumulator", "record".
    """
    if _certainly_takes(function, len(arguments)):
        return ""
    try:
        for signature in _signatures(function):
            signature.bind(*arguments)
    except TypeError:
        call = ", ".join(arguments)
        hint = "; a record that is a tuple comes as one argument" if "record" in arguments else ""
        return f"it is called with ({call}), and {name_of(function)} takes {signature}{hint}"
    return ""


def _signatures(function: Callable[..., Any]) -> list[inspect.Signature]:
    """Return the signatures that a call of `function` has to fit, as far as they are known."""
    # Of an alias such as Kind[int] nothing is known, of its class there is.
    called = get_origin(function) or function
    found = []
    for follow_wrapped in (False, True):
        try:
            found.append(inspect.signature(called, follow_wrapped=follow_wrapped))
        except (TypeError, ValueError):
            continue
        if all(one.kind is not inspect.Parameter.VAR_POSITIONAL for one in found[-1].parameters.values()):
            # Only of a decorator that takes anything is it for the wrapped function to say what it takes:
            # another one may be there to adapt it.
            break
    return found


def _certainly_takes(function: Callable[..., Any], count: int) -> bool:
    """Whether it is a plain function of so many arguments: for most, no signature has to be made up."""
    if type(function) is not FunctionType or function.__dict__:
        # A decorator may have said otherwise.
        return False
    code = function.__code__
    least = code.co_argcount - len(function.__defaults__ or ())
    return least <= count <= code.co_argcount and not code.co_kwonlyargcount


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` has to be awaited."""
    return _is_or_calls(inspect.iscoroutinefunction, function)


def is_generator(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` yields."""
    return _is_or_calls(inspect.isgeneratorfunction, function) or is_async_generator(function)


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` gives what only `async for` can read."""
    return _is_or_calls(inspect.isasyncgenfunction, function)


def _is_or_calls(is_kind: Callable[[Any], bool], function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return is_kind(function) or is_kind(getattr(type(function), "__call__", None))  # noqa: B004 - its code


def function_problem(function: Callable[..., Any], *arguments: str) -> str:
    """Return why a call of `function` with these arguments gives no result, "" if it may give one."""
    if is_async(function):
        return f"{name_of(function)} is async, and its result is not awaited: use def"
    if is_async_generator(function):
        return f"{name_of(function)} is an async generator, and nothing reads it: use def"
    return argument_problem(function, *arguments)


def name_of(function: Callable[..., Any]) -> str:
    """Return what people call a function, with its place where that is known."""
    if isinstance(function, partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else str(name)


def several(found: Any, function: Callable[..., Iterable[Any] | None]) -> Iterator[Any]:
    """Return an iterator over what `function`, of which several records are expected, has returned.

    Raises:
        TypeError: It has returned one record: nothing to iterate over, or a text, which to Python is several
            texts of one character each, which is never meant.
    """
    is_text = isinstance(found, str | bytes)
    try:
        if not is_text:
            return iter(found)
    except TypeError:
        # Said below, in words.
        pass
    shown = "None" if found is None else f"{reprlib.repr(found)} of type {type(found).__name__}"
    advice = "a list with it, or map instead" if is_text else "[] for nothing"
    raise TypeError(
        f"{name_of(function)} returned {shown}: expected a list or something else to iterate over ({advice})"
    )
