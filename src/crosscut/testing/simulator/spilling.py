"""The disk space of simulated workers: memory that nobody else sees."""

from __future__ import annotations

from crosscut.testing.simulator.violation import ensure


class VirtualFile:
    """See `SpillFile`."""

    def __init__(self, space: VirtualSpace) -> None:
        self._space = space
        self._holders = 1
        self._content = bytearray()

    def write(self, at: int, data: bytes) -> None:
        """Write."""
        ensure(self._holders > 0, "a spilled file is written that was given back")
        ensure(at <= len(self._content), f"a spilled file of {len(self._content)} bytes is written at {at}")
        self._space.taken_bytes += max(0, at + len(data) - len(self._content))
        self._content[at : at + len(data)] = data

    def read(self, at: int, count: int) -> bytes:
        """Read."""
        ensure(self._holders > 0, "a spilled file is read that was given back")
        ensure(
            at + count <= len(self._content),
            f"{count} bytes at {at} of {len(self._content)} are read from a spilled file",
        )
        return bytes(self._content[at : at + count])

    def hold(self) -> None:
        """Keep it."""
        ensure(self._holders > 0, "a spilled file is held that was given back")
        self._holders += 1

    def release(self) -> None:
        """Let go of it."""
        self._holders -= 1
        ensure(self._holders >= 0, "a spilled file is given back twice")
        if not self._holders:
            self._space.taken_bytes -= len(self._content)
            self._content.clear()


class VirtualSpace:
    """See `SpillSpace`.

    Args:
        bytes_max: None: no limit.
    """

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self.taken_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more goes in."""
        return self._bytes_max is not None and self.taken_bytes >= self._bytes_max

    def new_file(self) -> VirtualFile:
        """Make one."""
        return VirtualFile(self)


class VirtualSpaces:
    """See `SpillSpaces`."""

    def __init__(self, spill_bytes: int) -> None:
        self.bounded = VirtualSpace(spill_bytes)
        self.boundless = VirtualSpace()

    def close(self) -> None:
        """The epoch is over; a call of the store that is late may still read."""
