"""The transactions of a sink task: events for its committer, and the effects carried out."""

from __future__ import annotations

from typing import assert_never

from crosscut.contracts.connectors import JSON, SinkWriter
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.effects import AnnounceCommitted, CommitTransactions, FailTask
from crosscut.protocol.events import CommitAttemptFailed, CommitSucceeded, CommitterEvent, TransactionPrepared
from crosscut.protocol.messages import FailureCause, TaskFailed, TransactionsCommitted
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshots import KnownCommitted, PendingTransaction
from crosscut.task.requests import PrepareTransaction
from crosscut.task.task_effects import TaskEffects


class Transactions:
    """What one task writes to its sink; nothing, where it has none.

    Args:
        writer: Of the sink.
        committer: Decides what is committed when.
    """

    def __init__(
        self,
        task_id: TaskId,
        epoch: Epoch,
        writer: SinkWriter | None,
        committer: Committer | None,
        task_effects: TaskEffects,
        sink_uid: str = "",
    ) -> None:
        self._task_id = task_id
        self._epoch = epoch
        self._writer = writer
        self._committer = committer
        self._task_effects = task_effects
        self._sink_uid = sink_uid
        self.newest_cut_off = self.newest_prepared = CheckpointId(0)
        """The newest transactions that were cut off, and that are durable."""

    def cut_off(self, n: CheckpointId) -> None:
        """Records so far belong to checkpoint n, later ones to the next."""
        transaction = self._writer.rotate(n) if self._writer is not None else None
        if transaction is not None:
            self.newest_cut_off = n
            self._task_effects.background_jobs.append(PrepareTransaction(n, transaction))

    def pending(self, n: CheckpointId) -> tuple[PendingTransaction, ...]:
        """Return the transactions that checkpoint n commits."""
        return self._committer.pending(n) if self._committer is not None else ()

    def committed(self) -> KnownCommitted | None:
        """Return what is known to be visible, None without a sink."""
        return self._committer.committed if self._committer is not None else None

    def handle(self, event: CommitterEvent) -> None:
        """Tell the committer, and carry out its effects."""
        for effect in self._committer.handle(event) if self._committer is not None else ():
            match effect:
                case CommitTransactions():
                    self._task_effects.background_jobs.append(effect)
                case AnnounceCommitted(n):
                    self._task_effects.messages.append(TransactionsCommitted(self._epoch, n, self._task_id))
                case FailTask(reason, is_permanent, is_transient):
                    cause = FailureCause(
                        "CommitFailed",
                        f"sink {self._sink_uid!r}: {reason}" if self._sink_uid else reason,
                        self._sink_uid,
                        is_permanent=is_permanent,
                        is_transient=is_transient,
                    )
                    self._task_effects.messages.append(TaskFailed(self._epoch, self._task_id, cause))
                case _:
                    assert_never(effect)

    def prepared(self, n: CheckpointId, handle: JSON) -> None:
        """The transaction that was cut off for checkpoint n is durable; told before its snapshot is."""
        self.newest_prepared = n
        self.handle(TransactionPrepared(n, handle))

    def commit_succeeded(self) -> None:
        """The commit asked for last is visible."""
        self.handle(CommitSucceeded())

    def commit_failed(self, reason: str, *, is_permanent: bool = False, is_transient: bool = False) -> None:
        """The commit asked for last failed or its outcome is unknown."""
        self.handle(CommitAttemptFailed(reason, is_permanent, is_transient))

    def close(self) -> None:
        """Close the writer."""
        if self._writer is not None:
            self._writer.close()
