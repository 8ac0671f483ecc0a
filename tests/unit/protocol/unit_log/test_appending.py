"""One incarnation's hold on the log of a unit, and everything that the store may answer."""

from copy import deepcopy

import pytest
from tests.unit.protocol.unit_log.conversing import (
    FIRST,
    NOWHERE,
    SECOND,
    THIRD,
    TIMEOUT_MS,
    answered,
    appends,
    at,
    call,
    group,
    head,
)

from crosscut.errors import ProtocolError
from crosscut.protocol.effects import CancelTimer, StartTimer
from crosscut.protocol.events import (
    EntryAppended,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    Timer,
    TimerFired,
)
from crosscut.protocol.log.pending_append import RETRY_APPEND_MS, UNCERTAIN_ATTEMPTS_MAX
from crosscut.protocol.unit_log.appending import (
    CLAIM_ATTEMPTS_MAX,
    FOLLOWED_MAX,
    READING,
    REFUSED_ATTEMPTS_MAX,
    TRANSITIONS,
    EntryLogged,
    LogKind,
    LogLost,
    LogPhase,
    UnitClaimed,
    UnitLog,
)
from crosscut.protocol.unit_log.effects import (
    AppendUnitEntry,
    ReadNewestHead,
    ReadUnitEntry,
    ReadUnitTail,
    SealSegment,
)
from crosscut.protocol.unit_log.entries import (
    Incarnation,
    UnitEntry,
    UnitSegmentClosed,
    UnitSegmentOpened,
    UnitSnapshot,
)
from crosscut.protocol.unit_log.events import (
    NewestHeadRead,
    SealFound,
    SegmentSealed,
    UnitEntryRead,
    UnitLogEvent,
    UnitLogFailed,
    UnitTailRead,
)

READ = CancelTimer(READING)
START = StartTimer(READING, TIMEOUT_MS)
OBJECTS: LogKind = "objects"
FILES: LogKind = "segment files"


def reading(incarnation: Incarnation = SECOND, kind: LogKind = OBJECTS) -> UnitLog:
    log = UnitLog(incarnation, TIMEOUT_MS, kind)
    log.start()
    return log


def opened(kind: LogKind = OBJECTS) -> UnitLog:
    """Return a log that was empty, with its first head: the next step is the second."""
    log = reading(SECOND, kind)
    if kind == FILES:
        log.handle(NewestHeadRead(0, None))
    log.handle(UnitTailRead(()))
    _, verdict = log.handle(EntryAppended(at(1, 0)))
    assert isinstance(verdict, UnitClaimed)
    return log


# The claim.


def test_an_empty_log_is_claimed_by_its_first_head() -> None:
    log = UnitLog(FIRST, TIMEOUT_MS)
    assert log.start() == [ReadUnitTail(), START]
    assert log.handle(UnitTailRead(())) == ([READ, *appends(at(1, 0), head(FIRST), 1)], None)
    assert log.handle(EntryAppended(at(1, 0))) == ([answered(1)], UnitClaimed((), ()))
    assert log.next == at(1, 1) and log.is_idle


def test_the_segment_of_another_incarnation_is_closed_where_it_would_append_next() -> None:
    log = reading()
    tail = ((at(4, 0), head(FIRST)), (at(4, 1), group(FIRST)))
    closed = UnitSegmentClosed(SECOND)
    assert log.handle(UnitTailRead(tail)) == ([READ, *appends(at(4, 2), closed, 1)], None)
    claim = head(SECOND, at(4, 1))
    assert log.handle(EntryAppended(at(4, 2))) == ([answered(1), *appends(at(5, 0), claim, 2)], None)
    assert log.handle(EntryAppended(at(5, 0))) == ([answered(2)], UnitClaimed(tail, ()))


def test_a_closed_segment_is_not_closed_again() -> None:
    log = reading()
    tail = ((at(4, 0), head(FIRST)), (at(4, 1), UnitSegmentClosed(THIRD)))
    assert log.handle(UnitTailRead(tail)) == ([READ, *appends(at(5, 0), head(SECOND, at(4, 1)), 1)], None)


def test_a_claimant_gives_way_to_a_newer_incarnation() -> None:
    _, verdict = reading().handle(UnitTailRead(((at(1, 0), head(THIRD)),)))
    assert verdict == LogLost("incarnation 1.3 of this unit owns the log")


def test_a_claimant_closes_the_segment_after_a_group_that_came_meanwhile_and_was_read() -> None:
    log = reading()
    tail = ((at(1, 0), head(FIRST)),)
    log.handle(UnitTailRead(tail))
    effects, _ = log.handle(EntryTaken(at(1, 1)))
    assert effects[1] == ReadUnitEntry(at(1, 1))
    closed, claim = UnitSegmentClosed(SECOND), head(SECOND, at(1, 1))
    found = UnitEntryRead(at(1, 1), group(FIRST))
    assert log.handle(found) == ([answered(1), *appends(at(1, 2), closed, 2)], None)
    assert log.handle(EntryAppended(at(1, 2))) == ([answered(2), *appends(at(2, 0), claim, 3)], None)
    assert log.handle(EntryAppended(at(2, 0))) == (
        [answered(3)],
        UnitClaimed((*tail, (at(1, 1), group(FIRST))), ()),
    )


def test_a_claimant_that_is_overtaken_by_another_one_reads_again() -> None:
    log = reading()
    log.handle(UnitTailRead(((at(1, 0), head(FIRST)),)))
    log.handle(EntryTaken(at(1, 1)))
    effects, verdict = log.handle(UnitEntryRead(at(1, 1), UnitSegmentClosed(THIRD)))
    assert (effects[1:], verdict) == ([ReadUnitTail(), START], None)


def test_a_claimant_that_is_always_overtaken_gives_up() -> None:
    log = reading()
    for attempt in range(1, CLAIM_ATTEMPTS_MAX + 1):
        log.handle(UnitTailRead(((at(attempt, 0), head(FIRST)),)))
        log.handle(EntryTaken(at(attempt, 1)))
        _, verdict = log.handle(UnitEntryRead(at(attempt, 1), UnitSegmentClosed(FIRST)))
    assert verdict == LogLost("the log could not be claimed in 20 attempts", is_fenced=False)


def test_an_owner_is_not_followed_for_ever() -> None:
    log = reading()
    log.handle(UnitTailRead(((at(1, 0), head(FIRST)),)))
    for number in range(1, FOLLOWED_MAX + 2):
        log.handle(EntryTaken(at(1, number)))
        _, verdict = log.handle(UnitEntryRead(at(1, number), group(FIRST)))
    assert isinstance(verdict, LogLost) and "its owner has appended 1000 groups meanwhile" in verdict.reason


def test_a_segment_file_is_sealed_then_read_then_left_behind() -> None:
    log = UnitLog(SECOND, TIMEOUT_MS, FILES)
    assert log.start() == [ReadNewestHead(), START]
    assert log.handle(NewestHeadRead(4, FIRST)) == ([SealSegment(4)], None)
    assert log.handle(SegmentSealed(4)) == ([ReadUnitTail()], None)
    tail = ((at(4, 0), head(FIRST)), (at(4, 1), group(FIRST)))
    claim = head(SECOND, at(4, 1))
    assert log.handle(UnitTailRead(tail)) == ([READ, *appends(at(5, 0), claim, 1)], None)


def test_a_segment_file_that_is_newer_than_the_seal_is_sealed_first() -> None:
    log = reading(SECOND, FILES)
    log.handle(NewestHeadRead(4, FIRST))
    log.handle(SegmentSealed(4))
    effects, verdict = log.handle(UnitTailRead(((at(4, 0), head(FIRST)), (at(5, 0), head(FIRST)))))
    assert (effects, verdict) == ([READ, ReadNewestHead(), START], None)
    assert log.handle(NewestHeadRead(5, FIRST)) == ([SealSegment(5)], None)


def test_a_segment_file_of_a_newer_incarnation_is_not_sealed() -> None:
    log = reading(SECOND, FILES)
    assert log.handle(NewestHeadRead(4, THIRD)) == (
        [READ],
        LogLost("incarnation 1.3 of this unit owns the log"),
    )


def test_a_log_that_was_empty_is_looked_at_again_if_it_is_no_more() -> None:
    log = reading(SECOND, FILES)
    assert log.handle(NewestHeadRead(0, None)) == ([ReadUnitTail()], None)
    effects, verdict = log.handle(UnitTailRead(((at(1, 0), head(FIRST)),)))
    assert (effects, verdict) == ([READ, ReadNewestHead(), START], None)


def test_groups_of_files_beyond_the_cut_are_void() -> None:
    log = reading(THIRD, FILES)
    log.handle(NewestHeadRead(2, SECOND))
    log.handle(SegmentSealed(2))
    counts = ((at(1, 0), head(FIRST)), (at(1, 1), group(FIRST, b"counts")))
    void = ((at(1, 2), group(FIRST, b"void")),)
    rest = ((at(2, 0), head(SECOND, at(1, 1))), (at(2, 1), group(SECOND)))
    log.handle(UnitTailRead((*counts, *void, *rest)))
    _, verdict = log.handle(EntryAppended(at(3, 0)))
    assert verdict == UnitClaimed((*counts, *rest), ())


def test_a_log_that_is_not_read_in_time_is_lost() -> None:
    _, verdict = reading().handle(TimerFired(READING))
    assert verdict == LogLost(
        "the log could not be read within checkpoint_timeout=60 s; raise it if the store is slow",
        is_fenced=False,
    )


# Appending.


def test_an_appended_group_is_logged() -> None:
    log = opened()
    assert log.append(group(SECOND)) == appends(at(1, 1), group(SECOND), 2)
    assert not log.is_idle
    assert log.handle(EntryAppended(at(1, 1))) == ([answered(2)], EntryLogged(at(1, 1), group(SECOND)))
    assert log.is_idle and log.next == at(1, 2)


def test_an_append_of_unknown_outcome_is_read_back_never_assumed() -> None:
    log = opened()
    log.append(group(SECOND))
    retry = Timer("retry-append", number=2)
    assert log.handle(EntryUncertain(at(1, 1), "timeout")) == (
        [answered(2), StartTimer(retry, RETRY_APPEND_MS)],
        None,
    )
    assert log.trouble == "timeout"
    reads = [ReadUnitEntry(at(1, 1)), StartTimer(call(2), TIMEOUT_MS)]
    assert log.handle(TimerFired(retry)) == (reads, None)
    ours = deepcopy(log)
    assert ours.handle(UnitEntryRead(at(1, 1), group(SECOND)))[1] == EntryLogged(at(1, 1), group(SECOND))
    fenced = deepcopy(log)
    assert fenced.handle(UnitEntryRead(at(1, 1), UnitSegmentClosed(THIRD)))[1] == LogLost(
        "another incarnation has written entry 1/1"
    )
    assert log.handle(UnitEntryRead(at(1, 1), None)) == (
        [answered(2), *appends(at(1, 1), group(SECOND), 2)],
        None,
    )


def test_a_call_without_an_answer_has_an_unknown_outcome_and_its_late_answer_counts() -> None:
    log = opened()
    log.append(group(SECOND))
    effects, verdict = log.handle(TimerFired(call(2)))
    assert (effects, verdict) == ([StartTimer(Timer("retry-append", number=2), RETRY_APPEND_MS)], None)
    assert log.handle(EntryAppended(at(1, 1))) == ([], EntryLogged(at(1, 1), group(SECOND)))


def test_an_append_that_stays_unknown_is_the_end() -> None:
    log = opened()
    log.append(group(SECOND))
    for _ in range(UNCERTAIN_ATTEMPTS_MAX):
        _, verdict = log.handle(EntryUncertain(at(1, 1), "no answer"))
        log.handle(TimerFired(Timer("retry-append", number=2)))
    assert verdict == LogLost("the log can't be written: no answer", is_fenced=False)


@pytest.mark.parametrize("kind", [OBJECTS, FILES])
def test_a_refused_group_is_tried_again(kind: LogKind) -> None:
    log = opened(kind)
    log.append(group(SECOND))
    retry = Timer("retry-append", number=2)
    for _ in range(REFUSED_ATTEMPTS_MAX - 1):
        effects, verdict = log.handle(EntryRefused(at(1, 1), "no space left"))
        assert (effects, verdict) == ([answered(2), StartTimer(retry, RETRY_APPEND_MS)], None)
        (again, _), _ = log.handle(TimerFired(retry))
        asked = AppendUnitEntry(at(1, 1), group(SECOND)) if kind == FILES else ReadUnitEntry(at(1, 1))
        assert again == asked
    _, verdict = log.handle(EntryRefused(at(1, 1), "no space left"))
    assert verdict == LogLost("the log can't be written: no space left", is_fenced=False)


def test_a_group_that_finds_its_segment_sealed_is_the_last() -> None:
    log = opened(FILES)
    log.append(group(SECOND))
    assert log.handle(SealFound(at(1, 1)))[1] == LogLost("a newer incarnation has sealed the segment")
    assert log.phase is LogPhase.OVER


def test_after_an_error_of_fsync_nothing_is_written() -> None:
    log = opened(FILES)
    log.append(group(SECOND))
    _, verdict = log.handle(EntryUncertain(at(1, 1), "fsync: input/output error"))
    assert verdict == LogLost("the log can't be written: fsync: input/output error", is_fenced=False)


def test_a_slow_disk_is_waited_for_rather_than_written_to_again() -> None:
    log = opened(FILES)
    log.append(group(SECOND))
    assert log.handle(TimerFired(call(2))) == ([StartTimer(call(2), TIMEOUT_MS)], None)
    assert log.handle(EntryAppended(at(1, 1)))[1] == EntryLogged(at(1, 1), group(SECOND))


@pytest.mark.parametrize("kind", [OBJECTS, FILES])
def test_a_segment_with_a_snapshot_follows_the_open_one(kind: LogKind) -> None:
    log = opened(kind)
    log.append(group(SECOND))
    log.handle(EntryAppended(at(1, 1)))
    snapshot = UnitSnapshot(at(1, 1))
    begins = UnitSegmentOpened(SECOND, at(1, 1), snapshot)
    if kind == OBJECTS:
        assert log.open_segment(snapshot) == appends(at(1, 2), UnitSegmentClosed(SECOND), 3)
        effects, verdict = log.handle(EntryAppended(at(1, 2)))
        assert (effects, verdict) == ([answered(3), *appends(at(2, 0), begins, 4)], None)
    else:
        assert log.open_segment(snapshot) == appends(at(2, 0), begins, 3)
    assert log.handle(EntryAppended(at(2, 0)))[1] == EntryLogged(at(2, 0), begins)
    assert log.next == at(2, 1)


def test_one_append_is_under_way_at_a_time() -> None:
    log = opened()
    log.append(group(SECOND))
    with pytest.raises(ProtocolError):
        log.append(group(SECOND))
    with pytest.raises(ProtocolError):
        log.open_segment(UnitSnapshot(NOWHERE))


def test_an_answer_to_what_was_not_asked_changes_nothing() -> None:
    log = opened()
    log.append(group(SECOND))
    with pytest.raises(ProtocolError):
        log.handle(EntryAppended(at(1, 2)))
    assert log.handle(EntryAppended(at(1, 0))) == ([], None)
    assert log.dropped == {"late log answer": 1}


# Phases.

ENTRY: UnitEntry = group(THIRD)
EVENTS: list[UnitLogEvent] = [
    NewestHeadRead(0, None), NewestHeadRead(1, FIRST), NewestHeadRead(1, THIRD),
    SegmentSealed(1), UnitTailRead(()), UnitTailRead(((at(1, 0), head(FIRST)),)),
    UnitTailRead(((at(1, 0), head(THIRD)),)), EntryAppended(at(1, 0)), EntryAppended(at(1, 1)),
    EntryTaken(at(1, 1)), EntryUncertain(at(1, 1), ""), EntryRefused(at(1, 1), ""), SealFound(at(1, 1)),
    UnitEntryRead(at(1, 1), ENTRY), UnitEntryRead(at(1, 1), None), TimerFired(READING), TimerFired(call(1)),
    TimerFired(call(2)), TimerFired(Timer("retry-append", number=1)),
]  # fmt: skip


@pytest.mark.parametrize("kind", [OBJECTS, FILES])
def test_phases_follow_the_table(kind: LogKind) -> None:
    """Every event in every state that events lead to, three deep."""
    taken: set[tuple[LogPhase, LogPhase]] = set()
    states: list[UnitLog] = [reading(SECOND, kind), opened(kind)]
    appending_one = opened(kind)
    appending_one.append(group(SECOND))
    states.append(appending_one)
    for _ in range(3):
        following: list[UnitLog] = []
        for before in states:
            for event in EVENTS:
                log = deepcopy(before)
                try:
                    log.handle(event)
                except ProtocolError:
                    assert log.phase is before.phase
                    continue
                taken.add((before.phase, log.phase))
                following.append(log)
        states = following[:: max(1, len(following) // 60)]
    moved = {(old, new) for old, new in taken if old is not new}
    assert all(new in TRANSITIONS[old] for old, new in moved)
    assert moved


@pytest.mark.parametrize(
    "phase", [LogPhase.LOOKING, LogPhase.SEALING, LogPhase.READING, LogPhase.CLAIMING, LogPhase.OPEN]
)
def test_a_log_that_cant_be_used_is_lost_in_every_phase(phase: LogPhase) -> None:
    log = UnitLog(FIRST, TIMEOUT_MS, FILES)
    log.start()
    tail = UnitTailRead(((at(1, 0), head(FIRST)),))
    events: list[UnitLogEvent] = [NewestHeadRead(1, FIRST), SegmentSealed(1), tail, EntryAppended(at(2, 0))]
    while log.phase is not phase:
        log.handle(events.pop(0))
    if phase is LogPhase.OPEN:
        log.append(group(FIRST))
    assert log.handle(UnitLogFailed("entry 1.3 is damaged")) == ([], LogLost("entry 1.3 is damaged", False))
    assert log.phase is LogPhase.OVER
