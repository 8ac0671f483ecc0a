"""Postgres tables as sources and sinks: `crosscut.postgres.source`, `crosscut.postgres.sink`.

Needs the extra `crosscut[postgres]` (psycopg) where a job is started and in its workers; importing this
module does not.
"""

from __future__ import annotations

from crosscut.connectors.tables.postgres import sink
from crosscut.connectors.tables.postgres_source import source

__all__ = ["sink", "source"]
