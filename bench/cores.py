"""How long the calling thread could have run and got no core: what the others on the machine cost it."""

from __future__ import annotations

from pathlib import Path


def waited_s() -> float:
    """Return how long it has waited in the run queue since it began."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
