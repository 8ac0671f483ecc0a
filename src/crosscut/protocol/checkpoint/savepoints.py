"""Who waits for a checkpoint to be written as a savepoint.

A savepoint has no open transactions: whoever asked hears of the checkpoint when all of its output is
committed, and not before. Its parts stay until the savepoint is written.
"""

from __future__ import annotations

from collections.abc import Callable

from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.checkpoint.retention import parts_of
from crosscut.protocol.effects import AnswerRequest, JobEffect
from crosscut.protocol.log.entries import CheckpointCompleted


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

    def answer(
        self, request: int, completed: CheckpointCompleted | None, reason: str = ""
    ) -> list[JobEffect]:
        """Return the answer to whoever asked for a checkpoint; who wants a savepoint hears of it later.

        Args:
            completed: None if it has failed, for `reason`.
        """
        if request in self._asked:
            self._asked.discard(request)
            if completed is not None:
                self._complete[request] = completed
                return []
        return [AnswerRequest(request, completed, "" if completed is not None else reason)]

    @property
    def is_any_complete(self) -> bool:
        """Whether a checkpoint that is to become one waits for its output to be committed."""
        return bool(self._complete)

    def due(self, is_committed: Callable[[CheckpointId], bool], *, is_over: bool) -> list[JobEffect]:
        """Return the answers to those whose checkpoint is committed by now or, if the job is over, never."""
        answers: list[JobEffect] = []
        for request, checkpoint in list(self._complete.items()):
            n = checkpoint.checkpoint_id
            if is_committed(n):
                self._committed[request] = self._complete.pop(request)
                answers.append(AnswerRequest(request, checkpoint))
            elif is_over:
                del self._complete[request]
                reason = f"the job is over, and the output of checkpoint {n} is not known to be committed"
                answers.append(AnswerRequest(request, None, reason))
        return answers
