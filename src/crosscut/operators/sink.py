"""The end of a chain: records go into the sink's open transaction."""

from __future__ import annotations

from crosscut.contracts.connectors import SinkWriter
from crosscut.contracts.dead_letters import DeadLetter, SetsAside
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.operators.connector_errors import raise_named, record_to_blame
from crosscut.operators.frames import records_of
from crosscut.operators.operator import Operator
from crosscut.operators.sides import Sides

_NOTHING = Batch([])


class SinkOperator(Operator):
    runs_in_copies = False

    def __init__(self, uid: str, writer: SinkWriter) -> None:
        sides = Sides(uid) if isinstance(writer, SetsAside) else None
        super().__init__(uid, sides)
        self.writer = writer
        if isinstance(writer, SetsAside) and sides is not None:
            # Only to be shown: the writer itself has written it. Called by any thread.
            def count_dead_letter(dead_letter: DeadLetter, count: int) -> None:
                sides.dead_letter_count = count
                sides.dead_letters.append(dead_letter)

            writer.on_dead_letter = count_dead_letter

    def process(self, batch: Batch) -> Batch:
        if batch.records:
            self.time_budget.step()
            records = batch.records
            if isinstance(records, FrameRows) and not self.writer.takes_frames:
                records = records_of(self.uid, records, is_first=not self.taken_count)
            try:
                self.writer.write(records)
            except BaseException as error:  # noqa: BLE001 - a sink may raise anything; raised again
                raise_named("sink", self.uid, error, record_to_blame(records, error))
            self.taken_count += len(batch)
        return _NOTHING
