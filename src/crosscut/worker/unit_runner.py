"""Runs a worker's tasks as one unit of logging: carries out what `protocol.unit_log` decides.

The machine (`Unit`) decides what is appended, and what may leave after that. `group_end` decides when a group
ends. Here are the calls of the log, in a thread of their own, the timers, and the order of it all:

* Events are handled one at a time, on the event loop. All effects of one are carried out, in order, before
  the next one is handled. So nothing that an effect brings about overtakes the effects after it.
* The loop never waits for the log. While an append is under way the tasks go on, and the next group grows.
  It stops growing at a size and an age: tasks finish the batch that they have begun, and take no more.
* After the end of the unit no effect is carried out, whatever the log still answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from crosscut.contracts.connectors import JSON
from crosscut.errors import (
    AuthenticityError,
    ConnectorError,
    InternalError,
    StoreError,
    WorkersError,
    invariant,
)
from crosscut.foundation.ids import LogIndex
from crosscut.host.calls import StartThread, call_on, start_thread
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.protocol.effects import CancelTimer, StartTimer
from crosscut.protocol.events import EntryUncertain, Timer, TimerFired
from crosscut.protocol.unit_log.closing import (
    GROUP_BYTES,
    HOLD_BYTES,
    HOLD_MS,
    GroupEnd,
    GrowingGroup,
    group_end,
)
from crosscut.protocol.unit_log.effects import (
    AcknowledgeSources,
    AppendUnitEntry,
    AuthoriseCommit,
    ChannelEffect,
    DeleteGroups,
    EndUnit,
    FreezeUnit,
    ReadNewestHead,
    ReadUnitEntry,
    ReadUnitTail,
    RestoreUnit,
    SealSegment,
    StoreUnitSnapshot,
    UnitEffect,
)
from crosscut.protocol.unit_log.entries import UnitEntry
from crosscut.protocol.unit_log.events import (
    GroupEnded,
    LogAnswer,
    NewestHeadRead,
    SegmentSealed,
    UnitCommitFailed,
    UnitEntryRead,
    UnitEvent,
    UnitLogFailed,
    UnitSnapshotStored,
    UnitTailRead,
)
from crosscut.protocol.unit_log.unit import Unit
from crosscut.worker.log_thread import LogThread

_SYSTEM_CLOCK = SystemClock()
_OfTasks = ChannelEffect | AcknowledgeSources | AuthoriseCommit | FreezeUnit | StoreUnitSnapshot


class Log(Protocol):
    """The log of a unit; see `crosscut.store.unit_log.UnitLogStore`. All of it blocks."""

    def newest_head(self) -> NewestHeadRead: ...

    def seal(self, segment: int) -> SegmentSealed: ...

    def read_tail(self) -> UnitTailRead: ...

    def read(self, index: LogIndex) -> UnitEntryRead: ...

    def append(self, index: LogIndex, entry: UnitEntry) -> LogAnswer: ...

    def delete(self, indices: Iterable[LogIndex]) -> list[str]: ...

    def close(self) -> None: ...


class UnitPool(Protocol):
    """The scheduler of the tasks; see `crosscut.worker.pool.TaskPool`."""

    after_round: Callable[[bool], None] | None

    @property
    def is_settled(self) -> bool: ...

    def settle(self) -> None: ...

    def go_on(self) -> None: ...

    def schedule(self) -> None: ...


class UnitHost(Protocol):
    """The tasks: what they have made of the group that grows, their channels, and their sinks.

    All is called on the event loop, and never blocks.
    """

    @property
    def has_content(self) -> bool:
        """Whether a task has processed something since the last group ended."""

    @property
    def size_bytes(self) -> int:
        """About how long the entry of the group would be. It is asked for in each round."""

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the end of the group: a barrier, a savepoint, the end of the job."""

    def end_group(self) -> GroupEnded | None:
        """Return what the tasks have made, and begin the next group. All are between two batches.

        Returns:
            None: The sinks have something to make durable first. Tasks stand still, and this is called again
            in the next round.

        Raises:
            StateError: Something of it can't be stored. The unit ends.
        """

    def round_over(self) -> None:
        """A round of the scheduler is over, and no group is ending."""

    def perform(self, effect: ChannelEffect) -> None:
        """Carry out an effect of a channel."""

    def acknowledge_sources(self, positions: tuple[tuple[str, JSON], ...]) -> None:
        """See `AcknowledgeSources`."""

    def commit(self, effect: AuthoriseCommit) -> None:
        """See `AuthoriseCommit`; answered by `UnitCommitted` or `UnitCommitFailed`."""

    def freeze(self, index: LogIndex) -> None:
        """See `FreezeUnit`."""

    def store(self, index: LogIndex) -> None:
        """See `StoreUnitSnapshot`; answered by `UnitSnapshotStored` or `UnitSnapshotFailed`."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """When a group ends, and when it grows no more; see `group_end`."""

    interval_ms: int = 0
    group_bytes: int = GROUP_BYTES
    hold_bytes: int = HOLD_BYTES
    hold_ms: int = HOLD_MS


class UnitRunner:
    """The runner of one incarnation. All methods are called on the event loop.

    `claim` comes first, then the tasks are built, then `begin`.

    Args:
        log: Is closed with the runner.
        ended: Is told once that the unit has come to its end by itself after `claim`, and why. The process
            has to end. A WorkersError says that a newer incarnation owns the log: no fault of the job.
        warn: Takes what could not be deleted, for people.
        is_thread_lasting: See `LogThread`.

    Attributes:
        is_over: The unit has ended: no effect is carried out any more.
    """

    def __init__(
        self,
        unit: Unit,
        log: Log,
        limits: GroupLimits,
        *,
        ended: Callable[[Exception], None],
        warn: Callable[[str], None],
        failpoints: Failpoints,
        clock: Clock = _SYSTEM_CLOCK,
        start: StartThread = start_thread,
        is_thread_lasting: bool = True,
    ) -> None:
        self.is_over = False
        self._unit = unit
        self._log = log
        self._limits = limits
        self._ended = ended
        self._warn = warn
        self._failpoints = failpoints
        self._now_ns = clock.monotonic_ns
        self._loop = asyncio.get_running_loop()
        self._thread = LogThread("crosscut-unit-log", start, is_lasting=is_thread_lasting)
        # They may take long, and nothing waits for them.
        self._deletions = LogThread("crosscut-unit-log-deletions", start, is_lasting=False)
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._events: deque[UnitEvent] = deque()
        self._is_handling = False
        # The error of a call of the log that has failed.
        self._failure: Exception | None = None
        self._claimed: asyncio.Future[RestoreUnit] | None = None
        self._after_restore: list[UnitEffect] = []
        self._pool: UnitPool | None = None
        self._books: UnitHost | None = None
        self._grows_since_ns: int | None = None
        # A group has ended for the tasks, and its sinks are not ready yet.
        self._is_ending = False
        self._after_ending: list[UnitEvent] = []
        self._is_stopping = False

    @property
    def _takes_input(self) -> bool:
        return self._unit.takes_input and not self._is_stopping

    @property
    def trouble(self) -> str:
        """Why the append under way did not succeed yet, for people; "" if nothing is wrong."""
        return self._unit.trouble

    async def claim(self) -> RestoreUnit:
        """Claim the log, and return what the tasks are to be restored from.

        Raises:
            StoreError: The log is damaged, or can't be used.
            WorkersError: A newer incarnation owns the log.
        """
        invariant(self._claimed is None, "a unit claims its log once")
        self._claimed = self._loop.create_future()
        self._guarded(lambda: self._perform(self._unit.start(), None))
        return await self._claimed

    def begin(self, pool: UnitPool, books: UnitHost) -> None:
        """The tasks are restored: carry out what has waited for that, and end groups from now on."""
        if self.is_over:
            return
        self._pool, self._books = pool, books
        pool.after_round = self._look
        effects, self._after_restore = self._after_restore, []
        self._guarded(lambda: self._perform(effects, None))

    def handle(self, event: UnitEvent) -> None:
        """Take an event of a channel, a sink or a snapshot, after `begin`.

        It waits for its turn if it comes while the effects of another one are carried out.
        """
        if self.is_over:
            return
        if self._is_ending and isinstance(event, UnitSnapshotStored):
            # A new segment would take the number that the sinks know the group by.
            self._after_ending.append(event)
            return
        self._events.append(event)
        if not self._is_handling:
            self._guarded(lambda: None)

    def stop(self) -> None:
        """Let tasks take no more input: what they have taken is the last group."""
        self._is_stopping = True
        if self._pool is not None:
            self._pool.schedule()

    def close(self) -> None:
        """End, without telling `ended`. A call of the log goes on, and its answer is dropped."""
        if not self.is_over:
            self._stop()

    # Events and effects.

    def _guarded(self, first: Callable[[], None]) -> None:
        """Do `first`, and then handle the events that wait."""
        invariant(not self._is_handling, "effects are carried out within others")
        self._is_handling = True
        try:
            first()
            while self._events and not self.is_over:
                event = self._events.popleft()
                self._perform(self._unit.handle(event), event)
        except Exception as error:  # noqa: BLE001 - half of the effects may have been carried out
            self._end(error)
        finally:
            self._is_handling = False
        if self._pool is not None and not self.is_over and not self._is_ending:
            # The group may end now, or grow again. One that waits for sinks is looked at when they answer:
            # a round after the other would keep the interpreter from their threads.
            self._pool.schedule()

    def _perform(self, effects: list[UnitEffect], event: UnitEvent | None) -> None:
        for position, effect in enumerate(effects):
            if self.is_over:
                return
            if isinstance(effect, RestoreUnit):
                self._after_restore = effects[position + 1 :]
                if self._claimed is not None and not self._claimed.done():
                    self._claimed.set_result(effect)
                return
            self._perform_one(effect, event)

    def _perform_one(self, effect: UnitEffect, event: UnitEvent | None) -> None:
        match effect:
            case ReadNewestHead():
                self._ask(self._log.newest_head)
            case SealSegment(segment):
                self._ask(partial(self._log.seal, segment))
            case ReadUnitTail():
                self._ask(self._log.read_tail)
            case AppendUnitEntry(index, entry):
                self._ask(partial(self._append, index, entry))
            case ReadUnitEntry(index):
                self._ask(partial(self._read, index))
            case DeleteGroups(indices):
                self._deletions.call(
                    partial(self._delete, indices), partial(call_on, self._loop, self._deleted)
                )
            case StartTimer(timer, delay_ms):
                self._cancel(timer)
                self._timers[timer] = self._loop.call_later(delay_ms / 1_000, self._fired, timer)
            case CancelTimer(timer):
                self._cancel(timer)
            case EndUnit():
                self._end(self._reason(effect, event))
            case RestoreUnit():
                raise InternalError("a unit is restored once")
            case _:
                self._perform_for_tasks(effect)

    def _perform_for_tasks(self, effect: _OfTasks) -> None:
        if self._books is None:
            raise InternalError(f"{type(effect).__name__} before the tasks were restored")
        match effect:
            case AcknowledgeSources(positions):
                self._books.acknowledge_sources(positions)
            case AuthoriseCommit():
                self._books.commit(effect)
            case FreezeUnit(index):
                self._books.freeze(index)
            case StoreUnitSnapshot(index):
                self._books.store(index)
            case _:
                self._books.perform(effect)

    # The log.

    def _ask(self, function: Callable[[], UnitEvent]) -> None:
        self._thread.call(partial(_outcome, function), partial(call_on, self._loop, self._answered))

    def _answered(self, outcome: UnitEvent | Exception) -> None:
        if isinstance(outcome, Exception):
            self._failure = outcome
            self.handle(UnitLogFailed(str(outcome)))
        else:
            self.handle(outcome)

    def _append(self, index: LogIndex, entry: UnitEntry) -> UnitEvent:
        self._failpoints("unit.append")
        answer = self._log.append(index, entry)
        self._failpoints("unit.appended")
        return answer

    def _read(self, index: LogIndex) -> UnitEvent:
        try:
            return self._log.read(index)
        except StoreError as error:
            if error.ids.get("damaged", False) or isinstance(error, AuthenticityError):
                raise
            # The store may answer the next time.
            return EntryUncertain(index, str(error))

    def _delete(self, indices: tuple[LogIndex, ...]) -> list[str]:
        self._failpoints("unit.delete")
        try:
            return self._log.delete(indices)
        except Exception as error:  # noqa: BLE001 - the outermost of its thread
            return [str(error)]

    def _deleted(self, errors: list[str]) -> None:
        for error in errors:
            self._warn(error)

    # Timers.

    def _cancel(self, timer: Timer) -> None:
        handle = self._timers.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def _fired(self, timer: Timer) -> None:
        self._timers.pop(timer, None)
        self.handle(TimerFired(timer))

    # Groups.

    def _look(self, can_run: bool) -> None:
        """A round of the scheduler is over: see what becomes of the group."""
        pool, books = self._pool, self._books
        if self.is_over or pool is None or books is None:
            return
        if self._is_ending:
            self._end_group(pool, books)
            return
        books.round_over()
        has_content = books.has_content
        now_ns = self._now_ns()
        if has_content and self._grows_since_ns is None:
            self._grows_since_ns = now_ns
        since_ns = self._grows_since_ns if self._grows_since_ns is not None else now_ns
        group = GrowingGroup(
            has_content=has_content,
            can_end=self._unit.can_end_group,
            is_settled=pool.is_settled,
            is_idle=not can_run,
            size_bytes=books.size_bytes,
            age_ms=(now_ns - since_ns) // 1_000_000,
            is_awaited=books.is_awaited,
            takes_input=self._takes_input,
        )
        limits = self._limits
        match group_end(
            group,
            limits.interval_ms,
            limits.group_bytes,
            hold_bytes=limits.hold_bytes,
            hold_ms=limits.hold_ms,
        ):
            case GroupEnd.GROW:
                pool.go_on()
            case GroupEnd.HOLD | GroupEnd.SETTLE:
                pool.settle()
            case GroupEnd.END:
                self._grows_since_ns = None
                self._is_ending = True
                pool.settle()
                self._end_group(pool, books)

    def _end_group(self, pool: UnitPool, books: UnitHost) -> None:
        def end() -> None:
            event = books.end_group()
            if event is not None:
                self._is_ending = False
                after, self._after_ending = self._after_ending, []
                self._events += [event, *after]

        self._guarded(end)
        # Otherwise the next round says when tasks go on.
        if not self.is_over and not self._is_ending and self._takes_input:
            pool.go_on()

    # The end.

    def _reason(self, effect: EndUnit, event: UnitEvent | None) -> Exception:
        if effect.is_fenced:
            return WorkersError(f"this process ends: {effect.reason}")
        if isinstance(event, UnitCommitFailed):
            return ConnectorError(effect.reason)
        if isinstance(event, UnitLogFailed) and self._failure is not None:
            return self._failure
        error = StoreError(effect.reason, damaged=False)
        # An outage, which may pass: the log has refused an entry, or has not answered, for a long time.
        error.__cause__ = TimeoutError(effect.reason)
        return error

    def _end(self, error: Exception) -> None:
        if self.is_over:
            return
        self._stop()
        if self._claimed is not None and not self._claimed.done():
            self._claimed.set_exception(error)
        else:
            self._ended(error)

    def _stop(self) -> None:
        self.is_over = True
        self._events.clear()
        for timer in list(self._timers):
            self._cancel(timer)
        if self._pool is not None:
            self._pool.after_round = None
            # What tasks still make leaves nowhere.
            self._pool.settle()
        # The log is in use as long as one of its calls is under way.
        self._thread.close(partial(self._deletions.close, self._log.close))


def _outcome(function: Callable[[], UnitEvent]) -> UnitEvent | Exception:
    """Return what `function` does, or the error that it raises: the outermost of its thread."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - as it says
        return error
