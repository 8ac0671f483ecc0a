"""NATS JetStream as source and sink: `crosscut.nats.source`, `crosscut.nats.sink`.

Needs the extra `crosscut[nats]` (nats-py) where a job is started and in its workers; importing this module
does not.
"""

from __future__ import annotations

from crosscut.connectors.nats.messages import Message
from crosscut.connectors.nats.sink import sink
from crosscut.connectors.nats.source import source

__all__ = ["Message", "sink", "source"]


def __dir__() -> list[str]:
    return sorted(__all__)
