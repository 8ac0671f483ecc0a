"""What is read of a publication, and how: what the source shares with its reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from crosscut.connectors.postgres.values import Infinity, Malformed
from crosscut.connectors.secrets import Environment


@dataclass(frozen=True, eq=False)
class Subscription:
    """Changes that come by one slot; the arguments of `crosscut.postgres.changes`."""

    conninfo: str | Environment
    publication: str
    slot: str
    snapshot: bool
    stop: str | None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    malformed: Malformed = "fail"
    infinity: Infinity = "malformed"

    def describe(self) -> str:
        """Say which changes these are, and nothing of how they are reached."""
        return f"changes of Postgres publication {self.publication}, slot {self.slot}"
