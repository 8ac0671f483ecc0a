"""Disk space for items that do not fit into memory, as a task sees it. The worker brings it."""

from __future__ import annotations

from typing import Protocol


class SpillFile(Protocol):
    """Bytes outside of memory. They stay until everybody who holds them has let go; any thread may read."""

    def write(self, at: int, data: bytes) -> None:
        """Write `data` at `at`, which is not beyond the end.

        Raises:
            SpillError: It can't be written.
        """

    def read(self, at: int, count: int) -> bytes:
        """Return `count` bytes that were written at `at`.

        Raises:
            SpillError: They can't be read.
        """

    def hold(self) -> None:
        """Keep it until there has been one more `release`; its maker holds it once."""

    def release(self) -> None:
        """Give it back, if it has no other holder."""


class SpillSpace(Protocol):
    """Where several queues and logs spill to."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be spilled for now."""

    def new_file(self) -> SpillFile:
        """Return an empty file.

        Raises:
            SpillError: There can be none.
        """


class SpillSpaces(Protocol):
    """The disk space of one worker in one epoch."""

    @property
    def bounded(self) -> SpillSpace:
        """For channels that are blocked, whose senders can be made to wait if it is full."""

    @property
    def boundless(self) -> SpillSpace:
        """For back edges, since a loop that waited for itself would wait for ever, and for logs."""

    def close(self) -> None:
        """The epoch is over, and nothing is read any more: give everything back, even if it is held."""
