"""Who waits for a checkpoint to be written as a savepoint.

A savepoint has no open transactions: whoever asked hears of the checkpoint when all of its output is
committed, and not before. Its parts stay until the savepoint is written.
"""

from __future__ import annotations

from collections.abc import Callable

from crosscut.ids import CheckpointId
from crosscut.protocol.effects import AnswerRequest, EndJob, JobEffect
from crosscut.protocol.job.retention import parts_of
from crosscut.protocol.messages import CheckpointCompleted


class Savepoints:
    """Requests, from the wish until the savepoint is written or has failed."""

    def __init__(self) -> None:
        self._asked: set[int] = set()
        # Complete, but not known to be committed; then committed, and being written.
        self._complete: dict[int, CheckpointCompleted] = {}
        self._committed: dict[int, CheckpointCompleted] = {}

    def ask(self, request: int) -> None:
        """Note that the checkpoint for `request` is to become a savepoint."""
        self._asked.add(request)

    def written(self, request: int) -> None:
        """Note that whoever asked needs the parts no more; it may come again."""
        self._committed.pop(request, None)

    def in_use(self) -> frozenset[str]:
        """Return the parts that savepoints are still to be written from: not to be deleted."""
        kept = (*self._complete.values(), *self._committed.values())
        return frozenset[str]().union(*map(parts_of, kept))

    def hold_back(
        self, effects: list[JobEffect], is_committed: Callable[[CheckpointId], bool]
    ) -> list[JobEffect]:
        """Return `effects`, answers to those who want savepoints in their time."""
        if not self._asked and not self._complete:
            return effects
        passed: list[JobEffect] = []
        is_over = False
        for effect in effects:
            if isinstance(effect, AnswerRequest) and effect.request in self._asked:
                self._asked.discard(effect.request)
                if effect.completed is not None:
                    self._complete[effect.request] = effect.completed
                    continue
            is_over |= isinstance(effect, EndJob)
            passed.append(effect)
        for request, checkpoint in list(self._complete.items()):
            if is_committed(checkpoint.checkpoint_id):
                self._committed[request] = self._complete.pop(request)
                passed.append(AnswerRequest(request, checkpoint))
            elif is_over:
                del self._complete[request]
                n = checkpoint.checkpoint_id
                reason = f"the job is over, and the output of checkpoint {n} is not known to be committed"
                passed.append(AnswerRequest(request, None, reason))
        return passed
