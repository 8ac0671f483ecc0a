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
        names = _NAMES.get(type(machine))
        if names is None:
            names = _NAMES[type(machine)] = [name for name, part in parts.items() if _may_be_watched(part)]
        for name in names:
            part = parts.get(name)
            if type(part) is Counter:
                if name == "dropped":
                    self._watched[id(part)] = part
            elif depth and type(part).__module__.startswith(MACHINES):
                self._watch(part, depth - 1)


def _may_be_watched(part: object) -> bool:
    """Whether an attribute may hold a machine, or what one has dropped: None may become one."""
    kind = type(part)
    return kind is Counter or part is None or kind.__module__.startswith(MACHINES)


_NAMES: dict[type, list[str]] = {}
"""The attributes of a class that are looked at."""
