"""Appending to the job log: one writer's view of a log that another driver may be writing too.

The log decides who owns the job and what is complete; the first to create an entry wins. An append
has four outcomes: appended, taken, certainly not applied, and unknown. Unknown is never treated as
failure: the entry is read back, and nothing is cleaned up meanwhile (FLINK-22494). A call of the store
that has not returned in time has an unknown outcome, too; its late answer is still true.

`crosscut.protocol.log.segments` says why the log is a chain of segments.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import assert_never

from crosscut.errors import ProtocolError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.effects import AppendEntry, CancelTimer, ReadEntry, StartTimer
from crosscut.protocol.events import (
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    Timer,
    TimerFired,
    TimerKind,
)
from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobEntry,
    JobFinished,
    LogEntry,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.pending_append import Fate, PendingAppend
from crosscut.protocol.log.segments import LogEnd, following, head_after, written_before

# Answers of the store to an append: three, because "not known" is one of them.


@dataclass(frozen=True, slots=True)
class Appended:
    """Entry `index` is durable, and it is this one."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class Taken:
    """Entry `index` exists already. Read it: it may be an earlier attempt of our own."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class Unknown:
    """The append may or may not have been applied, now or later. Read back, never clean up."""

    index: LogIndex
    reason: str


AppendOutcome = Appended | Taken | Unknown


# The fate of an entry.

SEGMENT_ENTRIES_MAX = 1_000
DIFFERENCES_MAX = 20
"""Entries in a row that hold only changes: at most so many must be read to know one."""


@dataclass(frozen=True, slots=True)
class Durable:
    """The entry is in the log (decision moment: it became true when the store made it durable)."""

    entry: JobEntry
    index: LogIndex


@dataclass(frozen=True, slots=True)
class Refused:
    """The entry is certainly not in the log and will not be."""

    entry: JobEntry
    reason: str


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Another driver wrote entry `index` first."""

    entry: JobEntry
    index: LogIndex
    winner: LogEntry


@dataclass(frozen=True, slots=True)
class Undecided:
    """The store has not said for too long whether the entry is in the log. Nothing may be assumed."""

    entry: JobEntry
    reason: str


Verdict = Durable | Refused | Overtaken | Undecided
LogEvent = EntryAppended | EntryTaken | EntryUncertain | EntryRefused | EntryRead | TimerFired
LogEffect = AppendEntry | ReadEntry | StartTimer | CancelTimer


class LogWriter:
    """Appends entries one after the other; each `append` ends in exactly one verdict.

    The first one is the claim of its driver. Before an entry go those that must be there first: one that
    closes the segment of another driver, and the head of a segment of its own.

    Args:
        end: Where the log ended when it was read.
        timeout_ms: How long one call of the store may take.
        dropped: Counts stale and repeated input.
        segment_entries_max: After so many, the writer goes on in a new segment.

    Attributes:
        patience_ms: How long the store may refuse the entry of a failover or of the end, or not answer. 0 for
            a driver that has not claimed the job yet: nobody waits for it.
    """

    def __init__(
        self,
        end: LogEnd,
        timeout_ms: int,
        dropped: Counter[str] | None = None,
        *,
        segment_entries_max: int = SEGMENT_ENTRIES_MAX,
    ) -> None:
        self._last = end.last
        self._next_index = end.next
        self._is_of_another = end.last is not None and not end.is_closed
        self._has_closed = end.is_closed
        self._timeout_ms = timeout_ms
        self._segment_entries_max = segment_entries_max
        self._claim: EpochClaimed | None = None
        self._base: LogIndex | None = None
        self._difference_count = 0
        self._step: AppendEntry | None = None
        self._pending: PendingAppend[LogEntry] | None = None
        self._step_count = 0
        self._is_asking = False
        self.patience_ms = 0
        self._queue: deque[JobEntry] = deque()
        self._ended: tuple[LogIndex, ...] = ()
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    @property
    def is_idle(self) -> bool:
        """Whether no append is under way: only then is the content of the log known."""
        return not self._queue

    @property
    def newest(self) -> JobEntry | None:
        """The entry appended last, if it is not decided."""
        return self._queue[-1] if self._queue else None

    @property
    def trouble(self) -> str:
        """Why the entry that is being appended has to be tried again; "" if all is well."""
        pending = self._pending
        return pending.reason if pending is not None and pending.uncertain_attempts else ""

    def take_ended(self) -> tuple[LogIndex, ...]:
        """Return, once, the entries of ended segments; they can be deleted when nothing needs them."""
        ended, self._ended = self._ended, ()
        return ended

    def append(self, entry: JobEntry) -> list[LogEffect]:
        """Append `entry` after those under way."""
        self._queue.append(entry)
        return self._ask_next() if len(self._queue) == 1 else []

    def handle(self, event: LogEvent) -> tuple[list[LogEffect], Verdict | None]:
        """Take the store's answer; return what to do next, and the verdict if there is one.

        Raises:
            ProtocolError: An answer to something that was not asked; nothing has changed.
        """
        if isinstance(event, TimerFired):
            return self._timer_fired(event.timer)
        asked = self._step.index if self._step is not None else self._next_index
        if event.index < asked:
            # A call that was given up has returned after all.
            self.dropped["late log answer"] += 1
            return [], None
        if self._step is None or self._pending is None or event.index > asked:
            raise ProtocolError(f"{event!r} while the writer is at entry {asked}")
        answered, self._is_asking = self._cancel_call(), False
        effects, verdict = self._answered(event, self._step, self._pending)
        return [*answered, *effects], verdict

    def _timer_fired(self, timer: Timer) -> tuple[list[LogEffect], Verdict | None]:
        if self._step is None or self._pending is None:
            self.dropped["stale timer"] += 1
            return [], None
        if timer == self._timer("retry-append"):
            self._pending.waited_ms += self._pending.retry_ms
            return self._ask(ReadEntry(self._step.index)), None
        if self._is_asking and timer == self._timer("log-call"):
            self._is_asking = False
            self._pending.waited_ms += self._timeout_ms
            reason = f"the store has not answered within {self._timeout_ms / 1000:g} s"
            return self._next(self._pending.uncertain(reason), self._step, self._pending)
        self.dropped["stale timer"] += 1
        return [], None

    def _answered(
        self,
        event: EntryAppended | EntryTaken | EntryUncertain | EntryRefused | EntryRead,
        step: AppendEntry,
        pending: PendingAppend[LogEntry],
    ) -> tuple[list[LogEffect], Verdict | None]:
        match event:
            case EntryAppended():
                return self._next(Fate.WRITTEN, step, pending)
            case EntryTaken():
                return self._next(pending.taken(), step, pending)
            case EntryRead(index, found):
                contradiction = f"the store says that entry {index} exists, and then that there is none"
                return self._next(pending.read(found, contradiction=contradiction), step, pending)
            case EntryUncertain(_, reason):
                return self._next(pending.uncertain(reason), step, pending)
            case EntryRefused(_, reason):
                # A checkpoint can do without; the claim of a failover and the end have to be tried again.
                is_needed = self.patience_ms > 0 and not isinstance(self._queue[0], CheckpointCompleted)
                fate = pending.uncertain(reason) if is_needed else pending.refused(reason)
                return self._next(fate, step, pending)
            case _:
                assert_never(event)

    def _next(
        self, fate: Fate, step: AppendEntry, pending: PendingAppend[LogEntry]
    ) -> tuple[list[LogEffect], Verdict | None]:
        """Go on after an answer to `step`."""
        match fate:
            case Fate.WRITTEN:
                return self._written(step)
            case Fate.OVERTAKEN:
                if pending.winner is None:
                    raise ProtocolError(f"entry {step.index} is overtaken by nothing")
                return self._decided(Overtaken(self._queue[0], step.index, pending.winner))
            case Fate.READ:
                # Taken by whom? Perhaps by an attempt of our own whose outcome was unknown.
                return self._ask(ReadEntry(step.index)), None
            case Fate.APPEND:
                return self._ask(step), None
            case Fate.WAIT:
                return [StartTimer(self._timer("retry-append"), pending.retry_ms)], None
            case Fate.REFUSED:
                return self._decided(Refused(self._queue[0], pending.reason))
            case Fate.UNDECIDED:
                return self._decided(Undecided(self._queue[0], pending.reason))
            case _:
                assert_never(fate)

    # The steps of writing an entry.

    def _next_step(self, entry: JobEntry) -> AppendEntry:
        """Return the next append on the way of `entry` into the log."""
        claim = entry if isinstance(entry, EpochClaimed) else self._claim
        if claim is None:
            raise ProtocolError(f"{entry!r:.80} is appended before a claim")
        index = self._next_index
        if self._is_of_another:
            return AppendEntry(index, SegmentClosed(claim.epoch, claim.driver, claim.claimant))
        if index.number == 0:
            return AppendEntry(index, SegmentOpened(claim, self._last))
        if index.number > self._segment_entries_max and not isinstance(entry, JobFinished):
            return AppendEntry(head_after(index), SegmentOpened(claim, self._last))
        return AppendEntry(index, entry, self._base if self._is_like_the_base(entry) else None)

    def _is_like_the_base(self, entry: JobEntry) -> bool:
        return isinstance(entry, CheckpointCompleted) and self._difference_count < DIFFERENCES_MAX

    def _written(self, step: AppendEntry) -> tuple[list[LogEffect], Verdict | None]:
        """Go on after `step` has become durable."""
        entry = self._queue[0]
        self._last, self._step, self._pending = step.index, None, None
        match step.entry:
            case SegmentClosed():
                self._is_of_another, self._has_closed = False, True
                self._next_index = head_after(step.index)
                return self._ask_next(), None
            case SegmentOpened(claim):
                self._ended += written_before(step.entry, was_closed=self._has_closed)
                self._claim, self._base, self._difference_count = claim, None, 0
                self._has_closed = False
                self._next_index = following(step.index)
                if entry != claim:
                    return self._ask_next(), None
            case CheckpointCompleted():
                self._difference_count = self._difference_count + 1 if step.since is not None else 0
                self._base = step.index
            case EpochClaimed() as claim:
                self._claim = claim
            case JobFinished():
                pass
            case _:
                assert_never(step.entry)
        self._next_index = following(step.index)
        return self._decided(Durable(entry, step.index))

    # Calls.

    def _ask_next(self) -> list[LogEffect]:
        self._step = self._next_step(self._queue[0])
        self._pending = PendingAppend(self._step.entry, patience_ms=self.patience_ms)
        self._step_count += 1
        return self._ask(self._step)

    def _ask(self, call: AppendEntry | ReadEntry) -> list[LogEffect]:
        self._is_asking = True
        return [call, StartTimer(self._timer("log-call"), self._timeout_ms)]

    def _cancel_call(self) -> list[LogEffect]:
        return [CancelTimer(self._timer("log-call"))] if self._is_asking else []

    def _timer(self, kind: TimerKind) -> Timer:
        return Timer(kind, number=self._step_count)

    def _decided(self, verdict: Verdict) -> tuple[list[LogEffect], Verdict]:
        self._queue.popleft()
        self._step = self._pending = None
        if not isinstance(verdict, (Durable, Refused)):
            # The log is not ours any more, or can't be known: nothing after it may be written.
            self._queue.clear()
        return (self._ask_next() if self._queue else []), verdict
