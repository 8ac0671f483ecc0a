"""A failure as words, for the coordinator: the error, its place, and whose fault it is."""

from __future__ import annotations

import traceback
from dataclasses import replace

from crosscut.contracts.decoding import ProcessDiedError
from crosscut.errors import (
    ConnectorError,
    CrosscutError,
    HistoryError,
    StateError,
    UserCodeError,
    may_pass,
    outside_cause,
)
from crosscut.foundation.text import escaped
from crosscut.protocol.messages import FailureCause

CAUSE_CHARS_MAX = 64_000
"""Of a message or traceback; a failure has to fit into one message to the coordinator."""


def failure_cause(error: BaseException) -> FailureCause:
    """Return `error` as text that can be sent to the driver, and be shown on a terminal."""
    cause = _cause(error)
    return replace(
        cause,
        message=escaped(cause.message)[:CAUSE_CHARS_MAX],
        record=escaped(cause.record)[:CAUSE_CHARS_MAX],
        traceback=escaped(cause.traceback)[-CAUSE_CHARS_MAX:],
    )


def _cause(error: BaseException) -> FailureCause:
    if isinstance(error, UserCodeError):
        # State that was read for the record.
        is_damaged = isinstance(error.__cause__, StateError) and _is_damaged(error.__cause__)
        return FailureCause(
            kind=type(error.__cause__).__name__ if error.__cause__ else "UserCodeError",
            message=error.message,
            operator=error.operator,
            record=error.record or "",
            traceback=error.traceback,
            is_first=error.is_first,
            is_certain=error.is_certain,
            may_heal=error.may_heal,
            is_from_outside=outside_cause(error) is not None,
            is_transient=error.is_transient and not is_damaged,
            is_final=is_damaged or isinstance(error.__cause__, ProcessDiedError),
        )
    kind = type(error).__name__
    is_permanent = is_transient = False
    try:
        text = "" if isinstance(error, CrosscutError) else "".join(traceback.format_exception(error))
        died = error.__cause__ if isinstance(error.__cause__, ProcessDiedError) else None
        if died is not None:
            text = died.trace
        message = str(error) or kind
        operator, record = str(getattr(error, "operator", "")), str(getattr(error, "record", ""))
        is_permanent = isinstance(error, ConnectorError) and error.is_permanent is True
        is_transient = error.is_transient if isinstance(error, CrosscutError) else may_pass(error)
    except BaseException as second:  # noqa: BLE001 - exceptions of user code may raise when looked at
        text = operator = record = ""
        died = None
        message = f"{kind}, which can't be shown: looking at it raises {type(second).__name__}"
    return FailureCause(
        kind=kind,
        message=message[:CAUSE_CHARS_MAX],
        operator=operator,
        record=record[:CAUSE_CHARS_MAX],
        traceback=text[-CAUSE_CHARS_MAX:],
        is_final=_is_damaged(error) or isinstance(error, HistoryError) or died is not None,
        # A connector knows whether its service is down, and says so by `is_permanent` alone.
        is_first=isinstance(error, ConnectorError),
        is_from_outside=outside_cause(error) is not None,
        is_permanent=is_permanent,
        is_transient=is_transient,
    )


def _is_damaged(error: BaseException) -> bool:
    return bool(getattr(error, "damaged", False))
