"""Whether an error of user code recurs for the same record, whatever goes on around the job.

A function that uses nothing but its record raises the same for that record after each restart: a column with
another name, say. One that uses anything else may have met a service that is down, which also fails its first
record, and the same one after each restart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import dropwhile
from types import FrameType

from crosscut.foundation.user_files import is_user_code, is_written_by_user

_LOOKS_OUTSIDE = frozenset(
    {"__import__", "compile", "eval", "exec", "globals", "hash", "id", "input", "locals", "open", "vars"}
)
"""Built-in functions by which a function may learn something that is not in its record.

Of `hash` and `id` each process has its own.
"""

_COMPUTES = frozenset(
    {
        "_csv", "abc", "array", "ast", "base64", "binascii", "bisect", "builtins", "calendar", "codecs",
        "collections", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "encodings", "enum",
        "fractions", "functools", "graphlib", "hashlib", "heapq", "html", "ipaddress", "itertools", "json",
        "math", "numbers", "operator", "random", "re", "statistics", "string", "struct", "textwrap", "types",
        "typing", "unicodedata", "uuid", "xml", "zoneinfo",
    }
)  # fmt: skip
"""Modules of Python that only compute: what they raise does not come from a service."""

_OF_SURROUNDINGS = (OSError, MemoryError, BufferError, EOFError)
"""Built-in exceptions that may be raised because of a service or the machine, whatever code raises them."""

_MEMBERS = ("__getattr__", "__getattribute__", "__getitem__")


def recurs(error: BaseException, ours: tuple[str, ...]) -> bool:
    """Tell whether the same record raises `error` again for certain.

    It does if the user's function takes one argument, the record, and uses no other name of its module, no
    variable of a function around it, and no import; or if the user's own lines raised a ValueError.

    Args:
        ours: So begin the names of the modules that have called the user's function.
    """
    return is_of_record(error, ours) or (isinstance(error, Exception) and _is_own_mistake(error))


def is_of_record(error: BaseException, ours: tuple[str, ...]) -> bool:
    """Tell whether `error` comes from the record alone: the function that raised it uses nothing else.

    No outage is behind such an error.

    Args:
        ours: As for `recurs`.
    """
    # Another process may have more memory.
    if not isinstance(error, Exception) or isinstance(error, MemoryError):
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
    own = _own_frames(error)
    return bool(own) and all(_is_ours(frame) or _is_users(frame) for frame in own)


def is_of_own_code(error: BaseException) -> bool:
    """Tell whether the user's own lines raised `error`, with no library that may talk to a service.

    That holds for each exception that it was raised from, or while another one was handled. An outage shows
    as an OSError, as an exception of a client library, or as a `ConnectorError`.
    """
    return bool(_own_frames(error)) and not any(_may_be_from_service(one) for one in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, its members if it is a group, and what each was raised for, `from None` or not."""
    remaining, seen = [error], set[int]()
    while remaining:
        one = remaining.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            remaining += [found for found in (one.__cause__, one.__context__) if found is not None]
            if isinstance(one, BaseExceptionGroup):
                remaining += one.exceptions


def _may_be_from_service(error: BaseException) -> bool:
    if not isinstance(error, Exception) or isinstance(error, _OF_SURROUNDINGS):
        return True
    if not all(_is_users_or_computes(kind.__module__) for kind in type(error).__mro__):
        return True
    for frame in _own_frames(error) or _frames(error):
        computes = frame.f_globals.get("__name__", "").partition(".")[0] in _COMPUTES
        if not (computes or _is_ours(frame) or _is_users(frame)):
            return True
    return False


def _own_frames(error: BaseException) -> list[FrameType]:
    """Return the first frame of the user's code and those below it; above it are its callers, as a thread."""
    return list(dropwhile(lambda frame: not _is_users(frame), _frames(error)))


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("crosscut.")


def _is_users(frame: FrameType) -> bool:
    if _is_ours(frame):
        return False
    # Compiled extensions name their source, which is not where they are installed.
    file = frame.f_globals.get("__file__")
    return is_user_code(frame.f_code.co_filename) and (not file or is_written_by_user(file))


def _is_users_or_computes(module: str) -> bool:
    """Tell whether a class of `module` is the user's, or of Python and not of a client."""
    top = module.partition(".")[0]
    if top in _COMPUTES or module == "__main__":
        # The user's `__main__` is another one than that of a worker.
        return True
    if top == "crosscut" or top in sys.stdlib_module_names:
        return False
    if module not in sys.modules:
        # As that of Kafka's client, which names a module that there is not.
        return False
    file = getattr(sys.modules[module], "__file__", None)
    return not file or is_written_by_user(file)
