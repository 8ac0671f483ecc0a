"""HTTP as source and sink: `crosscut.http.events`, `crosscut.http.sink`.

Needs the extra `crosscut[http]` (httpx) where a job is started and in its workers; importing this module does
not.
"""

from __future__ import annotations

from crosscut.connectors.http.event_source import events
from crosscut.connectors.http.event_stream import Event
from crosscut.connectors.http.sink import sink

__all__ = ["Event", "events", "sink"]


def __dir__() -> list[str]:
    return sorted(__all__)
