"""Delta Lake tables as sinks: `crosscut.delta.sink`.

Needs the extra `crosscut[delta]` (deltalake, pyarrow) where a job is started and in its workers; importing
this module does not.
"""

from __future__ import annotations

from crosscut.connectors.tables.delta import sink

__all__ = ["sink"]


def __dir__() -> list[str]:
    return sorted(__all__)
