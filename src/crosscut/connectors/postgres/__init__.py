"""Postgres tables as sources and sinks, for look-ups, and their changes.

Needs the extra `crosscut[postgres]` (psycopg) where a job is started and in its workers; importing this
module does not.
"""

from __future__ import annotations

from crosscut.connectors.postgres.changes.change import Change
from crosscut.connectors.postgres.changes.source import changes, drop_slot
from crosscut.connectors.postgres.lookup import lookup
from crosscut.connectors.postgres.sink import sink
from crosscut.connectors.postgres.table_source import source
from crosscut.connectors.postgres.upsert import upsert

__all__ = ["Change", "changes", "drop_slot", "lookup", "sink", "source", "upsert"]


def __dir__() -> list[str]:
    return sorted(__all__)
