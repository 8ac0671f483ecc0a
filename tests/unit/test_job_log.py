"""One writer of the job log, and everything that the store may answer."""

from copy import deepcopy

import pytest

from crosscut.errors import ProtocolError
from crosscut.ids import CheckpointId, Epoch
from crosscut.protocol.effects import AppendEntry, ReadEntry, StartTimer
from crosscut.protocol.events import (
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    Timer,
    TimerFired,
)
from crosscut.protocol.job_log import (
    RETRY_APPEND_MS,
    UNCERTAIN_ATTEMPTS_MAX,
    Durable,
    LogEffect,
    LogEvent,
    LogWriter,
    Overtaken,
    Refused,
    Undecided,
    Verdict,
)
from crosscut.protocol.messages import JobFinished

OURS, NEXT, THEIRS = (JobFinished(Epoch(epoch), CheckpointId(1)) for epoch in (1, 2, 9))
RETRY = Timer("retry-append", number=5)


def writer() -> LogWriter:
    machine = LogWriter(5)
    assert machine.append(OURS) == [AppendEntry(5, OURS)]
    return machine


def after(machine: LogWriter, *events: LogEvent) -> tuple[list[LogEffect], Verdict | None]:
    answer: tuple[list[LogEffect], Verdict | None] = ([], None)
    for event in events:
        answer = machine.handle(event)
    return answer


def test_an_appended_entry_is_durable() -> None:
    machine = writer()
    assert not machine.is_idle
    assert machine.handle(EntryAppended(5)) == ([], Durable(OURS))
    assert machine.is_idle
    assert machine.next_index == 6


def test_entries_are_written_one_after_the_other() -> None:
    machine = writer()
    assert machine.append(NEXT) == []
    assert machine.handle(EntryAppended(5)) == ([AppendEntry(6, NEXT)], Durable(OURS))
    assert machine.handle(EntryAppended(6)) == ([], Durable(NEXT))


def test_a_refused_entry_is_certainly_not_there_and_the_next_takes_its_index() -> None:
    """D4."""
    machine = writer()
    machine.append(NEXT)
    assert machine.handle(EntryRefused(5, "full")) == ([AppendEntry(5, NEXT)], Refused(OURS, "full"))


def test_a_taken_index_is_read_to_see_by_whom() -> None:
    machine = writer()
    assert machine.handle(EntryTaken(5)) == ([ReadEntry(5)], None)
    assert machine.handle(EntryRead(5, THEIRS)) == ([], Overtaken(OURS, 5, THEIRS))
    assert machine.is_idle


def test_a_taken_index_may_be_our_own_earlier_attempt() -> None:
    """B4."""
    assert after(writer(), EntryTaken(5), EntryRead(5, OURS)) == ([], Durable(OURS))


def test_an_uncertain_append_is_read_back_after_a_while() -> None:
    """B4: time out, but applied."""
    machine = writer()
    assert machine.handle(EntryUncertain(5, "time out")) == ([StartTimer(RETRY, RETRY_APPEND_MS)], None)
    assert not machine.is_idle
    assert machine.handle(TimerFired(RETRY)) == ([ReadEntry(5)], None)
    assert machine.handle(EntryRead(5, OURS)) == ([], Durable(OURS))


def test_an_uncertain_append_that_was_not_applied_is_tried_again() -> None:
    """B4, the mirror."""
    machine = writer()
    tried_again = after(machine, EntryUncertain(5, "x"), TimerFired(RETRY), EntryRead(5, None))
    assert tried_again == ([AppendEntry(5, OURS)], None)
    assert machine.handle(EntryTaken(5)) == ([ReadEntry(5)], None)
    assert machine.handle(EntryRead(5, OURS)) == ([], Durable(OURS))


def test_a_read_that_fails_is_tried_again_too() -> None:
    machine = writer()
    after(machine, EntryTaken(5))
    assert machine.handle(EntryUncertain(5, "x")) == ([StartTimer(RETRY, RETRY_APPEND_MS)], None)


def test_refused_after_uncertain_is_still_uncertain() -> None:
    """B4: the earlier attempt may be applied later."""
    machine = writer()
    after(machine, EntryUncertain(5, "x"), TimerFired(RETRY), EntryRead(5, None))
    assert machine.handle(EntryRefused(5, "full")) == ([StartTimer(RETRY, RETRY_APPEND_MS)], None)


@pytest.mark.parametrize("last", [EntryUncertain(5, "x"), EntryRefused(5, "x")])
def test_an_entry_that_stays_uncertain_is_undecided_and_nothing_is_written_behind_it(last: LogEvent) -> None:
    machine = writer()
    machine.append(NEXT)
    for _ in range(UNCERTAIN_ATTEMPTS_MAX - 1):
        after(machine, EntryUncertain(5, "x"), TimerFired(RETRY), EntryRead(5, None))
    assert machine.handle(last) == ([], Undecided(OURS, "x"))
    assert machine.is_idle


def test_nothing_is_written_behind_an_entry_of_another_driver() -> None:
    """B5."""
    machine = writer()
    machine.append(NEXT)
    assert after(machine, EntryTaken(5), EntryRead(5, THEIRS)) == ([], Overtaken(OURS, 5, THEIRS))
    assert machine.is_idle
    assert machine.next_index == 5


def test_the_count_of_uncertain_attempts_starts_anew_with_the_next_entry() -> None:
    machine = writer()
    machine.append(NEXT)
    after(machine, EntryUncertain(5, "x"), TimerFired(RETRY), EntryRead(5, OURS))
    assert machine.handle(EntryRefused(6, "full")) == ([], Refused(NEXT, "full"))


def test_a_stale_timer_is_dropped() -> None:
    machine = writer()
    assert machine.handle(TimerFired(Timer("retry-append", number=4))) == ([], None)
    assert after(machine, EntryAppended(5), TimerFired(RETRY)) == ([], None)
    assert machine.dropped == {"stale timer": 2}


@pytest.mark.parametrize(
    "event",
    [EntryAppended(6), EntryTaken(4), EntryUncertain(6, "x"), EntryRefused(6, "x"), EntryRead(6, None)],
)
def test_an_answer_to_something_that_was_not_asked_raises_and_changes_nothing(event: LogEvent) -> None:
    machine = writer()
    before = deepcopy(vars(machine))
    with pytest.raises(ProtocolError, match="while the writer is at entry 5"):
        machine.handle(event)
    assert vars(machine) == before
    with pytest.raises(ProtocolError):
        LogWriter(event.index if not isinstance(event, TimerFired) else 1).handle(event)
