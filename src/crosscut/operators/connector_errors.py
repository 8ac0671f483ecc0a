"""Errors of sources and sinks, with the names that people need: which source or sink, and which record."""

from __future__ import annotations

from typing import Any, NoReturn

from crosscut.errors import ConnectorError, CrosscutError, UserCodeError
from crosscut.operators.operator import shortened, user_code_error
from crosscut.operators.recurrence import is_of_own_code


def name_connector(what: str, uid: str, error: BaseException, record: str = "") -> BaseException:
    """Return `error` as one that names the source or sink, and `record` unless it names one itself.

    Args:
        what: "source" or "sink".
        record: As text, shortened; "": no single record is to blame.
    """
    if isinstance(error, ConnectorError):
        if not error.operator:
            error.operator = uid
            if error.is_permanent:
                # Else it may be the service that is down, whatever the record.
                error.record = error.record or record
            error.ids |= {"operator": uid, "record": error.record}
            if repr(uid) not in error.message:
                error.message = f"{what} {uid!r}: {error.message}"
        return error
    if isinstance(error, CrosscutError):
        return error
    return connector_code_error(f"{what} {uid!r} raised {type(error).__name__}: {error}", uid, error, record)


def connector_code_error(
    message: str, uid: str, error: BaseException, record: str = "", *, is_first: bool = True
) -> UserCodeError:
    """Return what to raise for `error`, which is none of ours and which the code of a source or sink raised.

    Args:
        record: As text, shortened; "": no single record is to blame.
        is_first: No other record is known to have got through. A client library raises whatever it likes
            for a service that is down, at the first record it is given.
    """
    named = user_code_error(uid, error, None, is_first=is_first)
    named.message = message
    named.record = record
    named.is_certain = named.is_certain or is_of_own_code(error)
    named.ids |= {"record": record, "is_certain": named.is_certain}
    named.__cause__ = error
    return named


def raise_named(what: str, uid: str, error: BaseException, record: str = "") -> NoReturn:
    """Raise `error` as `name_connector` returns it, to be called where it is handled."""
    named = name_connector(what, uid, error, record)
    if named is error:
        # Without `from`, which would hide what it was raised for.
        raise error
    raise named from error


def record_to_blame(records: list[Any], error: BaseException) -> str:
    """Return the record that a writer was at when it raised, shortened; "" if that can't be told.

    A writer takes many records in one call. Of those, a frame that was at work on one has it in a variable.
    """
    if len(records) == 1:
        return shortened(records[0])
    at = {id(record): index for index, record in enumerate(records)}
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    # The first frame is the caller's, which has the whole batch.
    for frame in reversed(frames[1:]):
        found = {at[id(value)] for value in frame.f_locals.values() if id(value) in at}
        if found:
            return shortened(records[found.pop()]) if len(found) == 1 else ""
    return ""
