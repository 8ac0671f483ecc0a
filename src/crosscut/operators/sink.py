"""The end of a chain: records go into the sink's open transaction."""

from __future__ import annotations

from crosscut.batch import Batch
from crosscut.interfaces import SinkWriter
from crosscut.operators.connector_errors import raise_named, record_to_blame
from crosscut.operators.operator import Operator

_NOTHING = Batch([])


class SinkOperator(Operator):
    def __init__(self, uid: str, writer: SinkWriter) -> None:
        super().__init__(uid)
        self.writer = writer

    def process(self, batch: Batch) -> Batch:
        if batch.records:
            self.course.step()
            try:
                self.writer.write(batch.records)
            except BaseException as error:  # noqa: BLE001 - a sink may raise anything; raised again
                raise_named("sink", self.uid, error, record_to_blame(batch.records, error))
            self.taken_count += len(batch)
        return _NOTHING
