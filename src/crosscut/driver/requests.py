"""Those who have asked for a checkpoint or a savepoint, and wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from crosscut.errors import CheckpointError
from crosscut.protocol.log.entries import CheckpointCompleted


class Requests:
    """The requests of one driver, by number. Used on its event loop only.

    Args:
        name: Of the job, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._waiting: dict[int, asyncio.Future[CheckpointCompleted]] = {}
        self._refused = ""

    @contextmanager
    def opened(self) -> Iterator[tuple[int, asyncio.Future[CheckpointCompleted]]]:
        """Open a request; yield its number, and what will be its answer.

        Raises:
            CheckpointError: All are refused.
        """
        if self._refused:
            raise self._error(self._refused)
        self._count += 1
        request = self._count
        answer: asyncio.Future[CheckpointCompleted] = asyncio.get_running_loop().create_future()
        self._waiting[request] = answer
        try:
            yield request, answer
        finally:
            del self._waiting[request]

    @property
    def are_open(self) -> bool:
        """Whether somebody waits, or still makes use of the answer."""
        return bool(self._waiting)

    def answer(self, request: int, completed: CheckpointCompleted | None, reason: str) -> None:
        """Answer with a complete checkpoint, or say why there is none; at most once, if anybody waits."""
        answer = self._waiting.get(request)
        if answer is None or answer.done():
            return
        if completed is None:
            answer.set_exception(self._error(reason))
        else:
            answer.set_result(completed)

    def refuse_all(self, reason: str) -> None:
        """Refuse those that wait, and all from now on."""
        self._refused = reason
        for request in self._waiting:
            self.answer(request, None, reason)

    def _error(self, reason: str) -> CheckpointError:
        return CheckpointError(f"job {self._name!r}: {reason}")
