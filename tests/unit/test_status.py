"""What a job looks like from outside, against what was told to its coordinator."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.simulation.conversation import K0, K1, S0, S1, Talk, at, claim, registration

from crosscut.foundation.ids import AttemptId, CheckpointId, Epoch, LogIndex, TaskId, WorkerIndex
from crosscut.monitoring.state_growth import WINDOW_S, WINDOWS_MIN
from crosscut.monitoring.status import (
    RATE_WINDOW_S,
    CheckpointStatus,
    JobStatus,
    Observations,
    Recovery,
    WorkerStatus,
    _counted,
    build_status,
    checkpoint_status,
)
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import (
    CancelRequested,
    EntryAppended,
    LinkOpened,
    LogTailRead,
    MessageReceived,
    StopRequested,
)
from crosscut.protocol.log.entries import CheckpointCompleted, SegmentOpened
from crosscut.protocol.messages import SnapshotAcknowledged, SnapshotDeclined, TaskStatistics, WorkerHeartbeat
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot

SOURCES = frozenset({S0, S1})
SECOND_NS = 1_000_000_000


def statistics(task: TaskId, records_in: int) -> TaskStatistics:
    return TaskStatistics(task, records_in=records_in, state_keys=2, queued_records=3)


def status_of(talk: Talk, seen: Observations) -> JobStatus:
    return build_status("the-job", talk.coordinator, seen, SOURCES)


def test_a_job_that_waits_for_workers_shows_those_that_came() -> None:
    talk = Talk()
    talk.gathering()
    talk.message(1, registration(1, 2))
    status = status_of(talk, Observations())
    place = registration(1, 2)
    assert (status.name, status.phase, status.epoch) == ("the-job", "gathering", 1)
    assert status.workers == (WorkerStatus(1, place.host, place.pid, 0),)
    assert (status.records_read, status.tasks, status.checkpoint_under_way) == (0, (), None)


def test_counters_are_of_the_running_epoch_and_records_are_read_by_sources_only() -> None:
    talk = Talk()
    talk.running()
    seen = Observations()
    of_worker_1 = (statistics(S1, 20), statistics(K1, 200))
    seen.workers[WorkerIndex(1)] = (Epoch(1), of_worker_1)
    seen.workers[WorkerIndex(0)] = (Epoch(0), (statistics(S0, 1_000), statistics(K0, 2_000)))
    status = status_of(talk, seen)
    assert status.phase == "running"
    assert status.tasks == of_worker_1
    assert (status.records_read, status.state_keys, status.queued_records) == (20, 4, 6)
    assert [worker.epoch for worker in status.workers] == [0, 1]


def test_counters_go_on_from_the_checkpoint_and_end_with_the_last_one() -> None:
    """What a worker has not said yet, the checkpoint knows; at the end nobody says any more."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    for index, source, keyed in ((0, S0, K0), (1, S1, K1)):
        for task in (source, keyed):
            counted = Snapshot(records_in=10, records_out=9, state_keys=3 if task == keyed else 0)
            talk.message(index, SnapshotAcknowledged(Epoch(1), CheckpointId(1), task, counted))
    assert talk.coordinator.completed is None
    talk.hear(EntryAppended(at(2)))
    seen = Observations()
    seen.workers[WorkerIndex(1)] = (Epoch(1), (statistics(S1, 25), statistics(K1, 20)))
    status = status_of(talk, seen)
    assert (status.records_read, status.state_keys) == (10 + 25, 3 + 2 + 2)
    talk.hear(CancelRequested())
    status = status_of(talk, seen)
    assert (status.phase, status.records_read, status.state_keys) == ("ended", 20, 6)
    assert {one.task: (one.records_in, one.records_out) for one in status.tasks} == dict.fromkeys(
        (S0, K0, S1, K1), (10, 9)
    )


def goes_on_from(before: int) -> Talk:
    """A job of two tasks a vertex is about to be told of those that run; its checkpoint is one of `before`.

    Of these each source has read 10 records, and each of the others has 3 rows.
    """
    old = claim(driver="driver 0")
    snapshots = tuple(
        TaskSnapshot(
            TaskId(vertex, index), Snapshot(records_in=10, state_keys=0 if vertex == "numbers" else 3)
        )
        for vertex in (S0.vertex, K0.vertex)
        for index in range(before)
    )
    checkpoint = CheckpointCompleted(Epoch(1), CheckpointId(1), snapshots)
    talk = Talk()
    talk.hear(
        LogTailRead(((at(1), SegmentOpened(replace(old, parallelism=before), None)), (at(2), checkpoint)))
    )
    talk.hear(EntryAppended(at(3)), EntryAppended(LogIndex(2, 0)))
    talk.register()
    talk.ready(2)
    assert (talk.coordinator.phase.name, talk.coordinator.epoch) == ("RUNNING", 2)
    return talk


@pytest.mark.parametrize("before", [1, 3])
def test_at_another_parallelism_a_vertex_is_as_in_the_checkpoint_until_all_its_tasks_have_spoken(
    before: int,
) -> None:
    """Its tasks are others: counters of the checkpoint would be added to theirs, or stand for them."""
    talk, seen = goes_on_from(before), Observations()
    assert (status_of(talk, seen).records_read, status_of(talk, seen).state_keys) == (10 * before, 3 * before)
    seen.workers[WorkerIndex(0)] = (Epoch(2), (statistics(S0, 200), statistics(K0, 7)))
    status = status_of(talk, seen)
    assert (status.records_read, status.state_keys) == (10 * before, 3 * before)
    seen.workers[WorkerIndex(1)] = (Epoch(2), (statistics(S1, 300),))
    status = status_of(talk, seen)
    assert (status.records_read, status.state_keys) == (500, 4 + 3 * before)
    seen.workers[WorkerIndex(1)] = (Epoch(2), (statistics(S1, 300), statistics(K1, 8)))
    status = status_of(talk, seen)
    assert (status.records_read, status.state_keys) == (500, 8)
    assert sorted(map(str, (one.task for one in status.tasks))) == sorted(map(str, (S0, S1, K0, K1)))
    talk.hear(CancelRequested())
    status = status_of(talk, seen)
    assert (status.phase, status.records_read, status.state_keys) == ("ended", 10 * before, 3 * before)


def test_a_heartbeat_of_another_epoch_is_nothing_that_was_dropped() -> None:
    talk = Talk()
    talk.running()
    talk.message(0, WorkerHeartbeat(Epoch(0)))
    talk.hear(LinkOpened(21, WorkerIndex(0), AttemptId(9)), MessageReceived(21, WorkerHeartbeat(Epoch(0))))
    assert status_of(talk, Observations()).dropped == {}


def test_checkpoints_failures_and_restarts_are_those_of_the_coordinator() -> None:
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    assert status_of(talk, Observations()).checkpoint_under_way == 1
    talk.message(0, SnapshotDeclined(Epoch(1), CheckpointId(1), S0, "disk full"))
    status = status_of(talk, Observations())
    assert (status.checkpoint_under_way, status.checkpoints_failed, status.restarts) == (None, 1, 0)
    talk.message(0, SnapshotDeclined(Epoch(7), CheckpointId(1), S0, "from another epoch"))
    assert status_of(talk, Observations()).dropped == {"late message of another epoch": 1}


def test_a_status_says_where_a_failover_or_the_next_start_goes_on_and_why_the_job_has_ended() -> None:
    talk = Talk()
    talk.running()
    assert (status_of(talk, Observations()).resumes_from, status_of(talk, Observations()).cause) == (None, "")
    talk.complete(1, 2)
    talk.committed(1)
    talk.hear(StopRequested())
    (*_, end) = talk.failed()
    assert isinstance(end, EndJob)
    status = build_status("the-job", talk.coordinator, Observations(), SOURCES, end)
    assert status.resumes_from == 1
    assert status.cause.startswith("no last checkpoint was taken: task out[0] failed: bad record; the next")


def test_a_status_is_json_as_it_is() -> None:
    talk = Talk()
    talk.running()
    seen = Observations()
    seen.workers[WorkerIndex(0)] = (Epoch(1), (statistics(S0, 5),))
    seen.recoveries.append(Recovery(2, "worker 1 is lost", SECOND_NS, 3 * SECOND_NS // 2))
    seen.checkpoints.append(CheckpointStatus(1, 1, 5, 10, 10, 3, False, ""))
    found = json.loads(json.dumps(status_of(talk, seen).as_dict()))
    assert found["records_read"] == 5
    assert found["recoveries"][0]["cause"] == "worker 1 is lost"
    assert found["checkpoints"][0]["checkpoint_id"] == 1


def test_a_recovery_lasts_from_noticing_the_failure_to_the_next_records() -> None:
    assert Recovery(2, "cause", SECOND_NS, 3 * SECOND_NS // 2).seconds == 0.5


# Rates.


def rate_after(*readings: tuple[float, int]) -> float:
    seen = Observations()
    for at_s, records in readings:
        seen.note_rate(int(at_s * SECOND_NS), records)
    return seen.rate()


def test_the_rate_is_that_of_the_last_seconds() -> None:
    slow_then_fast = [(at, at * 10) for at in range(10)] + [(10 + at, 100 + at * 1_000) for at in range(10)]
    assert rate_after(*slow_then_fast) == pytest.approx(1_000)


@pytest.mark.parametrize("readings", [[], [(1.0, 5)], [(1.0, 5), (1.0, 9)]])
def test_too_few_readings_give_no_rate(readings: list[tuple[float, int]]) -> None:
    assert rate_after(*readings) == 0.0


def test_a_counter_that_starts_again_with_a_new_epoch_gives_no_negative_rate() -> None:
    assert rate_after((0, 1_000), (1, 2_000), (2, 10)) == 0.0
    assert rate_after((0, 1_000), (1, 2_000), (2, 10), (3, 60)) == 50.0


def test_readings_do_not_pile_up() -> None:
    seen = Observations()
    for number in range(10_000):
        seen.note_rate(number * SECOND_NS // 100, number)
    assert len(seen.rates) <= RATE_WINDOW_S * 100 + 2


def test_not_every_heartbeat_of_many_workers_is_a_reading() -> None:
    """Each reading adds up all tasks: with one for each heartbeat, the driver would do nothing else."""
    seen = Observations()
    assert seen.is_rate_due(0)
    seen.note_rate(SECOND_NS, 10)
    assert not seen.is_rate_due(SECOND_NS + 1)
    assert seen.is_rate_due(SECOND_NS + SECOND_NS // 10)


# Checkpoints.


def test_a_checkpoint_shows_what_a_restore_reads_and_what_it_added() -> None:
    older, newer = Part("parts/3/k-0-1-aa", 100, "00"), Part("parts/4/k-0-1-bb", 10, "00")
    inline = Part("", 7, "00", inline="AAAAAAAAAA==")
    entry = CheckpointCompleted(
        epoch=Epoch(2),
        checkpoint_id=CheckpointId(4),
        snapshots=(
            TaskSnapshot(K0, Snapshot(parts=(older, newer), freeze_us=30)),
            TaskSnapshot(K1, Snapshot(parts=(inline,), freeze_us=50)),
            TaskSnapshot(S0, Snapshot()),
        ),
        is_final=True,
        duration_ms=12,
        wall_clock="2026-01-01T00:00:00+00:00",
    )
    assert checkpoint_status(entry) == CheckpointStatus(
        checkpoint_id=4,
        epoch=2,
        duration_ms=12,
        state_bytes=117,
        new_bytes=17,
        freeze_us=50,
        is_final=True,
        wall_clock="2026-01-01T00:00:00+00:00",
    )


def test_the_longest_pause_of_the_job_is_that_of_the_checkpoint_with_the_longest() -> None:
    talk = Talk()
    talk.running()
    seen = Observations()
    for n, freeze_us in ((1, 30), (2, 50), (3, 20)):
        snapshots = (TaskSnapshot(K0, Snapshot(freeze_us=freeze_us)), TaskSnapshot(K1, Snapshot(freeze_us=1)))
        seen.note_completed(CheckpointCompleted(Epoch(1), CheckpointId(n), snapshots))
    status = status_of(talk, seen)
    assert [one.freeze_us for one in status.checkpoints] == [30, 50, 20]
    assert (status.longest_freeze_us, status.checkpoints_completed) == (50, 3)


def test_late_records_are_added_up_over_all_tasks() -> None:
    talk = Talk()
    talk.running()
    seen = Observations()
    found = TaskStatistics(K0, late_records=3), TaskStatistics(K1, late_records=4)
    seen.workers[WorkerIndex(0)] = Epoch(1), found
    assert status_of(talk, seen).as_dict()["late_records"] == 7
    older = TaskSnapshot(K0, Snapshot(records_in=5, late_records=2))
    assert _counted(older).late_records == 2, "of the job, when no task says it any more"


def test_what_was_spilled_is_added_up_over_all_tasks() -> None:
    talk = Talk()
    talk.running()
    seen = Observations()
    seen.workers[WorkerIndex(0)] = (
        Epoch(1), (TaskStatistics(K0, spilled_bytes=3), TaskStatistics(K1, spilled_bytes=4))
    )  # fmt: skip
    assert status_of(talk, seen).as_dict()["spilled_bytes"] == 7


def test_a_watermark_that_stands_still_and_state_that_grows_are_warned_of_and_shown() -> None:
    """K2: whoever has no journal sees them in `job.report()`."""
    talk, seen = Talk(), Observations()
    talk.running()
    assert status_of(talk, seen).as_dict()["still_watermarks"] == ()
    warnings = []
    for second in range(0, int(WINDOW_S) * (WINDOWS_MIN + 1), 10):
        keyed = TaskStatistics(K0, records_in=second, state_keys=second, watermark=7, held_up_by=str(S1))
        heartbeat = WorkerHeartbeat(Epoch(1), tasks=(keyed,))
        now_ns = second * SECOND_NS
        warnings += seen.note_message(WorkerIndex(0), heartbeat, now_ns, talk.coordinator, SOURCES)
    still, growing = warnings
    assert f"watermark of {K0} has not moved" in still
    assert f"the state of '{K0.vertex}' has grown" in growing
    shown = status_of(talk, seen).as_dict()
    assert [one["held_up_by"] for one in shown["still_watermarks"]] == [str(S1)]
    assert [one["vertex"] for one in shown["growing_states"]] == [K0.vertex]
