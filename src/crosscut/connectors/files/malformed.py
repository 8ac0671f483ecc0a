"""What becomes of a line or row that can't be decoded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.callables import function_problem

Malformed = Literal["fail", "skip"] | Callable[[str, ConnectorError], Any]
"""Fail the job, go on without it and log a warning, or make a record of its text and the error."""

_files_log = logging.getLogger("crosscut.files")

TEXT_MAX = 1_000
"""Characters of one that is too long to be read."""


def checked_malformed(malformed: object, what: str) -> None:
    """Raise SettingsError unless `malformed` is one of `Malformed`."""
    if malformed not in ("fail", "skip") and not callable(malformed):
        raise SettingsError(
            f"{what}(malformed={malformed!r}): expected 'fail', 'skip', or a function of the text and the "
            f"error that returns a record"
        )
    if callable(malformed) and (problem := function_problem(malformed, "text", "error")):
        raise SettingsError(f"{what}(malformed=): {problem}")


def set_aside(
    malformed: Literal["fail", "skip"] | Callable[[Any, ConnectorError], Any],
    found: Any,
    error: ConnectorError,
    log: logging.Logger = _files_log,
) -> list[Any]:
    """Return the records that take the place of what could not be decoded.

    Args:
        found: Its text, or what is known of its record.
        log: Of the connector, which says what is skipped.

    Raises:
        ConnectorError: `error`, if the job is to fail.
    """
    match malformed:
        case "fail":
            raise error
        case "skip":
            log.warning("skipped: %s", error)
            return []
        case function:
            return [function(found, error)]
