"""Whether an error of user code recurs for the same record, whatever goes on around the job.

A function that uses nothing but its record raises the same for that record after each restart: a column with
another name, say. One that uses anything else may have met a service that is down, which also fails its first
record, and the same one after each restart.
"""

from __future__ import annotations

import sys
from types import FrameType

from crosscut.foundation.user_files import is_user_code

_LOOKS_OUTSIDE = frozenset(
    {"__import__", "compile", "eval", "exec", "globals", "hash", "id", "input", "locals", "open", "vars"}
)
"""Built-in functions by which a function may learn something that is not in its record.

Of `hash` and `id` each process has its own.
"""

_MEMBERS = ("__getattr__", "__getattribute__", "__getitem__")


def recurs(error: BaseException, ours: tuple[str, ...]) -> bool:
    """Tell whether the same record raises `error` again for certain.

    It does if the user's function takes one argument, the record, and uses no other name of its module, no
    variable of a function around it, and no import; or if the user's own lines raised a ValueError.

    Args:
        ours: So begin the names of the modules that have called the user's function.
    """
    return isinstance(error, Exception) and (_is_of_record(error, ours) or _is_own_mistake(error))


def _is_of_record(error: Exception, ours: tuple[str, ...]) -> bool:
    # Another process may have more memory.
    if isinstance(error, MemoryError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(ours):
        trace = trace.tb_next
    if trace is None:
        return False
    # The variables of the function before, which a comprehension may use: it has a frame of its own before
    # Python 3.12.
    around: tuple[str, ...] | None = None
    while trace is not None:
        frame = trace.tb_frame
        if around is not None and frame.f_code.co_name in _MEMBERS:
            # Of the record: there was nothing else that could have one.
            return True
        if not _uses_only_its_record(frame, around or ()):
            return False
        around = frame.f_code.co_cellvars
        trace = trace.tb_next
    return True


def _uses_only_its_record(frame: FrameType, around: tuple[str, ...]) -> bool:
    code = frame.f_code
    takes_any_number = code.co_flags & 0x0C
    if code.co_argcount != 1 or code.co_kwonlyargcount or takes_any_number:
        return False
    # A method without another argument, such as `open`, takes no record.
    around_it = code.co_qualname.rpartition(".")[0]
    if around_it and not around_it.endswith("<locals>"):
        return False
    if not set(code.co_freevars) <= set(around):
        return False
    # The other names are those of attributes and of built-in functions.
    outside = (frame.f_globals, sys.modules, _LOOKS_OUTSIDE)
    return not any(name in names for name in code.co_names for names in outside)


def _is_own_mistake(error: Exception) -> bool:
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
