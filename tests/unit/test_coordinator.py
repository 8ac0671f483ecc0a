"""Conversations with the coordinator: what it hears, and the whole list of what it asks for."""

from copy import deepcopy
from dataclasses import replace

import pytest
from tests.simulation.conversation import (
    CAUSE,
    K0,
    LINEAGE,
    LINKS,
    S0,
    S1,
    SPLITS,
    TASKS,
    Talk,
    answered,
    appends,
    at,
    both,
    check_stale_epochs_change_nothing,
    claim,
    completed,
    coordinator_spec,
    deletes,
    events,
    opens,
    paths,
    peers,
    reads,
    registration,
    snapshot,
    state_of,
    takes_over,
    talk_in,
)

from crosscut.contracts.connectors import CommittedOutput
from crosscut.errors import ProtocolError
from crosscut.foundation.ids import AttemptId, CheckpointId, Epoch, Lineage, LogIndex, WorkerIndex
from crosscut.protocol.checkpoint.termination import Component, Termination
from crosscut.protocol.effects import (
    AnswerRequest,
    AppendEntry,
    CancelTimer,
    CloseLink,
    DeleteParts,
    DiscoverSplits,
    EndJob,
    JobEffect,
    ListParts,
    ReadLogTail,
    ReplaceWorker,
    SendMessage,
    StartTimer,
    SubmitWorkers,
)
from crosscut.protocol.events import (
    CancelRequested,
    CheckpointRequested,
    ClockRead,
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    LinkClosed,
    LogTailRead,
    PartsDeleted,
    PartsDiscarded,
    PartsListed,
    RestartRequested,
    SplitsDiscovered,
    StopRequested,
    SweepRequested,
    Timer,
    WorkersEnded,
)
from crosscut.protocol.job.coordinator import Coordinator, Phase
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.job.workers import LIVENESS_TICKS
from crosscut.protocol.log.entries import (
    CHECKPOINT_IDS_LEAD_MAX,
    JobFinished,
    LogEntry,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.identity import Claimant
from crosscut.protocol.log.ownership import CLAIM_ATTEMPTS_MAX
from crosscut.protocol.log.pending_append import RETRY_APPEND_MS, UNCERTAIN_ATTEMPTS_MAX
from crosscut.protocol.log.recovery import Predecessor
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorHeartbeat,
    DeployTasks,
    FailureCause,
    HaltTasks,
    PauseSources,
    ShutDown,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    StandBy,
    StartTasks,
    TaskFailed,
    TransactionsCommitted,
    TriggerCheckpoint,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerReady,
)
from crosscut.protocol.snapshots import Part, Snapshot

E1, E2 = Epoch(1), Epoch(2)
N1, N2 = CheckpointId(1), CheckpointId(2)


def timer(kind: str, epoch: int, delay_ms: int, number: int = 0) -> StartTimer:
    return StartTimer(Timer(kind, Epoch(epoch), number), delay_ms)  # type: ignore[arg-type]


READS_LOG = [ReadLogTail(2), timer("read-log", 0, 60_000)]
FIRST_HEAD = SegmentOpened(claim(), None)
LOG_READ = CancelTimer(Timer("read-log"))


def discovers(epoch: int) -> list[JobEffect]:
    return [DiscoverSplits(Epoch(epoch)), timer("discover", 0, 30_000)]


DISCOVERS = discovers(1)
DISCOVERED = CancelTimer(Timer("discover"))


def deploy(
    epoch: int,
    *attempts: int,
    restore: int = 0,
    of_epoch: int = 1,
    final: bool = False,
    driver: str = "driver 1",
    told: tuple[int, ...] = (),
) -> list[JobEffect]:
    """Return what deploys these attempts; those in `told` have heard of each other before."""
    every = peers(*attempts)
    news = tuple(one for one in every if one.data_port - 9_000 not in told)
    one = completed(restore, of_epoch, final=final) if restore else None
    return [
        CancelTimer(Timer("gather", Epoch(epoch))),
        timer("restore", epoch, 30_000),
        *(
            SendMessage(
                link,
                DeployTasks(
                    Epoch(epoch),
                    LINEAGE,
                    # Of two workers the lower index connects.
                    tuple(one for one in (news if attempts[index] in told else every) if one.worker > index),
                    CheckpointId(restore),
                    tuple(each for each in one.snapshots if each.task.index == index) if one else (),
                    (SPLITS[index],) if not one or of_epoch == epoch - 1 else (),
                    driver,
                ),
            )
            for index, link in enumerate(LINKS)
        ),
    ]


# First start


def test_a_coordinator_starts_by_reading_the_log() -> None:
    assert Coordinator(coordinator_spec()).start() == [*READS_LOG, timer("liveness", 0, 1_000)]


def test_a_first_start_discovers_claims_gathers_deploys_and_runs() -> None:
    talk = Talk()
    assert talk.hear(LogTailRead(())) == [LOG_READ, *DISCOVERS]
    assert talk.hear(SplitsDiscovered(SPLITS)) == [DISCOVERED, *appends(1, claim())]
    assert talk.hear(EntryAppended(at(1))) == [*answered(1), timer("gather", 1, 30_000), SubmitWorkers()]
    assert talk.message(0, registration(0, 1)) == []
    assert talk.message(1, registration(1, 2)) == deploy(1, 1, 2)
    assert talk.message(1, WorkerReady(E1)) == []
    assert talk.message(1, WorkerReady(E1)) == [], "ready is remembered by worker, not counted"
    assert talk.message(0, WorkerReady(E1)) == [
        CancelTimer(Timer("restore", E1)),
        ListParts(),
        *both(StartTasks(E1)),
        timer("trigger", 1, 1_000),
    ]
    assert talk.coordinator.phase is Phase.RUNNING


def test_without_periodic_checkpoints_no_trigger_timer_is_started() -> None:
    assert Talk(periodic=False).running() == [
        CancelTimer(Timer("restore", E1)),
        ListParts(),
        *both(StartTasks(E1)),
    ]


# Checkpoints


def test_a_checkpoint_is_triggered_collected_appended_and_committed_in_that_order() -> None:
    """The decision moment is the durable entry: no commit is sent before it (I3)."""
    talk = Talk()
    talk.running()
    talk.hear(ClockRead(500, "start"))
    assert talk.fire("trigger") == [
        timer("trigger", 1, 1_000),
        *both(TriggerCheckpoint(E1, N1)),
        timer("checkpoint-timeout", 1, 60_000, 1),
    ]
    talk.hear(ClockRead(750, "noon"))
    entry = replace(completed(1), duration_ms=250, wall_clock="noon")
    assert talk.acknowledge(1) == [*appends(2, entry)]
    assert talk.hear(EntryAppended(at(2))) == [
        *answered(2),
        CancelTimer(Timer("checkpoint-timeout", E1, 1)),
        *both(CommitCheckpoint(E1, N1)),
    ]
    assert talk.committed(1) == []
    assert talk.coordinator.completed == entry
    assert talk.fire("trigger")[1:3] == both(TriggerCheckpoint(E1, N2))


def test_no_second_checkpoint_starts_while_one_is_under_way() -> None:
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000)]


def test_parts_of_a_checkpoint_that_is_not_retained_any_more_are_deleted_after_the_new_entry() -> None:
    """B6."""
    talk = Talk(retain=2)
    talk.running()
    talk.complete(1, 2)
    assert not any(isinstance(effect, DeleteParts) for effect in talk.complete(2, 3))
    assert talk.complete(3, 4)[-2:] == deletes(paths(1))


def test_a_declined_checkpoint_is_aborted_and_only_that_one() -> None:
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.message(0, SnapshotAcknowledged(E1, N1, K0, snapshot(K0, 1)))
    assert talk.message(1, SnapshotDeclined(E1, N1, S1, "superseded")) == [
        CancelTimer(Timer("checkpoint-timeout", E1, 1)),
        *both(AbortCheckpoint(E1, N1)),
        *deletes(paths(1)[:1]),
    ]
    assert talk.message(1, SnapshotDeclined(E1, N1, S1, "superseded")) == []
    assert talk.coordinator.phase is Phase.RUNNING
    assert talk.coordinator.checkpoints.failed.failed_count == 1


def test_a_checkpoint_that_takes_too_long_is_aborted() -> None:
    """D3."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    assert talk.fire("checkpoint-timeout", 1, 1) == [
        CancelTimer(Timer("checkpoint-timeout", E1, 1)),
        *both(AbortCheckpoint(E1, N1)),
    ]
    assert talk.fire("checkpoint-timeout", 1, 1) == []


def test_too_many_checkpoints_failing_in_a_row_fail_the_job() -> None:
    """D4, I12."""
    talk = Talk(checkpoint_failures_max=1)
    talk.running()
    talk.fire("trigger")
    talk.fire("checkpoint-timeout", 1, 1)
    talk.fire("trigger")
    message = (
        "2 checkpoints in a row failed; checkpoint 2 has failed: not whole after 60 s; no acknowledgement "
        "from numbers[0], numbers[1], out[0], out[1]"
    )
    assert talk.fire("checkpoint-timeout", 1, 2) == [
        CancelTimer(Timer("checkpoint-timeout", E1, 2)),
        *both(AbortCheckpoint(E1, N2)),
        *both(ShutDown("the job has failed")),
        EndJob("failed", FailureCause("CheckpointsFailed", message, is_transient=True)),
    ]


def outage() -> Talk:
    """A job whose store refuses snapshots for as long as it may."""
    talk = Talk(checkpoint_failures_max=None, outage_ms=900_000)
    talk.running()
    return talk


def test_checkpoints_that_fail_for_a_while_end_nothing_and_are_tried_at_growing_intervals() -> None:
    """D4, I15, P5: a store that refuses for less than outage_timeout; then the job goes back, and on."""
    talk = outage()
    pauses = []
    n = now_ms = 0
    while True:
        n += 1
        now_ms += 60_000
        talk.hear(ClockRead(now_ms, ""))
        talk.fire("pause")
        talk.fire("trigger")
        assert talk.coordinator.checkpoints.under_way == n
        effects = talk.message(0, SnapshotDeclined(E1, CheckpointId(n), S0, "disk full"))
        if talk.coordinator.phase is not Phase.RUNNING:
            break
        pauses += [
            one.delay_ms for one in effects if isinstance(one, StartTimer) and one.timer.kind == "pause"
        ]
    # 15 minutes after the first failure.
    assert n == 16
    assert pauses == [1_000, 2_000, 4_000, 8_000, *[10_000] * 10]
    assert talk.coordinator.phase is Phase.CLAIMING
    assert talk.coordinator.failures[-1].kind == "CheckpointsFailed"
    assert "16 checkpoints in a row failed for 900 s; checkpoint 16" in talk.coordinator.failures[-1].message


def test_a_new_series_of_failures_has_all_the_time_again() -> None:
    talk = outage()
    talk.fire("trigger")
    talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))
    talk.hear(ClockRead(800_000, ""))
    talk.complete(2, 2)
    talk.hear(ClockRead(1_000_000, ""))
    talk.fire("trigger")
    talk.message(0, SnapshotDeclined(E1, CheckpointId(3), S0, "disk full"))
    assert talk.coordinator.phase is Phase.RUNNING


def test_state_that_can_not_be_stored_ends_the_job_after_ten_checkpoints_however_patient_it_is() -> None:
    """I12, L1."""
    talk = outage()
    for n in range(1, 12):
        assert talk.coordinator.phase is Phase.RUNNING
        talk.fire("pause")
        talk.fire("trigger")
        talk.message(0, SnapshotDeclined(E1, CheckpointId(n), S0, "state of key 7", is_permanent=True))
    assert talk.coordinator.phase is Phase.ENDED


@pytest.mark.parametrize("refusal", [EntryRefused(at(2), "no space"), EntryUncertain(at(2), "no answer")])
def test_the_claim_of_a_failover_is_tried_for_as_long_as_an_outage_may_last(
    refusal: EntryRefused | EntryUncertain,
) -> None:
    """D4, I15, P5: nothing else is of use, and the job has all it needs to go on afterwards."""
    talk = outage()
    talk.failed()
    waited_ms, delays = 0, []
    while talk.coordinator.phase is Phase.CLAIMING:
        effects = talk.hear(refusal)
        retries = [one for one in effects if isinstance(one, StartTimer)]
        if not retries:
            break
        delays.append(retries[0].delay_ms)
        waited_ms += delays[-1]
        assert talk.fire("retry-append", 0, 2) == reads(2)
        assert talk.hear(EntryRead(at(2), None))[1:] == appends(2, claim(2))
    assert delays[:7] == [200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert 900_000 <= waited_ms < 906_000
    assert isinstance(talk.coordinator.handle(EntryAppended(at(2))), list)
    assert talk.coordinator.phase is Phase.ENDED


def test_the_claim_of_a_failover_succeeds_as_soon_as_the_store_takes_it() -> None:
    """I15."""
    talk = outage()
    talk.failed()
    for _ in range(40):
        talk.hear(EntryRefused(at(2), "no space"))
        talk.fire("retry-append", 0, 2)
        talk.hear(EntryRead(at(2), None))
    talk.hear(EntryAppended(at(2)))
    talk.ready(2)
    assert talk.coordinator.phase is Phase.RUNNING


def test_a_completed_checkpoint_ends_the_series_of_failures() -> None:
    talk = Talk(checkpoint_failures_max=1)
    talk.running()
    talk.fire("trigger")
    talk.fire("checkpoint-timeout", 1, 1)
    talk.complete(2, 2)
    talk.fire("trigger")
    talk.fire("checkpoint-timeout", 1, 3)
    assert talk.coordinator.phase is Phase.RUNNING


def test_ids_never_go_further_ahead_of_the_log_than_the_lead() -> None:
    """C2: a new driver steps over the lead, so an id above it could be used twice."""
    talk = Talk(checkpoint_failures_max=1_000_000)
    talk.running()
    used = 0
    while talk.coordinator.phase is Phase.RUNNING:
        talk.fire("pause")
        talk.fire("trigger")
        used = talk.coordinator.checkpoints.under_way or used
        talk.fire("checkpoint-timeout", 1, used)
    assert used <= 1 + CHECKPOINT_IDS_LEAD_MAX
    assert talk.coordinator.phase is Phase.ENDED


def test_a_snapshot_that_builds_on_deleted_parts_aborts_the_checkpoint() -> None:
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    dangling = replace(snapshot(K0, 1), parts=(Part("parts/0/gone", 1, "00"),))
    assert talk.message(0, SnapshotAcknowledged(E1, N1, K0, dangling)) == [
        CancelTimer(Timer("checkpoint-timeout", E1, 1)),
        *both(AbortCheckpoint(E1, N1)),
    ]


def test_what_an_acknowledgement_brings_that_comes_after_the_abort_is_deleted_at_once() -> None:
    """A4: it would wait for the next completion else, and behind the last one for ever."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.message(1, SnapshotDeclined(E1, N1, S1, "no space"))
    late = replace(snapshot(K0, 1), parts=(Part("parts/1/k-0-1-ab", 1, "00"),))
    assert talk.message(0, SnapshotAcknowledged(E1, N1, K0, late)) == deletes(("parts/1/k-0-1-ab",))


def test_a_refused_append_voids_the_checkpoint_and_the_job_goes_on() -> None:
    """D4."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    assert talk.hear(EntryRefused(at(2), "no space")) == [
        *answered(2),
        CancelTimer(Timer("checkpoint-timeout", E1, 1)),
        *both(AbortCheckpoint(E1, N1)),
        *deletes(paths(1)),
    ]
    assert talk.coordinator.phase is Phase.RUNNING
    assert talk.complete(2, 2)[2:4] == both(CommitCheckpoint(E1, N2))


def test_while_an_append_is_uncertain_nothing_is_aborted_committed_or_deleted() -> None:
    """B4: applied although the store said time out."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    assert talk.hear(EntryUncertain(at(2), "time out")) == [*answered(2), timer("retry-append", 0, 200, 2)]
    assert talk.fire("checkpoint-timeout", 1, 1) == []
    assert talk.message(1, SnapshotDeclined(E1, N1, S1, "late")) == []
    assert talk.hear(PartsListed(("parts/9/out-0-0-ab",))) == []
    assert talk.fire("retry-append", 0, 2) == [*reads(2)]
    assert talk.hear(EntryRead(at(2), completed(1))) == [
        *answered(2),
        CancelTimer(Timer("checkpoint-timeout", E1, 1)),
        *both(CommitCheckpoint(E1, N1)),
        *deletes(("parts/9/out-0-0-ab",)),
    ]


def test_an_uncertain_append_that_was_not_applied_is_repeated() -> None:
    """B4, the mirror."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    talk.hear(EntryUncertain(at(2), "time out"))
    talk.fire("retry-append", 0, 2)
    assert talk.hear(EntryRead(at(2), None)) == [*answered(2), *appends(2, completed(1))]
    assert talk.hear(EntryAppended(at(2)))[2:] == both(CommitCheckpoint(E1, N1))


def test_orphans_of_older_epochs_are_swept_and_the_rest_is_left_alone() -> None:
    """A3, F6."""
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    listed = ("parts/1/out-0-0-ab", "parts/7/out-0-1-ab", *paths(1))
    assert talk.hear(PartsListed(listed)) == [*deletes(("parts/1/out-0-0-ab",))]


def test_files_that_no_snapshot_refers_to_are_deleted_at_once_and_others_stay() -> None:
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    unused = "parts/1/out-0-1-ff"
    assert talk.hear(PartsDiscarded((unused, *paths(1)))) == [*deletes((unused,))]
    talk.hear(PartsDeleted())
    assert talk.hear(SweepRequested()) == [ListParts()]
    assert talk.hear(PartsListed((unused, "parts/2/out-0-1-ff", *paths(1)))) == [*deletes((unused,))]


def test_files_of_a_snapshot_that_were_useless_before_it_was_acknowledged_go_with_the_next_deletion() -> None:
    """A transaction was committed between the storing of its records and the acknowledgement."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    held = "parts/1/out-0-1-ee"
    talk.message(1, SnapshotAcknowledged(E1, N1, S1, snapshot(S1, 1), unused=(held, "parts/0/in-0-1-ab")))
    talk.acknowledge(1)
    assert talk.hear(EntryAppended(at(2)))[-2:] == [*deletes((held,))]


def test_what_a_driver_has_left_half_written_in_the_log_is_swept_when_no_append_is_under_way() -> None:
    """B1: killed between the file and its name. Then what is ours is not deleted before it has its name."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    left = ("log/00000000000000000001/temporary-0123456789abcdef",)
    assert talk.hear(PartsListed((), (), left)) == []
    assert talk.hear(EntryAppended(at(2)))[-2:] == [*deletes(left)]


# Failover


def test_a_lost_worker_halts_the_others_claims_the_next_epoch_and_goes_back() -> None:
    """A1, A2."""
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    halted = talk.hear(LinkClosed(LINKS[1], "reset"))
    assert halted == [
        timer("forget-failure", 0, 300_000, 1),
        SendMessage(LINKS[0], HaltTasks(E1)),
        *appends(3, claim(2, 2)),
    ]
    assert talk.coordinator.phase is Phase.CLAIMING
    assert talk.hear(EntryAppended(at(3))) == [*answered(3), timer("gather", 2, 30_000)]
    assert talk.message(1, registration(1, 5)) == deploy(2, 1, 5, restore=1, told=(1, 2))
    assert talk.ready(2)[2:] == [*both(StartTasks(E2)), timer("trigger", 2, 1_000)]
    assert talk.fire("trigger", 2)[1:3] == both(TriggerCheckpoint(E2, N2)), "ids go on"


def deaths_told(effects: list[JobEffect]) -> list[int]:
    messages = (one.message for one in effects if isinstance(one, SendMessage))
    return [one.deaths for one in messages if isinstance(one, DeployTasks)]


def test_a_worker_whose_predecessors_died_twice_is_told_of_the_deaths_and_the_others_are_not() -> None:
    """K1: it looks for a record that ends its process."""
    talk = Talk()
    talk.running()
    talk.hear(LinkClosed(LINKS[1], "reset"))
    talk.hear(EntryAppended(at(2)))
    assert deaths_told(talk.message(1, registration(1, 5))) == [0, 0]
    talk.ready(2)
    talk.hear(LinkClosed(LINKS[1], "reset"))
    talk.fire("restart", 2)
    talk.hear(EntryAppended(at(3)))
    assert deaths_told(talk.message(1, registration(1, 6))) == [0, 2]


def test_a_failed_task_keeps_its_worker() -> None:
    talk = Talk()
    talk.running()
    assert talk.failed() == [
        timer("forget-failure", 0, 300_000, 1),
        *both(HaltTasks(E1)),
        *appends(2, claim(2)),
    ]
    assert talk.hear(EntryAppended(at(2))) == [
        *answered(2),
        timer("gather", 2, 30_000),
        *deploy(2, 1, 2, told=(1, 2)),
    ]


def test_a_restart_that_is_asked_for_goes_back_to_the_newest_checkpoint() -> None:
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    assert talk.hear(RestartRequested()) == [
        timer("forget-failure", 0, 300_000, 1),
        *both(HaltTasks(E1)),
        *appends(3, claim(2, 2)),
    ]
    assert talk.hear(EntryAppended(at(3))) == [
        *answered(3),
        timer("gather", 2, 30_000),
        *deploy(2, 1, 2, restore=1, told=(1, 2)),
    ]
    assert talk.coordinator.restart_count == 1


def test_a_restart_that_is_asked_for_counts_against_nobody() -> None:
    """However many there are, the job may fail as often as before, and waits no longer."""
    talk = Talk(failures_max=1, delay_ms=0)
    talk.running()
    for epoch in range(1, 6):
        talk.hear(RestartRequested(), EntryAppended(at(epoch + 1)))
        assert talk.ready(epoch + 1)
    assert talk.failed(6)[-2:] == appends(7, claim(7)), "the first failure, so there is no delay either"
    talk.hear(EntryAppended(at(7)))
    talk.ready(7)
    assert isinstance(talk.failed(7)[-1], EndJob)


def test_a_restart_between_two_failures_of_a_record_lets_it_go_on_counting() -> None:
    talk = Talk()
    talk.running()
    guilty = FailureCause("ValueError", "no", operator="map", record="7")
    for epoch in (1, 3):
        talk.message(0, TaskFailed(Epoch(epoch), S0, guilty))
        talk.fire("restart", epoch)
        talk.hear(EntryAppended(at(epoch + 1)))
        talk.ready(epoch + 1)
        talk.hear(RestartRequested(), EntryAppended(at(epoch + 2)))
        talk.ready(epoch + 2)
    assert isinstance(talk.message(0, TaskFailed(Epoch(5), S0, guilty))[-1], EndJob)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_a_restart_is_asked_for_in_vain_while_no_records_flow(phase: Phase) -> None:
    talk = talk_in(phase)
    assert talk.hear(RestartRequested()) == []
    assert talk.coordinator.phase is phase
    assert talk.coordinator.dropped["restart while no records flow"] == (phase is not Phase.ENDED)


def test_the_next_epoch_waits_for_the_restart_delay() -> None:
    talk = Talk(delay_ms=700)
    talk.running()
    assert talk.failed()[-1] == timer("restart", 1, 700)
    assert talk.coordinator.phase is Phase.WAITING
    assert talk.fire("restart") == [*appends(2, claim(2))]


def test_further_failures_of_an_epoch_that_is_over_are_not_counted() -> None:
    talk = talk_in(Phase.WAITING)
    assert talk.failed() == []
    assert talk.hear(LinkClosed(LINKS[0], "reset")) == []
    assert len(talk.coordinator.failures) == 1


def test_a_worker_lost_while_restoring_is_a_failure_and_so_is_the_next() -> None:
    """A5."""
    talk = Talk()
    talk.gathering()
    talk.register()
    assert talk.hear(LinkClosed(LINKS[1], "reset"))[-2:] == appends(2, claim(2))
    talk.hear(EntryAppended(at(2)))
    assert talk.message(1, registration(1, 3)) == deploy(2, 1, 3, told=(1, 2))
    assert talk.hear(LinkClosed(LINKS[1], "reset"))[-1] == timer("restart", 2, 100)
    assert talk.fire("restart", 2) == [*appends(3, claim(3))]
    talk.hear(EntryAppended(at(3)))
    again = talk.message(1, registration(1, 4))
    assert [type(effect) for effect in again] == [CancelTimer, StartTimer, SendMessage, SendMessage]
    assert talk.coordinator.restart_count == 2


def test_a_restore_that_takes_too_long_is_a_failure() -> None:
    talk = Talk()
    talk.gathering()
    talk.register()
    talk.message(0, WorkerReady(E1))
    talk.fire("restore")
    message = (
        "restoring took too long: of 2 workers, all of them registered, [1] had not restored their tasks and "
        "connected within another start_timeout=30 s; raise start_timeout if there is that much state to load"
    )
    assert talk.coordinator.failures == (FailureCause("Timeout", message, is_transient=True),)


def test_a_checkpoint_whose_entry_becomes_durable_after_the_failure_is_the_one_restored() -> None:
    """B2: the append was on its way when the worker died."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    assert talk.hear(LinkClosed(LINKS[1], "reset"))[1:] == [SendMessage(LINKS[0], HaltTasks(E1))]
    assert talk.hear(EntryAppended(at(2))) == [*answered(2), *appends(3, claim(2, 2))]
    talk.hear(EntryAppended(at(3)))
    assert talk.message(1, registration(1, 5)) == deploy(2, 1, 5, restore=1, told=(1, 2))


def test_too_many_failures_end_the_job_with_the_first_cause() -> None:
    """I12."""
    talk = Talk(failures_max=0)
    talk.running()
    message = "task out[0] failed: bad record (given up after 1 failures within 300 s)"
    assert talk.failed() == [
        *both(ShutDown("the job has failed")),
        EndJob("failed", replace(CAUSE, message=message, is_transient=True)),
    ]


def test_the_same_record_failing_three_times_ends_the_job() -> None:
    """K1."""
    talk = Talk()
    talk.running()
    for epoch in (1, 2):
        talk.failed(epoch)
        if talk.coordinator.phase is Phase.WAITING:
            talk.fire("restart", epoch)
        talk.hear(EntryAppended(at(1 + epoch)))
        talk.ready(1 + epoch)
    end = talk.failed(3)[-1]
    assert isinstance(end, EndJob)
    assert end.cause is not None
    assert end.cause.message.endswith("(given up after the same record failed 3 times in a row)")


GONE = FailureCause("StoreError", "parts/1/out-0-1-ab is missing", is_final=True)


def hopeless() -> Talk:
    """A driver whose worker has found that its part of the checkpoint is gone."""
    talk = Talk()
    talk.gathering()
    talk.register()
    assert talk.failed(cause=GONE) == [
        timer("forget-failure", 0, 300_000, 1),
        *both(HaltTasks(E1)),
        *appends(2, claim(2)),
    ]
    return talk


def test_a_job_is_called_damaged_by_its_owner_only() -> None:
    """C1, D1: whoever takes over deletes what a driver that has slept is still to restore."""
    message = f"task out[0] failed: {GONE.message} (given up after a failure that no restart can mend)"
    talk = hopeless()
    assert talk.hear(EntryAppended(at(2))) == [
        *answered(2),
        *both(ShutDown("the job has failed")),
        EndJob("failed", replace(GONE, message=message)),
    ]
    talk = hopeless()
    talk.hear(EntryTaken(at(2)))
    end = talk.hear(EntryRead(at(2), claim(2, driver="driver 2")))[-1]
    assert isinstance(end, EndJob)
    assert (end.outcome, end.cause and end.cause.kind) == ("fenced", "Fenced")
    talk = hopeless()
    assert talk.hear(EntryRefused(at(2), "no space"))[-1] == EndJob("failed", replace(GONE, message=message))


def test_failures_are_forgotten_after_the_window() -> None:
    talk = Talk()
    talk.running()
    talk.failed()
    assert talk.fire("forget-failure", 0, 1) == []
    assert talk.coordinator.failures == ()


def test_spark_ending_the_workers_is_a_failure_and_they_are_submitted_again() -> None:
    talk = Talk()
    talk.running()
    assert talk.hear(WorkersEnded("aborted")) == [
        *map(CloseLink, LINKS),
        timer("forget-failure", 0, 300_000, 1),
        *appends(2, claim(2)),
    ]
    assert talk.hear(EntryAppended(at(2))) == [*answered(2), timer("gather", 2, 30_000), SubmitWorkers()]
    assert talk.register() == deploy(2, 1, 2)


def test_the_end_of_spark_itself_ends_the_job_with_its_reason() -> None:
    """N4: nobody could run workers any more."""
    why = "Spark's JVM is gone (given up after a failure that no restart can mend)"
    failed = EndJob("failed", FailureCause("WorkersError", why, is_final=True, is_transient=True))
    for lose in (lambda talk: None, lambda talk: talk.hear(LinkClosed(LINKS[1], "reset"))):
        talk = Talk()
        talk.running()
        lose(talk)
        assert talk.hear(WorkersEnded("Spark's JVM is gone", is_final=True))[-1] == failed
    talk = Talk()
    talk.running()
    talk.hear(StopRequested())
    stopped = talk.hear(WorkersEnded("Spark's JVM is gone", is_final=True))[-1]
    assert isinstance(stopped, EndJob)
    assert (stopped.outcome, stopped.cause is not None) == ("stopped", True)


def test_workers_that_outlive_their_spark_job_keep_no_place() -> None:
    """C5, SPARK-18761: their successors would be turned away and use up Spark's attempts."""
    talk = Talk()
    talk.running()
    talk.comes(21, registration(0, 8))
    talk.hear(WorkersEnded("aborted"))
    talk.hear(EntryAppended(at(2)))
    assert talk.coordinator.registry.held == {}
    assert talk.comes(31, registration(0, 9)) == []
    assert list(talk.coordinator.registry.held) == [0]


# Admission and liveness


def test_a_second_attempt_stands_by_and_takes_over_when_the_first_is_lost() -> None:
    """C5."""
    talk = Talk()
    talk.running()
    assert talk.comes(21, registration(1, 8)) == [SendMessage(21, StandBy())]
    third = talk.comes(22, registration(1, 9))
    reason = "worker 1 is held by one live attempt, and a second one waits already"
    assert third == [SendMessage(22, ShutDown(reason, failed=True)), CloseLink(22)]
    assert talk.hear(LinkClosed(LINKS[1], "reset"))[1:] == [
        SendMessage(LINKS[0], HaltTasks(E1)),
        SendMessage(21, HaltTasks(E1)),
        *appends(2, claim(2)),
    ]
    deployed = talk.hear(EntryAppended(at(2)))
    assert [effect.link for effect in deployed if isinstance(effect, SendMessage)] == [LINKS[0], 21]


def test_a_lost_stand_by_changes_nothing() -> None:
    talk = Talk()
    talk.running()
    talk.comes(21, registration(1, 8))
    assert talk.hear(LinkClosed(21, "reset")) == []
    assert talk.coordinator.phase is Phase.RUNNING


def test_a_registration_repeated_on_the_same_link_is_dropped() -> None:
    talk = Talk()
    talk.running()
    assert talk.register() == []
    assert talk.coordinator.dropped["repeated registration"] == 2


def test_every_tick_sends_heartbeats_and_silence_is_a_failure() -> None:
    """E2, I-1, I-2: silence is counted in ticks of the driver's own timer, not on a clock."""
    talk = Talk()
    talk.running()
    beat: list[JobEffect] = [timer("liveness", 0, 1_000), *both(CoordinatorHeartbeat(E1))]
    for _ in range(LIVENESS_TICKS):
        assert talk.fire("liveness", 0) == beat
        talk.message(0, WorkerHeartbeat(E1))
    assert talk.fire("liveness", 0) == [
        *beat,
        CloseLink(LINKS[1]),
        ReplaceWorker(WorkerIndex(1), AttemptId(2)),
        timer("forget-failure", 0, 300_000, 1),
        SendMessage(LINKS[0], HaltTasks(E1)),
        *appends(2, claim(2)),
    ]
    (cause,) = talk.coordinator.failures
    assert (
        cause.message == "worker 1 (pid 2 on localhost) is lost: silent for more than heartbeat_timeout=4 s"
    )
    assert cause.worker is None, "it may be alive"


def test_a_clock_that_jumps_decides_nothing() -> None:
    """I-1."""
    talk = Talk()
    talk.running()
    for now_ms in (10**12, -(10**12), 0):
        assert talk.hear(ClockRead(now_ms, "?")) == []
    assert talk.coordinator.phase is Phase.RUNNING


def test_too_few_workers_in_time_fail_the_job_with_what_to_do() -> None:
    talk = Talk(slots=1)
    talk.gathering()
    talk.message(0, registration(0, 1))
    text = (
        "1 of 2 workers registered within start_timeout=30 s; Spark has 1 slots in all. Each worker "
        "needs a Spark task slot for as long as the job runs: lower parallelism, free slots, or raise "
        "start_timeout"
    )
    assert talk.fire("gather") == [
        SendMessage(LINKS[0], ShutDown("the job has failed")),
        EndJob("failed", FailureCause("WorkersError", text, is_transient=True)),
    ]


def test_the_successor_of_a_driver_waits_for_slots_that_the_executors_of_that_may_still_hold() -> None:
    """P5, I15: Spark needs minutes to see that the host of a driver is gone."""
    talk = Talk(driver="driver 2", delay_ms=0)
    log = ((at(1), SegmentOpened(claim(), None)), (at(2), completed(1)))
    talk.hear(LogTailRead(log), EntryAppended(at(3)), EntryAppended(LogIndex(2, 0)))
    assert talk.coordinator.phase is Phase.GATHERING
    assert not any(isinstance(effect, EndJob) for effect in talk.fire("gather", 2))
    assert talk.coordinator.failures[-1].kind == "WorkersError"


def test_slots_that_are_missing_at_a_failover_are_a_failure_like_any_other() -> None:
    """P5, I15: Spark may take minutes to see that a host is gone; whose worker is missing is said."""
    talk = Talk(delay_ms=0)
    talk.running()
    talk.hear(LinkClosed(LINKS[1], "reset"), EntryAppended(at(2)))
    assert talk.coordinator.phase is Phase.GATHERING
    effects = talk.fire("gather", 2)
    assert timer("restart", 2, 100) in effects
    assert talk.coordinator.phase is Phase.WAITING
    message = talk.coordinator.failures[-1].message
    assert "1 of 2 workers registered within start_timeout=30 s; worker 1 was on localhost." in message
    talk.fire("restart", 2)
    talk.hear(EntryAppended(at(3)))
    talk.message(1, registration(1, 3))
    talk.ready(3)
    assert talk.coordinator.phase is Phase.RUNNING


def may_start(link: int, worker: int, *, after_ms: int, why: str = "file system is away") -> list[JobEffect]:
    """Spark may start another attempt then, for which there is as much time as for the one before."""
    reason = f"worker {worker} could not start: {why}"
    return [
        SendMessage(link, ShutDown(reason, failed=True, after_ms=after_ms)),
        CancelTimer(Timer("gather", Epoch(1))),
        timer("gather", 1, 30_000 + after_ms),
    ]


AWAY = FailureCause("OSError", "file system is away", is_transient=True)


def start_fails(talk: Talk, worker: int, attempt: int, cause: FailureCause = AWAY) -> list[JobEffect]:
    """An attempt reports on the link that has its number."""
    return talk.comes(attempt, WorkerFailed(WorkerIndex(worker), AttemptId(attempt), cause))


def test_the_first_failed_starts_of_all_workers_are_one_failure() -> None:
    """L: a file system that is away for a moment ends no job, however many workers it has."""
    talk = Talk(failures_max=1)
    talk.gathering()
    start_fails(talk, 0, 21)
    assert start_fails(talk, 1, 22) == may_start(22, 1, after_ms=0)
    assert len(talk.coordinator.failures) == 1
    talk.register()
    assert talk.coordinator.phase is Phase.RESTORING


def test_each_round_of_failed_starts_waits_longer_than_the_one_before() -> None:
    talk = Talk()
    talk.gathering()
    delays = [0, 100, 200, 400, 800]
    for number, after_ms in enumerate(delays):
        forget = timer("forget-failure", 0, 300_000, number + 1)
        first, second = 21 + number, 31 + number
        assert start_fails(talk, 0, first) == [forget, *may_start(first, 0, after_ms=after_ms)]
        assert start_fails(talk, 1, second) == may_start(second, 1, after_ms=after_ms)
    assert len(talk.coordinator.failures) == len(delays)


def test_a_round_of_failed_starts_ends_with_the_registration_of_all_workers() -> None:
    talk = Talk()
    talk.gathering()
    start_fails(talk, 0, 21)
    talk.register()
    talk.hear(LinkClosed(LINKS[1], "reset"))
    talk.fire("restart", 1)
    talk.hear(EntryAppended(at(2)))
    assert talk.coordinator.phase is Phase.GATHERING
    start_fails(talk, 1, 22)
    assert [one.kind for one in talk.coordinator.failures] == ["OSError", "WorkerLost", "OSError"]


def test_a_round_of_failed_starts_ends_with_its_epoch() -> None:
    talk = Talk()
    talk.gathering()
    start_fails(talk, 0, 21)
    talk.hear(WorkersEnded("aborted"))
    talk.fire("restart", 1)
    talk.hear(EntryAppended(at(2)))
    start_fails(talk, 1, 22)
    assert [one.kind for one in talk.coordinator.failures] == ["OSError", "SparkJobEnded", "OSError"]


def test_a_failed_start_that_no_restart_can_mend_ends_the_job_at_once() -> None:
    talk = Talk()
    talk.gathering()
    start_fails(talk, 0, 21)
    effects = start_fails(talk, 1, 22, replace(AWAY, is_final=True))
    assert isinstance(effects[-1], EndJob) and effects[-1].outcome == "failed"


@pytest.mark.parametrize("kind", ["ImportError", "ModuleNotFoundError"])
@pytest.mark.parametrize("ends", [False, True], ids=["Spark goes on", "Spark ends all workers each time"])
def test_a_module_that_the_workers_lack_ends_the_job_in_the_third_round(kind: str, ends: bool) -> None:
    """K4: a mistake of the program, which no operator need be to blame for."""
    talk = Talk(failures_max=100)
    talk.gathering()
    missing = FailureCause(kind, "No module named 'words'")
    for epoch in (1, 2):
        start_fails(talk, 1, 20 + epoch, missing)
        start_fails(talk, 0, 30 + epoch, missing)
        if ends:
            talk.hear(WorkersEnded("aborted"))
            talk.fire("restart", epoch)
            talk.hear(EntryAppended(at(epoch + 1)))
        assert talk.coordinator.phase is Phase.GATHERING
    end = start_fails(talk, 1, 23, missing)[-1]
    assert isinstance(end, EndJob) and end.cause is not None
    assert "given up after the same mistake 3 times in a row, without progress" in end.cause.message


def test_a_directory_that_a_host_lacks_ends_the_job_in_the_third_round_not_at_the_third_worker() -> None:
    talk = Talk(failures_max=100)
    talk.gathering()
    refused = FailureCause("ConnectorError", "not the directory", "checkpoint_dir", is_permanent=True)
    for number in range(2):
        start_fails(talk, 0, 21 + 2 * number, refused)
        start_fails(talk, 1, 22 + 2 * number, refused)
    assert talk.coordinator.phase is Phase.GATHERING
    end = start_fails(talk, 1, 30, refused)[-1]
    assert isinstance(end, EndJob) and end.cause is not None
    assert "'checkpoint_dir' was refused 3 times in a row" in end.cause.message


def test_a_worker_that_can_not_start_is_a_failure_that_spark_mends_but_not_for_ever() -> None:
    """L: code that can't be loaded in the workers ends the job with its own cause, not for want of slots."""
    talk = Talk(failures_max=1)
    talk.gathering()
    failed = WorkerFailed(WorkerIndex(1), AttemptId(2), CAUSE)
    assert talk.comes(21, failed) == [
        timer("forget-failure", 0, 300_000, 1),
        *may_start(21, 1, after_ms=0, why="bad record"),
    ]
    assert talk.coordinator.phase is Phase.GATHERING
    talk.message(0, registration(0, 1))
    message = "worker 1 could not start: bad record (given up after 2 failures within 300 s)"
    assert talk.comes(22, replace(failed, attempt=AttemptId(3))) == [
        SendMessage(LINKS[0], ShutDown("the job has failed")),
        EndJob("failed", replace(CAUSE, message=message, is_transient=True)),
    ]


def test_a_replacement_that_can_not_start_leaves_a_running_job_alone() -> None:
    talk = Talk()
    talk.running()
    assert talk.comes(21, WorkerFailed(WorkerIndex(1), AttemptId(8), CAUSE)) == []
    assert talk.coordinator.phase is Phase.RUNNING
    assert talk.coordinator.failures == ()


@pytest.mark.parametrize("phase", [Phase.FINISHING, Phase.STOPPING])
def test_a_replacement_that_can_not_start_does_not_matter_at_the_end(phase: Phase) -> None:
    talk = talk_in(phase)
    assert talk.comes(21, WorkerFailed(WorkerIndex(1), AttemptId(8), CAUSE)) == []
    assert talk.coordinator.failures == ()


# A new driver


def test_a_new_driver_resumes_from_the_newest_completed_checkpoint() -> None:
    """B1, B2: restoring commits what checkpoint 1 staged; ids go on above every one ever used."""
    talk = Talk(driver="driver 2")
    log = ((at(1), SegmentOpened(claim(), None)), (at(2), completed(1)))
    ours = claim(2, 2_001, "driver 2")
    assert talk.hear(LogTailRead(log)) == [LOG_READ, *takes_over(3, ours)]
    assert talk.hear(EntryAppended(at(3))) == [*answered(1), *opens(3, ours)]
    owned = [*answered(2), timer("gather", 2, 30_000), SubmitWorkers()]
    assert talk.hear(EntryAppended(LogIndex(2, 0))) == owned
    expected = [
        replace(effect, message=replace(effect.message, splits=()))
        if isinstance(effect, SendMessage) and isinstance(effect.message, DeployTasks)
        else effect
        for effect in deploy(2, 1, 2, restore=1, driver="driver 2")
    ]
    assert talk.register() == expected
    talk.ready(2)
    assert talk.fire("trigger", 2)[1:3] == both(TriggerCheckpoint(E2, CheckpointId(2_001)))


def test_a_driver_that_is_overtaken_while_claiming_reads_again_and_claims_above() -> None:
    """B5: the newest driver wins."""
    talk = Talk(driver="driver 2")
    talk.hear(LogTailRead(()), SplitsDiscovered(SPLITS), EntryTaken(at(1)))
    assert talk.hear(EntryRead(at(1), FIRST_HEAD)) == [*answered(1), *READS_LOG]
    assert talk.hear(LogTailRead(((at(1), FIRST_HEAD),))) == [LOG_READ, *discovers(2)]
    assert talk.hear(SplitsDiscovered(SPLITS)) == [DISCOVERED, *takes_over(2, claim(2, 2_001, "driver 2"))]


def test_a_segment_that_somebody_has_closed_and_nobody_has_followed_is_not_closed_again() -> None:
    """B5: a driver died between closing the log and claiming it."""
    talk = Talk(driver="driver 3")
    closed = SegmentClosed(E2, "driver 2", Claimant())
    log = ((at(1), FIRST_HEAD), (at(2), completed(1)), (at(3), closed))
    ours = claim(2, 2_001, "driver 3")
    (_, append, _) = talk.hear(LogTailRead(log))
    assert append == AppendEntry(LogIndex(2, 0), SegmentOpened(ours, at(3)))


def test_a_driver_that_has_closed_the_log_and_is_overtaken_at_the_claim_reads_again() -> None:
    """B5: two drivers want the log; the newest wins."""
    talk = Talk(driver="driver 3")
    talk.hear(LogTailRead(((at(1), FIRST_HEAD), (at(2), completed(1)))), EntryAppended(at(3)))
    theirs = SegmentOpened(claim(2, 2_001, "driver 2"), at(3))
    talk.hear(EntryTaken(LogIndex(2, 0)))
    assert talk.hear(EntryRead(LogIndex(2, 0), theirs)) == [*answered(2), *READS_LOG]
    log = (
        (at(2), completed(1)),
        (at(3), SegmentClosed(E2, "driver 2", Claimant())),
        (LogIndex(2, 0), theirs),
    )
    (_, append, _) = talk.hear(LogTailRead(log))
    assert append == AppendEntry(LogIndex(2, 1), SegmentClosed(Epoch(3), "driver 3", Claimant()))


def test_a_driver_that_follows_one_of_its_run_is_fenced_by_whoever_came_between() -> None:
    """B5, I7: SIGSTOP at the seam of two engines, a new driver, SIGCONT."""

    def following(terms: CoordinatorSpec) -> Coordinator:
        follows = Predecessor("driver", E1)
        return Coordinator(replace(terms, identity=replace(terms.identity, follows=follows)))

    talk = Talk(following, driver="driver 2")
    before = ((at(0), FIRST_HEAD), (at(1), completed(1)))
    (_, end) = talk.hear(LogTailRead((*before, (at(2), claim(2, driver="driver 3")))))
    assert isinstance(end, EndJob) and end.cause is not None
    assert end.outcome == "fenced" and "in epoch 2: it has claimed" in end.cause.message

    talk = Talk(following, driver="driver 2")
    assert any(isinstance(one, AppendEntry) for one in talk.hear(LogTailRead(before)))


def test_a_driver_does_not_claim_for_ever() -> None:
    talk = Talk(driver="driver 2")
    log: list[tuple[LogIndex, LogEntry]] = [(at(1), FIRST_HEAD)]
    for index in range(2, CLAIM_ATTEMPTS_MAX + 3):
        theirs = claim(index, driver="driver 1")
        found = (EntryTaken(at(index)), EntryRead(at(index), theirs))
        effects = talk.hear(LogTailRead(tuple(log)), SplitsDiscovered(SPLITS), *found)
        log.append((at(index), theirs))
    assert isinstance(effects[-1], EndJob)
    assert effects[-1].outcome == "fenced"


def test_a_driver_that_was_overtaken_and_is_shown_an_older_log_waits_before_it_reads_again() -> None:
    """D5: a claim where an entry is known to be would be overtaken again, as fast as the store answers."""
    talk = Talk(driver="driver 2")
    talk.hear(LogTailRead(()), SplitsDiscovered(SPLITS), EntryTaken(at(1)), EntryRead(at(1), FIRST_HEAD))
    assert talk.hear(LogTailRead(())) == [LOG_READ, timer("read-again", 0, RETRY_APPEND_MS)]
    assert talk.fire("read-again", 0) == READS_LOG
    assert talk.hear(LogTailRead(((at(1), FIRST_HEAD),))) == [LOG_READ, *discovers(2)]
    assert talk.fire("read-again", 0) == []
    assert talk.coordinator.dropped == {"stale timer": 1}


def test_a_store_that_shows_an_older_log_for_ever_fails_the_start() -> None:
    talk = Talk(driver="driver 2")
    talk.hear(LogTailRead(()), SplitsDiscovered(SPLITS), EntryTaken(at(1)), EntryRead(at(1), FIRST_HEAD))
    for _ in range(CLAIM_ATTEMPTS_MAX - 1):
        assert talk.hear(LogTailRead(()))[-1] == timer("read-again", 0, RETRY_APPEND_MS)
        talk.fire("read-again", 0)
    (_, end) = talk.hear(LogTailRead(()))
    assert isinstance(end, EndJob) and end.cause is not None
    assert end.outcome == "failed" and "has shown entry 1/0 of the job log" in end.cause.message


@pytest.mark.parametrize("winner", [SegmentClosed(E2, "driver 2", Claimant()), completed(9, 2)])
def test_a_driver_that_finds_its_entry_taken_is_fenced_and_touches_nothing(winner: LogEntry) -> None:
    """B5, I7: SIGSTOP, a new driver, SIGCONT."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    assert talk.hear(EntryTaken(at(2))) == [*answered(2), *reads(2)]
    effects = talk.hear(EntryRead(at(2), winner))
    assert effects[:-1] == [*answered(2), *both(ShutDown("a newer driver owns the job"))]
    end = effects[-1]
    assert isinstance(end, EndJob) and end.cause is not None
    assert end.outcome == "fenced"
    assert f"owns this job now, in epoch {winner.epoch}" in end.cause.message


def test_a_fenced_driver_says_who_has_taken_over_and_the_new_one_from_whom() -> None:
    """B5."""
    they = Claimant("host 2", 22, "2026-01-02T03:04:05")
    theirs = replace(claim(2, 2_001, "driver 2"), claimant=they)
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    talk.hear(EntryTaken(at(2)))
    end = talk.hear(EntryRead(at(2), SegmentClosed(E2, "driver 2", they)))[-1]
    assert isinstance(end, EndJob) and end.cause is not None
    who = "another driver (pid 22 on host 2, since 2026-01-02 03:04:05 UTC) owns this job now, in epoch 2"
    assert end.cause.message.startswith(who)
    talk = Talk(driver="driver 3")
    talk.hear(ClockRead(0, "2026-01-02T04:00:00"))
    log = ((at(2), completed(1)), (at(3), SegmentClosed(E2, "driver 2", they)))
    (*_, append, _) = talk.hear(LogTailRead((*log, (LogIndex(2, 0), SegmentOpened(theirs, at(3))))))
    assert talk.coordinator.takeover.startswith("takes over from epoch 2 (pid 22 on host 2, since 2026-01-02")
    assert isinstance(append, AppendEntry) and isinstance(append.entry, SegmentClosed)
    assert append.entry.claimant.wall_clock == "2026-01-02T04:00:00"


def test_a_log_that_stays_uncertain_or_refuses_the_claim_fails_the_job() -> None:
    talk = Talk()
    talk.hear(LogTailRead(()), SplitsDiscovered(SPLITS))
    cause = FailureCause("StoreError", "the job log can't be written: no space")
    assert talk.hear(EntryRefused(at(1), "no space")) == [*answered(1), EndJob("failed", cause)]


def test_a_directory_of_another_job_is_refused_before_anything_is_touched() -> None:
    """H3."""
    (_, end) = Talk().hear(LogTailRead(((at(1), replace(claim(), fingerprint="other")),)))
    assert isinstance(end, EndJob)
    assert end.outcome == "failed"
    assert end.cause is not None
    reason = "can't use this checkpoint_dir: it holds the state of a different graph"
    assert end.cause.message.startswith(reason)


def visible(lineage: str, n: int) -> CommittedOutput:
    return CommittedOutput("/out", Lineage(lineage), "out", K0, E1, "driver 1", CheckpointId(n))


@pytest.mark.parametrize(
    ("log", "output", "words"),
    [
        ((), visible("theirs", 4), "has committed output of another history"),
        ((FIRST_HEAD, completed(1)), visible(LINEAGE, 4), "which goes on from checkpoint 1"),
        ((SegmentOpened(claim(driver="driver 0"), None),), visible(LINEAGE, 0), "two drivers of one history"),
    ],
)
def test_output_that_does_not_belong_to_the_log_is_refused_before_anything_is_claimed(
    log: tuple[LogEntry, ...], output: CommittedOutput, words: str
) -> None:
    """N1."""
    tail = tuple((at(i), entry) for i, entry in enumerate(log, 1))
    (_, end) = Talk().hear(LogTailRead(tail, (output,)))
    assert isinstance(end, EndJob)
    assert end.cause is not None
    assert (end.outcome, end.cause.kind) == ("failed", "HistoryError")
    assert end.cause.message.startswith(f"/out: task {K0} of sink 'out'") and words in end.cause.message


def test_output_of_its_own_is_no_reason_not_to_go_on() -> None:
    log = ((at(1), FIRST_HEAD), (at(2), completed(4)))
    assert Talk().hear(LogTailRead(log, (visible(LINEAGE, 4), visible("theirs", 9))))[-1] != EndJob("failed")
    assert Talk().coordinator.phase is Phase.CLAIMING


def test_a_finished_job_is_not_started_again() -> None:
    """F5."""
    log = ((at(1), FIRST_HEAD), (at(2), completed(1, final=True)), (at(3), JobFinished(E1, N1)))
    assert Talk().hear(LogTailRead(log)) == [LOG_READ, EndJob("finished")]


@pytest.mark.parametrize("is_savepoint", [False, True])
@pytest.mark.parametrize("is_overtaken", [False, True])
def test_whoever_asks_while_another_driver_finishes_the_job_gets_the_final_checkpoint(
    *, is_savepoint: bool, is_overtaken: bool
) -> None:
    """F5: the other driver writes its last entry before this one's claim."""
    talk = Talk()
    final = completed(1, final=True)
    log: tuple[tuple[LogIndex, LogEntry], ...] = ((at(1), FIRST_HEAD), (at(2), final))
    if is_overtaken:
        talk.hear(LogTailRead(log[:1]), SplitsDiscovered(SPLITS))
    assert talk.hear(CheckpointRequested(7, is_savepoint)) == []
    if is_overtaken:
        talk.hear(EntryTaken(at(2)), EntryRead(at(2), final))
    effects = talk.hear(LogTailRead((*log, (at(3), JobFinished(E1, N1)))))
    assert AnswerRequest(7, final) in effects
    assert EndJob("finished") in effects


# The end


def test_when_all_sources_are_drained_a_checkpoint_follows_at_once() -> None:
    """F5."""
    talk = Talk(periodic=False)
    talk.running()
    assert talk.message(0, SourceDrained(E1, S0)) == []
    assert talk.message(1, SourceDrained(E1, S1)) == [
        *both(TriggerCheckpoint(E1, N1)),
        timer("checkpoint-timeout", 1, 60_000, 1),
    ]


def test_sources_that_are_drained_before_the_start_are_not_forgotten() -> None:
    talk = Talk(periodic=False)
    talk.gathering()
    talk.register()
    talk.message(0, SourceDrained(E1, S0))
    talk.message(1, SourceDrained(E1, S1))
    assert talk.ready()[-3:-1] == both(TriggerCheckpoint(E1, N1))


def drained(talk: Talk) -> list[JobEffect]:
    """Every source says that it has read all of its input."""
    talk.message(0, SourceDrained(E1, S0))
    return talk.message(1, SourceDrained(E1, S1))


@pytest.mark.parametrize("periodic", [True, False])
def test_a_drained_job_whose_cut_still_holds_something_looks_again_and_again_but_less_and_less_often(
    periodic: bool,
) -> None:
    """F5: sources are drained, records are on their way. Checkpoints on end would only hold them up."""
    talk = Talk(periodic=periodic, retain=100)
    talk.running()
    drained(talk)
    for n, pause_ms in enumerate([10, 20, 40, 80, 160, 320, 640, 1_000, 1_000], 1):
        talk.acknowledge(n)
        assert talk.hear(EntryAppended(at(n + 1))) == [
            *answered(n + 1),
            CancelTimer(Timer("checkpoint-timeout", E1, n)),
            *both(CommitCheckpoint(E1, CheckpointId(n))),
            timer("trigger", 1, pause_ms),
        ]
        talk.committed(n)
        assert talk.fire("trigger") == [
            *([timer("trigger", 1, 1_000)] if periodic else []),
            *both(TriggerCheckpoint(E1, CheckpointId(n + 1))),
            timer("checkpoint-timeout", 1, 60_000, n + 1),
        ]


def test_a_look_at_a_drained_job_waits_for_the_end_of_the_pause() -> None:
    talk = Talk(pause_ms=500)
    talk.running()
    drained(talk)
    talk.acknowledge(1)
    assert talk.hear(EntryAppended(at(2)))[-2:] == [timer("pause", 1, 500), timer("trigger", 1, 10)]
    assert talk.fire("trigger") == [timer("trigger", 1, 1_000)]
    assert talk.fire("pause")[:2] == both(TriggerCheckpoint(E1, N2))


def test_sources_drained_while_a_checkpoint_is_under_way_are_looked_at_as_soon_as_it_is_over() -> None:
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    assert drained(talk) == []
    talk.acknowledge(1)
    assert talk.hear(EntryAppended(at(2)))[-3:-1] == both(TriggerCheckpoint(E1, N2))


# Loops: as if `out` led back to itself.

LOOP = Component(frozenset({K0.vertex}), frozenset({S0.vertex}), (K0.vertex,))
CLOSES = CloseLoops(E1, (K0.vertex,))


def shows(talk: Talk, n: int, sources: Snapshot, loop: Snapshot) -> list[JobEffect]:
    """Checkpoint n is complete, and shows this."""
    for task in TASKS:
        one = replace(snapshot(task, n), drained=False)
        said = sources if task.vertex == S0.vertex else loop
        one = replace(one, drained=said.drained, ended=said.ended, at_rest=said.at_rest)
        talk.message(task.index, SnapshotAcknowledged(E1, CheckpointId(n), task, one))
    return talk.hear(EntryAppended(at(n + 1)))


OPEN, OVER = Snapshot(at_rest=True), Snapshot(drained=True, ended=True, at_rest=True)


def test_the_loops_that_a_cut_shows_to_be_exhausted_are_closed_and_looked_at_soon() -> None:
    """G4."""
    talk = Talk(loops=(LOOP,))
    talk.running()
    drained(talk)
    assert not set(both(CLOSES)) & set(shows(talk, 1, OVER, Snapshot(in_flight=1)))
    talk.fire("trigger")
    assert shows(talk, 2, OVER, OPEN)[-3:] == [*both(CLOSES), timer("trigger", 1, 10)]
    assert talk.coordinator.termination is Termination.QUIET
    talk.fire("trigger")
    assert shows(talk, 3, OVER, OPEN)[-3:] == [*both(CLOSES), timer("trigger", 1, 20)], "said again"
    talk.fire("trigger")
    shows(talk, 4, OVER, OVER)
    assert talk.coordinator.phase is Phase.FINISHING


def test_what_the_sources_say_outside_of_the_cut_closes_no_loop() -> None:
    """A final result may be on its way into the loop, or still to be said."""
    talk = Talk(loops=(LOOP,))
    talk.running()
    drained(talk)
    assert shows(talk, 1, OPEN, OPEN)[-1] == timer("trigger", 1, 10)


def test_a_loop_may_be_closed_while_a_source_that_does_not_lead_to_it_goes_on() -> None:
    talk = Talk(loops=(LOOP,))
    talk.running()
    talk.fire("trigger")
    assert shows(talk, 1, OVER, OPEN)[-2:] == both(CLOSES)
    assert talk.coordinator.termination is Termination.OPEN


def test_a_loop_is_closed_again_in_the_epoch_after_a_failure() -> None:
    talk = Talk(loops=(LOOP,))
    talk.running()
    drained(talk)
    shows(talk, 1, OVER, OPEN)
    talk.failed()
    talk.hear(EntryAppended(at(3)))
    assert not any(isinstance(getattr(one, "message", None), CloseLoops) for one in talk.ready(2))
    talk.message(0, SourceDrained(E2, S0))
    talk.message(1, SourceDrained(E2, S1))
    for task in TASKS:
        one = replace(snapshot(task, 2, 2), drained=task.vertex == S0.vertex, at_rest=True)
        talk.message(task.index, SnapshotAcknowledged(E2, N2, task, one))
    closes = both(CloseLoops(E2, (K0.vertex,)))
    assert talk.hear(EntryAppended(at(4)))[-3:] == [*closes, timer("trigger", 2, 10)]


def test_the_job_is_finished_when_the_final_checkpoint_is_committed_and_the_log_says_so() -> None:
    """F5."""
    talk = Talk()
    talk.running()
    assert talk.complete(1, 2, drained=True) == [
        *answered(2),
        CancelTimer(Timer("checkpoint-timeout", E1, 1)),
        *both(CommitCheckpoint(E1, N1)),
        timer("finish", 1, 60_000),
    ]
    assert talk.coordinator.phase is Phase.FINISHING
    assert talk.committed(1) == [*appends(3, JobFinished(E1, N1))]
    assert talk.hear(EntryAppended(at(3))) == [
        *answered(3),
        *both(ShutDown("the job has finished")),
        EndJob("finished"),
    ]


def test_a_final_commit_that_takes_too_long_is_a_failure() -> None:
    talk = talk_in(Phase.FINISHING)
    effects = talk.fire("finish")
    assert HaltTasks(E1) in [one.message for one in effects if isinstance(one, SendMessage)]
    assert talk.coordinator.phase is Phase.WAITING


def test_a_worker_lost_before_the_final_commit_leads_to_a_restore_that_commits() -> None:
    """F5, B3."""
    talk = talk_in(Phase.FINISHING)
    talk.hear(LinkClosed(LINKS[1], "reset"))
    talk.fire("restart")
    talk.hear(EntryAppended(at(3)))
    assert talk.message(1, registration(1, 5)) == deploy(2, 1, 5, restore=1, final=True, told=(1, 2))
    assert talk.ready(2) == [
        CancelTimer(Timer("restore", E2)),
        ListParts(),
        *appends(4, JobFinished(E2, N1)),
    ]


def test_a_worker_lost_after_the_final_commit_does_not_matter() -> None:
    talk = talk_in(Phase.FINISHING)
    talk.committed(1)
    assert talk.hear(LinkClosed(LINKS[1], "reset")) == []
    assert talk.hear(EntryAppended(at(3)))[-1] == EndJob("finished")


def test_batches_that_rest_are_stopped_without_another_one() -> None:
    talk = Talk(are_batches=True)
    talk.running()
    talk.complete(1, 2)
    talk.committed(1)
    assert talk.hear(StopRequested()) == [*both(ShutDown("the job has stopped")), EndJob("stopped")]


@pytest.mark.parametrize("is_visible", [False, True])
def test_a_stop_waits_for_a_batch_that_is_under_way_or_not_visible_and_takes_the_first(
    is_visible: bool,
) -> None:
    talk = Talk(are_batches=True)
    talk.running()
    if is_visible:
        talk.complete(1, 2)
        talk.committed(1)
        talk.fire("trigger")
    else:
        talk.complete(1, 2)
    talk.hear(StopRequested())
    assert talk.coordinator.phase is Phase.STOPPING
    first = Talk(are_batches=True)
    first.running()
    assert first.hear(StopRequested())[3:5] == both(TriggerCheckpoint(E1, N1))


def test_stop_takes_a_last_checkpoint_commits_it_and_ends() -> None:
    talk = Talk()
    talk.running()
    assert talk.hear(StopRequested()) == [
        timer("stop", 1, 60_000),
        *both(PauseSources(E1, is_paused=True)),
        *both(TriggerCheckpoint(E1, N1)),
        timer("checkpoint-timeout", 1, 60_000, 1),
    ]
    assert talk.hear(StopRequested()) == []
    talk.acknowledge(1)
    assert talk.hear(EntryAppended(at(2)))[2:] == both(CommitCheckpoint(E1, N1))
    assert talk.committed(1) == [*both(ShutDown("the job has stopped")), EndJob("stopped")]


def test_stop_waits_for_the_checkpoint_under_way_then_takes_its_own() -> None:
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    # Sources pause at once: what they read now would be in front of the last barrier.
    paused = both(PauseSources(E1, is_paused=True))
    assert talk.hear(StopRequested()) == [timer("stop", 1, 60_000), *paused]
    talk.acknowledge(1)
    assert talk.hear(EntryAppended(at(2)))[-3:-1] == both(TriggerCheckpoint(E1, N2))
    assert talk.committed(1) == []
    talk.acknowledge(2)
    talk.hear(EntryAppended(at(3)))
    assert talk.committed(2)[-1] == EndJob("stopped")


def test_a_last_checkpoint_that_fails_is_tried_again_while_stopping() -> None:
    talk = talk_in(Phase.STOPPING)
    aborted = talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))
    assert aborted[-1] == timer("trigger", 1, 1_000)
    assert talk.fire("trigger")[1:3] == both(TriggerCheckpoint(E1, N2))


def test_a_stop_does_not_wait_out_an_interval_that_is_longer_than_its_own_time() -> None:
    talk = Talk(interval_ms=3_600_000)
    talk.running()
    talk.hear(StopRequested())
    assert talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))[-1] == timer("trigger", 1, 15_000)


def test_a_stop_takes_its_checkpoint_at_once_when_the_one_before_it_fails() -> None:
    """Nothing has gone wrong with its own, and the interval may be longer than the stop may take."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.hear(StopRequested())
    assert talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))[-3:] == [
        *both(TriggerCheckpoint(E1, N2)),
        timer("checkpoint-timeout", 1, 60_000, 2),
    ]


def no_last(why: str, then: str) -> EndJob:
    message = f"no last checkpoint was taken: {why}; the next start {then}"
    return EndJob("stopped", FailureCause("NoLastCheckpoint", message, is_transient=True))


def test_a_stop_without_a_last_checkpoint_says_so_and_where_the_next_start_goes_on() -> None:
    """F7, I12."""
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    talk.committed(1)
    talk.hear(StopRequested())
    talk.message(0, SnapshotDeclined(E1, N2, S0, "disk full"))
    why = f"checkpoint 2 has failed: task {S0} declined: disk full"
    assert talk.fire("stop")[-1] == no_last(why, "goes on from checkpoint 1")


def test_a_stop_whose_last_checkpoint_takes_too_long_says_who_has_not_acknowledged() -> None:
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    talk.hear(StopRequested())
    talk.message(0, SnapshotAcknowledged(E1, N2, K0, snapshot(K0, 2)))
    why = "checkpoint 2 is not complete after 60 s; no acknowledgement from numbers[0], numbers[1], out[1]"
    then = "goes on from checkpoint 1, and commits what is not known to be committed of its output"
    assert talk.fire("stop")[-1] == no_last(why, then)


def test_a_stop_that_does_not_know_whether_its_checkpoint_is_in_the_log_says_both() -> None:
    """B4."""
    talk = talk_in(Phase.STOPPING)
    talk.acknowledge(1)
    why = "checkpoint 1 is not complete after 60 s; the job log has not said whether it holds its entry"
    then = "begins from the beginning; or it goes on from checkpoint 1, if the job log holds that after all"
    assert talk.fire("stop")[-1] == no_last(why, then)


def test_too_many_last_checkpoints_failing_end_the_stop_and_not_the_job_as_failed() -> None:
    talk = Talk(checkpoint_failures_max=0)
    talk.running()
    talk.hear(StopRequested())
    why = f"1 checkpoints in a row failed; checkpoint 1 has failed: task {S0} declined: disk full"
    end = talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))[-1]
    assert end == no_last(why, "begins from the beginning")


@pytest.mark.parametrize("is_one_sink_done", [False, True])
def test_a_stop_that_can_not_commit_everything_says_so(is_one_sink_done: bool) -> None:
    """F7: the checkpoint is complete, its effects are not all there; there is no restart."""
    talk = talk_in(Phase.STOPPING)
    talk.acknowledge(1)
    talk.hear(EntryAppended(at(2)))
    if is_one_sink_done:
        talk.message(0, TransactionsCommitted(E1, N1, K0))
    message = (
        "checkpoint 1 is complete, but not all of its output is known to be committed; the next start "
        "commits it"
    )
    assert talk.fire("stop") == [
        *both(ShutDown("the job has stopped")),
        EndJob("stopped", FailureCause("Uncommitted", message, is_transient=True)),
    ]


def test_a_failure_while_stopping_ends_the_job_without_a_restart() -> None:
    """F7."""
    talk = talk_in(Phase.STOPPING)
    message = (
        "no last checkpoint was taken: task out[0] failed: bad record; the next start begins from the "
        "beginning"
    )
    cause = replace(CAUSE, kind="NoLastCheckpoint", message=message)
    assert talk.failed() == [*both(ShutDown("the job has stopped")), EndJob("stopped", cause)]


def test_a_commit_that_fails_while_stopping_is_named_with_the_checkpoint_it_leaves_open() -> None:
    """F7."""
    talk = talk_in(Phase.STOPPING)
    talk.acknowledge(1)
    talk.hear(EntryAppended(at(2)))
    message = (
        "checkpoint 1 is complete, but not all of its output is known to be committed (task out[0] failed: "
        "bad record); the next start commits it"
    )
    assert talk.failed()[-1] == EndJob("stopped", FailureCause("Uncommitted", message, is_transient=True))


def test_a_stop_before_anything_runs_ends_at_once() -> None:
    assert Talk().hear(StopRequested()) == [EndJob("stopped")]
    assert talk_in(Phase.GATHERING).hear(StopRequested()) == [EndJob("stopped")]


def test_a_stop_right_after_a_restore_knows_that_the_restored_output_is_committed() -> None:
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    talk.failed()
    talk.hear(EntryAppended(at(3)))
    talk.ready(2)
    talk.hear(StopRequested())
    end = talk.fire("stop", 2)[-1]
    assert isinstance(end, EndJob) and end.cause is not None
    assert end.cause.message.endswith("the next start goes on from checkpoint 1"), "and commits nothing"


def test_cancel_ends_at_once_and_a_cause_makes_it_a_failure() -> None:
    assert talk_in(Phase.RUNNING).hear(CancelRequested()) == [
        *both(ShutDown("the job has cancelled")),
        EndJob("cancelled"),
    ]
    assert Talk().hear(CancelRequested(CAUSE)) == [EndJob("failed", CAUSE)]


def test_after_the_end_nothing_is_asked_for() -> None:
    talk = talk_in(Phase.ENDED)
    assert talk.hear(LinkClosed(LINKS[0], "reset"), EntryAppended(at(9))) == []
    assert talk.fire("liveness", 0) == []


def drained_twice(talk: Talk) -> None:
    """Two final checkpoints are whole; the entry of the second is being appended, the first is complete."""
    talk.running()
    talk.fire("trigger")
    talk.fire("trigger")
    for n in (1, 2):
        talk.acknowledge(n, drained=True)
    talk.hear(EntryAppended(at(2)))
    assert talk.coordinator.phase is Phase.FINISHING


def test_a_job_finishes_when_the_append_of_another_final_checkpoint_is_refused() -> None:
    """F5, D4: nothing is open any more, so nobody waits for the timeout, and nothing has failed."""
    talk = Talk(in_flight_max=2, checkpoint_failures_max=0)
    drained_twice(talk)
    assert talk.committed(1) == [], "the log may hold a newer one, which is to be committed then"
    assert talk.hear(EntryRefused(at(3), "no space")) == [
        *answered(3),
        CancelTimer(Timer("checkpoint-timeout", E1, 2)),
        *both(AbortCheckpoint(E1, N2)),
        *deletes(paths(2)),
        *appends(3, JobFinished(E1, N1), step=4),
    ]
    assert talk.coordinator.checkpoints.failed.failed_count == 0
    assert talk.hear(EntryAppended(at(3)))[-1] == EndJob("finished")


def test_a_job_that_waits_for_nothing_but_the_log_does_not_fail_over() -> None:
    """B4: another epoch would wait for the same answer; how long is the log's own affair."""
    talk = Talk(in_flight_max=2)
    drained_twice(talk)
    talk.committed(1)
    assert talk.fire("finish") == []
    talk.hear(EntryUncertain(at(3), "time out"))
    assert talk.fire("finish") == []
    assert talk.coordinator.phase is Phase.FINISHING


def test_without_periodic_checkpoints_one_that_failed_starts_no_series() -> None:
    talk = Talk(periodic=False)
    talk.running()
    talk.hear(CheckpointRequested(7))
    failed = talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))
    assert isinstance(failed[-1], AnswerRequest), "whoever asked is told, and that is all"


def test_without_periodic_checkpoints_a_drained_job_looks_again_after_one_that_failed() -> None:
    """F5, I10: nobody else would find out that it has come to its end."""
    talk = Talk(periodic=False)
    talk.running()
    drained(talk)
    assert talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))[-1] == timer("trigger", 1, 1_000)


def test_a_drained_job_does_not_wait_out_a_long_interval_after_one_that_failed() -> None:
    """I10: the look that failed was the one that would have ended the job."""
    talk = Talk(interval_ms=3_600_000)
    talk.running()
    drained(talk)
    assert talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))[-1] == timer("trigger", 1, 15_000)


@pytest.mark.parametrize("periodic", [True, False])
def test_sources_drained_while_a_checkpoint_is_under_way_are_looked_at_as_soon_as_it_has_failed(
    periodic: bool,
) -> None:
    talk = Talk(periodic=periodic)
    talk.running()
    talk.hear(CheckpointRequested(7))
    assert drained(talk) == []
    failed = talk.message(0, SnapshotDeclined(E1, N1, S0, "disk full"))
    assert failed[-3:-1] == both(TriggerCheckpoint(E1, N2))


def test_a_refused_finished_entry_fails_the_job_and_says_that_nothing_is_missing() -> None:
    """D4, F5: the next start restores the final checkpoint, which commits it again, and appends the entry."""
    talk = talk_in(Phase.FINISHING)
    talk.committed(1)
    (_, *_, end) = talk.hear(EntryRefused(at(3), "no space"))
    message = (
        "everything is processed and committed, but the job log can't be written: no space; the next start "
        "tries again"
    )
    assert end == EndJob("failed", FailureCause("StoreError", message))


# A store that hangs (D3): every wait has an end by timer, and what is unknown is read back


def test_a_log_that_can_not_be_read_in_time_fails_the_start() -> None:
    """D3."""
    cause = FailureCause(
        "StoreError",
        "what the sinks have committed and the job log could not be read within 60 s",
        is_transient=True,
    )
    assert Talk().fire("read-log", 0) == [EndJob("failed", cause)]


def test_sources_that_do_not_say_in_time_what_there_is_fail_the_start() -> None:
    talk = Talk()
    talk.hear(LogTailRead(()))
    (end,) = talk.fire("discover", 0)
    assert isinstance(end, EndJob)
    assert end.cause is not None
    assert end.cause.message.startswith("the sources have not said within 30 s")


def test_a_claim_that_hangs_is_read_back_and_nothing_starts_before_it_is_known() -> None:
    """D3."""
    talk = Talk()
    talk.hear(LogTailRead(()), SplitsDiscovered(SPLITS))
    assert talk.fire("log-call", 0, 1) == [timer("retry-append", 0, 200, 1)]
    assert talk.coordinator.phase is Phase.CLAIMING
    assert talk.fire("retry-append", 0, 1) == reads(1)
    assert talk.hear(EntryRead(at(1), FIRST_HEAD)) == [
        *answered(1),
        timer("gather", 1, 30_000),
        SubmitWorkers(),
    ]


def test_the_append_of_a_checkpoint_that_hangs_aborts_and_deletes_nothing() -> None:
    """D3: it may be applied; the next checkpoint works."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    assert talk.fire("log-call", 0, 2) == [timer("retry-append", 0, 200, 2)]
    assert talk.fire("checkpoint-timeout", 1, 1) == []
    assert talk.fire("retry-append", 0, 2) == reads(2)
    assert talk.hear(EntryRead(at(2), None)) == [*answered(2), *appends(2, completed(1))]
    assert talk.hear(EntryAppended(at(2)))[2:] == both(CommitCheckpoint(E1, N1))
    assert talk.complete(2, 3)[2:4] == both(CommitCheckpoint(E1, N2))
    assert talk.hear(EntryTaken(at(2))) == [], "the first call returns at last"


def test_a_finished_entry_that_hangs_is_read_back() -> None:
    """D3."""
    talk = talk_in(Phase.FINISHING)
    talk.committed(1)
    assert talk.fire("log-call", 0, 3) == [timer("retry-append", 0, 200, 3)]
    assert talk.fire("retry-append", 0, 3) == reads(3)
    assert talk.hear(EntryRead(at(3), JobFinished(E1, N1)))[-1] == EndJob("finished")


def test_a_log_that_hangs_for_good_ends_the_job_and_nothing_is_cleaned_up() -> None:
    """D3, B4."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    for _ in range(UNCERTAIN_ATTEMPTS_MAX - 1):
        talk.fire("log-call", 0, 2)
        talk.fire("retry-append", 0, 2)
    message = "the job log can't be written: the store has not answered within 60 s"
    assert talk.fire("log-call", 0, 2) == [
        *both(ShutDown("the job has failed")),
        EndJob("failed", FailureCause("StoreError", message, is_transient=True)),
    ]


def test_one_deletion_is_under_way_at_a_time_and_the_next_takes_what_came_meanwhile() -> None:
    talk = Talk(retain=1)
    talk.running()
    talk.complete(1, 2)
    assert talk.complete(2, 3)[-2:] == deletes(paths(1))
    assert not any(isinstance(effect, DeleteParts) for effect in talk.complete(3, 4))
    talk.complete(4, 5)
    deleted = talk.hear(PartsDeleted())
    assert deleted == [CancelTimer(Timer("delete")), *deletes((*paths(2), *paths(3)))]


def test_a_deletion_that_hangs_holds_nothing_up_and_what_comes_meanwhile_is_left_to_the_next_sweep() -> None:
    """D3, D4, I11: garbage is not collected without bound."""
    talk = Talk(retain=1)
    talk.running()
    talk.complete(1, 2)
    talk.complete(2, 3)
    assert talk.fire("delete", 0) == []
    assert talk.complete(3, 4)[2:4] == both(CommitCheckpoint(E1, CheckpointId(3)))
    assert talk.hear(PartsDeleted()) == []
    assert talk.complete(4, 5)[-2:] == deletes(paths(3)), "those of 2 are left to the sweep"
    talk.failed()
    talk.hear(EntryAppended(at(6)), PartsDeleted())
    talk.ready(2)
    assert talk.hear(PartsListed((*paths(2), *paths(4)))) == deletes(paths(2))


def test_parts_that_were_deleted_unasked_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="unasked"):
        talk_in(Phase.RUNNING).hear(PartsDeleted())


# The walk


@pytest.mark.parametrize("phase", list(Phase))
def test_no_event_in_any_phase_raises_but_a_protocol_error_that_changes_nothing(phase: Phase) -> None:
    for event in events():
        for is_under_way in (False, True):
            talk = talk_in(phase)
            if is_under_way:
                talk.fire("trigger")
                for task in TASKS[:-1]:
                    message = SnapshotAcknowledged(E1, N1, task, snapshot(task, 1))
                    talk.message(task.index, message)
            before = deepcopy(state_of(talk.coordinator))
            try:
                talk.hear(event)
            except ProtocolError:
                assert state_of(talk.coordinator) == before, f"{event} in {phase}"


@pytest.mark.parametrize("phase", list(Phase))
def test_what_was_not_asked_for_raises(phase: Phase) -> None:
    if phase in (Phase.CLAIMING, Phase.ENDED):
        return
    for event in (LogTailRead(()), SplitsDiscovered(SPLITS), EntryAppended(at(99))):
        with pytest.raises(ProtocolError):
            talk_in(phase).hear(event)


def test_stale_epochs_change_nothing_in_any_phase() -> None:
    """C2, C3, I7."""
    check_stale_epochs_change_nothing(Coordinator)


@pytest.mark.parametrize("kind", ["trigger", "checkpoint-timeout", "gather", "restore", "restart", "stop"])
@pytest.mark.parametrize("phase", list(Phase))
def test_timers_of_another_epoch_change_nothing(phase: Phase, kind: str) -> None:
    talk = talk_in(phase)
    before = deepcopy(state_of(talk.coordinator))
    assert talk.fire(kind, 7, 1) == []  # type: ignore[arg-type]
    assert state_of(talk.coordinator) == before
