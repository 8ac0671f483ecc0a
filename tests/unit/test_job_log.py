"""One writer of the job log, and everything that the store may answer."""

from copy import deepcopy

import pytest

from crosscut.errors import ProtocolError
from crosscut.ids import CheckpointId, Epoch
from crosscut.protocol.effects import AppendEntry, CancelTimer, ReadEntry, StartTimer
from crosscut.protocol.events import (
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    Timer,
    TimerFired,
)
from crosscut.protocol.job.job_log import (
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
from crosscut.protocol.messages import JobFinished, LogEntry

OURS, NEXT, THEIRS = (JobFinished(Epoch(epoch), CheckpointId(1)) for epoch in (1, 2, 9))
RETRY, CALL = Timer("retry-append", number=5), Timer("log-call", number=5)
TIMEOUT_MS = 60_000
ANSWERED = CancelTimer(CALL)


def appends(index: int, entry: LogEntry) -> list[LogEffect]:
    return [AppendEntry(index, entry), StartTimer(Timer("log-call", number=index), TIMEOUT_MS)]


READS: list[LogEffect] = [ReadEntry(5), StartTimer(CALL, TIMEOUT_MS)]
RETRIES = StartTimer(RETRY, RETRY_APPEND_MS)


def writer() -> LogWriter:
    machine = LogWriter(5, TIMEOUT_MS)
    assert machine.append(OURS) == appends(5, OURS)
    return machine


def after(machine: LogWriter, *events: LogEvent) -> tuple[list[LogEffect], Verdict | None]:
    answer: tuple[list[LogEffect], Verdict | None] = ([], None)
    for event in events:
        answer = machine.handle(event)
    return answer


def test_an_appended_entry_is_durable() -> None:
    machine = writer()
    assert not machine.is_idle
    assert machine.handle(EntryAppended(5)) == ([ANSWERED], Durable(OURS))
    assert machine.is_idle
    assert machine.next_index == 6


def test_entries_are_written_one_after_the_other() -> None:
    machine = writer()
    assert machine.append(NEXT) == []
    assert machine.handle(EntryAppended(5)) == ([ANSWERED, *appends(6, NEXT)], Durable(OURS))
    assert machine.handle(EntryAppended(6)) == ([CancelTimer(Timer("log-call", number=6))], Durable(NEXT))


def test_a_refused_entry_is_certainly_not_there_and_the_next_takes_its_index() -> None:
    """D4."""
    machine = writer()
    machine.append(NEXT)
    refused = machine.handle(EntryRefused(5, "full"))
    assert refused == ([ANSWERED, *appends(5, NEXT)], Refused(OURS, "full"))


def test_a_taken_index_is_read_to_see_by_whom() -> None:
    machine = writer()
    assert machine.handle(EntryTaken(5)) == ([ANSWERED, *READS], None)
    assert machine.handle(EntryRead(5, THEIRS)) == ([ANSWERED], Overtaken(OURS, 5, THEIRS))
    assert machine.is_idle


def test_a_taken_index_may_be_our_own_earlier_attempt() -> None:
    """B4."""
    assert after(writer(), EntryTaken(5), EntryRead(5, OURS)) == ([ANSWERED], Durable(OURS))


def test_a_taken_index_where_nothing_is_found_is_looked_at_again_after_a_while() -> None:
    """D5: what the store answers may be stale; asking it again at once would never end."""
    machine = writer()
    assert after(machine, EntryTaken(5), EntryRead(5, None)) == ([ANSWERED, RETRIES], None)
    assert machine.handle(TimerFired(RETRY)) == (READS, None)
    assert machine.handle(EntryRead(5, OURS)) == ([ANSWERED], Durable(OURS))


def test_a_taken_index_where_nothing_is_found_again_is_appended_to_again() -> None:
    """What looked taken may have been another request under way, which was not applied."""
    machine = writer()
    after(machine, EntryTaken(5), EntryRead(5, None), TimerFired(RETRY))
    assert machine.handle(EntryRead(5, None)) == ([ANSWERED, *appends(5, OURS)], None)
    assert machine.handle(EntryAppended(5)) == ([ANSWERED], Durable(OURS))


def test_a_store_that_contradicts_itself_for_ever_leaves_the_entry_undecided() -> None:
    machine = writer()
    for _ in range(UNCERTAIN_ATTEMPTS_MAX - 1):
        assert after(machine, EntryTaken(5), EntryRead(5, None)) == ([ANSWERED, RETRIES], None)
        assert after(machine, TimerFired(RETRY), EntryRead(5, None)) == ([ANSWERED, *appends(5, OURS)], None)
    effects, verdict = after(machine, EntryTaken(5), EntryRead(5, None))
    assert effects == [ANSWERED]
    assert isinstance(verdict, Undecided) and "exists, and then that there is none" in verdict.reason
    assert machine.is_idle


def test_an_uncertain_append_is_read_back_after_a_while() -> None:
    """B4: time out, but applied."""
    machine = writer()
    assert machine.handle(EntryUncertain(5, "time out")) == ([ANSWERED, RETRIES], None)
    assert not machine.is_idle
    assert machine.handle(TimerFired(RETRY)) == (READS, None)
    assert machine.handle(EntryRead(5, OURS)) == ([ANSWERED], Durable(OURS))


def test_an_uncertain_append_that_was_not_applied_is_tried_again() -> None:
    """B4, the mirror."""
    machine = writer()
    tried_again = after(machine, EntryUncertain(5, "x"), TimerFired(RETRY), EntryRead(5, None))
    assert tried_again == ([ANSWERED, *appends(5, OURS)], None)
    assert machine.handle(EntryTaken(5)) == ([ANSWERED, *READS], None)
    assert machine.handle(EntryRead(5, OURS)) == ([ANSWERED], Durable(OURS))


def test_a_read_that_fails_is_tried_again_too() -> None:
    machine = writer()
    after(machine, EntryTaken(5))
    assert machine.handle(EntryUncertain(5, "x")) == ([ANSWERED, RETRIES], None)


def test_refused_after_uncertain_is_still_uncertain() -> None:
    """B4: the earlier attempt may be applied later."""
    machine = writer()
    after(machine, EntryUncertain(5, "x"), TimerFired(RETRY), EntryRead(5, None))
    assert machine.handle(EntryRefused(5, "full")) == ([ANSWERED, RETRIES], None)


@pytest.mark.parametrize("last", [EntryUncertain(5, "x"), EntryRefused(5, "x")])
def test_an_entry_that_stays_uncertain_is_undecided_and_nothing_is_written_behind_it(last: LogEvent) -> None:
    machine = writer()
    machine.append(NEXT)
    for _ in range(UNCERTAIN_ATTEMPTS_MAX - 1):
        after(machine, EntryUncertain(5, "x"), TimerFired(RETRY), EntryRead(5, None))
    assert machine.handle(last) == ([ANSWERED], Undecided(OURS, "x"))
    assert machine.is_idle


def test_nothing_is_written_behind_an_entry_of_another_driver() -> None:
    """B5."""
    machine = writer()
    machine.append(NEXT)
    assert after(machine, EntryTaken(5), EntryRead(5, THEIRS)) == ([ANSWERED], Overtaken(OURS, 5, THEIRS))
    assert machine.is_idle
    assert machine.next_index == 5


def test_the_count_of_uncertain_attempts_starts_anew_with_the_next_entry() -> None:
    machine = writer()
    machine.append(NEXT)
    after(machine, EntryUncertain(5, "x"), TimerFired(RETRY), EntryRead(5, OURS))
    assert machine.handle(EntryRefused(6, "full"))[1] == Refused(NEXT, "full")


def test_a_call_that_is_not_answered_in_time_is_uncertain() -> None:
    """D3: the entry is read back, and nothing else happens meanwhile."""
    machine = writer()
    assert machine.handle(TimerFired(CALL)) == ([RETRIES], None)
    assert not machine.is_idle
    assert machine.handle(TimerFired(RETRY)) == (READS, None)
    assert machine.handle(TimerFired(CALL)) == ([RETRIES], None), "the read hangs, too"
    assert after(machine, TimerFired(RETRY), EntryRead(5, OURS)) == ([ANSWERED], Durable(OURS))


def test_what_a_call_says_after_it_was_given_up_is_still_true() -> None:
    """D3."""
    machine = writer()
    machine.handle(TimerFired(CALL))
    assert machine.handle(EntryAppended(5)) == ([], Durable(OURS))
    assert machine.handle(TimerFired(RETRY)) == ([], None)


def test_refused_after_a_call_that_was_given_up_is_still_uncertain() -> None:
    """B4, D3: it may be the later one that was refused."""
    machine = writer()
    after(machine, TimerFired(CALL), TimerFired(RETRY), EntryRead(5, None))
    assert machine.handle(EntryRefused(5, "full")) == ([ANSWERED, RETRIES], None)


@pytest.mark.parametrize("late", [EntryAppended(5), EntryTaken(5), EntryRefused(5, "x"), EntryRead(5, None)])
def test_a_late_answer_about_an_entry_that_is_decided_is_dropped(late: LogEvent) -> None:
    """D3."""
    machine = writer()
    machine.append(NEXT)
    after(machine, TimerFired(CALL), TimerFired(RETRY), EntryRead(5, OURS))
    assert machine.handle(late) == ([], None)
    assert machine.dropped == {"late log answer": 1}


def test_a_store_that_never_answers_leaves_the_entry_undecided() -> None:
    """D3: the wait has an end."""
    machine = writer()
    for _ in range(UNCERTAIN_ATTEMPTS_MAX - 1):
        assert after(machine, TimerFired(CALL)) == ([RETRIES], None)
        machine.handle(TimerFired(RETRY))
    reason = "the store has not answered within 60 s"
    assert machine.handle(TimerFired(CALL)) == ([], Undecided(OURS, reason))


def test_the_timer_of_a_call_that_was_answered_is_stale() -> None:
    machine = writer()
    machine.append(NEXT)
    assert after(machine, EntryAppended(5), TimerFired(CALL)) == ([], None)
    assert machine.dropped == {"stale timer": 1}


def test_a_stale_timer_is_dropped() -> None:
    machine = writer()
    assert machine.handle(TimerFired(Timer("retry-append", number=4))) == ([], None)
    assert after(machine, EntryAppended(5), TimerFired(RETRY)) == ([], None)
    assert machine.dropped == {"stale timer": 2}


@pytest.mark.parametrize(
    "event",
    [EntryAppended(6), EntryTaken(6), EntryUncertain(6, "x"), EntryRefused(6, "x"), EntryRead(6, None)],
)
def test_an_answer_to_something_that_was_not_asked_raises_and_changes_nothing(event: LogEvent) -> None:
    machine = writer()
    before = deepcopy(vars(machine))
    with pytest.raises(ProtocolError, match="while the writer is at entry 5"):
        machine.handle(event)
    assert vars(machine) == before
    with pytest.raises(ProtocolError):
        LogWriter(event.index if not isinstance(event, TimerFired) else 1, TIMEOUT_MS).handle(event)
