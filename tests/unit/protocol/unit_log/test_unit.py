"""One unit: what leaves it, and when; what a new incarnation makes of its log."""

import pytest
from tests.unit.protocol.unit_log.conversing import (
    FIRST,
    INPUT,
    OUTPUT,
    SECOND,
    TIMEOUT_MS,
    answered,
    appends,
    at,
    head,
    run,
    up_to,
)

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.effects import CancelTimer
from crosscut.protocol.events import EntryAppended, EntryTaken
from crosscut.protocol.snapshot.commit import RETRY_DELAY_MS
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.appending import READING
from crosscut.protocol.unit_log.effects import (
    AcknowledgeInputs,
    AcknowledgeSources,
    AuthoriseCommit,
    DeleteGroups,
    DeliverRecords,
    EndUnit,
    FreezeUnit,
    RestoreUnit,
    SendRecords,
    StoreUnitSnapshot,
)
from crosscut.protocol.unit_log.entries import (
    ChannelPosition,
    GroupCommitted,
    GroupContent,
    SentRecords,
    UnitEntry,
    UnitSegmentClosed,
    UnitSegmentOpened,
    UnitSnapshot,
    commit_number,
)
from crosscut.protocol.unit_log.events import (
    ChannelConnected,
    CompactionRequested,
    ConnectionId,
    GroupEnded,
    InputsAcknowledged,
    RecordsArrived,
    RecordsEmitted,
    ResumeAsked,
    UnitCommitFailed,
    UnitCommitted,
    UnitEntryRead,
    UnitSnapshotFailed,
    UnitSnapshotStored,
    UnitTailRead,
)
from crosscut.protocol.unit_log.unit import Unit

CONNECTION = ConnectionId(1)
PARTS = (Part("", 1, "", "eA=="),)


def fresh(**options: int) -> Unit:
    unit = Unit(SECOND, (INPUT,), (OUTPUT,), TIMEOUT_MS, **options)
    unit.start()
    return unit


def running(**options: int) -> Unit:
    """Return a unit that has claimed an empty log, and is connected: its next step is the second."""
    unit = fresh(**options)
    unit.handle(UnitTailRead(()))
    assert unit.handle(EntryAppended(at(1, 0)))[1:] == [RestoreUnit(None, (), ())]
    unit.handle(ChannelConnected(OUTPUT, CONNECTION))
    unit.handle(ResumeAsked(OUTPUT, CONNECTION, up_to(0)))
    return unit


def group(content: GroupContent = GroupContent(), received: int = 0, *sent: SentRecords) -> GroupCommitted:  # noqa: B008 - frozen
    return GroupCommitted(SECOND, ((INPUT, up_to(received)),) if received else (), sent, content)


def recovered(*tail: tuple[LogIndex, UnitEntry]) -> list[object]:
    """Return what a unit does that has claimed a log with this tail."""
    unit = fresh()
    unit.handle(UnitTailRead(tail))
    last = tail[-1][0]
    unit.handle(EntryAppended(at(last.segment, last.number + 1)))
    return [*unit.handle(EntryAppended(at(last.segment + 1, 0)))[1:]]


# Groups.


def test_nothing_leaves_before_the_entry_is_durable() -> None:
    unit = running()
    assert unit.handle(RecordsArrived(INPUT, CONNECTION, 1, 2)) == [DeliverRecords(INPUT, 0)]
    assert unit.handle(RecordsEmitted(OUTPUT, 1, b"x")) == []
    content = GroupContent(b"state", (("split", 7),), "handle")
    sent = SentRecords(OUTPUT, run(1, 1, b"x"))
    entry = group(content, 2, sent)
    assert unit.handle(GroupEnded(content, ((INPUT, up_to(2)),))) == appends(at(1, 1), entry, 2)
    assert unit.handle(EntryAppended(at(1, 1))) == [
        answered(2),
        SendRecords(OUTPUT, CONNECTION, run(1, 1, b"x")),
        AcknowledgeInputs(INPUT, up_to(2)),
        AcknowledgeSources((("split", 7),)),
        AuthoriseCommit(at(1, 1), "handle"),
    ]


def test_what_has_arrived_and_was_not_taken_belongs_to_a_later_group() -> None:
    unit = running()
    unit.handle(RecordsArrived(INPUT, CONNECTION, 1, 5, news=1))
    taken = ((INPUT, up_to(3)),)
    (append, _) = unit.handle(GroupEnded(GroupContent(), taken))
    assert append.entry.received == taken
    assert unit.handle(EntryAppended(at(1, 1)))[1:] == [AcknowledgeInputs(INPUT, up_to(3))]
    # A channel that has not moved is in no entry.
    (append, _) = unit.handle(GroupEnded(GroupContent(), taken))
    assert append.entry.received == ()


@pytest.mark.parametrize("taken", [up_to(6), up_to(5, 2), up_to(1, 0)])
def test_a_group_takes_nothing_that_has_not_arrived_and_nothing_again(taken: ChannelPosition) -> None:
    unit = running()
    unit.handle(RecordsArrived(INPUT, CONNECTION, 1, 5, news=1))
    unit.handle(GroupEnded(GroupContent(), ((INPUT, up_to(2)),)))
    unit.handle(EntryAppended(at(1, 1)))
    with pytest.raises(ProtocolError, match="was taken up to record 2"):
        unit.handle(GroupEnded(GroupContent(), ((INPUT, taken),)))
    assert unit.can_end_group


def test_the_next_group_grows_while_one_is_appended() -> None:
    unit = running()
    unit.handle(RecordsEmitted(OUTPUT, 1, b"a"))
    unit.handle(GroupEnded(GroupContent()))
    unit.handle(RecordsEmitted(OUTPUT, 1, b"b"))
    assert not unit.can_end_group
    with pytest.raises(ProtocolError):
        unit.handle(GroupEnded(GroupContent()))
    # Of the two, only what the entry holds leaves.
    assert unit.handle(EntryAppended(at(1, 1)))[1:] == [SendRecords(OUTPUT, CONNECTION, run(1, 1, b"a"))]
    entry = group(GroupContent(), 0, SentRecords(OUTPUT, run(2, 2, b"b")))
    assert unit.handle(GroupEnded(GroupContent())) == appends(at(1, 2), entry, 3)


def test_a_fenced_unit_ends_and_hears_nothing_more() -> None:
    unit = running()
    unit.handle(GroupEnded(GroupContent(b"x")))
    unit.handle(EntryTaken(at(1, 1)))
    (*_, end) = unit.handle(UnitEntryRead(at(1, 1), UnitSegmentClosed(FIRST)))
    assert end == EndUnit("another incarnation has written entry 1/1", is_fenced=True)
    assert not unit.is_running
    assert unit.handle(EntryAppended(at(1, 1))) == []


def test_before_the_claim_channels_are_not_heard() -> None:
    unit = fresh()
    assert unit.handle(RecordsArrived(INPUT, CONNECTION, 1, 1)) == []
    assert unit.handle(InputsAcknowledged(OUTPUT, up_to(1))) == []
    assert unit.dropped == {"channel event before the claim": 2}


def test_a_channel_of_another_unit_is_impossible() -> None:
    unit = running()
    with pytest.raises(ProtocolError):
        unit.handle(RecordsArrived(OUTPUT, CONNECTION, 1, 1))
    with pytest.raises(ProtocolError):
        unit.handle(InputsAcknowledged(INPUT, up_to(1)))


# Bounds.


def test_an_output_stops_its_tasks_until_it_is_acknowledged() -> None:
    unit = running(channel_bytes=2)
    unit.handle(RecordsEmitted(OUTPUT, 2, b"ab"))
    assert unit.is_full(OUTPUT)
    unit.handle(GroupEnded(GroupContent()))
    unit.handle(EntryAppended(at(1, 1)))
    assert unit.is_full(OUTPUT)
    unit.handle(InputsAcknowledged(OUTPUT, up_to(2)))
    assert not unit.is_full(OUTPUT)


def test_a_back_edge_never_stops_its_tasks() -> None:
    unit = Unit(SECOND, (), (OUTPUT,), TIMEOUT_MS, back_edges=frozenset({OUTPUT}), channel_bytes=1)
    unit.start()
    unit.handle(UnitTailRead(()))
    unit.handle(EntryAppended(at(1, 0)))
    unit.handle(RecordsEmitted(OUTPUT, 2, b"ab"))
    assert not unit.is_full(OUTPUT)


def test_a_sink_that_is_far_behind_stops_the_input() -> None:
    unit = running(owed_max=1)
    for number in (1, 2):
        assert unit.takes_input
        unit.handle(GroupEnded(GroupContent(sink="handle")))
        unit.handle(EntryAppended(at(1, number)))
    assert not unit.takes_input
    unit.handle(UnitCommitted(at(1, 1)))
    assert unit.takes_input


# Commits.


def test_commits_go_one_at_a_time_oldest_first() -> None:
    unit = running()
    unit.handle(GroupEnded(GroupContent(sink="one")))
    assert unit.handle(EntryAppended(at(1, 1)))[1:] == [AuthoriseCommit(at(1, 1), "one")]
    unit.handle(GroupEnded(GroupContent(sink="two")))
    assert unit.handle(EntryAppended(at(1, 2)))[1:] == []
    assert unit.handle(UnitCommitted(at(1, 1))) == [AuthoriseCommit(at(1, 2), "two")]
    assert unit.handle(UnitCommitted(at(1, 1))) == []
    assert unit.dropped == {"stale commit": 1}


def test_a_failed_commit_is_tried_again_until_the_unit_fails() -> None:
    unit = running(commit_attempts=2)
    unit.handle(GroupEnded(GroupContent(sink="one")))
    unit.handle(EntryAppended(at(1, 1)))
    again = AuthoriseCommit(at(1, 1), "one", RETRY_DELAY_MS)
    assert unit.handle(UnitCommitFailed(at(1, 1), "away")) == [again]
    assert unit.handle(UnitCommitFailed(at(1, 1), "away")) == [
        EndUnit(
            "the output of group 1/1 could not be committed in 2 attempts, the last one: away",
            is_fenced=False,
        )
    ]


def test_commit_numbers_grow_with_the_log() -> None:
    indices = [at(1, 0), at(1, 9), at(2, 0), at(2, 1), at(10, 0)]
    assert sorted(map(commit_number, indices)) == [*map(commit_number, indices)]
    assert commit_number(at(2, 1)) == (2 << 32) + 1


# Recovery.


def test_a_new_incarnation_restores_commits_and_sends_again() -> None:
    sent = SentRecords(OUTPUT, run(1, 1, b"x"))
    one = group(GroupContent(b"1", (("split", 3),), "one"), 2, sent)
    two = group(GroupContent(b"2", (("split", 5),), "two"))
    unit = fresh()
    unit.handle(UnitTailRead(((at(1, 0), head(FIRST)), (at(1, 1), one), (at(1, 2), two))))
    unit.handle(EntryAppended(at(1, 3)))
    assert unit.handle(EntryAppended(at(2, 0)))[1:] == [
        RestoreUnit(None, (one, two), (("split", 5),)),
        AuthoriseCommit(at(1, 1), "one"),
    ]
    unit.handle(ChannelConnected(OUTPUT, CONNECTION))
    assert unit.handle(ResumeAsked(OUTPUT, CONNECTION, up_to(0))) == [
        SendRecords(OUTPUT, CONNECTION, run(1, 1, b"x"))
    ]
    assert unit.handle(RecordsArrived(INPUT, CONNECTION, 1, 2)) == []
    unit.handle(RecordsEmitted(OUTPUT, 1, b"y"))
    (append, _) = unit.handle(GroupEnded(GroupContent()))
    assert append.entry == group(GroupContent(), 0, SentRecords(OUTPUT, run(2, 2, b"y")))


def test_a_log_with_a_snapshot_begins_with_it() -> None:
    kept = SentRecords(OUTPUT, run(2, 2, b"x"))
    snapshot = UnitSnapshot(
        at(1, 4),
        ((INPUT, up_to(9)),),
        ((OUTPUT, up_to(2)),),
        (kept,),
        (("split", 3),),
        ((at(1, 3), "owed"),),
        PARTS,
    )
    after = group(GroupContent(b"5"))
    tail = ((at(1, 5), UnitSegmentClosed(FIRST)), (at(2, 0), UnitSegmentOpened(FIRST, at(1, 5), snapshot)))
    assert recovered(*tail, (at(2, 1), after)) == [
        RestoreUnit(snapshot, (after,), (("split", 3),)),
        AuthoriseCommit(at(1, 3), "owed"),
    ]


# Compaction.


def compacting() -> Unit:
    """Return a unit whose group 1/1 is logged with a snapshot to store: with kept and owed output."""
    unit = running()
    unit.handle(RecordsArrived(INPUT, CONNECTION, 1, 3))
    unit.handle(RecordsEmitted(OUTPUT, 1, b"x"))
    unit.handle(CompactionRequested())
    content = GroupContent(b"1", (("split", 1),), "one")
    freeze, *_ = unit.handle(GroupEnded(content, ((INPUT, up_to(3)),)))
    assert freeze == FreezeUnit(at(1, 1))
    assert unit.handle(EntryAppended(at(1, 1)))[-1] == StoreUnitSnapshot(at(1, 1))
    return unit


SNAPSHOT = UnitSnapshot(
    at(1, 1),
    ((INPUT, up_to(3)),),
    ((OUTPUT, up_to(1)),),
    (SentRecords(OUTPUT, run(1, 1, b"x")),),
    (("split", 1),),
    ((at(1, 1), "one"),),
    PARTS,
)


def test_groups_are_deleted_after_the_head_that_replaces_them() -> None:
    unit = compacting()
    # What comes after the freeze is not in the snapshot.
    unit.handle(RecordsArrived(INPUT, CONNECTION, 4, 4))
    unit.handle(RecordsEmitted(OUTPUT, 1, b"y"))
    begins = UnitSegmentOpened(SECOND, at(1, 1), SNAPSHOT)
    assert unit.handle(UnitSnapshotStored(at(1, 1), PARTS)) == appends(at(1, 2), UnitSegmentClosed(SECOND), 3)
    assert unit.handle(EntryAppended(at(1, 2))) == [answered(3), *appends(at(2, 0), begins, 4)]
    assert unit.handle(EntryAppended(at(2, 0))) == [answered(4), DeleteGroups((at(1, 1),))]
    assert unit.can_end_group


def test_the_head_waits_for_the_append_under_way() -> None:
    unit = compacting()
    unit.handle(GroupEnded(GroupContent(b"2")))
    assert unit.handle(UnitSnapshotStored(at(1, 1), PARTS)) == []
    assert unit.handle(EntryAppended(at(1, 2)))[1:] == appends(at(1, 3), UnitSegmentClosed(SECOND), 4)


def test_a_snapshot_that_fails_leaves_the_log_as_it_is() -> None:
    unit = compacting()
    assert unit.handle(CompactionRequested()) == []
    assert unit.dropped == {"compaction under way": 1}
    assert unit.handle(UnitSnapshotFailed(at(1, 1), "disk full")) == []
    assert unit.handle(UnitSnapshotStored(at(1, 1), PARTS)) == []
    unit.handle(CompactionRequested())
    freeze, *_ = unit.handle(GroupEnded(GroupContent(b"2")))
    assert freeze == FreezeUnit(at(1, 2))


def test_groups_that_a_deletion_has_left_behind_go_with_the_next() -> None:
    unit = fresh()
    snapshot = UnitSnapshot(at(1, 4))
    tail = ((at(1, 5), UnitSegmentClosed(FIRST)), (at(2, 0), UnitSegmentOpened(FIRST, at(1, 4), snapshot)))
    effects = unit.handle(UnitTailRead(tail, (at(1, 3), at(1, 4))))
    assert effects[0] == CancelTimer(READING)
    unit.handle(EntryAppended(at(2, 1)))
    unit.handle(EntryAppended(at(3, 0)))
    unit.handle(CompactionRequested())
    unit.handle(GroupEnded(GroupContent(b"x")))
    unit.handle(EntryAppended(at(3, 1)))
    unit.handle(UnitSnapshotStored(at(3, 1), PARTS))
    unit.handle(EntryAppended(at(3, 2)))
    assert unit.handle(EntryAppended(at(4, 0)))[-1] == DeleteGroups((at(3, 1), at(1, 4), at(1, 3)))
