"""What a sink's writer does with a record that the system behind it will never take."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from crosscut.contracts.connectors import JSON, CommitPermit, SinkWriter
from crosscut.errors import ConnectorError, RefusedRecordError


class Picky(SinkWriter):
    def __init__(self) -> None:
        self.taken: list[Any] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None: ...

    def write(self, records: list[Any]) -> None:
        for record in records:
            if record < 0:
                self.refuse(record, "column amount: expected at least 0")
            else:
                self.taken.append(record)

    def rotate(self, checkpoint_id: Any) -> Any | None:
        return None

    def prepare(self, transaction: Any) -> JSON:
        return None

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None: ...


def test_without_dead_letters_a_refused_record_is_an_error_that_names_it() -> None:
    writer = Picky()
    with pytest.raises(RefusedRecordError, match=r"record -1 is refused: column amount") as found:
        writer.write([1, -1, 2])
    again = pickle.loads(pickle.dumps(found.value))
    assert (again.record, again.reason) == ("-1", "column amount: expected at least 0")


def test_with_dead_letters_the_others_are_taken() -> None:
    writer, letters = Picky(), []
    writer.set_aside = lambda record, reason: letters.append((record, reason))
    writer.write([1, -1, 2])
    assert writer.taken == [1, 2]
    assert letters == [(-1, "column amount: expected at least 0")]


def test_a_long_record_is_shortened_in_the_error() -> None:
    with pytest.raises(RefusedRecordError) as found:
        Picky().refuse("x" * 10_000, "too long")
    assert len(str(found.value)) < 300


def test_a_sink_that_cannot_show_what_is_pending_says_so() -> None:
    with pytest.raises(ConnectorError, match="Picky can't show the records"):
        list(Picky().pending_records([]))
