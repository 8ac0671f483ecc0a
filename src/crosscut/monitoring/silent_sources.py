"""Sources that give nothing, though they have not said that there is nothing to read now.

A reader that has nothing returns `Wait` or `EndOfSplit`. One that returns empty lists looks like a job
that runs and does nothing, for ever: people must be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crosscut.foundation.ids import TaskId
from crosscut.protocol.messages import TaskStatistics

SILENT_S = 10.0
"""How long a source gives nothing but empty lists before that is said."""


@dataclass(frozen=True, slots=True)
class SilentSource:
    """A source task that has read nothing but empty lists of `split` for `seconds`."""

    task: TaskId
    split: str
    seconds: float


class Silences:
    """Since when which source tasks have given nothing, by the clock of the driver."""

    def __init__(self) -> None:
        self._since_ns: dict[TaskId, int] = {}
        self._split: dict[TaskId, str] = {}
        self._warned: set[TaskId] = set()

    def note(self, now_ns: int, tasks: Iterable[TaskStatistics]) -> list[str]:
        """Note a worker's word on its tasks; return lines for people, once for each silence."""
        texts = []
        for one in tasks:
            if not one.empty_split:
                self._since_ns.pop(one.task, None)
                self._warned.discard(one.task)
                continue
            self._split[one.task] = one.empty_split
            seconds = (now_ns - self._since_ns.setdefault(one.task, now_ns)) / 1e9
            if seconds >= SILENT_S and one.task not in self._warned:
                self._warned.add(one.task)
                texts.append(
                    f"source {one.task} has given nothing for {seconds:.0f} s though it is not drained: the "
                    f"reader of its split {one.empty_split!r} returns empty lists; with nothing to read now "
                    f"it should return crosscut.Wait, at the end crosscut.EndOfSplit"
                )
        return texts

    def status(self, now_ns: int) -> tuple[SilentSource, ...]:
        """Return those that have been silent for long enough to be mentioned."""
        return tuple(
            SilentSource(task, self._split[task], round((now_ns - since_ns) / 1e9, 1))
            for task, since_ns in sorted(self._since_ns.items())
            if now_ns - since_ns >= SILENT_S * 1e9
        )
