"""What the driver asks of store, sources and sinks. All of it may block, and is called in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, assert_never

from crosscut.errors import AuthenticityError, StoreError
from crosscut.host.failpoints import Failpoints
from crosscut.ids import Epoch, LogIndex
from crosscut.interfaces import CommittedOutput
from crosscut.protocol.effects import AppendEntry, DeleteParts
from crosscut.protocol.events import (
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
)
from crosscut.protocol.job.entries import CheckpointCompleted, JobFinished
from crosscut.protocol.job.job_log import Appended, Taken, Unknown
from crosscut.protocol.messages import SplitAssignment
from crosscut.store.checkpoint_store import CheckpointStore

T = TypeVar("T")


class Asking:
    """Each method carries out one effect of the coordinator, and returns the event that answers it.

    Args:
        discover: Asks the sources for their splits, and has them stage what they have to, for an epoch.
        look: Asks the sinks for their committed output.
    """

    def __init__(
        self,
        store: CheckpointStore,
        discover: Callable[[Epoch], tuple[SplitAssignment, ...]],
        look: Callable[[], tuple[CommittedOutput, ...]],
        failpoints: Failpoints,
    ) -> None:
        self._store = store
        self._discover = discover
        self._look = look
        self._failpoints = failpoints

    def read_tail(self, checkpoints: int) -> JobEvent:
        """Read the end of the log, and what the sinks have committed."""
        outputs = self._look()
        return LogTailRead(tuple(self._store.tail(checkpoints)), outputs)

    def discover(self, epoch: Epoch) -> JobEvent:
        """Ask the sources for their splits."""
        return SplitsDiscovered(self._discover(epoch))

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
