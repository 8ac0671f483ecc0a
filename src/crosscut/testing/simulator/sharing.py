"""Worlds shared among several processes: each lives in one of them, and their lives come back in order.

The processes are copies of this one, so that flows and functions need not travel; only seeds and lives do.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from crosscut.errors import InternalError

T = TypeVar("T")

WORLDS_PER_PROCESS_MIN = 5
"""For fewer it is not worth while to start one."""


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared(work: Callable[[int], T], numbers: Sequence[int], jobs: int) -> Iterator[T]:
    """Yield what `work` returns for each number, in order; from `jobs` processes at most.

    Where processes can't be copied, or there is little to do, all of it is done in this one.

    Raises:
        InternalError: A process has died.
    """
    jobs = min(jobs, len(numbers) // WORLDS_PER_PROCESS_MIN)
    if jobs <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(work, numbers)
        return
    # Here, and not in the copies: a client of a connector that nobody needs any more may have threads, of
    # which a copy has none, and there it dies of being tidied up.
    gc.collect()
    copies = [_Copy(work) for _ in range(jobs)]
    try:
        yield from _results(copies, numbers)
    finally:
        for one in copies:
            one.end()


def _results(copies: Sequence[_Copy[T]], numbers: Sequence[int]) -> Iterator[T]:
    done: dict[int, T] = {}
    left = iter(numbers)
    for one, number in zip(copies, left, strict=False):
        one.give(number)
    for number in numbers:
        while number not in done:
            for ready in wait([one.pipe for one in copies if one.number is not None]):
                one = next(copy for copy in copies if copy.pipe is ready)
                at, result = one.take()
                done[at] = result
                if (following := next(left, None)) is not None:
                    one.give(following)
        yield done.pop(number)


class _Copy(Generic[T]):
    """A copy of this process that works on one number after the other.

    Attributes:
        number: What it works on; None: nothing.
        pipe: Its answers come here.
    """

    def __init__(self, work: Callable[[int], T]) -> None:
        context = multiprocessing.get_context("fork")
        self.number: int | None = None
        self.pipe: Connection[int | None, T]
        self.pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_work, args=(work, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, number: int) -> None:
        """Let it work on `number`."""
        self.number = number
        self.pipe.send(number)

    def take(self) -> tuple[int, T]:
        """Return the number that it was given last, and the result, which is there.

        Raises:
            InternalError: It has died.
        """
        at, self.number = self.number, None
        try:
            result = self.pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            raise InternalError(
                f"the process with the world of seed {at} has died: exit code {code}"
            ) from None
        return at or 0, result

    def end(self) -> None:
        """Let it end at once."""
        self._process.terminate()
        self._process.join()
        self.pipe.close()


def _work(work: Callable[[int], T], pipe: Connection[T, int]) -> None:
    # At Ctrl-C the first process ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        pipe.send(work(number))
