"""The calls of `map_async` in one task: started as background jobs; their results come back as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crosscut.operators.async_map import AsyncMap, CallId
from crosscut.operators.operator import Operator
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.task.chain import Chain
from crosscut.task.input_gate import InputGate
from crosscut.task.task_effects import TaskEffects


class TaskCalls:
    """Which calls are under way, and what may happen meanwhile; in most tasks none ever is.

    Args:
        operators: Those of the task.

    Attributes:
        are_made: An operator makes some.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        protocol: SnapshotProtocol,
        chain: Chain,
        input_gate: InputGate,
        task_effects: TaskEffects,
    ) -> None:
        self._operator = next((one for one in operators if isinstance(one, AsyncMap)), None)
        self.are_made = self._operator is not None
        self._protocol = protocol
        self._chain = chain
        self._input_gate = input_gate
        self._task_effects = task_effects
        # Those that were under way when the restored snapshot was taken.
        self.request()

    @property
    def is_calling(self) -> bool:
        """Whether there are records whose results have not gone on."""
        return self._operator is not None and self._operator.is_calling

    @property
    def has_results(self) -> bool:
        """Whether results may go on. In a task that stands still none do: its snapshot has the records."""
        return self._operator is not None and self._operator.has_results and not self._protocol.is_halted

    @property
    def is_full(self) -> bool:
        """Whether records must wait until calls have ended. A barrier need not, nor what is before it."""
        return self._operator is not None and self._operator.room <= 0 and not self._input_gate.has_barrier

    def room(self, rows_max: int) -> tuple[int, int]:
        """Return how many records may be taken at once, of `rows_max`; `is_full` has said that some may.

        The second number: so many if they are one batch.
        """
        if self._operator is None:
            return rows_max, rows_max + rows_max // 4
        room = self._operator.room
        rows = rows_max if room <= 0 else min(rows_max, room)
        return rows, rows

    def request(self) -> None:
        """Ask for the calls that may begin now."""
        if self._operator is not None and self._operator.requests:
            self._task_effects.background_jobs += self._operator.requests
            self._operator.requests.clear()

    def release(self, rows_max: int) -> None:
        """Let results go on."""
        if self._operator is not None:
            self._chain.pass_on(self._operator, self._operator.release(rows_max))
            self.request()

    def returned(self, call_id: CallId, result: Any) -> None:
        """A call has returned."""
        if self._operator is not None:
            self._operator.returned(call_id, result)

    def raised(self, call_id: CallId, error: BaseException) -> None:
        """A call has raised, or has taken too long.

        Raises:
            UserCodeError: It has been made often enough.
        """
        if self._operator is not None:
            self._operator.raised(call_id, error)
            self.request()
