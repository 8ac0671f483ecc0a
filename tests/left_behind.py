"""What a test leaves changed for those that run after it in the same process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping

OURS = "crosscut"


def shared_state() -> dict[str, object]:
    """Return what each test of a process finds as the one before it has left it."""
    return {
        "working directory": os.getcwd(),
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "switch interval": sys.getswitchinterval(),
        "garbage collection": gc.isenabled(),
        **{f"logger {logger.name}": _set_up(logger) for logger in _loggers() if _set_up(logger) != _AS_MADE},
        **{f"${name}": value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
    }


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Return what differs, as (before, after), without the variables that libraries set when imported."""
    names = [
        *before,
        *(name for name in after if not name.startswith("$") or name.startswith(f"${OURS.upper()}_")),
    ]
    states = {name: (before.get(name), after.get(name)) for name in names}
    return {name: (was, now) for name, (was, now) in states.items() if now != was}


def _set_up(logger: logging.Logger) -> tuple[list[logging.Handler], int, bool]:
    return list(logger.handlers), logger.level, logger.propagate


_AS_MADE = _set_up(logging.Logger("new"))


def _loggers() -> list[logging.Logger]:
    made = logging.root.manager.loggerDict.items()
    ours = [one for name, one in made if name == OURS or name.startswith(f"{OURS}.")]
    # Of a name that only others begin with there is a placeholder.
    return [logging.getLogger(), *(one for one in ours if isinstance(one, logging.Logger))]
