"""The latency marker that a task forwards: it follows its records through the operators."""

from __future__ import annotations

from crosscut.foundation.batch import LatencyMarker
from crosscut.foundation.ids import VertexId
from crosscut.task.chain import Chain
from crosscut.task.output_buffers import OutputBuffers
from crosscut.task.task_effects import TaskEffects


class LatencyMarkers:
    """One marker at a time; of those that come meanwhile none is missed."""

    def __init__(
        self, vertex: VertexId, chain: Chain, output_buffers: OutputBuffers, task_effects: TaskEffects
    ) -> None:
        self._vertex = vertex
        self._chain = chain
        self._output_buffers = output_buffers
        self._task_effects = task_effects
        self._asked_us: int | None = None
        self._under_way: LatencyMarker | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether a source has read no record since it was asked for one."""
        return self._asked_us is not None

    def ask(self, now_us: int) -> None:
        """Let a marker of this time, in microseconds since 1970, follow what the source reads next."""
        self._asked_us = now_us

    @property
    def is_under_way(self) -> bool:
        """Whether there is one to let on."""
        return self._under_way is not None

    def source_read(self) -> None:
        """The source has read records."""
        if self._asked_us is not None:
            self._under_way, self._asked_us = LatencyMarker(self._vertex, self._asked_us), None

    def came(self, marker: LatencyMarker) -> None:
        """One came with records."""
        self._under_way = self._under_way or marker

    def let_on(self, *, is_over: bool) -> None:
        """Let it go on, once what came before it has gone through the operators.

        Args:
            is_over: The end of the input has been passed on: nothing follows it.
        """
        if self._under_way is None or self._chain.is_midway:
            return
        marker, self._under_way = self._under_way, None
        if not is_over:
            self._task_effects.markers.append(marker)
            self._output_buffers.add_marker(marker)
