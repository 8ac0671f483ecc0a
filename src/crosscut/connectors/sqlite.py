"""SQLite tables as sinks: `crosscut.sqlite.sink`."""

from __future__ import annotations

from crosscut.connectors.tables.sqlite import sink

__all__ = ["sink"]


def __dir__() -> list[str]:
    return sorted(__all__)
