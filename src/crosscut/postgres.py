"""Postgres tables as sources and sinks, and for look-ups.

Needs the extra `crosscut[postgres]` (psycopg) where a job is started and in its workers; importing this
module does not.
"""

from __future__ import annotations

from crosscut.connectors.tables.postgres import sink
from crosscut.connectors.tables.postgres_lookup import lookup
from crosscut.connectors.tables.postgres_source import source
from crosscut.connectors.tables.postgres_upsert import upsert

__all__ = ["lookup", "sink", "source", "upsert"]
