"""Whether a failure of user code comes again, whatever goes on around it.

A function that had looked at nothing but its record raises the same for that record after each restart: a
column with another name, say. One that has called something else may have met a service that is down, which
also fails its first record, and the same one after each restart. What it had done by then is in its bytecode.
"""

from __future__ import annotations

import builtins
import dis
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

_FROM_OUTSIDE = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_CONSTANTS = (str, bytes, int, float, bool, type(None))
_MEMBERS = ("__getattr__", "__getitem__", "__getattribute__")
_TELLS_MORE = {"open", "input", "print", "eval", "exec", "compile", "globals", "locals", "vars", "__import__"}
_PLAIN_BUILTINS = [one for name, one in vars(builtins).items() if name not in _TELLS_MORE and callable(one)]


def is_certain(error: BaseException, ours: tuple[str, ...]) -> bool:
    """Tell whether `error` was raised by a function of one argument that had looked at nothing else.

    Args:
        ours: So begin the names of the modules that have called the user's function.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(ours):
        trace = trace.tb_next
    if trace is None or not _takes_one(trace.tb_frame.f_code):
        return False
    # What the function had made of its record, for the functions in it.
    made: list[Any] = []
    while trace is not None:
        if trace.tb_frame.f_code.co_name in _MEMBERS:
            # Of the record: there was nothing else that could have one.
            return True
        if not _has_looked_at_nothing_else(trace, made):
            return False
        made += trace.tb_frame.f_locals.values()
        trace = trace.tb_next
    return True


def _takes_one(code: CodeType) -> bool:
    takes_any_number = code.co_flags & 0x0C
    return code.co_argcount == 1 and not code.co_kwonlyargcount and not takes_any_number


def _has_looked_at_nothing_else(trace: TracebackType, made: list[Any]) -> bool:
    frame, at = trace.tb_frame, trace.tb_lasti
    steps = list(dis.get_instructions(frame.f_code))
    if any(one.opname == "IMPORT_NAME" for one in steps):
        return False
    if not any("BACKWARD" in one.opname for one in steps):
        # In a loop what stands below may have been done before.
        steps = [one for one in steps if one.offset <= at]
    follows = trace.tb_next.tb_frame.f_code if trace.tb_next is not None else None
    has_called = any(one.opname.startswith("CALL") and (one.offset != at or follows is None) for one in steps)
    return all(
        any(value is one for one in made) or _is_harmless(value, follows, has_called=has_called)
        for value in [_value(frame, one.argval) for one in steps if one.opname in _FROM_OUTSIDE]
    )


def _value(frame: FrameType, name: str) -> Any:
    for scope in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if name in scope:
            return scope[name]
    # A NameError, which is certain.
    return None


def _is_harmless(value: Any, follows: CodeType | None, *, has_called: bool) -> bool:
    if isinstance(value, _CONSTANTS) or any(value is one for one in _PLAIN_BUILTINS):
        return True
    if isinstance(value, FunctionType) and value.__code__ is follows:
        return True
    # Who may have called these may have asked anybody.
    return not has_called and isinstance(value, FunctionType | BuiltinFunctionType | ModuleType | type)
