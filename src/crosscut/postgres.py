"""Postgres tables as sinks: `crosscut.postgres.sink`.

Needs the extra `crosscut[postgres]` (psycopg) where a job is started and in its workers; importing this
module does not.
"""

from __future__ import annotations

from crosscut.connectors.tables.postgres import sink

__all__ = ["sink"]
