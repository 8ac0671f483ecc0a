"""What the workers of batches deal with: the driver of the coordinator, and what runs batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from crosscut.foundation.ids import AttemptId, Epoch, VertexId, WorkerIndex
from crosscut.microbatch.shuffle import ShuffleBlock
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.events import JobEvent
from crosscut.protocol.messages import CoordinatorMessage, WorkerMessage


class Host(Protocol):
    """The driver of the coordinator."""

    def link_opened(self, link: BatchLink, worker: WorkerIndex, attempt: AttemptId) -> int: ...

    def link_message(self, link: BatchLink, message: WorkerMessage) -> None: ...

    def post(self, event: JobEvent) -> None: ...

    @property
    def asked(self) -> frozenset[tuple[VertexId, int]]: ...

    @property
    def awaits_splits(self) -> bool: ...

    def progressed(self, epoch: Epoch, progress: dict[str, Any]) -> None: ...


Routed = tuple[int, ShuffleBlock]
"""What a partition says, and the index of the partition that it is for."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run of a batch has ended.

    Attributes:
        error: Why it has failed; "": it has not.
        lost: Why nothing can run there any more; "": something can.
    """

    error: str = ""
    lost: str = ""


class Jobs(Protocol):
    """Where the batches of one job run. Nothing here blocks."""

    def run(
        self,
        name: str,
        orders: Sequence[Sequence[StageOrder]],
        description: str,
        returned: Callable[[bytes], None],
        ended: Callable[[RunOutcome], None],
    ) -> None:
        """Run the orders, by stage and index. The callbacks may be called on any thread.

        Args:
            name: Of the run, which no other has.
            returned: Called with the result of each partition of the last stage, which is not decoded here:
                see `crosscut.microbatch.shuffle.encoded_result`.
            ended: Called once, after all results.
        """

    def cancel(self, name: str) -> None:
        """Give a run up, best effort."""


class BatchLink:
    """The link of one worker that has no process."""

    def __init__(self, index: int, receive: Callable[[int, CoordinatorMessage], None]) -> None:
        self.number = 0
        self.index = index
        self._receive = receive

    def send_message(self, message: CoordinatorMessage) -> None:
        """Hear the coordinator's word."""
        self._receive(self.index, message)

    def close_gently(self, reason: str) -> None:
        """There is nothing to close."""
