"""What the exit code of a command tells its supervisor."""

from __future__ import annotations

from crosscut.errors import CrosscutError, JobFailedError, StoreError

DONE = 0
FAILED = 1
"""The same start may succeed later."""
REFUSED = 2
"""It could not start, and can't before something is changed."""
FENCED = 3
"""Another driver has taken the job over."""
STORE = 4
"""The checkpoint store can't be reached; the same start may succeed later."""
HOPELESS = 5
"""The job has failed, and would fail again."""
STOPPED_SHORT = 6
"""The job was stopped, without a last checkpoint or without the commit of its output."""
INTERRUPTED = 130

MAY_PASS = frozenset({FAILED, STORE})
"""What is worth another start."""


def exit_code(error: CrosscutError) -> int:
    """Return the exit code of a command that ends with `error`."""
    has_run = isinstance(error, JobFailedError)
    if has_run and error.ids.get("outcome") == "fenced":
        return FENCED
    if error.is_transient:
        return STORE if isinstance(error.__cause__ if has_run else error, StoreError) else FAILED
    return HOPELESS if has_run else REFUSED
