"""What a world has seen: phases, drop reasons, effects, faults, verdicts. A batch of seeds has to see all."""

from __future__ import annotations

from collections import Counter
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
        for name, part in parts.items():
            kind = type(part)
            if kind in _OTHERS:
                continue
            if kind is Counter:
                if name == "dropped":
                    self._watched[id(part)] = part
            elif not kind.__module__.startswith(MACHINES):
                _OTHERS.add(kind)
            elif depth:
                self._watch(part, depth - 1)


_OTHERS: set[type] = set()
"""What is certainly no machine, of what has come along."""
