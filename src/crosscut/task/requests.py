"""Work that a task asks for. Its performer does it in the background, and answers."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId
from crosscut.operators.async_map import StartCall
from crosscut.protocol.effects import CommitTransactions
from crosscut.task.channel_log import Logged


@dataclass(frozen=True, slots=True)
class FrozenTask:
    """A task as it was at barrier n, not yet durable.

    Attributes:
        since: The keyed state is to be stored as the changes since that checkpoint; 0: all of it.
        final_progress: Position in the final results; None before and after them.
        watermark: Of the inputs together.
        assigned: The watermarks that operators make themselves.
        is_calling: There were asynchronous calls under way, or results that had not gone on.
        is_end_forwarded: The end of input has been passed on, in this epoch.
        records_in: And the others: the counters then; see `Snapshot`.
        log: The channel records of the snapshot; the storing side lets go of them.
    """

    checkpoint_id: CheckpointId
    since: CheckpointId
    positions: JSON
    ended: bool
    final_progress: JSON = None
    watermark: int | None = None
    assigned: JSON = None
    # Like the counters, it tells no snapshot from another.
    now_ms: int = field(default=0, compare=False)
    is_end_forwarded: bool = False
    is_calling: bool = False
    # They tell no snapshot from another.
    records_in: int = field(default=0, compare=False)
    records_out: int = field(default=0, compare=False)
    late_records: int = field(default=0, compare=False)
    state_keys: int = field(default=0, compare=False)
    log: tuple[Logged, ...] = ()


@dataclass(frozen=True, slots=True)
class PrepareTransaction:
    """Make the transaction that the sink's writer rotated off durable; answer `transactions.prepared`.

    It must be done even if the checkpoint is aborted: its records come before every later barrier.
    """

    checkpoint_id: CheckpointId
    transaction: Any


@dataclass(frozen=True, slots=True)
class StoreFrozen:
    """Encode and store, after the transaction; answer `snapshot_stored` or `snapshot_failed`."""

    frozen: FrozenTask


@dataclass(frozen=True, slots=True)
class CancelStore:
    """Stop encoding and storing the keyed state of n. Its transaction must be prepared all the same."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CompleteState:
    """Fold the state of n into the base, a step at a time, after all that is being stored."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class WaitForAlignment:
    """Call `alignment_timed_out` when the alignment of n has taken as long as the settings allow."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class NotePause:
    """This call of the task has stopped it for checkpoint n: the longest such is reported."""

    checkpoint_id: CheckpointId


BackgroundJob = (
    NotePause
    | PrepareTransaction
    | StoreFrozen
    | CancelStore
    | CompleteState
    | CommitTransactions
    | WaitForAlignment
    | StartCall
)
