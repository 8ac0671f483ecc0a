"""Appending to the job log: one writer's view of a log that another driver may be writing too.

The log decides who owns the job and what is complete; whoever creates entry k first wins. An append
has four outcomes: appended, taken, certainly not applied, and unknown. Unknown is never treated as
failure: the entry is read back, and nothing is cleaned up meanwhile (FLINK-22494). A call of the store
that has not returned in time has an unknown outcome, too; what it says afterwards is still true.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import assert_never

from crosscut.errors import ProtocolError
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
from crosscut.protocol.messages import LogEntry

RETRY_APPEND_MS = 200
UNCERTAIN_ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Durable:
    """The entry is in the log (decision moment: it became true when the store made it durable)."""

    entry: LogEntry


@dataclass(frozen=True, slots=True)
class Refused:
    """The entry is certainly not in the log and will not be."""

    entry: LogEntry
    reason: str


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Another driver wrote entry `index` first."""

    entry: LogEntry
    index: int
    winner: LogEntry


@dataclass(frozen=True, slots=True)
class Undecided:
    """The store has not said for too long whether the entry is in the log. Nothing may be assumed."""

    entry: LogEntry
    reason: str


Verdict = Durable | Refused | Overtaken | Undecided
LogEvent = EntryAppended | EntryTaken | EntryUncertain | EntryRefused | EntryRead | TimerFired
LogEffect = AppendEntry | ReadEntry | StartTimer | CancelTimer


class LogWriter:
    """Appends entries one after the other; each `append` ends in exactly one verdict.

    Args:
        next_index: First index that did not exist when the log was read.
        timeout_ms: How long one call of the store may take.
        dropped: Where to count what is dropped.
    """

    def __init__(self, next_index: int, timeout_ms: int, dropped: Counter[str] | None = None) -> None:
        self._next_index = next_index
        self._timeout_ms = timeout_ms
        self._is_asking = False
        self._queue: deque[LogEntry] = deque()
        self._uncertain_attempts = 0
        self._is_said_to_exist = False
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    @property
    def next_index(self) -> int:
        """The index that the next new entry will have."""
        return self._next_index

    @property
    def is_idle(self) -> bool:
        """Whether no append is under way: only then is it known what is in the log."""
        return not self._queue

    @property
    def newest(self) -> LogEntry | None:
        """The entry appended last, if it is not decided."""
        return self._queue[-1] if self._queue else None

    def append(self, entry: LogEntry) -> list[LogEffect]:
        """Append `entry` behind those under way."""
        self._queue.append(entry)
        return self._ask(AppendEntry(self._next_index, entry)) if len(self._queue) == 1 else []

    def handle(self, event: LogEvent) -> tuple[list[LogEffect], Verdict | None]:
        """Take the store's answer; return what to do next, and the verdict if there is one.

        Raises:
            ProtocolError: An answer to something that was not asked; nothing has changed.
        """
        if isinstance(event, TimerFired):
            return self._timer_fired(event.timer)
        if event.index < self._next_index:
            # A call that was given up has returned after all.
            self.dropped["late log answer"] += 1
            return [], None
        if not self._queue or event.index > self._next_index:
            raise ProtocolError(f"{event!r} while the writer is at entry {self._next_index}")
        answered, self._is_asking = self._cancel_call(), False
        effects, verdict = self._answered(event)
        return [*answered, *effects], verdict

    def _timer_fired(self, timer: Timer) -> tuple[list[LogEffect], Verdict | None]:
        if self._queue and timer == self._timer("retry-append"):
            return self._ask(ReadEntry(self._next_index)), None
        if self._is_asking and timer == self._timer("log-call"):
            self._is_asking = False
            return self._uncertain(f"the store has not answered within {self._timeout_ms / 1000:g} s")
        self.dropped["stale timer"] += 1
        return [], None

    def _answered(
        self, event: EntryAppended | EntryTaken | EntryUncertain | EntryRefused | EntryRead
    ) -> tuple[list[LogEffect], Verdict | None]:
        entry = self._queue[0]
        match event:
            case EntryAppended():
                return self._ended(Durable(entry))
            case EntryTaken(index):
                # Taken by whom? Perhaps by an attempt of our own whose outcome was unknown.
                self._is_said_to_exist = True
                return self._ask(ReadEntry(index)), None
            case EntryRead(index, found):
                if found is None:
                    return self._absent(index)
                return self._ended(Durable(entry) if found == entry else Overtaken(entry, index, found))
            case EntryUncertain(_, reason):
                return self._uncertain(reason)
            case EntryRefused(_, reason):
                if self._uncertain_attempts:
                    # An earlier attempt at this very entry may still have been applied.
                    return self._uncertain(reason)
                return self._ended(Refused(entry, reason))
            case _:
                assert_never(event)

    def _absent(self, index: int) -> tuple[list[LogEffect], Verdict | None]:
        if not self._is_said_to_exist:
            return self._ask(AppendEntry(index, self._queue[0])), None
        # One of the two answers is stale. Asked at once, the store would say the same again.
        self._is_said_to_exist = False
        return self._uncertain(f"the store says that entry {index} exists, and then that there is none")

    def _uncertain(self, reason: str) -> tuple[list[LogEffect], Verdict | None]:
        self._uncertain_attempts += 1
        if self._uncertain_attempts >= UNCERTAIN_ATTEMPTS_MAX:
            return self._ended(Undecided(self._queue[0], reason))
        return [StartTimer(self._timer("retry-append"), RETRY_APPEND_MS)], None

    def _ask(self, call: AppendEntry | ReadEntry) -> list[LogEffect]:
        self._is_asking = True
        return [call, StartTimer(self._timer("log-call"), self._timeout_ms)]

    def _cancel_call(self) -> list[LogEffect]:
        return [CancelTimer(self._timer("log-call"))] if self._is_asking else []

    def _timer(self, kind: TimerKind) -> Timer:
        return Timer(kind, number=self._next_index)

    def _ended(self, verdict: Verdict) -> tuple[list[LogEffect], Verdict]:
        self._queue.popleft()
        self._uncertain_attempts = 0
        self._is_said_to_exist = False
        if isinstance(verdict, Durable):
            self._next_index += 1
        if not isinstance(verdict, (Durable, Refused)):
            # The log is not ours any more, or can't be known: nothing behind may be written.
            self._queue.clear()
        if self._queue:
            return self._ask(AppendEntry(self._next_index, self._queue[0])), verdict
        return [], verdict
