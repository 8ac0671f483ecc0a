"""What a job logs, in the terminal: the lines of its workers, and those of the driver as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from crosscut.contracts.settings import Settings
from crosscut.errors import StoreError
from crosscut.foundation.logs import log_formatter
from crosscut.foundation.urls import shown_url
from crosscut.web.record import read_record


def shown_lines(directory: str, worker: int | None, *, as_json: bool) -> Iterator[str]:
    """Return the lines that workers of the job in `directory` have logged.

    Args:
        worker: Only of this one; None: of all.

    Raises:
        StoreError: There is nothing to show.
    """
    try:
        for one in read_record(directory)["job"]["logs"]:
            if worker in (None, one["worker"]):
                yield json.dumps(_fields(one)) if as_json else _text(one)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise StoreError(
            f"{shown_url(directory)}: what its workers have logged is of another release: {error!r}"
        ) from error


def _fields(line: dict[str, Any]) -> dict[str, Any]:
    """Return what `JsonLogFormatter` says of such a line."""
    at = datetime.fromtimestamp(line["at_ms"] / 1e3, UTC)
    found = {
        "time": at.isoformat(timespec="milliseconds"),
        "level": line["level"],
        "logger": line["logger"],
        "message": line["text"],
        "worker": line["worker"],
    }
    if line["task"] is not None:
        vertex, index = line["task"]["vertex"], line["task"]["index"]
        found |= {"vertex": vertex, "task": f"{vertex}[{index}]"}
        found |= {"epoch": line["epoch"], "checkpoint": line["checkpoint_id"]}
    return found


def _text(line: dict[str, Any]) -> str:
    found = _fields(line)
    about = {name: found[name] for name in ("worker", "task", "epoch", "checkpoint") if name in found}
    shown = " ".join(f"{name}={value}" for name, value in about.items())
    text = f"{found['time']} {found['level']} {found['logger']} [{shown}]: {found['message']}"
    # A terminal obeys what it is told; records that people log may hold anything.
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


@contextmanager
def logging_of_driver(settings: Settings) -> Iterator[None]:
    """With `log_format="json"`, write what the driver logs to standard error, a line of JSON each."""
    if settings.log_format != "json":
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_formatter("json"))
    # The workers' lines are there already, if it is the same terminal.
    handler.addFilter(lambda record: not getattr(record, "is_on_standard_error", False))
    logger = logging.getLogger("crosscut")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(settings.log_level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
