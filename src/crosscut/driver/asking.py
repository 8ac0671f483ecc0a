"""What the driver asks of store, sources and sinks. All of it may block, and is called in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, assert_never

from crosscut.contracts.connectors import JSON, CommittedOutput
from crosscut.contracts.dynamic_source import Discovered
from crosscut.errors import AuthenticityError, InternalError, StoreError
from crosscut.foundation.ids import Epoch, LogIndex, VertexId
from crosscut.host.failpoints import Failpoints
from crosscut.net.causes import failure_cause
from crosscut.protocol.effects import AppendEntry, DeleteParts, FindSplits
from crosscut.protocol.events import (
    DiscoveryFailed,
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    JobEvent,
    LogTailRead,
    PartsDeleted,
    PartsListed,
    SplitsDiscovered,
    SplitsFound,
)
from crosscut.protocol.log.entries import CheckpointCompleted, JobFinished
from crosscut.protocol.log.writer import Appended, Taken, Unknown
from crosscut.protocol.messages import SplitAssignment
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.task.discovery import checked_discovery, found_first, undiscovered
from crosscut.task.splits import split_as_json

T = TypeVar("T")

Find = Callable[[VertexId, JSON], Discovered]


def nothing_to_find(source: VertexId, known: JSON) -> Discovered:
    """Stand in where no source is dynamic."""
    raise InternalError(f"source {source!r} is not dynamic, and was asked for splits that have come")


class Asking:
    """Each method carries out one effect of the coordinator, and returns the event that answers it.

    Args:
        discover: Asks the sources for their splits, and has them stage what they have to, for an epoch.
        look: Asks the sinks for their committed output.
        find: Asks a dynamic source for splits that have come.
    """

    def __init__(
        self,
        store: CheckpointStore,
        discover: Callable[[Epoch], tuple[SplitAssignment, ...]],
        look: Callable[[], tuple[CommittedOutput, ...]],
        failpoints: Failpoints,
        find: Find = nothing_to_find,
    ) -> None:
        self._store = store
        self._discover = discover
        self._look = look
        self._failpoints = failpoints
        self._find = find

    def read_tail(self, checkpoints: int) -> JobEvent:
        """Read the end of the log, and what the sinks have committed."""
        outputs = self._look()
        return LogTailRead(tuple(self._store.tail(checkpoints)), outputs)

    def discover(self, epoch: Epoch) -> JobEvent:
        """Ask the sources for their splits."""
        return SplitsDiscovered(self._discover(epoch))

    def find(self, effect: FindSplits) -> JobEvent:
        """Ask a dynamic source for splits that have come."""
        try:
            found = checked_discovery(self._find(effect.source, effect.known), effect.source)
            if effect.restored is not None:
                found = found_first(found, effect.restored, effect.source)
        except Exception as error:  # noqa: BLE001 - of a source somebody else wrote
            cause = failure_cause(undiscovered(effect.source, error))
            return DiscoveryFailed(effect.epoch, effect.source, cause)
        self._failpoints("driver.found")
        rows: JSON = [split_as_json(one) for one in found.splits]
        return SplitsFound(
            effect.epoch, effect.source, rows, found.known, found.is_last, is_coming=found.is_coming
        )

    def append(self, effect: AppendEntry) -> JobEvent:
        """Append an entry to the log."""
        index, entry = effect.index, effect.entry
        if isinstance(entry, CheckpointCompleted):
            self._failpoints("driver.append")
        elif isinstance(entry, JobFinished):
            self._failpoints("driver.finish")
        try:
            outcome = self._store.append(index, entry, effect.since)
        except StoreError as error:
            return EntryRefused(index, str(error))
        match outcome:
            case Appended():
                if isinstance(entry, CheckpointCompleted):
                    self._failpoints("driver.appended")
                return EntryAppended(index)
            case Taken():
                return EntryTaken(index)
            case Unknown(_, reason):
                return EntryUncertain(index, reason)
            case _:
                assert_never(outcome)

    def read(self, index: LogIndex) -> JobEvent:
        """Read what stands at `index`."""
        try:
            return EntryRead(index, self._store.read(index))
        except StoreError as error:
            if getattr(error, "damaged", False) or isinstance(error, AuthenticityError):
                raise
            return EntryUncertain(index, str(error))

    def list_parts(self) -> JobEvent | None:
        """List all that the store has; None: it can't be had."""
        try:
            parts, (entries, unfinished) = self._store.list_parts(), self._store.list_log()
            return PartsListed(tuple(parts), tuple(entries), tuple(unfinished))
        except StoreError:
            # Only tidiness depends on it; the next epoch tries again.
            return None

    def delete(self, effect: DeleteParts) -> JobEvent:
        """Delete parts and entries, as far as they can be."""

        def one_by_one(them: Iterable[T]) -> Iterator[T]:
            for one in them:
                self._failpoints("driver.delete")
                yield one

        # A part that can't be deleted stays as an orphan, for the sweep of a later epoch.
        self._store.delete_parts(one_by_one(effect.paths))
        self._store.delete_entries(one_by_one(effect.entries))
        return PartsDeleted()
