"""What a world has seen: phases, drop reasons, effects, faults, verdicts. A batch of seeds has to see all."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

DEPTH_MAX = 4
MACHINES = "crosscut.protocol."
"""What is made of machines is in its modules."""


class DropWatch:
    """Adds up the drop reasons of machines that come and go.

    Args:
        seen: Gets "drop: <reason>".
    """

    def __init__(self, seen: Counter[str]) -> None:
        self._seen = seen
        self._watched: dict[int, Counter[str]] = {}

    def watch(self, *machines: object) -> None:
        """Watch the machines, and the machines in them."""
        for machine in machines:
            self._watch(machine, DEPTH_MAX)

    def collect(self) -> None:
        """Add what they have dropped, once."""
        for dropped in self._watched.values():
            for reason, count in dropped.items():
                self._seen[f"drop: {reason}"] += count
        self._watched.clear()

    def _watch(self, machine: object, depth: int) -> None:
        parts: dict[str, Any] = getattr(machine, "__dict__", {})
        dropped = parts.get("dropped")
        if isinstance(dropped, Counter):
            self._watched[id(dropped)] = dropped
        for part in parts.values() if depth else ():
            kind: type = type(part)
            if _is_machine(kind):
                self._watch(part, depth - 1)


@cache
def _is_machine(kind: type) -> bool:
    return kind.__module__.startswith(MACHINES)
