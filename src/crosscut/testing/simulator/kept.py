"""What a job has to leave behind beside its output: states of tasks, and calls that were made for records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crosscut.foundation.ids import TaskId
from crosscut.testing.simulator.violation import ensure

Tables = Mapping[str, Mapping[Any, Any]]
"""The states of a task by name, as `crosscut.state.encoding.contents` gives them."""


@dataclass(frozen=True)
class LeftBehind:
    """What has to be left behind, by uid of the operator.

    Attributes:
        states: What each state of a task holds in the end, by its name. A list: its items, in whichever task
            they are. A dict: what every task holds.
        calls: Records, with each of which a function has to be called once at least.
        called: Those with which it was called.
    """

    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    calls: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    called: Mapping[str, list[Any]] = field(default_factory=dict)

    def check_calls(self) -> None:
        """No record was left out, whatever went wrong."""
        for uid, records in self.calls.items():
            lacking = Counter(map(repr, records)) - Counter(map(repr, self.called[uid]))
            ensure(not lacking, f"I1: {uid} was not called with {_shown(lacking)}")

    def check_states(self, tasks: Iterable[TaskId], tables_of: Callable[[TaskId], Tables]) -> None:
        """Each item is in the state of a task, once, and what is the same in all tasks is."""
        found: dict[str, list[Tables]] = {uid: [] for uid in self.states}
        for task in tasks:
            if task.vertex in found:
                found[task.vertex].append(tables_of(task))
        for uid, states in self.states.items():
            for name, expected in states.items():
                if isinstance(expected, dict):
                    for table in found[uid]:
                        held = table.get(name, {}).get(None, {})
                        ensure(held == expected, f"I4: {uid} holds {held} in {name!r}, expected {expected}")
                    continue
                # What was united at another parallelism is in several tasks, in the same row.
                rows: dict[Any, Any] = {}
                for table in found[uid]:
                    rows.update(table.get(name, {}))
                held, whole = (Counter(map(repr, some)) for some in (rows.values(), expected))
                ensure(not whole - held, f"I1: {uid} lacks in {name!r} {_shown(whole - held)}")
                ensure(not held - whole, f"I2: {uid} has in {name!r} too often {_shown(held - whole)}")


def _shown(tokens: Counter[str]) -> str:
    return f"{sum(tokens.values())}: {', '.join(list(tokens)[:4])}"
