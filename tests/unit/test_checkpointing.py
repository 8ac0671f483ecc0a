"""Pause, several checkpoints at once, checkpoints on request, halting: as the coordinator sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.conversation import (
    K0,
    K1,
    TASKS,
    Talk,
    answered,
    appends,
    at,
    both,
    claim,
    completed,
    coordinator_spec,
    deletes,
    paths,
    snapshot,
)

from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex
from crosscut.protocol.effects import AnswerRequest, CancelTimer, DeleteParts, JobEffect, StartTimer
from crosscut.protocol.events import (
    CancelRequested,
    CheckpointRequested,
    EntryAppended,
    EntryRefused,
    LogTailRead,
    PartsDeleted,
    StopRequested,
    Timer,
)
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec, Phase
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.entries import SegmentOpened
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CommitCheckpoint,
    ResumeSources,
    SnapshotAcknowledged,
    SnapshotDeclined,
    TaskQuiet,
    TriggerCheckpoint,
)
from crosscut.protocol.snapshots import Snapshot

E1 = Epoch(1)
N1, N2, N3 = map(CheckpointId, (1, 2, 3))


class WithTerms(Coordinator):
    """Several at once, or with a pause."""

    checkpoint_terms = CheckpointSpec(True, 1_000, 60_000, 2)

    def __init__(self, terms: CoordinatorSpec) -> None:
        super().__init__(replace(terms, checkpoints=self.checkpoint_terms))


def talk(**terms: Any) -> Talk:
    settings = {"periodic": True, "interval_ms": 1_000, "timeout_ms": 60_000, "failures_max": 2} | terms
    kind = type("Chosen", (WithTerms,), {"checkpoint_terms": CheckpointSpec(**settings)})
    found = Talk(kind)
    found.running()
    return found


def triggered(n: int) -> list[JobEffect]:
    number = CheckpointId(n)
    timer = StartTimer(Timer("checkpoint-timeout", E1, number), 60_000)
    return [*both(TriggerCheckpoint(E1, number)), timer]


def aborted(n: int) -> list[JobEffect]:
    number = CheckpointId(n)
    return [CancelTimer(Timer("checkpoint-timeout", E1, number)), *both(AbortCheckpoint(E1, number))]


def committed(n: int) -> list[JobEffect]:
    number = CheckpointId(n)
    return [CancelTimer(Timer("checkpoint-timeout", E1, number)), *both(CommitCheckpoint(E1, number))]


TICK = StartTimer(Timer("trigger", E1), 1_000)


# Several at once.


def test_as_many_as_allowed_are_under_way_at_once() -> None:
    one = talk(in_flight_max=2)
    assert one.fire("trigger") == [TICK, *triggered(1)]
    assert one.fire("trigger") == [TICK, *triggered(2)]
    assert one.fire("trigger") == [TICK]
    assert one.coordinator.checkpoints.under_way == 1


def test_completing_one_gives_the_older_ones_up_and_that_is_no_failure() -> None:
    one = talk(in_flight_max=3)
    for _ in range(3):
        one.fire("trigger")
    one.message(0, SnapshotAcknowledged(E1, N1, K0, snapshot(K0, 1)))
    assert one.acknowledge(2) == [*appends(2, completed(2))]
    assert one.hear(EntryAppended(at(2))) == [
        *answered(2),
        *committed(2),
        *aborted(1),
        *deletes(paths(1)[:1]),
    ]
    assert one.coordinator.checkpoints.failed.failed_count == 0
    assert one.coordinator.checkpoints.under_way == 3
    assert one.acknowledge(3) == [*appends(3, completed(3), since=2)]


def test_entries_are_appended_in_the_order_of_ids() -> None:
    one = talk(in_flight_max=2)
    one.fire("trigger")
    one.fire("trigger")
    assert one.acknowledge(2) == [*appends(2, completed(2))]
    assert one.acknowledge(1) == [], "its entry would come behind that of 2"
    assert one.hear(EntryAppended(at(2))) == [*answered(2), *committed(2), *aborted(1), *deletes(paths(1))]


def test_one_that_waited_for_a_newer_one_is_appended_if_that_is_refused() -> None:
    one = talk(in_flight_max=2)
    one.fire("trigger")
    one.fire("trigger")
    one.acknowledge(2)
    one.acknowledge(1)
    assert one.hear(EntryRefused(at(2), "no space")) == [
        *answered(2),
        *aborted(2),
        *deletes(paths(2)),
        *appends(2, completed(1), step=3),
    ]
    assert one.hear(EntryAppended(at(2))) == [*answered(3), *committed(1)]


def test_two_entries_are_appended_one_after_the_other() -> None:
    one = talk(in_flight_max=2)
    one.fire("trigger")
    one.fire("trigger")
    assert one.acknowledge(1) == [*appends(2, completed(1))]
    assert one.acknowledge(2) == []
    assert one.hear(EntryAppended(at(2))) == [*answered(2), *appends(3, completed(2), since=2), *committed(1)]
    assert one.hear(EntryAppended(at(3))) == [*answered(3), *committed(2)]


def test_an_abort_concerns_one_only() -> None:
    one = talk(in_flight_max=2)
    one.fire("trigger")
    one.fire("trigger")
    assert one.message(0, SnapshotDeclined(E1, N2, K0, "no")) == aborted(2)
    assert one.acknowledge(1) == [*appends(2, completed(1))]
    assert one.fire("trigger") == [TICK, *triggered(3)], "an id is never used again"


def test_parts_that_one_under_way_builds_on_are_deleted_only_when_it_does_not_any_more() -> None:
    one = talk(in_flight_max=2)
    one.complete(1, 2)
    one.complete(2, 3)
    one.fire("trigger")
    one.fire("trigger")
    built_on_1 = snapshot(K1, 1)
    one.message(1, SnapshotAcknowledged(E1, CheckpointId(4), K1, built_on_1))
    effects = one.acknowledge(3) + one.hear(EntryAppended(at(4)))
    assert [effect for effect in effects if isinstance(effect, DeleteParts)] == [DeleteParts(paths(1)[:1])]
    one.hear(PartsDeleted())
    effects = one.message(0, SnapshotDeclined(E1, CheckpointId(4), K0, "no"))
    assert effects[-2:] == deletes(paths(1)[1:])


def test_what_came_with_an_acknowledgement_that_builds_on_deleted_parts_is_deleted() -> None:
    """Its task deletes nothing, since it has acknowledged; so nobody else would in this epoch."""
    one = talk()
    one.fire("trigger")
    own = snapshot(K1, 1).parts[0]
    gone = replace(own, path="parts/0/gone-0-1-aa")
    effects = one.message(1, SnapshotAcknowledged(E1, CheckpointId(1), K1, Snapshot(parts=(gone, own))))
    assert effects[-2:] == deletes((own.path,))


def test_when_the_final_one_is_complete_no_other_is_waited_for() -> None:
    one = talk(in_flight_max=2)
    one.fire("trigger")
    one.fire("trigger")
    one.acknowledge(1, drained=True)
    effects = one.hear(EntryAppended(at(2)))
    assert [effect for effect in aborted(2) if effect not in effects] == []
    assert one.coordinator.phase is Phase.FINISHING
    assert one.acknowledge(2, drained=True) == []


def test_a_late_or_repeated_acknowledgement_of_any_age_changes_nothing() -> None:
    one = talk(in_flight_max=3)
    for _ in range(3):
        one.fire("trigger")
    one.acknowledge(2)
    one.hear(EntryAppended(at(2)))
    for n in (1, 2, 9):
        assert one.acknowledge(n) == []
    assert one.coordinator.checkpoints.under_way == 3


# The pause.


def test_one_that_falls_due_in_the_pause_starts_at_its_end() -> None:
    one = talk(pause_ms=500)
    one.fire("trigger")
    one.acknowledge(1)
    assert one.hear(EntryAppended(at(2))) == [
        *answered(2),
        *committed(1),
        StartTimer(Timer("pause", E1), 500),
    ]
    assert one.fire("trigger") == [TICK]
    assert one.fire("pause") == triggered(2)


def test_a_pause_in_which_none_falls_due_just_ends() -> None:
    one = talk(pause_ms=500)
    one.complete(1, 2)
    assert one.fire("pause") == []
    assert one.fire("trigger") == [TICK, *triggered(2)]


def test_the_pause_begins_at_the_end_of_a_failed_one_too() -> None:
    one = talk(pause_ms=500)
    one.fire("trigger")
    assert one.fire("checkpoint-timeout", 1, 1)[-1] == StartTimer(Timer("pause", E1), 500)
    assert one.fire("trigger") == [TICK]


# On request.


def test_a_request_starts_a_checkpoint_now_and_is_answered_when_it_is_complete() -> None:
    one = talk(pause_ms=500)
    one.complete(1, 2)
    assert one.hear(CheckpointRequested(7)) == triggered(2), "the pause is for the periodic ones"
    one.acknowledge(2)
    assert AnswerRequest(7, completed(2)) in one.hear(EntryAppended(at(3)))


def test_a_request_that_finds_no_place_has_the_next_one() -> None:
    one = talk()
    one.fire("trigger")
    assert one.hear(CheckpointRequested(7)) == []
    one.acknowledge(1)
    assert one.hear(EntryAppended(at(2))) == [*answered(2), *committed(1), *triggered(2)], (
        "1 may lack what 7 wants in it"
    )
    one.acknowledge(2)
    assert one.hear(EntryAppended(at(3))) == [*answered(3), *committed(2), AnswerRequest(7, completed(2))]


def test_several_requests_may_share_one_checkpoint() -> None:
    one = talk()
    one.fire("trigger")
    one.hear(CheckpointRequested(7), CheckpointRequested(8))
    one.acknowledge(1)
    one.hear(EntryAppended(at(2)))
    one.acknowledge(2)
    assert one.hear(EntryAppended(at(3)))[-2:] == [
        AnswerRequest(7, completed(2)),
        AnswerRequest(8, completed(2)),
    ]


def test_a_newer_checkpoint_that_is_complete_first_answers_a_request() -> None:
    one = talk(in_flight_max=2)
    one.hear(CheckpointRequested(7))
    one.fire("trigger")
    one.acknowledge(2)
    assert one.hear(EntryAppended(at(2))) == [
        *answered(2),
        *committed(2),
        *aborted(1),
        AnswerRequest(7, completed(2)),
    ]


def test_a_request_is_told_when_its_checkpoint_has_failed() -> None:
    one = talk()
    one.hear(CheckpointRequested(7))
    assert one.message(0, SnapshotDeclined(E1, N1, K0, "no space")) == [
        *aborted(1),
        AnswerRequest(7, None, f"checkpoint 1 has failed: task {K0} declined: no space"),
    ]


def test_a_failover_fails_the_requests_under_way_and_keeps_those_that_wait() -> None:
    one = talk()
    one.hear(CheckpointRequested(7), CheckpointRequested(8))
    effects = one.failed()
    answers = [effect.request for effect in effects if isinstance(effect, AnswerRequest)]
    assert answers == [7]
    one.hear(EntryAppended(at(2)))
    assert one.ready(2)[-3:-1] == both(TriggerCheckpoint(Epoch(2), N2))


def test_a_request_in_a_job_that_is_starting_waits_until_records_flow() -> None:
    one = Talk()
    one.gathering()
    assert one.hear(CheckpointRequested(7)) == []
    one.register()
    assert one.ready()[-3:] == triggered(1)


@pytest.mark.parametrize("end", [CancelRequested(), StopRequested()])
def test_the_end_of_the_job_answers_whoever_still_waits(end: Any) -> None:
    one = Talk()
    one.gathering()
    one.hear(CheckpointRequested(7))
    effects = one.hear(end)
    assert [effect.request for effect in effects if isinstance(effect, AnswerRequest)] == [7]
    assert one.hear(CheckpointRequested(8)) == [AnswerRequest(8, None, "the job is over")]


def test_the_final_checkpoint_answers_everybody_and_so_it_does_later() -> None:
    """There is nothing that a newer one could have in it. 8, 9 and 10 come too late for it."""
    one = talk(in_flight_max=2)
    one.hear(CheckpointRequested(7))
    one.fire("trigger")
    one.hear(CheckpointRequested(8))
    one.acknowledge(1, drained=True)
    effects = one.hear(EntryAppended(at(2)))
    final = completed(1, final=True)
    assert [one for one in effects if isinstance(one, AnswerRequest)] == [
        AnswerRequest(7, final),
        AnswerRequest(8, final),
    ]
    assert one.hear(CheckpointRequested(9)) == [AnswerRequest(9, final)]
    one.failed()
    assert one.hear(CheckpointRequested(10)) == [AnswerRequest(10, final)]


def test_a_request_for_a_checkpoint_that_is_being_appended_has_the_final_one_before_it() -> None:
    one = talk(in_flight_max=2)
    one.fire("trigger")
    one.hear(CheckpointRequested(7))
    one.acknowledge(1, drained=True)
    one.acknowledge(2, drained=True)
    assert AnswerRequest(7, completed(1, final=True)) in one.hear(EntryAppended(at(2)))
    refused = one.hear(EntryRefused(at(3), "no space"))
    assert not any(isinstance(effect, AnswerRequest) for effect in refused)


FINAL_LOG = ((at(1), SegmentOpened(claim(), None)), (at(2), completed(1, final=True)))


def test_a_request_in_a_job_that_restores_its_final_checkpoint_is_answered_with_that() -> None:
    one = Talk()
    one.hear(
        LogTailRead(FINAL_LOG),
        CheckpointRequested(7),
    )
    assert one.hear(CheckpointRequested(8)) == [AnswerRequest(8, completed(1, final=True))]
    waits = Talk()
    waits.hear(CheckpointRequested(7))
    waits.hear(
        LogTailRead(FINAL_LOG),
        EntryAppended(at(3)),
        EntryAppended(LogIndex(2, 0)),
    )
    waits.register()
    assert AnswerRequest(7, completed(1, final=True)) in waits.ready(2)


# Halting.


def test_when_every_task_is_quiet_all_capture_and_when_it_is_complete_all_go_on() -> None:
    one = talk()
    one.fire("trigger")
    for task in TASKS[:-1]:
        assert one.message(task.index, TaskQuiet(E1, N1, task)) == []
        assert one.message(task.index, TaskQuiet(E1, N1, task)) == [], "remembered, not counted"
    assert one.message(1, TaskQuiet(E1, N1, TASKS[-1])) == both(CaptureSnapshots(E1, N1))
    one.acknowledge(1)
    assert one.hear(EntryAppended(at(2))) == [*answered(2), *committed(1), *both(ResumeSources(E1, N1))]


def test_a_quiet_task_of_a_checkpoint_that_is_over_is_dropped() -> None:
    one = talk()
    assert one.message(0, TaskQuiet(E1, N1, K0)) == []
    one.fire("trigger")
    one.fire("checkpoint-timeout", 1, 1)
    assert one.message(0, TaskQuiet(E1, N1, K0)) == []


def test_the_default_is_one_at_a_time_without_a_pause() -> None:
    assert (coordinator_spec().checkpoints.in_flight_max, coordinator_spec().checkpoints.pause_ms) == (1, 0)
