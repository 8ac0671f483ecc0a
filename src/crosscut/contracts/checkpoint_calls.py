"""The sink of `stream.for_each_checkpoint`: it calls a function with the records of each checkpoint."""

from __future__ import annotations

import pickle  # noqa: S403 - only to write; see `crosscut.foundation.unpickling` for what is loaded
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.contracts.connectors import JSON, CommitPermit, Sink, SinkContext, SinkWriter
from crosscut.errors import (
    ConnectorError,
    CrosscutError,
    SettingsError,
    may_pass,
    never_passes,
    outside_cause,
)
from crosscut.foundation.callables import name_of
from crosscut.foundation.data_pickles import load_data
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.unpickling import RefusedPickleError, loader, loading_anything

CheckpointFunction = Callable[[list[Any], int], object]
"""Takes the records of a checkpoint and its id."""


@dataclass(frozen=True, eq=False)
class ForEachCheckpoint(Sink[Any]):
    """See `Stream.for_each_checkpoint`."""

    function: CheckpointFunction

    def __repr__(self) -> str:
        return f"for_each_checkpoint({name_of(self.function)})"

    @property
    def has_one_task(self) -> bool:
        """True: the function gets all records of a checkpoint in one call."""
        return True

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of the task for one epoch."""
        return _Caller(self.function, context)


_MISTAKES = (TypeError, AttributeError, NameError, ImportError)
"""Exceptions that say that the function is wrong, so that no other call helps."""


def _is_permanent(error: Exception) -> bool:
    """Return whether every call of the function would raise `error`."""
    if isinstance(error, ConnectorError):
        return error.is_permanent
    if isinstance(error, SettingsError) or never_passes(error):
        return True
    return isinstance(error, _MISTAKES) and outside_cause(error) is None


class _Caller(SinkWriter):
    """Holds records in the snapshot, and calls the function at the commit."""

    def __init__(self, function: CheckpointFunction, context: SinkContext) -> None:
        self._function = function
        self._where = f"operator {context.sink_uid!r}, {name_of(function)}"
        self._held = context.held
        # Each batch is pickled when it comes: records are shared with other operators.
        self._batches: list[bytes] = []
        self._called = CheckpointId(0)
        self._is_attempt = False

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._call(handles)

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """Nothing is staged but what the snapshot holds, so attempts don't see each other."""
        # The driver commits, which loads only data. After the checkpoint is complete it is too late to find
        # that it can't.
        self._is_attempt = True

    def write(self, records: list[Any]) -> None:
        if not records:
            return
        try:
            self._batches.append(self._pickled(records))
        except Exception:  # noqa: BLE001 - records may be of any class
            if taken := [record for record in records if self._is_taken(record)]:
                self._batches.append(self._pickled(taken))

    def _is_taken(self, record: Any) -> bool:
        """Return whether a record can be held, after it has been refused if not."""
        try:
            self._pickled([record])
        except RefusedPickleError as error:
            self.refuse(
                record,
                f"under micro-batches for_each_checkpoint takes plain data, and {error.message}; map the "
                f"record to plain data, or set engine='continuous'",
            )
        except Exception as error:  # noqa: BLE001 - as above
            self.refuse(
                record,
                f"it can't be pickled and loaded ({type(error).__name__}: {error}); map it to something that "
                f"can, before for_each_checkpoint",
            )
        else:
            return True
        return False

    def _pickled(self, records: list[Any]) -> bytes:
        data = pickle.dumps(records, protocol=5)
        if self._is_attempt:
            load_data(data)
        return data

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        batches, self._batches = self._batches, []
        return (checkpoint_id, batches) if batches else None

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, batches = transaction
        self._held.keep(checkpoint_id, pickle.dumps(batches, protocol=5))
        return int(checkpoint_id)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._call(handles)

    def pending_records(self, handles: Sequence[JSON]) -> Iterator[Any]:
        """Yield the records that the function has not been called with, as far as is known."""
        for handle in handles:
            yield from self._records(self._id_of(handle))

    def _call(self, handles: Sequence[JSON]) -> None:
        for handle in handles:
            checkpoint_id = self._id_of(handle)
            if checkpoint_id <= self._called:
                continue
            records = self._records(checkpoint_id)
            try:
                with loading_anything():
                    self._function(records, int(checkpoint_id))
            except Exception as error:  # It is the user's.
                raise ConnectorError(
                    f"{self._where} raised {type(error).__name__} for the {len(records)} records of "
                    f"checkpoint {checkpoint_id}: {error}; it is called again with the same records",
                    is_permanent=_is_permanent(error),
                    may_recover=error.is_transient if isinstance(error, CrosscutError) else may_pass(error),
                ) from error
            self._called = checkpoint_id

    def _records(self, checkpoint_id: CheckpointId) -> list[Any]:
        load = loader()
        return [record for batch in load(self._held.data(checkpoint_id)) for record in load(batch)]

    def _id_of(self, handle: JSON) -> CheckpointId:
        if not isinstance(handle, int):
            raise ConnectorError(f"{self._where}: {handle!r:.80} is no transaction of for_each_checkpoint")
        return CheckpointId(handle)
