"""Processes of records without keys, and of two inputs."""

from __future__ import annotations

from typing import Any

from crosscut.contracts.connected_process import (
    Begins,
    ConnectedContext,
    ConnectedProcess,
    begin_lists,
)
from crosscut.contracts.context import Context
from crosscut.contracts.process import KeyedProcess
from crosscut.errors import InternalError
from crosscut.foundation.batch import Batch
from crosscut.foundation.callables import several
from crosscut.operators.process import Call, Process
from crosscut.operators.sides import Sides
from crosscut.state.keyed import KeyedState


class StreamProcessing(Process):
    """Calls the user's process for each record of a stream without keys.

    Args:
        begins: Which task it is, and from where it goes on.
    """

    def __init__(
        self, uid: str, process: KeyedProcess[Any, Any], state: KeyedState, sides: Sides, begins: Begins
    ) -> None:
        super().__init__(uid, process, state, sides)
        begin_lists(self._process, begins)

    def process(self, batch: Batch) -> Batch:
        return self._each_alone(batch, self._process.on_record)

    def _each_alone(self, batch: Batch, call: Call) -> Batch:
        """Call `call` for the records, at no key; return all results."""
        results: list[Any] = []
        timestamps: list[int] | None = None
        extend, context = results.extend, self._context
        context.leave_key()
        with self.over(batch) as remaining:
            self._open_once()
            if batch.timestamps is None:
                context.timestamp = None
                for record in remaining:
                    found = call(record, context)
                    if found is not None:
                        extend(several(found, call))
            else:
                timestamps = []
                for record, timestamp in zip(remaining, batch.timestamps, strict=True):
                    context.timestamp = timestamp
                    found = call(record, context)
                    if found is not None:
                        extend(several(found, call))
                        timestamps += [timestamp] * (len(results) - len(timestamps))
        return Batch(results, None, timestamps)


class Connected(StreamProcessing):
    """Calls the user's process for the records of two inputs: the first, and the one that was connected."""

    def _new_context(self, sides: Sides) -> Context:
        return ConnectedContext(sides.emit, self)

    def process(self, batch: Batch) -> Batch:
        process, context = self._process, self._context
        if not isinstance(process, ConnectedProcess) or not isinstance(context, ConnectedContext):
            raise InternalError(f"operator {self.uid!r} has two inputs, and a process for one")
        context.is_other = batch.input > 0
        call = process.on_other if context.is_other else process.on_record
        if batch.keys is None:
            return self._each_alone(batch, call)
        return self._each(batch, batch.keys, call)
