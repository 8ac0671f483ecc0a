"""Appending to the log of a unit: one incarnation's hold on it.

All fencing of a unit is here. A new incarnation reads the log to its end and claims the head of the next
segment, and then acts; a unit that finds its own append overtaken is fenced. The rules of one append
are those of the job log (`crosscut.protocol.log.pending_append`). What differs from
`crosscut.protocol.log.writer`:

* The claim is the head of a segment, and nothing else. A claimant that is overtaken reads again, and gives
  way to a newer incarnation.
* Each group begins only after the one before is durable, so there is no queue. An entry is never given up:
  the state of the tasks can't go back to before it. What the store refuses is tried again.
* Segments end with a snapshot of the unit, rather than with a number of entries.

There are two kinds of log. *Objects* are put if absent: the claimant closes the segment at the very index
where its owner would append next. A group can't be put at the end of a *segment file* if absent, so there
the claimant seals the newest segment, *then* reads it, then claims the next head, which says how far it has
read (the cut). The owner looks for the seal after each append, before anything leaves: if there is none,
its bytes were there before the seal, so they were read. Any seal ends the owner. So the
claimant looks first whose the segment is, and seals that one segment alone: an older incarnation ends no
newer one. An error of the file system ends the incarnation: after a failed fsync it is unknown what is on
the disk.

Nothing is deleted in a segment that is open, and heads and what closed a segment are never deleted. Else a
claimant that has slept would find the index it wants free again.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import Enum, auto
from typing import Literal, assert_never

from crosscut.errors import ProtocolError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.effects import CancelTimer, StartTimer
from crosscut.protocol.events import (
    EntryAppended,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    Timer,
    TimerFired,
    TimerKind,
)
from crosscut.protocol.log.pending_append import RETRY_APPEND_MS, Fate, PendingAppend
from crosscut.protocol.log.segments import following, head_after
from crosscut.protocol.unit_log.effects import (
    AppendUnitEntry,
    ReadNewestHead,
    ReadUnitEntry,
    ReadUnitTail,
    SealSegment,
    UnitLogEffect,
)
from crosscut.protocol.unit_log.entries import (
    GroupCommitted,
    Incarnation,
    UnitEntry,
    UnitSegmentClosed,
    UnitSegmentOpened,
    UnitSnapshot,
)
from crosscut.protocol.unit_log.events import (
    LogAnswer,
    NewestHeadRead,
    SealFound,
    SegmentSealed,
    UnitEntryRead,
    UnitLogEvent,
    UnitLogFailed,
    UnitTailRead,
)

CLAIM_ATTEMPTS_MAX = 20
FOLLOWED_MAX = 1_000
"""Groups that the owner may append before a claimant has closed its segment."""

REFUSED_ATTEMPTS_MAX = 1_500
"""Five minutes of a full disk, during which the unit takes no input."""

READING = Timer("read-log")

LogKind = Literal["objects", "segment files"]


class LogPhase(Enum):
    """How far an incarnation has come with its log."""

    LOOKING = auto()
    """The head of the newest segment file is being read."""

    SEALING = auto()
    """That segment file is being sealed."""

    READING = auto()
    """The log is being read."""

    CLAIMING = auto()
    """The segment before is being closed, or the head of the next one put."""

    OPEN = auto()
    """The log is this incarnation's, as far as it knows."""

    OVER = auto()
    """Nothing more is appended."""


TRANSITIONS: dict[LogPhase, frozenset[LogPhase]] = {
    LogPhase.LOOKING: frozenset({LogPhase.SEALING, LogPhase.READING, LogPhase.OVER}),
    LogPhase.SEALING: frozenset({LogPhase.READING, LogPhase.OVER}),
    LogPhase.READING: frozenset({LogPhase.LOOKING, LogPhase.CLAIMING, LogPhase.OVER}),
    LogPhase.CLAIMING: frozenset({LogPhase.LOOKING, LogPhase.READING, LogPhase.OPEN, LogPhase.OVER}),
    LogPhase.OPEN: frozenset({LogPhase.OVER}),
    LogPhase.OVER: frozenset(),
}


@dataclass(frozen=True, slots=True)
class UnitClaimed:
    """The log is this incarnation's (decision moment: its head became durable).

    Attributes:
        tail: What the log holds, from the newest snapshot on; void groups are left out.
        leftover: Groups of closed segments that no tail needs.
    """

    tail: tuple[tuple[LogIndex, UnitEntry], ...]
    leftover: tuple[LogIndex, ...]


@dataclass(frozen=True, slots=True)
class EntryLogged:
    """The entry is in the log (decision moment)."""

    index: LogIndex
    entry: GroupCommitted | UnitSegmentOpened


@dataclass(frozen=True, slots=True)
class LogLost:
    """This incarnation appends nothing more: a newer one owns the log, or the store fails."""

    reason: str
    is_fenced: bool = True


LogVerdict = UnitClaimed | EntryLogged | LogLost
Outcome = tuple[list[UnitLogEffect], LogVerdict | None]


class UnitLog:
    """Claims the log of a unit for `incarnation`, and then appends to it, one entry at a time.

    Args:
        timeout_ms: How long one call of the store may take.
        first_segment: Where a log begins that has no entry.
        dropped: Counts stale and repeated input.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        timeout_ms: int,
        kind: LogKind = "objects",
        *,
        first_segment: int = 1,
        dropped: Counter[str] | None = None,
    ) -> None:
        self._incarnation = incarnation
        self._timeout_ms = timeout_ms
        self._has_files = kind == "segment files"
        self._first_segment = first_segment
        self.phase = LogPhase.LOOKING if self._has_files else LogPhase.READING
        self.next = LogIndex(first_segment, 0)
        """Where the next entry belongs."""
        self._sealed: int | None = None
        self._tail: UnitTailRead | None = None
        self._steps: deque[tuple[LogIndex, UnitEntry]] = deque()
        self._step: PendingAppend[UnitEntry] | None = None
        self._step_count = 0
        self._is_asking = False
        self._refused_attempts = 0
        self._claim_attempts = 0
        self._followed_groups = 0
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    @property
    def is_idle(self) -> bool:
        """Whether the log is this incarnation's, and no append is under way."""
        return self.phase is LogPhase.OPEN and not self._steps

    @property
    def trouble(self) -> str:
        """Why the append under way did not succeed yet, for people; "" if nothing is wrong."""
        return self._step.reason if self._step is not None else ""

    def start(self) -> list[UnitLogEffect]:
        """Find out what the log holds."""
        self.phase = LogPhase.LOOKING if self._has_files else LogPhase.READING
        ask = ReadNewestHead() if self._has_files else ReadUnitTail()
        return [ask, StartTimer(READING, self._timeout_ms)]

    def append(self, group: GroupCommitted) -> list[UnitLogEffect]:
        """Append `group` at `next`.

        Raises:
            ProtocolError: The log is not `is_idle`; nothing has changed.
        """
        self._check_idle()
        self._steps.append((self.next, group))
        return self._begin()

    def open_segment(self, snapshot: UnitSnapshot) -> list[UnitLogEffect]:
        """Go on in a new segment, which begins with `snapshot`.

        Raises:
            ProtocolError: The log is not `is_idle`; nothing has changed.
        """
        self._check_idle()
        last = LogIndex(self.next.segment, self.next.number - 1)
        self._go_on_in_new_segment(UnitSegmentOpened(self._incarnation, last, snapshot))
        return self._begin()

    def handle(self, event: UnitLogEvent) -> Outcome:
        """Take an answer of the store, or a timer; return what to do next, and a verdict if there is one.

        Raises:
            ProtocolError: An answer to something that was not asked; nothing has changed.
        """
        match event:
            case NewestHeadRead(segment, owner):
                if self.phase is not LogPhase.LOOKING:
                    return self._drop("late log answer")
                return self._looked(segment, owner)
            case SegmentSealed(segment):
                if self.phase is not LogPhase.SEALING:
                    return self._drop("late log answer")
                self._sealed = segment
                self.phase = LogPhase.READING
                return [ReadUnitTail()], None
            case UnitTailRead():
                if self.phase is not LogPhase.READING:
                    return self._drop("late log answer")
                effects, verdict = self._read(event)
                return [CancelTimer(READING), *effects], verdict
            case UnitLogFailed(reason):
                # Never a fallback to older entries, also if the call that says so was given up.
                return self._lost(reason, is_fenced=False)
            case TimerFired(timer):
                return self._timer_fired(timer)
            case _:
                return self._answered(event)

    # The claim.

    def _looked(self, segment: int, owner: Incarnation | None) -> Outcome:
        if owner is not None and owner > self._incarnation:
            effects, verdict = self._gives_way(owner)
            return [CancelTimer(READING), *effects], verdict
        if owner is not None:
            self.phase = LogPhase.SEALING
            return [SealSegment(segment)], None
        self._sealed = 0
        self.phase = LogPhase.READING
        return [ReadUnitTail()], None

    def _gives_way(self, owner: Incarnation) -> Outcome:
        return self._lost(f"incarnation {owner} of this unit owns the log")

    def _read(self, tail: UnitTailRead) -> Outcome:
        entries = tail.entries
        heads = [entry for _, entry in entries if isinstance(entry, UnitSegmentOpened)]
        if any(head.incarnation > self._incarnation for head in heads):
            return self._gives_way(heads[-1].incarnation)
        last = entries[-1][0] if entries else LogIndex(self._first_segment - 1, 0)
        if self._has_files and entries and self._sealed != last.segment:
            # A segment has been opened since: its owner may not have seen a seal there.
            return self.start(), None
        self._tail = UnitTailRead(self._counting(entries), tail.leftover)
        self.phase = LogPhase.CLAIMING
        if self._has_files or not entries or isinstance(entries[-1][1], UnitSegmentClosed):
            self._steps.append((head_after(last), UnitSegmentOpened(self._incarnation, last)))
            return self._begin(), None
        return self._close_after(last), None

    def _close_after(self, last: LogIndex) -> list[UnitLogEffect]:
        """Close the segment of another incarnation after `last`, and claim the next one."""
        self.next = following(last)
        self._go_on_in_new_segment(UnitSegmentOpened(self._incarnation, last))
        return self._begin()

    def _followed(self, index: LogIndex, group: GroupCommitted, tail: UnitTailRead) -> Outcome:
        """Close the segment after the group that its owner has appended meanwhile: it has been read.

        To read all of the log again would take longer than the owner needs for its next group.
        """
        self._followed_groups += 1
        if self._followed_groups > FOLLOWED_MAX:
            return self._lost(
                f"the log could not be claimed: its owner has appended {FOLLOWED_MAX} groups meanwhile",
                is_fenced=False,
            )
        self._tail = UnitTailRead((*tail.entries, (index, group)), tail.leftover)
        self._steps.clear()
        return self._close_after(index), None

    def _counting(
        self, entries: tuple[tuple[LogIndex, UnitEntry], ...]
    ) -> tuple[tuple[LogIndex, UnitEntry], ...]:
        """Return the entries without void groups: those that the next claimant had not read."""
        cuts = {
            index.segment - 1: entry.cut for index, entry in entries if isinstance(entry, UnitSegmentOpened)
        }
        return tuple(
            (index, entry)
            for index, entry in entries
            if not (self._has_files and isinstance(entry, GroupCommitted))
            or index.segment not in cuts
            or index <= cuts[index.segment]
        )

    def _go_on_in_new_segment(self, head: UnitSegmentOpened) -> None:
        if not self._has_files:
            self._steps.append((self.next, UnitSegmentClosed(self._incarnation)))
        self._steps.append((head_after(self.next), head))

    # Appending.

    def _check_idle(self) -> None:
        if not self.is_idle:
            raise ProtocolError(
                f"append to a log in phase {self.phase.name}, {len(self._steps)} steps under way"
            )

    def _begin(self) -> list[UnitLogEffect]:
        index, entry = self._steps[0]
        self._step = PendingAppend(entry)
        self._step_count += 1
        self._refused_attempts = 0
        return self._ask(AppendUnitEntry(index, entry))

    def _ask(self, call: AppendUnitEntry | ReadUnitEntry) -> list[UnitLogEffect]:
        self._is_asking = True
        return [call, StartTimer(self._timer("log-call"), self._timeout_ms)]

    def _timer(self, kind: TimerKind) -> Timer:
        return Timer(kind, number=self._step_count)

    def _timer_fired(self, timer: Timer) -> Outcome:
        if timer == READING and self.phase in (LogPhase.LOOKING, LogPhase.SEALING, LogPhase.READING):
            return self._lost(
                f"the log could not be read within checkpoint_timeout={self._timeout_ms / 1000:g} s; raise "
                f"it if the store is slow",
                is_fenced=False,
            )
        if self._step is None:
            return self._drop("stale timer")
        index, entry = self._steps[0]
        if timer == self._timer("retry-append"):
            again = AppendUnitEntry(index, entry) if self._is_appended_to_file() else ReadUnitEntry(index)
            return self._ask(again), None
        if timer == self._timer("log-call") and self._is_asking:
            fate = self._step.uncertain(f"the store has not answered within {self._timeout_ms / 1000:g} s")
            if fate is Fate.WAIT and self._is_appended_to_file():
                # The write goes on. A second one would put the group there twice.
                return [StartTimer(timer, self._timeout_ms)], None
            self._is_asking = False
            return self._next_step(fate, index)
        return self._drop("stale timer")

    def _answered(self, event: LogAnswer) -> Outcome:
        if self._step is None or event.index < self._steps[0][0]:
            # A call that was given up has returned after all.
            return self._drop("late log answer")
        index, _ = self._steps[0]
        if event.index > index:
            raise ProtocolError(f"{event!r} while the log is at entry {index}")
        answered: list[UnitLogEffect] = [CancelTimer(self._timer("log-call"))] if self._is_asking else []
        self._is_asking = False
        effects, verdict = self._judged(event, self._step, index)
        return [*answered, *effects], verdict

    def _judged(self, event: LogAnswer, step: PendingAppend[UnitEntry], index: LogIndex) -> Outcome:
        match event:
            case EntryAppended():
                return self._next_step(Fate.WRITTEN, index)
            case EntryTaken():
                return self._next_step(step.taken(), index)
            case UnitEntryRead(_, found):
                contradiction = f"the store says that entry {index} exists, and then that there is none"
                return self._next_step(step.read(found, contradiction=contradiction), index)
            case EntryUncertain(_, reason):
                if self._is_appended_to_file():
                    return self._lost(f"the log can't be written: {reason}", is_fenced=False)
                return self._next_step(step.uncertain(reason), index)
            case EntryRefused(_, reason):
                return self._next_step(step.refused(reason), index)
            case SealFound():
                # It counts if the claimant has read it, and only that one knows.
                return self._lost("a newer incarnation has sealed the segment")
            case _:
                assert_never(event)

    def _next_step(self, fate: Fate, index: LogIndex) -> Outcome:
        match fate:
            case Fate.WRITTEN:
                return self._written(index)
            case Fate.OVERTAKEN:
                return self._overtaken(index)
            case Fate.READ:
                return self._ask(ReadUnitEntry(index)), None
            case Fate.APPEND:
                return self._ask(AppendUnitEntry(index, self._steps[0][1])), None
            case Fate.WAIT:
                return [StartTimer(self._timer("retry-append"), RETRY_APPEND_MS)], None
            case Fate.REFUSED:
                self._refused_attempts += 1
                if self._refused_attempts < REFUSED_ATTEMPTS_MAX:
                    return [StartTimer(self._timer("retry-append"), RETRY_APPEND_MS)], None
                return self._lost(f"the log can't be written: {self.trouble}", is_fenced=False)
            case Fate.UNDECIDED:
                return self._lost(f"the log can't be written: {self.trouble}", is_fenced=False)
            case _:
                assert_never(fate)

    def _is_appended_to_file(self) -> bool:
        return self._has_files and isinstance(self._steps[0][1], GroupCommitted)

    def _written(self, index: LogIndex) -> Outcome:
        _, entry = self._steps.popleft()
        self._step = None
        if isinstance(entry, UnitSegmentClosed):
            return self._begin(), None
        self.next = following(index)
        if self.phase is LogPhase.OPEN or self._tail is None:
            return [], EntryLogged(index, entry)
        self.phase = LogPhase.OPEN
        tail, self._tail = self._tail, None
        return [], UnitClaimed(tail.entries, tail.leftover)

    def _overtaken(self, index: LogIndex) -> Outcome:
        if self.phase is not LogPhase.CLAIMING:
            return self._lost(f"another incarnation has written entry {index}")
        step, tail = self._step, self._tail
        if step is not None and tail is not None and isinstance(step.winner, GroupCommitted):
            return self._followed(index, step.winner, tail)
        self._claim_attempts += 1
        if self._claim_attempts >= CLAIM_ATTEMPTS_MAX:
            return self._lost(
                f"the log could not be claimed in {CLAIM_ATTEMPTS_MAX} attempts", is_fenced=False
            )
        # Another claimant was faster, or the owner has gone on in a new segment.
        self._steps.clear()
        self._step = self._tail = None
        return self.start(), None

    def _lost(self, reason: str, *, is_fenced: bool = True) -> Outcome:
        self.phase = LogPhase.OVER
        self._steps.clear()
        self._step = self._tail = None
        return [], LogLost(reason, is_fenced)

    def _drop(self, reason: str) -> Outcome:
        self.dropped[reason] += 1
        return [], None
