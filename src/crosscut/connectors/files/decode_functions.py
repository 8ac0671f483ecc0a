"""What `decode=` and `encode=` of connectors can't call, and what was meant instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, Generic, get_origin

from crosscut.foundation.callables import function_problem


def decode_problem(decode: Callable[..., Any], argument: str) -> str:
    """Return why a source can't decode with the function `decode`, "" if it can.

    Args:
        argument: What it is called with, for people: "text", "message".
    """
    if _has_fields(decode):
        name = getattr(decode, "__name__", "") if get_origin(decode) is None else repr(decode)
        return (
            f"a class would be called with the {argument} itself: use decode=crosscut.json({name}) for JSON, "
            f"or lambda {argument}: ... for anything else"
        )
    return function_problem(decode, argument)


def encode_problem(encode: Callable[..., Any]) -> str:
    """Return why a sink can't encode records with the function `encode`, "" if it can."""
    if _has_fields(encode):
        return "a class makes no bytes: use 'json', which encodes records of such classes, or a function"
    return function_problem(encode, "record")


def _has_fields(kind: Any) -> bool:
    """Return whether `kind` is a class that declares fields, or a type such as `list[Payment]`."""
    origin = get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Generic):
        return _has_fields(origin)
    return origin is not None or (
        isinstance(kind, type)
        and (
            is_dataclass(kind)
            or hasattr(kind, "__struct_fields__")
            or hasattr(kind, "__pydantic_validator__")
            or hasattr(kind, "__attrs_attrs__")
            # A TypedDict, a named tuple.
            or hasattr(kind, "__total__")
            or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        )
    )
