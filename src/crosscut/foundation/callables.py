"""What can be told of a user's function before it is called, and of what it returned."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any


def argument_problem(function: Callable[..., Any], *arguments: str) -> str:
    """Return why `function` can't be called with these positional arguments, or "" if it can.

    Of some functions (many of the standard library's) nothing can be told: these can.

    Args:
        arguments: What they are, for people: "accumulator", "record".
    """
    if _certainly_takes(function, len(arguments)):
        return ""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*arguments)
    except TypeError:
        call = ", ".join(arguments)
        hint = "; a record that is a tuple comes as one argument" if "record" in arguments else ""
        return f"it is called with ({call}), and {name_of(function)} takes {signature}{hint}"
    return ""


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
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - of an object, whose class has an async one
    )


def function_problem(function: Callable[..., Any], *arguments: str) -> str:
    """Return why a call of `function` with these arguments gives no result, "" if it may give one."""
    if is_async(function):
        return f"{name_of(function)} is async, and its result is not awaited: use def"
    return argument_problem(function, *arguments)


def name_of(function: Callable[..., Any]) -> str:
    """Return what people call a function, with its place where that is known."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else str(name)


def several(found: Any, function: Callable[..., Iterable[Any] | None]) -> Iterator[Any]:
    """Return an iterator over what `function`, of which several records are expected, has returned.

    Raises:
        TypeError: It has returned one record: nothing to iterate over, or a text, which to Python is several
            texts of one character each, and nobody means that.
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
