"""Whether a failure of user code comes again, whatever goes on around it.

A function that had looked at nothing but its record raises the same for that record after each restart: a
column with another name, say. One that has called something else may have met a service that is down, which
also fails its first record, and the same one after each restart. What it had done by then is in its bytecode.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterable
from inspect import getattr_static
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
    TracebackType,
)
from typing import Any

from crosscut.foundation.user_files import is_user_code

_FROM_OUTSIDE = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_MEMBER_OF = ("LOAD_ATTR", "LOAD_METHOD")
_ANYTHING = object()
_CALLABLE = (FunctionType, BuiltinFunctionType, ClassMethodDescriptorType, classmethod, staticmethod, type)
_CONSTANTS = (str, bytes, int, float, bool, type(None))
_MEMBERS = ("__getattr__", "__getitem__", "__getattribute__")
_TELLS_MORE = {"open", "input", "print", "eval", "exec", "compile", "globals", "locals", "vars", "__import__"}
_PLAIN_BUILTINS = [one for name, one in vars(builtins).items() if name not in _TELLS_MORE and callable(one)]


def is_certain(error: BaseException, ours: tuple[str, ...]) -> bool:
    """Tell whether `error` was raised by a function of one argument that had looked at nothing else.

    Args:
        ours: So begin the names of the modules that have called the user's function.
    """
    if isinstance(error, MemoryError) or not isinstance(error, Exception):
        # Another process may have more memory, or be left alone.
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(ours):
        trace = trace.tb_next
    if trace is None or not _takes_one(trace.tb_frame):
        return False
    # What the function had made of its record, for the functions in it.
    made: list[Any] = []
    while trace is not None:
        if trace.tb_frame.f_code.co_name in _MEMBERS:
            # Of the record: there was nothing else that could have one.
            return True
        if not _has_looked_at_nothing_else(trace, made):
            return False
        # What it closes over it has not made.
        outside = trace.tb_frame.f_code.co_freevars
        made += [value for name, value in trace.tb_frame.f_locals.items() if name not in outside]
        trace = trace.tb_next
    return True


def is_own_mistake(error: BaseException) -> bool:
    """Tell whether the user's own lines raised a ValueError, with no library between them and the error.

    A library raises one for an answer that it can't read, so a service may be behind that. Between the user's
    lines there may be ours: `ctx.set_timer` refuses a time that is none.
    """
    if not isinstance(error, ValueError):
        return False
    is_own = False
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if not frame.f_globals.get("__name__", "").startswith("crosscut."):
            if not is_user_code(frame.f_code.co_filename):
                return False
            is_own = True
        trace = trace.tb_next
    return is_own


def _takes_one(frame: FrameType) -> bool:
    code = frame.f_code
    takes_any_number = code.co_flags & 0x0C
    if code.co_argcount != 1 or code.co_kwonlyargcount or takes_any_number:
        return False
    # A method such as `open` takes no record: all that it looks at is of its object.
    owner = type(frame.f_locals.get(code.co_varnames[0]))
    return getattr(getattr_static(owner, code.co_name, None), "__code__", None) is not code


def _has_looked_at_nothing_else(trace: TracebackType, made: list[Any]) -> bool:
    frame, at = trace.tb_frame, trace.tb_lasti
    steps = list(dis.get_instructions(frame.f_code))
    if any(one.opname == "IMPORT_NAME" for one in steps):
        return False
    if not any("BACKWARD" in one.opname for one in steps):
        # In a loop what stands below may have been done before.
        steps = [one for one in steps if one.offset <= at]
    follows = trace.tb_next.tb_frame.f_code if trace.tb_next is not None else None
    # Who may have called something may have asked anybody.
    has_called = any(one.opname.startswith("CALL") for one in steps)
    taken = [
        _taken(value, steps[position + 1 :])
        for position, one in enumerate(steps)
        if one.opname in _FROM_OUTSIDE
        for value in [_value(frame, one.argval)]
        if not any(value is one for one in made)
    ]
    return all(_is_harmless(value, follows, has_called=has_called) for value in taken)


def _value(frame: FrameType, name: str) -> Any:
    for scope in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if name in scope:
            return scope[name]
    # A NameError, which is certain.
    return None


def _taken(value: Any, steps: Iterable[dis.Instruction]) -> Any:
    """Return what the next steps take of `value`: of modules and classes it may be a table that is filled."""
    for step in steps:
        if step.opname not in _MEMBER_OF or _is_fixed(value):
            break
        if not isinstance(value, ModuleType | type):
            return _ANYTHING
        # Not `getattr`, which may run code.
        value = getattr_static(value, step.argval, _ANYTHING)
    return value


def _is_fixed(value: Any) -> bool:
    return isinstance(value, _CONSTANTS) or any(value is one for one in _PLAIN_BUILTINS)


def _is_harmless(value: Any, follows: CodeType | None, *, has_called: bool) -> bool:
    if _is_fixed(value):
        return True
    if isinstance(value, FunctionType) and value.__code__ is follows:
        # Its frame does not tell a default from what it was given.
        return all(map(_is_fixed, (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())))
    return not has_called and isinstance(value, _CALLABLE)
