"""Apache Iceberg tables as sinks: `crosscut.iceberg.sink`.

Needs the extra `crosscut[iceberg]` (pyiceberg, pyarrow) where a job is started and in its workers; importing
this module does not.
"""

from __future__ import annotations

from crosscut.connectors.tables.iceberg import sink

__all__ = ["sink"]


def __dir__() -> list[str]:
    return sorted(__all__)
