"""Windows as plain data: which records, and what is done with them; one fold for each method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from crosscut.contracts.windows import Trigger, Window, Windowed


@dataclass(frozen=True, slots=True)
class CountFold:
    """Counts the records."""

    def __str__(self) -> str:
        return "count"


@dataclass(frozen=True, slots=True)
class SumFold:
    """Adds up what `function` says of each."""

    function: Callable[[Any], Any]

    def __str__(self) -> str:
        return "sum"


@dataclass(frozen=True, slots=True)
class ReduceFold:
    """Combines two at a time."""

    function: Callable[[Any, Any], Any]

    def __str__(self) -> str:
        return "reduce"


@dataclass(frozen=True, slots=True)
class AggregateFold:
    """As in `AggregateSpec`; `merge` makes one accumulator of two, for windows that may become one."""

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] | None
    merge: Callable[[Any, Any], Any] | None
    kind: str = "aggregate"

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class ProcessFold:
    """Keeps the records, and hands them to `function` all at once."""

    function: Callable[[Windowed[Any, Any]], Iterable[Any] | None]

    def __str__(self) -> str:
        return "process"


Fold = CountFold | SumFold | ReduceFold | AggregateFold | ProcessFold


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Takes the records of each key together by windows.

    Attributes:
        lateness_ms: How long after its end a window still takes records.
        late: The side output for records that come later than that; None: they are counted and dropped.
    """

    window: Window
    fold: Fold
    trigger: Trigger | None = None
    lateness_ms: int = 0
    late: str | None = None

    @property
    def states(self) -> tuple[tuple[str, str], ...]:
        """What the state depends on: another window can't go on from it."""
        trigger = f", {self.trigger}" if self.trigger is not None else ""
        return (("windows", f"{self.window}{trigger}: {self.fold}"),)
