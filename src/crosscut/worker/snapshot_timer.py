"""How long a snapshot takes, by the clock of its worker."""

from __future__ import annotations

from dataclasses import dataclass

from crosscut.protocol.telemetry import SnapshotTimes


@dataclass(slots=True)
class SnapshotTimer:
    """When a snapshot had come how far; None: it has not, or never does."""

    barrier_ns: int | None = None
    freeze_ns: int | None = None
    prepare_ns: int = 0

    def times(self, now_ns: int) -> SnapshotTimes:
        """Return how long it took; it is durable now."""
        freeze_ns = now_ns if self.freeze_ns is None else self.freeze_ns
        barrier_ns = freeze_ns if self.barrier_ns is None else self.barrier_ns
        return SnapshotTimes(
            alignment_us=max(0, freeze_ns - barrier_ns) // 1_000,
            prepare_us=self.prepare_ns // 1_000,
            store_us=(now_ns - freeze_ns) // 1_000,
        )
