"""Where the sink publishes, and how: what its description shares with its writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.nats.client import Servers
from crosscut.connectors.nats.messages import Encoding


@dataclass(frozen=True, eq=False)
class Destination:
    """Subjects of a stream; the arguments of `crosscut.nats.sink`."""

    servers: Servers
    stream: str
    subject: str | Callable[[Any], str]
    value: Callable[[Any], Any] | None
    encode: Encoding | Callable[[Any], bytes]
    markers: str

    @property
    def target(self) -> str:
        """What a marker calls the place."""
        return self.subject if isinstance(self.subject, str) else "*"

    @property
    def where(self) -> str:
        """What errors call the place."""
        return f"{self.describe()} at {self.servers.shown}"

    def describe(self) -> str:
        """Say which stream and subject this is, not where: servers move."""
        return f"NATS stream {self.stream}, subject {self.target}, markers in {self.markers}"
