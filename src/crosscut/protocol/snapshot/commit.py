"""The second phase of a sink task: when a staged transaction may become visible.

Completing n authorises the commit of everything staged at or below n, not only of n's own
transaction: the word about n-1 may have been lost, and a transaction that was cut off at the barrier
of an aborted checkpoint lies before every later barrier (docs/protocol.md, "Commit").

Commits go one completed checkpoint at a time, in order: what a slow sink has answered for is known, and is
not committed again after a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import assert_never

from crosscut.contracts.connectors import HAS_NO_RECORDS, JSON, CommitPermit
from crosscut.errors import ProtocolError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage
from crosscut.protocol.effects import AnnounceCommitted, CommitterEffect, CommitTransactions, FailTask
from crosscut.protocol.events import (
    CommitAttemptFailed,
    CommitAuthorised,
    CommitSucceeded,
    CommitterEvent,
    TransactionPrepared,
)
from crosscut.protocol.snapshots import KnownCommitted, PendingTransaction, Snapshot

RETRY_DELAY_MS = 50
"""Before the second attempt; doubles with each one."""

RETRY_DELAY_MAX_MS = 5_000


class Committer:
    """Pending transactions of one sink task in one epoch.

    Args:
        attempts_max: Attempts at one commit before the task fails; the restore commits again.
        committed: What is known to be visible when the epoch begins.
    """

    def __init__(
        self,
        lineage: Lineage,
        epoch: Epoch,
        attempts_max: int,
        committed: KnownCommitted = KnownCommitted(),  # noqa: B008 - frozen
    ) -> None:
        self.committed = committed
        self._lineage = lineage
        self._epoch = epoch
        self._attempts_max = attempts_max
        # Several of one checkpoint only where tasks of a sink commit together.
        self._pending: dict[CheckpointId, tuple[JSON, ...]] = {}
        self._authorised = CheckpointId(0)
        self._announced = CheckpointId(0)
        # Completed, and not announced yet, in order.
        self._due: tuple[CheckpointId, ...] = ()
        # The newest checkpoint of the attempt in flight, and the number of the attempt.
        self._in_flight: CommitPermit | None = None
        self._attempt = 0
        self._is_failed = False
        self.dropped: Counter[str] = Counter()

    def pending(self, checkpoint_id: CheckpointId) -> tuple[PendingTransaction, ...]:
        """Return the transactions that the completion of `checkpoint_id` commits: part of the snapshot."""
        return tuple(
            PendingTransaction(n, handle)
            for n, handles in self._pending.items()
            if n <= checkpoint_id
            for handle in handles
        )

    def handle(self, event: CommitterEvent) -> list[CommitterEffect]:
        """Take one event and return the effects to perform, in order.

        Raises:
            ProtocolError: The event is impossible; nothing has changed.
        """
        match event:
            case TransactionPrepared(checkpoint_id, handle):
                if self._pending and checkpoint_id <= next(reversed(self._pending)):
                    raise ProtocolError(f"transaction {checkpoint_id} prepared out of order")
                if checkpoint_id <= self._authorised:
                    raise ProtocolError(
                        f"checkpoint {checkpoint_id} was completed before its transaction was prepared"
                    )
                self._pending[checkpoint_id] = (handle,)
                return []
            case CommitAuthorised(checkpoint_id, together):
                if checkpoint_id <= self._authorised:
                    self.dropped["repeated completion"] += 1
                    return []
                self._authorised = checkpoint_id
                self._due += (checkpoint_id,)
                if together is not None:
                    self._commit_instead(checkpoint_id, together)
                return self._next()
            case CommitSucceeded():
                permit = self._permit_in_flight()
                self._in_flight = None
                self._attempt = 0
                self.committed = moved(self.committed, self.pending(permit.checkpoint_id))
                self._pending = {n: h for n, h in self._pending.items() if n > permit.checkpoint_id}
                return [*self._announce(permit.checkpoint_id), *self._next()]
            case CommitAttemptFailed(reason, is_permanent, is_transient):
                permit = self._permit_in_flight()
                if is_permanent or self._attempt >= self._attempts_max:
                    self._is_failed = True
                    self._in_flight = None
                    return [
                        FailTask(
                            f"the output of checkpoint {permit.checkpoint_id} could not be committed in "
                            f"{self._attempt} attempts, the last one: {reason}",
                            is_permanent,
                            is_transient,
                        )
                    ]
                return [self._try(permit)]
            case _:
                assert_never(event)

    def _commit_instead(self, n: CheckpointId, together: tuple[PendingTransaction, ...]) -> None:
        """Have these take the place of what is pending at or below n; the coordinator may not know yet what
        of them was committed."""
        found: dict[CheckpointId, tuple[JSON, ...]] = {}
        for one in together:
            if one.checkpoint_id > self._announced:
                found[one.checkpoint_id] = (*found.get(one.checkpoint_id, ()), one.handle)
        newer = {m: handles for m, handles in self._pending.items() if m > n}
        self._pending = dict(sorted(found.items())) | newer

    def _permit_in_flight(self) -> CommitPermit:
        if self._in_flight is None:
            raise ProtocolError("the outcome of a commit that was not asked for")
        return self._in_flight

    def _next(self) -> list[CommitterEffect]:
        if self._in_flight is not None or self._is_failed:
            return []
        effects: list[CommitterEffect] = []
        while self._due:
            due = self._due[0]
            if any(n <= due for n in self._pending):
                self._in_flight = CommitPermit(self._lineage, self._epoch, due, self.committed.checkpoint_id)
                return [*effects, self._try(self._in_flight)]
            # Its sink has written nothing since the one before.
            effects += self._announce(due)
        return effects

    def _try(self, permit: CommitPermit) -> CommitTransactions:
        delay_ms = 0
        if self._attempt:
            delay_ms = min(RETRY_DELAY_MS << min(self._attempt - 1, 20), RETRY_DELAY_MAX_MS)
        self._attempt += 1
        handles = tuple(h for n, of_n in self._pending.items() if n <= permit.checkpoint_id for h in of_n)
        return CommitTransactions(permit, handles, delay_ms)

    def _announce(self, checkpoint_id: CheckpointId) -> list[CommitterEffect]:
        self._announced = checkpoint_id
        self._due = tuple(n for n in self._due if n > checkpoint_id)
        return [AnnounceCommitted(checkpoint_id)]


def known_before(restored: Snapshot, location: str) -> KnownCommitted:
    """Return what is known to be visible of a task before it recovers.

    Args:
        restored: Its snapshot in the restored checkpoint.
        location: What its sink says of itself now. If that has changed, and the user has accepted it, what
            was committed elsewhere says nothing.
    """
    here = blake2b(location.encode(), digest_size=8).hexdigest()
    known = restored.committed
    return known if known is not None and known.location == here else KnownCommitted(location=here)


def known_after(known: KnownCommitted, restored: Snapshot) -> KnownCommitted:
    """Return what is known once the task has recovered: `known`, and all that its snapshot commits."""
    return moved(known, restored.pending)


def moved(known: KnownCommitted, confirmed: Iterable[PendingTransaction]) -> KnownCommitted:
    """Return what is known once the commit of `confirmed` is."""
    with_records = [
        one.checkpoint_id
        for one in confirmed
        if not (isinstance(one.handle, dict) and HAS_NO_RECORDS in one.handle)
    ]
    return replace(known, checkpoint_id=max([known.checkpoint_id, *with_records]))


def restore_permit(
    lineage: Lineage, epoch: Epoch, restored: CheckpointId, committed: CheckpointId = CheckpointId(0)
) -> CommitPermit | None:
    """Return the permit to replay the commits of the restored checkpoint, None if there is none.

    The restored checkpoint was read from the log, so its entry is durable: restoring n first replays
    its commits, then reads.

    Args:
        committed: The newest transaction of the task that is known to be visible.
    """
    return CommitPermit(lineage, epoch, restored, committed) if restored else None
