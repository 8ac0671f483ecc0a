"""Who waits for a checkpoint, and who for one that is to be written as a savepoint.

A request is answered with the checkpoint that was triggered for it, or with a newer one. A savepoint has no
open transactions: its request is answered when all of its output is committed, and not before. Its parts stay
until the savepoint is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.checkpoint.retention import parts_of
from crosscut.protocol.effects import AnswerRequest, JobEffect
from crosscut.protocol.log.entries import CheckpointCompleted


class CheckpointRequests:
    """Requests, each until it is answered, and that for a savepoint until it is written or has failed."""

    def __init__(self) -> None:
        # No checkpoint has been triggered for these yet; for the others, this one.
        self._waiting: list[int] = []
        self._triggered: dict[int, CheckpointId] = {}
        # Those for savepoints: not answered; complete, but not known to be committed; being written.
        self._savepoints: set[int] = set()
        self._complete: dict[int, CheckpointCompleted] = {}
        self._committed: dict[int, CheckpointCompleted] = {}

    @property
    def are_waiting(self) -> bool:
        """Whether a checkpoint is to be triggered for a request."""
        return bool(self._waiting)

    def add(self, request: int, *, is_savepoint: bool) -> None:
        """Note a request for the next checkpoint that is triggered."""
        self._waiting.append(request)
        if is_savepoint:
            self._savepoints.add(request)

    def triggered(self, n: CheckpointId) -> None:
        """Note that n is for all requests that wait."""
        self._triggered |= dict.fromkeys(self._waiting, n)
        self._waiting = []

    def completed(self, entry: CheckpointCompleted) -> list[JobEffect]:
        """Answer those for whom `entry`, or an older checkpoint, was triggered."""
        return self._answer([one for one, n in self._triggered.items() if n <= entry.checkpoint_id], entry)

    def failed(self, n: CheckpointId, reason: str) -> list[JobEffect]:
        """Answer those for whom n was triggered."""
        return self._answer([one for one, m in self._triggered.items() if m == n], None, reason)

    def epoch_ended(self, reason: str) -> list[JobEffect]:
        """Answer those for whom a checkpoint was triggered: it will not be complete."""
        return self._answer(self._triggered, None, reason)

    def answer_all(self, entry: CheckpointCompleted | None, reason: str = "") -> list[JobEffect]:
        """Answer everybody: no other checkpoint follows."""
        waiting, self._waiting = self._waiting, []
        answers = self._answer(self._triggered, entry, reason)
        return [*answers, *(effect for one in waiting for effect in self._answered(one, entry, reason))]

    def _answer(
        self, requests: Iterable[int], entry: CheckpointCompleted | None, reason: str = ""
    ) -> list[JobEffect]:
        asked = sorted(requests)
        for one in asked:
            del self._triggered[one]
        return [effect for one in asked for effect in self._answered(one, entry, reason)]

    def _answered(self, request: int, entry: CheckpointCompleted | None, reason: str) -> list[JobEffect]:
        if request in self._savepoints:
            self._savepoints.discard(request)
            if entry is not None:
                self._complete[request] = entry
                return []
        return [AnswerRequest(request, entry, "" if entry is not None else reason)]

    # Savepoints.

    def written(self, request: int) -> None:
        """Note that a savepoint is written, or given up: its parts are not needed. It may be told again."""
        self._committed.pop(request, None)

    @property
    def paths(self) -> frozenset[str]:
        """The parts that savepoints are still to be written from: not to be deleted."""
        kept = (*self._complete.values(), *self._committed.values())
        return frozenset[str]().union(*map(parts_of, kept))

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
