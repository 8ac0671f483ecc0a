"""One writer of the job log, and everything that the store may answer."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.stores import at, checkpoint, claim

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex
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
from crosscut.protocol.log.entries import (
    JobEntry,
    JobFinished,
    LogEntry,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.identity import Claimant
from crosscut.protocol.log.pending_append import RETRY_APPEND_MS, UNCERTAIN_ATTEMPTS_MAX
from crosscut.protocol.log.segments import LogEnd
from crosscut.protocol.log.writer import (
    DIFFERENCES_MAX,
    Durable,
    LogEffect,
    LogEvent,
    LogWriter,
    Overtaken,
    Refused,
    Undecided,
    Verdict,
)

# The fifth entry of a segment, and the sixth; the writer counts its steps from the head on.
P5, P6 = at(5), at(6)
OURS, NEXT, THEIRS = (JobFinished(Epoch(epoch), CheckpointId(1)) for epoch in (1, 2, 9))
RETRY, CALL = Timer("retry-append", number=6), Timer("log-call", number=6)
TIMEOUT_MS = 60_000
ANSWERED = CancelTimer(CALL)


def appends(index: LogIndex, entry: LogEntry, step: int = 0) -> list[LogEffect]:
    call = AppendEntry(index, entry)
    return [call, StartTimer(Timer("log-call", number=step or index.number + 1), TIMEOUT_MS)]


READS: list[LogEffect] = [ReadEntry(P5), StartTimer(CALL, TIMEOUT_MS)]
RETRIES = StartTimer(RETRY, RETRY_APPEND_MS)


def owner(**options: Any) -> LogWriter:
    """Return a writer whose segment has a head, with the claim, and four more entries."""
    machine = LogWriter(LogEnd(), TIMEOUT_MS, **options)
    for number in range(5):
        machine.append(claim(1 + number))
        machine.handle(EntryAppended(at(number)))
    return machine


def writer() -> LogWriter:
    machine = owner()
    assert machine.append(OURS) == appends(P5, OURS)
    return machine


def after(machine: LogWriter, *events: LogEvent) -> tuple[list[LogEffect], Verdict | None]:
    answer: tuple[list[LogEffect], Verdict | None] = ([], None)
    for event in events:
        answer = machine.handle(event)
    return answer


def test_an_appended_entry_is_durable() -> None:
    machine = writer()
    assert not machine.is_idle
    assert machine.handle(EntryAppended(P5)) == ([ANSWERED], Durable(OURS, P5))
    assert machine.is_idle


def test_entries_are_written_one_after_the_other() -> None:
    machine = writer()
    assert machine.append(NEXT) == []
    assert machine.handle(EntryAppended(P5)) == ([ANSWERED, *appends(P6, NEXT)], Durable(OURS, P5))
    assert machine.handle(EntryAppended(P6)) == (
        [CancelTimer(Timer("log-call", number=7))],
        Durable(NEXT, P6),
    )


def test_a_refused_entry_is_certainly_not_there_and_the_next_takes_its_index() -> None:
    """D4."""
    machine = writer()
    machine.append(NEXT)
    refused = machine.handle(EntryRefused(P5, "full"))
    assert refused == ([ANSWERED, *appends(P5, NEXT, step=7)], Refused(OURS, "full"))


def test_a_taken_index_is_read_to_see_by_whom() -> None:
    machine = writer()
    assert machine.handle(EntryTaken(P5)) == ([ANSWERED, *READS], None)
    assert machine.handle(EntryRead(P5, THEIRS)) == ([ANSWERED], Overtaken(OURS, P5, THEIRS))
    assert machine.is_idle


def test_a_taken_index_may_be_our_own_earlier_attempt() -> None:
    """B4."""
    assert after(writer(), EntryTaken(P5), EntryRead(P5, OURS)) == ([ANSWERED], Durable(OURS, P5))


def test_a_taken_index_where_nothing_is_found_is_looked_at_again_after_a_while() -> None:
    """D5: what the store answers may be stale; asking it again at once would never end."""
    machine = writer()
    assert after(machine, EntryTaken(P5), EntryRead(P5, None)) == ([ANSWERED, RETRIES], None)
    assert machine.handle(TimerFired(RETRY)) == (READS, None)
    assert machine.handle(EntryRead(P5, OURS)) == ([ANSWERED], Durable(OURS, P5))


def test_a_taken_index_where_nothing_is_found_again_is_appended_to_again() -> None:
    """What looked taken may have been another request under way, which was not applied."""
    machine = writer()
    after(machine, EntryTaken(P5), EntryRead(P5, None), TimerFired(RETRY))
    assert machine.handle(EntryRead(P5, None)) == ([ANSWERED, *appends(P5, OURS)], None)
    assert machine.handle(EntryAppended(P5)) == ([ANSWERED], Durable(OURS, P5))


def test_a_store_that_contradicts_itself_for_ever_leaves_the_entry_undecided() -> None:
    machine = writer()
    for _ in range(UNCERTAIN_ATTEMPTS_MAX - 1):
        assert after(machine, EntryTaken(P5), EntryRead(P5, None)) == ([ANSWERED, RETRIES], None)
        assert after(machine, TimerFired(RETRY), EntryRead(P5, None)) == (
            [ANSWERED, *appends(P5, OURS)],
            None,
        )
    effects, verdict = after(machine, EntryTaken(P5), EntryRead(P5, None))
    assert effects == [ANSWERED]
    assert isinstance(verdict, Undecided) and "exists, and then that there is none" in verdict.reason
    assert machine.is_idle


def test_an_uncertain_append_is_read_back_after_a_while() -> None:
    """B4: time out, but applied."""
    machine = writer()
    assert machine.handle(EntryUncertain(P5, "time out")) == ([ANSWERED, RETRIES], None)
    assert not machine.is_idle
    assert machine.handle(TimerFired(RETRY)) == (READS, None)
    assert machine.handle(EntryRead(P5, OURS)) == ([ANSWERED], Durable(OURS, P5))


def test_an_uncertain_append_that_was_not_applied_is_tried_again() -> None:
    """B4, the mirror."""
    machine = writer()
    tried_again = after(machine, EntryUncertain(P5, "x"), TimerFired(RETRY), EntryRead(P5, None))
    assert tried_again == ([ANSWERED, *appends(P5, OURS)], None)
    assert machine.handle(EntryTaken(P5)) == ([ANSWERED, *READS], None)
    assert machine.handle(EntryRead(P5, OURS)) == ([ANSWERED], Durable(OURS, P5))


def test_a_read_that_fails_is_tried_again_too() -> None:
    machine = writer()
    after(machine, EntryTaken(P5))
    assert machine.handle(EntryUncertain(P5, "x")) == ([ANSWERED, RETRIES], None)


def test_refused_after_uncertain_is_still_uncertain() -> None:
    """B4: the earlier attempt may be applied later."""
    machine = writer()
    after(machine, EntryUncertain(P5, "x"), TimerFired(RETRY), EntryRead(P5, None))
    assert machine.handle(EntryRefused(P5, "full")) == ([ANSWERED, RETRIES], None)


@pytest.mark.parametrize("last", [EntryUncertain(P5, "x"), EntryRefused(P5, "x")])
def test_an_entry_that_stays_uncertain_is_undecided_and_nothing_is_written_behind_it(last: LogEvent) -> None:
    machine = writer()
    machine.append(NEXT)
    for _ in range(UNCERTAIN_ATTEMPTS_MAX - 1):
        after(machine, EntryUncertain(P5, "x"), TimerFired(RETRY), EntryRead(P5, None))
    assert machine.handle(last) == ([ANSWERED], Undecided(OURS, "x"))
    assert machine.is_idle


def test_nothing_is_written_behind_an_entry_of_another_driver() -> None:
    """B5."""
    machine = writer()
    machine.append(NEXT)
    assert after(machine, EntryTaken(P5), EntryRead(P5, THEIRS)) == ([ANSWERED], Overtaken(OURS, P5, THEIRS))
    assert machine.is_idle


def test_the_count_of_uncertain_attempts_starts_anew_with_the_next_entry() -> None:
    machine = writer()
    machine.append(NEXT)
    after(machine, EntryUncertain(P5, "x"), TimerFired(RETRY), EntryRead(P5, OURS))
    assert machine.handle(EntryRefused(P6, "full"))[1] == Refused(NEXT, "full")


def test_a_call_that_is_not_answered_in_time_is_uncertain() -> None:
    """D3: the entry is read back, and nothing else happens meanwhile."""
    machine = writer()
    assert machine.handle(TimerFired(CALL)) == ([RETRIES], None)
    assert not machine.is_idle
    assert machine.handle(TimerFired(RETRY)) == (READS, None)
    assert machine.handle(TimerFired(CALL)) == ([RETRIES], None), "the read hangs, too"
    assert after(machine, TimerFired(RETRY), EntryRead(P5, OURS)) == ([ANSWERED], Durable(OURS, P5))


def test_what_a_call_says_after_it_was_given_up_is_still_true() -> None:
    """D3."""
    machine = writer()
    machine.handle(TimerFired(CALL))
    assert machine.handle(EntryAppended(P5)) == ([], Durable(OURS, P5))
    assert machine.handle(TimerFired(RETRY)) == ([], None)


def test_refused_after_a_call_that_was_given_up_is_still_uncertain() -> None:
    """B4, D3: it may be the later one that was refused."""
    machine = writer()
    after(machine, TimerFired(CALL), TimerFired(RETRY), EntryRead(P5, None))
    assert machine.handle(EntryRefused(P5, "full")) == ([ANSWERED, RETRIES], None)


@pytest.mark.parametrize(
    "late", [EntryAppended(P5), EntryTaken(P5), EntryRefused(P5, "x"), EntryRead(P5, None)]
)
def test_a_late_answer_about_an_entry_that_is_decided_is_dropped(late: LogEvent) -> None:
    """D3."""
    machine = writer()
    machine.append(NEXT)
    after(machine, TimerFired(CALL), TimerFired(RETRY), EntryRead(P5, OURS))
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
    assert after(machine, EntryAppended(P5), TimerFired(CALL)) == ([], None)
    assert machine.dropped == {"stale timer": 1}


def test_a_stale_timer_is_dropped() -> None:
    machine = writer()
    assert machine.handle(TimerFired(Timer("retry-append", number=4))) == ([], None)
    assert after(machine, EntryAppended(P5), TimerFired(RETRY)) == ([], None)
    assert machine.dropped == {"stale timer": 2}


@pytest.mark.parametrize(
    "event",
    [EntryAppended(P6), EntryTaken(P6), EntryUncertain(P6, "x"), EntryRefused(P6, "x"), EntryRead(P6, None)],
)
def test_an_answer_to_something_that_was_not_asked_raises_and_changes_nothing(event: LogEvent) -> None:
    machine = writer()
    before = deepcopy(vars(machine))
    with pytest.raises(ProtocolError, match="while the writer is at entry 1/5"):
        machine.handle(event)
    assert vars(machine) == before
    with pytest.raises(ProtocolError):
        LogWriter(LogEnd(), TIMEOUT_MS).handle(event)
    with pytest.raises(ProtocolError, match="before a claim"):
        LogWriter(LogEnd(), TIMEOUT_MS).append(OURS)


# Segments


def answers(machine: LogWriter, *entries: JobEntry) -> list[AppendEntry]:
    """Append `entries`; return all that is written for them, by a store that does what it is asked to."""
    effects = [effect for entry in entries for effect in machine.append(entry)]
    written: list[AppendEntry] = []
    while calls := [effect for effect in effects if isinstance(effect, AppendEntry)]:
        written += calls
        effects, _ = machine.handle(EntryAppended(calls[-1].index))
    return written


def test_the_first_entry_of_a_log_is_a_head_with_the_claim() -> None:
    machine = LogWriter(LogEnd(), TIMEOUT_MS)
    assert machine.append(claim(1)) == appends(at(0), SegmentOpened(claim(1), None))
    answered = ([CancelTimer(Timer("log-call", number=1))], Durable(claim(1), at(0)))
    assert machine.handle(EntryAppended(at(0))) == answered


def test_whoever_takes_a_log_over_closes_it_first_and_then_opens_a_segment_with_its_claim() -> None:
    """B5: the entry that closes it stands where the driver before appends next."""
    machine = LogWriter(LogEnd(at(7)), TIMEOUT_MS)
    ours = replace(claim(2, "driver 2"), claimant=Claimant("host 2", 22))
    closes = SegmentClosed(Epoch(2), "driver 2", Claimant("host 2", 22))
    assert machine.append(ours) == appends(at(8), closes, step=1)
    opens = appends(at(0, 2), SegmentOpened(ours, at(8)), step=2)
    first = [CancelTimer(Timer("log-call", number=1)), *opens]
    assert machine.handle(EntryAppended(at(8))) == (first, None)
    assert machine.handle(EntryAppended(at(0, 2)))[1] == Durable(ours, at(0, 2))
    assert machine.append(OURS) == appends(at(1, 2), OURS, step=3)


def test_a_log_that_is_closed_already_is_gone_on_with() -> None:
    machine = LogWriter(LogEnd(at(7), is_closed=True), TIMEOUT_MS)
    opens = SegmentOpened(claim(2, "driver 2"), at(7))
    assert machine.append(claim(2, "driver 2")) == appends(at(0, 2), opens)


@pytest.mark.parametrize("overtaken_at", [at(8), at(0, 2)])
def test_whoever_is_faster_at_either_step_overtakes(overtaken_at: LogIndex) -> None:
    """B5."""
    machine = LogWriter(LogEnd(at(7)), TIMEOUT_MS)
    machine.append(claim(2))
    if overtaken_at != at(8):
        machine.handle(EntryAppended(at(8)))
    machine.handle(EntryTaken(overtaken_at))
    verdict = machine.handle(EntryRead(overtaken_at, THEIRS))[1]
    assert verdict == Overtaken(claim(2), overtaken_at, THEIRS)
    assert machine.is_idle


def test_a_log_that_can_not_be_closed_is_refused_for_the_claim() -> None:
    machine = LogWriter(LogEnd(at(7)), TIMEOUT_MS)
    machine.append(claim(2))
    assert machine.handle(EntryRefused(at(8), "no space"))[1] == Refused(claim(2), "no space")
    assert machine.is_idle


def test_a_long_segment_is_followed_by_another_of_the_same_driver() -> None:
    """The head comes before the entry that finds the segment full."""
    machine = owner(segment_entries_max=5)
    written = answers(machine, checkpoint(5, 1), checkpoint(5, 2), checkpoint(5, 3))
    assert written == [
        AppendEntry(at(5), checkpoint(5, 1)),
        AppendEntry(at(0, 2), SegmentOpened(claim(5), at(5))),
        AppendEntry(at(1, 2), checkpoint(5, 2)),
        AppendEntry(at(2, 2), checkpoint(5, 3), at(1, 2)),
    ]
    assert machine.take_ended() == tuple(at(number) for number in range(5, 0, -1))
    assert machine.take_ended() == ()


def test_a_claim_of_a_failover_that_finds_the_segment_full_is_the_head_of_the_next() -> None:
    machine = owner(segment_entries_max=4)
    assert answers(machine, claim(6)) == [AppendEntry(at(0, 2), SegmentOpened(claim(6), at(4)))]
    assert machine.take_ended() == tuple(at(number) for number in range(4, 0, -1))


def test_the_end_of_the_job_opens_no_segment() -> None:
    machine = owner(segment_entries_max=4)
    assert answers(machine, OURS) == [AppendEntry(at(5), OURS)]


def test_a_head_that_is_refused_is_refused_for_the_entry_and_tried_again_with_the_next() -> None:
    """D4: the segment is still open, and nothing is in the next one."""
    machine = owner(segment_entries_max=4)
    head = AppendEntry(at(0, 2), SegmentOpened(claim(5), at(4)))
    assert machine.append(checkpoint(5, 1))[0] == head
    assert machine.handle(EntryRefused(at(0, 2), "full"))[1] == Refused(checkpoint(5, 1), "full")
    assert machine.append(checkpoint(5, 2))[0] == head
    effects, verdict = machine.handle(EntryAppended(at(0, 2)))
    assert verdict is None and AppendEntry(at(1, 2), checkpoint(5, 2)) in effects


def test_a_driver_whose_next_segment_somebody_has_opened_is_overtaken() -> None:
    """B5: it was full, and another driver has just closed it and claimed."""
    machine = owner(segment_entries_max=4)
    machine.append(checkpoint(5, 1))
    machine.handle(EntryTaken(at(0, 2)))
    theirs = SegmentOpened(claim(9, "driver 2"), at(5))
    assert machine.handle(EntryRead(at(0, 2), theirs))[1] == Overtaken(checkpoint(5, 1), at(0, 2), theirs)


def test_what_closed_a_segment_is_kept_when_the_rest_is_deleted() -> None:
    machine = LogWriter(LogEnd(at(7)), TIMEOUT_MS)
    answers(machine, claim(2))
    assert machine.take_ended() == tuple(at(number) for number in range(7, 0, -1))
    machine = LogWriter(LogEnd(at(8), is_closed=True), TIMEOUT_MS)
    answers(machine, claim(2))
    assert machine.take_ended() == tuple(at(number) for number in range(7, 0, -1))


def test_an_entry_is_written_as_a_change_of_the_one_before_and_whole_now_and_then() -> None:
    machine = owner()
    written = answers(machine, *(checkpoint(5, n) for n in range(1, 2 * DIFFERENCES_MAX)))
    whole = [call.index.number for call in written if call.since is None]
    assert whole == [5, 5 + DIFFERENCES_MAX + 1]
    assert all(call.since == at(call.index.number - 1) for call in written if call.since is not None)


def test_an_entry_that_was_refused_is_no_base_of_the_next() -> None:
    machine = owner()
    answers(machine, checkpoint(5, 1))
    machine.append(checkpoint(5, 2))
    machine.handle(EntryRefused(P6, "full"))
    assert machine.append(checkpoint(5, 3))[0] == AppendEntry(P6, checkpoint(5, 3), P5)


def test_a_claim_between_two_checkpoints_is_no_base() -> None:
    machine = owner()
    (*_, last) = answers(machine, checkpoint(5, 1), claim(6), checkpoint(6, 2))
    assert last == AppendEntry(at(7), checkpoint(6, 2), P5)
