"""A stream joined with a table that each process has in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from crosscut.contracts.lookup_tables import LookupTable
from crosscut.graph.specs import MapSpec


@dataclass(frozen=True, slots=True)
class LookupSpec(MapSpec):
    """A map whose function looks into `table`, which has to be open before the first record."""

    table: LookupTable = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class LookupFunction:
    """Joins a record with its row.

    Attributes:
        by: Takes a record, returns its key in the table.
        join: Takes a record and its row or None; None: the result is the pair of both.
    """

    table: LookupTable
    by: Callable[[Any], Any]
    join: Callable[[Any, Any], Any] | None

    def __call__(self, record: Any) -> Any:
        """Return the joined record."""
        row = self.table.get(self.by(record))
        return (record, row) if self.join is None else self.join(record, row)
