"""The snapshots of a task that are under way: frozen, logged, stored, until they are acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from crosscut.contracts.connectors import JSON
from crosscut.foundation.batch import Batch
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol.snapshots import KnownCommitted, Part, PendingTransaction, Snapshot
from crosscut.protocol.telemetry import SnapshotTimes
from crosscut.state.keyed import KeyedState
from crosscut.state.parts import PartChain
from crosscut.task.channel_log import SnapshotLog, SpilledBlocks, release_log
from crosscut.task.requests import FrozenTask
from crosscut.task.spilling import SpillSpace

NO_TIMES = SnapshotTimes()


@dataclass(frozen=True, slots=True)
class Stored:
    """The durable parts of a snapshot.

    Attributes:
        part: Holds the keyed state, if any.
        freeze_us: How long the performer saw the task stopped while it froze.
        log: Holds the channel records, if there were any.
        held: The records of pending transactions, by the checkpoint they were cut off at.
        whole: All parts of the keyed state, where it is kept in files of its own; else None.
        times: How long it took.
        record_fields: `Snapshot.record_fields`.
    """

    part: Part | None
    freeze_us: int
    log: Part | None = None
    held: Mapping[CheckpointId, Part] | None = None
    whole: tuple[Part, ...] | None = None
    times: SnapshotTimes = NO_TIMES
    record_fields: JSON = None


class Captures:
    """The books of a task's snapshots.

    Args:
        parts: Those of the restored checkpoint.
        log_space: Takes logs that are too long for memory.
        state: The keyed state, if the task has any.
    """

    def __init__(
        self, parts: PartChain, log_space: SpillSpace | None, state: KeyedState | None = None
    ) -> None:
        self._parts = parts
        self._state = state
        self._log_space = log_space
        self._frozen: dict[CheckpointId, FrozenTask] = {}
        self._logs: dict[CheckpointId, SnapshotLog] = {}
        self._stored: dict[CheckpointId, Stored] = {}
        # By checkpoints that have been acknowledged and may yet become complete.
        self._chains: dict[CheckpointId, PartChain] = {}

    def plan_part(self, n: CheckpointId) -> CheckpointId:
        """The state has been frozen for snapshot n: settle what its part holds.

        Returns:
            The checkpoint that it holds the changes since; 0: it has to be a full one.
        """
        state = self._state
        if state is None:
            return CheckpointId(0)
        since = state.next_base(self._parts)
        if since:
            state.plan_part(n, since, self._parts.checkpoint_id)
        return since

    def begin(self, frozen: FrozenTask) -> None:
        """The task is frozen; channel records are still to be logged."""
        self._frozen[frozen.checkpoint_id] = frozen

    def log(self, n: CheckpointId, channel: ChannelId, batch: Batch, *, by_sender: bool) -> None:
        """Let snapshot n hold a batch of a channel."""
        self._log_of(n).add(channel, batch, by_sender=by_sender)

    def log_blocks(self, n: CheckpointId, blocks: SpilledBlocks) -> None:
        """Let snapshot n hold blocks that a queue has on disk."""
        self._log_of(n).add_blocks(blocks)

    def whole(self, n: CheckpointId) -> FrozenTask:
        """All channel records are logged: return the whole, to be stored."""
        log = self._logs.pop(n, None)
        if log is not None:
            self._frozen[n] = replace(self._frozen[n], log=log.take())
        return self._frozen[n]

    def stored(self, n: CheckpointId, stored: Stored) -> bool:
        """Snapshot n is durable; return whether it is still wanted."""
        if n not in self._frozen:
            return False
        self._stored[n] = stored
        return True

    def discard(self, n: CheckpointId) -> None:
        """Give snapshot n up."""
        release_log(self._logs.pop(n, SnapshotLog()).take())
        self._frozen.pop(n, None)
        self._stored.pop(n, None)

    def times(self, n: CheckpointId) -> SnapshotTimes:
        """Return how long snapshot n took, which is durable."""
        return self._stored[n].times

    def unused(self, n: CheckpointId, pending: tuple[PendingTransaction, ...]) -> tuple[str, ...]:
        """Return the files stored for snapshot n that it does not refer to once it is acknowledged.

        A transaction that is committed while the snapshot is stored is not pending any more, but its records
        are stored.
        """
        still = {one.checkpoint_id for one in pending}
        held = self._stored[n].held or {}
        return tuple(part.path for at, part in held.items() if at not in still and part.path)

    def acknowledge(
        self, n: CheckpointId, pending: tuple[PendingTransaction, ...], committed: KnownCommitted | None
    ) -> Snapshot:
        """Return snapshot n for its acknowledgement.

        Args:
            pending: The transactions that its checkpoint commits.
            committed: Those that are known to be committed.
        """
        frozen, stored = self._frozen.pop(n), self._stored.pop(n)
        parts = stored.whole or ()
        if stored.part is not None:
            built = self._state.build_part(n, self._parts.checkpoint_id) if self._state is not None else None
            parts = self._parts.with_part(stored.part, frozen.since, built)
        self._chains[n] = PartChain(n, parts)
        if stored.held:
            pending = tuple(replace(one, held=stored.held.get(one.checkpoint_id)) for one in pending)
        # Not timers and open windows: they speak before the task is drained, and there are none in loops.
        at_rest = not frozen.log and not frozen.is_calling
        return Snapshot(
            parts=parts,
            positions=frozen.positions,
            pending=pending,
            committed=committed,
            drained=frozen.is_end_forwarded and at_rest,
            log=(stored.log,) if stored.log is not None else (),
            in_flight=sum(one.rows for one in frozen.log),
            ended=frozen.ended,
            said=frozen.final_progress,
            at_rest=at_rest,
            watermark=frozen.watermark,
            assigned=frozen.assigned,
            fields=self._state.field_names.as_json() if self._state is not None else None,
            record_fields=stored.record_fields,
            now_ms=frozen.now_ms,
            freeze_us=stored.freeze_us,
            records_in=frozen.records_in,
            records_out=frozen.records_out,
            late_records=frozen.late_records,
            state_keys=frozen.state_keys,
        )

    def completed(self, n: CheckpointId) -> None:
        """Checkpoint n is complete: later parts build on its own."""
        self._parts = self._chains.pop(n, self._parts)
        self._chains = {other: one for other, one in self._chains.items() if other > n}

    def _log_of(self, n: CheckpointId) -> SnapshotLog:
        log = self._logs.get(n)
        if log is None:
            log = self._logs[n] = SnapshotLog(self._log_space)
        return log
