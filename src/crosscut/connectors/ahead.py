"""Readers that read ahead of the task, in a thread with an event loop of its own: for networks."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.errors import ConnectorError
from crosscut.foundation.type_variables import Record

BUFFERED_MAX = 10_000
"""Records that wait in memory; then nothing more is read."""

BUFFERED_BYTES_MAX = 16 * 1024 * 1024
"""The same in bytes, of what they were made of."""

_NO_RECORD: Any = object()
_IDLE_MS = 2.0
"""Between two looks, where the task that reads can't be woken up when data arrives."""

_WOKEN_MS = 100.0
"""The same where it can be woken up. It still has to look, to find that a split has fallen idle."""

_BETWEEN_S = 0.001
"""Between two wake-ups, at least: what comes in between is read together."""

_FULL_S = 0.01


class ReaderAhead(SplitReader[Record]):
    """`fill` runs in the thread and puts records, each with the position after it; `read` takes them."""

    def __init__(self, position: JSON) -> None:
        self._position = position
        self._buffer: deque[tuple[Record, JSON, int]] = deque()
        # Each is written by one of the two threads alone.
        self._bytes_put = self._bytes_taken = 0
        self._failure: ConnectorError | None = None
        self._has_ended = False
        self._is_closed = False
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], None] | None = None
        self._waking: asyncio.TimerHandle | None = None
        self._woken_s = 0.0
        self._thread = Thread(target=self._run, name="crosscut-ahead", daemon=True)

    @abstractmethod
    async def fill(self) -> None:
        """Read from `position` on until the split ends, and `put` each record. Cancelled by `close`.

        Raises:
            ConnectorError: The input can't be read; `read` raises it, after the records before.
        """

    async def put(self, record: Any, position: JSON, size_bytes: int = 0) -> None:
        """Hand on a record, once there is room, with the position after it.

        Args:
            size_bytes: Of what it was made of. A record that is larger than all room waits alone.
        """
        while self._buffer and (
            len(self._buffer) >= BUFFERED_MAX
            or self._bytes_put - self._bytes_taken + size_bytes > BUFFERED_BYTES_MAX
        ):
            await asyncio.sleep(_FULL_S)
        self._bytes_put += size_bytes
        self._buffer.append((record, position, size_bytes))
        if self._wake is not None and self._waking is None and len(self._buffer) == 1:
            # With others before it, somebody is reading, or will be woken up for them.
            loop = asyncio.get_running_loop()
            self._waking = loop.call_at(self._woken_s + _BETWEEN_S, self._wake_up, self._wake)

    def _wake_up(self, wake: Callable[[], None]) -> None:
        self._waking = None
        self._woken_s = asyncio.get_running_loop().time()
        wake()

    @property
    def buffered_count(self) -> int:
        """How many records wait here; places that were moved on to count too."""
        return len(self._buffer)

    async def move(self, position: JSON) -> None:
        """Move on over what is no record, so that it is not looked at again."""
        await self.put(_NO_RECORD, position)

    @property
    def position(self) -> JSON:
        return self._position

    def read(self, limit: int) -> list[Record] | Wait | EndOfSplit:
        if self._thread.ident is None:
            self._thread.start()
        # Looked at before the buffer: what is put before the end is taken before the end.
        has_ended = self._has_ended
        found: list[Record] = []
        while self._buffer and len(found) < limit:
            record, self._position, size_bytes = self._buffer.popleft()
            self._bytes_taken += size_bytes
            if record is not _NO_RECORD:
                found.append(record)
        if found or not has_ended:
            return found or Wait(_IDLE_MS if self._wake is None else _WOKEN_MS)
        if self._failure is not None:
            raise self._failure
        return EndOfSplit()

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def close(self) -> None:
        self._is_closed = True
        if self._loop is not None and self._task is not None:
            # The thread may be at its end.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - the last frame of the thread: `read` raises it
            # Cancelled by somebody else than `close`, user code that exits, no file left for a loop: else the
            # task would wait for ever, or take it for the end of the split.
            self._failure = self._failure or _failed(error)
        self._has_ended = True
        if self._wake is not None:
            self._wake()

    async def _main(self) -> None:
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        if self._is_closed:
            return
        try:
            await self.fill()
        except ConnectorError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - the last frame of the thread: `read` raises it
            self._failure = _failed(error)


def _failed(error: BaseException) -> ConnectorError:
    return ConnectorError(f"a source failed: {type(error).__name__}: {error}".removesuffix(": "))
