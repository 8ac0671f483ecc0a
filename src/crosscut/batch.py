"""The unit that travels on channels and goes through operators: a list of records, with their keys."""

from __future__ import annotations

from typing import Any


class Batch:
    """Records that travel together, in order.

    Attributes:
        records: The records.
        keys: After `key_by`: `keys[i]` is the key of `records[i]`. The same list as `records` if the
            consumer needs only keys; that identity survives the wire and halves the work.
    """

    __slots__ = ("keys", "records")

    def __init__(self, records: list[Any], keys: list[Any] | None = None) -> None:
        self.records = records
        self.keys = keys

    def __len__(self) -> int:
        return len(self.records)

    def split(self, rows: int) -> tuple[Batch, Batch]:
        """Return the first `rows` records and the rest."""
        head, rest = self.records[:rows], self.records[rows:]
        if self.keys is None:
            return Batch(head), Batch(rest)
        if self.keys is self.records:
            return Batch(head, head), Batch(rest, rest)
        return Batch(head, self.keys[:rows]), Batch(rest, self.keys[rows:])

    def drop(self, rows: int) -> Batch:
        """Take the last `rows` records, at least one, out of the lists themselves, and return them."""
        rest = self.records[-rows:]
        del self.records[-rows:]
        if self.keys is None:
            return Batch(rest)
        if self.keys is self.records:
            return Batch(rest, rest)
        rest_keys = self.keys[-rows:]
        del self.keys[-rows:]
        return Batch(rest, rest_keys)

    def extend(self, more: Batch) -> None:
        """Add the records of `more`, which came from the same place, at the end."""
        self.records += more.records
        if self.keys is not None and self.keys is not self.records and more.keys is not None:
            self.keys += more.keys
