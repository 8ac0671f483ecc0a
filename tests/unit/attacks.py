"""Values that somebody has put into state to have code run. In its own module: a child process imports it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def report(witness: str) -> int:
    """Stand for code that somebody has put into state."""
    Path(witness).write_text(json.dumps({"pid": os.getpid(), "environment": dict(os.environ)}))
    return 1


class Attack:
    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return report, (str(self._witness),)


class Dying:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)
