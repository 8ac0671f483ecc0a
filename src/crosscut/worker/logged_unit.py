"""A worker as a unit of logging, in one epoch: its log, what decides about it, and who carries that out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from crosscut.errors import InternalError
from crosscut.foundation.batch import NumberedBatch
from crosscut.foundation.ids import ChannelId, Epoch, WorkerIndex
from crosscut.host.calls import StartThread
from crosscut.host.clock import Clock
from crosscut.host.failpoints import Failpoints
from crosscut.protocol.messages import WorkerMessage
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.effects import RestoreUnit
from crosscut.protocol.unit_log.entries import Incarnation
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    InputsAcknowledged,
    RecordsArrived,
    ResumeAsked,
    ResumeRefused,
)
from crosscut.protocol.unit_log.spec import UnitLogSpec
from crosscut.protocol.unit_log.unit import Unit
from crosscut.state.reading import ReadPart
from crosscut.task.items import Barrier, EndOfInput
from crosscut.task.task_section import decode_groups
from crosscut.task.unit_restore import RestoredUnit, restored_unit
from crosscut.worker.pool import TaskPool
from crosscut.worker.unit_runner import GroupLimits, Log, UnitRunner
from crosscut.worker.unit_tasks import UnitChannels, UnitTasks

_LOG = logging.getLogger("crosscut")


class LoggedUnit:
    """One incarnation of a worker's unit. `claim`, then build the tasks, then `begin`.

    Args:
        channels: All between a task of this worker and one of another.
        timeout_ms: How long one call of the log may take.
        connections: Those to the other workers.
        report: Takes what the tasks have to say to the coordinator.
        ended: See `UnitRunner`.
        has_lasting_threads: See `LogThread`.

    Attributes:
        tasks: Hears of connections, and of what the tasks have to say.
    """

    def __init__(
        self,
        spec: UnitLogSpec,
        log: Log,
        worker: WorkerIndex,
        epoch: Epoch,
        channels: Sequence[ChannelId],
        *,
        channel_bytes: int,
        commit_attempts: int,
        timeout_ms: int,
        connections: UnitChannels,
        report: Callable[[WorkerMessage], None],
        ended: Callable[[Exception], None],
        failpoints: Failpoints,
        clock: Clock,
        start_thread: StartThread,
        has_lasting_threads: bool,
    ) -> None:
        # All restarts are of the whole job, so each epoch has one holder of this place.
        unit = Unit(
            Incarnation(epoch, 1),
            tuple(one for one in channels if one.target.index == worker),
            tuple(one for one in channels if one.source.index == worker),
            timeout_ms,
            spec.kind,
            channel_bytes=channel_bytes,
            commit_attempts=commit_attempts,
        )
        self._runner = UnitRunner(
            unit,
            log,
            GroupLimits(interval_ms=spec.interval_ms),
            ended=ended,
            warn=_warn,
            failpoints=failpoints,
            clock=clock,
            start=start_thread,
            is_thread_lasting=has_lasting_threads,
        )
        self.tasks = UnitTasks(unit, spec, epoch, self._runner, connections, report)
        self._claimed: tuple[RestoreUnit, RestoredUnit] | None = None

    async def claim(self, pool: TaskPool, read_part: ReadPart) -> RestoredUnit:
        """Claim the log; return what it adds up to for the tasks.

        Raises:
            StateError: The log can't be read by this release.
            StoreError: It is damaged, or can't be used.
            WorkersError: A newer incarnation owns the log.
        """
        restore = await self._runner.claim()
        base: tuple[bytes, ...] = ()
        if (snapshot := restore.snapshot) is not None:
            base = decode_groups(await pool.in_thread(read_part, snapshot.parts[0]))
        restored = restored_unit((*base, *(group.content.sections for group in restore.groups)))
        self._claimed = restore, restored
        return restored

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those of the snapshot that the log begins with; none if it has none."""
        restore = self._claimed[0] if self._claimed is not None else None
        return restore.snapshot.parts if restore is not None and restore.snapshot is not None else ()

    def begin(self, pool: TaskPool) -> None:
        """The tasks are in `pool`, and have not been started."""
        if self._claimed is None:
            raise InternalError("the tasks of a unit begin before its log is claimed")
        restore, restored = self._claimed
        self.tasks.begin(pool, restore, restored)
        # It holds the whole tail of the log.
        self._claimed = None

    def stop(self) -> None:
        """Take no more input, and report when all output in the log is visible."""
        self.tasks.stop()

    def close(self) -> None:
        """End without a word; nothing leaves this unit any more."""
        self._runner.close()


class UnitPlace:
    """Where the unit of the running epoch is found by what outlives it: the connections, and the pool.

    Args:
        send: Sends a message to the coordinator.

    Attributes:
        unit: None: the worker has no log, or its epoch has not begun or is over.
    """

    def __init__(self, send: Callable[[WorkerMessage], None]) -> None:
        self.unit: LoggedUnit | None = None
        self._send = send

    def close(self) -> None:
        """The epoch is over."""
        unit, self.unit = self.unit, None
        if unit is not None:
            unit.close()

    def report(self, message: WorkerMessage) -> None:
        """A task has something to say."""
        if self.unit is not None:
            self.unit.tasks.report(message)
        else:
            self._send(message)

    def channel_opened(self, event: ChannelConnected | ChannelAccepted) -> None:
        """See `UnitTasks`, as for the others."""
        if self.unit is not None:
            self.unit.tasks.channel_opened(event)

    def records_arrived(
        self, event: RecordsArrived, item: NumberedBatch | EndOfInput, size_bytes: int
    ) -> None:
        if self.unit is not None:
            self.unit.tasks.records_arrived(event, item, size_bytes)

    def barrier_arrived(self, channel: ChannelId, barrier: Barrier) -> None:
        if self.unit is not None:
            self.unit.tasks.barrier_arrived(channel, barrier)

    def handle_peer_event(self, event: ResumeAsked | ResumeRefused | InputsAcknowledged) -> None:
        if self.unit is not None:
            self.unit.tasks.handle_peer_event(event)


def _warn(reason: str) -> None:
    _LOG.warning("a log could not be made shorter: %s", reason)
