"""rate_limit: asynchronous calls that wait for their turn, and nothing else."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

from crosscut.graph.specs import AsyncMapSpec


class Turns:
    """The function of `rate_limit`: returns each record in its turn. One object for each task.

    Args:
        interval_ms: Between two turns of all tasks together.
        tasks: How many they are.
    """

    def __init__(self, interval_ms: float, tasks: int = 1) -> None:
        self.interval_ms = interval_ms
        self.tasks = tasks
        self._next_s = -math.inf

    async def __call__(self, record: Any) -> Any:
        now_s = asyncio.get_running_loop().time()
        mine_s = max(now_s, self._next_s)
        self._next_s = mine_s + self.interval_ms * self.tasks / 1_000
        if mine_s > now_s:
            await asyncio.sleep(mine_s - now_s)
        return record


_WAITING_MS = 1_000
_WAITING_MAX = 1_000


def rate_limit_spec(records: int, per_ms: int) -> AsyncMapSpec:
    """Return what lets so many records go on in a time: calls that only wait."""
    turns = Turns(per_ms / records)
    return shared_turns(AsyncMapSpec(turns, 1, 0, 0, ordered=True, kind="rate_limit"), tasks=1)


def shared_turns(spec: AsyncMapSpec, tasks: int) -> AsyncMapSpec:
    """Return the part of one of so many tasks in a rate limit."""
    if not isinstance(spec.function, Turns):
        return spec
    turns = Turns(spec.function.interval_ms, tasks)
    interval_ms = turns.interval_ms * tasks
    # Enough for a second, so that no turn is missed; none waits for longer than all before it.
    capacity = max(1, min(_WAITING_MAX, math.ceil(_WAITING_MS / interval_ms)))
    timeout_ms = 60_000 + 2 * interval_ms * (capacity + 1)
    return replace(spec, function=turns, capacity=capacity, timeout_ms=timeout_ms)
