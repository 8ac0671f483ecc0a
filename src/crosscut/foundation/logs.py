"""What log lines say beside their text: which job, worker, task, epoch and checkpoint they are of."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

from crosscut.foundation.text import escaped

LogFormat = Literal["text", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

FIELDS = ("code", "job", "worker", "vertex", "task", "epoch", "checkpoint")
"""Attributes that log records may have, in the order in which they are shown."""


class JsonLogFormatter(logging.Formatter):
    """Makes one line of JSON of a log record, with the fields of the job that it is about.

    The keys are `time` (ISO 8601, UTC), `level`, `logger`, `message`, as they apply `code`, `job`, `worker`,
    `vertex`, `task`, `epoch`, `checkpoint`, and `error` with a traceback.

    Examples:
        >>> import logging
        >>> import crosscut as cc
        >>> handler = logging.StreamHandler()
        >>> handler.setFormatter(cc.JsonLogFormatter())
        >>> logging.getLogger("crosscut").addHandler(handler)
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if error := error_text(record):
            line["error"] = error
        # Whatever a record holds, it is one line of ASCII.
        return json.dumps(line, default=repr)


class TextLogFormatter(logging.Formatter):
    """Makes a line for people: time, level, logger, the fields that it has, the text."""

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and those of a traceback."""
        about = " ".join(f"{name}={value}" for name, value in fields_of(record).items())
        text = f"{self.formatTime(record)} {record.levelname} {record.name}"
        text += f" [{about}]: {record.getMessage()}" if about else f": {record.getMessage()}"
        error = error_text(record)
        # Names, records and what services answer may hold anything, and a terminal obeys it.
        return escaped(f"{text}\n{error}" if error else text)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what `record` says of a job."""
    return {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}


def error_text(record: logging.LogRecord) -> str:
    """Return the traceback of `record`, "" if it has none."""
    if record.exc_info and not record.exc_text:
        # Kept there, as the formatters of `logging` do: there may be several.
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


def log_formatter(kind: LogFormat) -> logging.Formatter:
    """Return what makes lines of that kind."""
    return JsonLogFormatter() if kind == "json" else TextLogFormatter()
