"""What a user's function raised, as its author needs to see it: operator, record, their own lines of code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import crosscut
from crosscut.errors import ConnectorError, UserCodeError
from crosscut.operators.operator import user_code_error
from crosscut.protocol.messages import FailureCause

_PACKAGE = f'File "{Path(crosscut.__file__).parent}'


class UserCode:
    """Has what is raised within name operator and record; connectors say themselves what they failed at."""

    def __init__(self, uid: str, record: Any) -> None:
        self._uid = uid
        self._record = record

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and is_of_user(error):
            raise user_code_error(self._uid, error, self._record) from error


def is_of_user(error: BaseException) -> bool:
    """Whether user code has raised `error`, and it doesn't say so yet."""
    # A function may also raise SystemExit, which would end all of this as if it were done.
    return not isinstance(error, ConnectorError | UserCodeError | KeyboardInterrupt)


def error_text(error: UserCodeError) -> str:
    """Return what was raised where and at which record, with the frames of the user's code alone."""
    record = f"\n  record: {error.record}" if error.record else ""
    return f"{error.message}{record}{_frames(error.traceback)}"


def cause_text(cause: FailureCause | None) -> str:
    """Return why a job has failed; if user code has raised, as `error_text` does."""
    if cause is None:
        return "it does not say why"
    return error_text(user_code_error_of(cause)) if cause.operator else f"{cause.kind}: {cause.message}"


def user_code_error_of(cause: FailureCause) -> UserCodeError:
    """Return the error that a worker has reported as text."""
    return UserCodeError(
        cause.message, operator=cause.operator, record=cause.record or None, traceback=cause.traceback
    )


def _frames(traceback: str) -> str:
    """Return the frames of a traceback but for ours, each behind an end of line."""
    found = []
    is_theirs = False
    for line in traceback.splitlines():
        if line.startswith("  File "):
            is_theirs = not line.strip().startswith(_PACKAGE)
        elif not line.startswith("    "):
            is_theirs = False
        if is_theirs:
            found.append(line)
    return "".join(f"\n{line}" for line in found)
