"""A job whose workers have logs of their own, as its coordinator sees it: no checkpoints, one end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.conversation import (
    CAUSE,
    K0,
    LINKS,
    SPLITS,
    Talk,
    at,
    claim,
    completed,
    coordinator_spec,
)

from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.protocol.effects import (
    AnswerRequest,
    AppendEntry,
    DiscoverSplits,
    EndJob,
    SendMessage,
    StartTimer,
)
from crosscut.protocol.events import (
    CheckpointRequested,
    EntryAppended,
    LogTailRead,
    SplitsDiscovered,
    StopRequested,
    Timer,
)
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.log import recovery
from crosscut.protocol.log.entries import EpochClaimed, JobFinished, SegmentOpened
from crosscut.protocol.messages import (
    DeployTasks,
    FailureCause,
    PauseSources,
    ShutDown,
    UnitFinished,
    UnitProgressed,
)

E1, E2 = Epoch(1), Epoch(2)
OURS = replace(claim(), unit_log="objects", splits=SPLITS)


def talk(**terms: Any) -> Talk:
    def make(spec: Any) -> Coordinator:
        return Coordinator(replace(spec, identity=replace(spec.identity, unit_log="objects")))

    return Talk(make, periodic=False, **terms)


def running(**terms: Any) -> Talk:
    one = talk(**terms)
    one.running()
    assert one.coordinator.phase is Phase.RUNNING
    return one


def claims(effects: Any) -> list[EpochClaimed]:
    entries = [one.entry for one in effects if isinstance(one, AppendEntry)]
    heads = [one.claim if isinstance(one, SegmentOpened) else one for one in entries]
    return [one for one in heads if isinstance(one, EpochClaimed)]


def test_the_claim_says_that_there_are_logs_and_who_reads_what() -> None:
    one = talk()
    one.hear(LogTailRead(()))
    effects = one.hear(SplitsDiscovered(SPLITS))
    assert [(found.unit_log, found.splits) for found in claims(effects)] == [("objects", SPLITS)]


def test_a_failover_claims_with_the_same_splits() -> None:
    one = running(delay_ms=0)
    (found,) = claims(one.failed())
    assert (found.epoch, found.unit_log, found.splits) == (E2, "objects", SPLITS)


def test_the_next_driver_deals_out_what_the_first_one_did() -> None:
    """Else it might find other splits, and a worker whose log is empty would read what another one reads."""
    one = talk()
    effects = one.hear(LogTailRead(((at(1), SegmentOpened(OURS, None)),)))
    assert not any(isinstance(effect, DiscoverSplits) for effect in effects)
    assert one.coordinator._log.splits == SPLITS
    assert one.coordinator._log._claim is not None
    assert one.coordinator._log._claim.entry.splits == SPLITS


def test_it_has_finished_when_all_workers_have() -> None:
    one = running()
    assert one.message(0, UnitFinished(E1)) == []
    assert one.message(0, UnitFinished(E1)) == []
    effects = one.message(1, UnitFinished(E1))
    assert [effect.entry for effect in effects if isinstance(effect, AppendEntry)] == [
        JobFinished(E1, CheckpointId(0))
    ]
    ended = one.hear(EntryAppended(at(2)))
    assert ended[-1] == EndJob("finished")
    assert SendMessage(LINKS[0], ShutDown("the job has finished")) in ended


def test_what_has_finished_in_another_epoch_says_so_again() -> None:
    one = running(delay_ms=0)
    one.message(0, UnitFinished(E1))
    one.failed()
    one.hear(EntryAppended(at(2)))
    one.ready(2)
    assert one.coordinator.phase is Phase.RUNNING
    assert one.message(1, UnitFinished(E2)) == []
    assert one.message(0, UnitFinished(E1)) == []
    assert len(one.message(0, UnitFinished(E2))) == 2


def test_the_end_of_a_worker_is_of_no_use_without_logs() -> None:
    one = Talk()
    one.running()
    for worker in (0, 1):
        assert one.message(worker, UnitFinished(E1)) == []
    assert one.coordinator.dropped["end of a worker without a log"] == 2


def test_it_takes_no_checkpoints() -> None:
    one = talk()
    started = one.running()
    assert not any(isinstance(effect, StartTimer) and effect.timer.kind == "trigger" for effect in started)
    (answer,) = one.hear(CheckpointRequested(7))
    assert isinstance(answer, AnswerRequest) and answer.completed is None
    assert "snapshots='logged'" in answer.reason


def appended(effects: Any) -> list[Any]:
    return [effect.entry for effect in effects if isinstance(effect, AppendEntry)]


def test_an_end_that_is_heard_before_all_are_ready_counts_once_records_flow() -> None:
    one = talk()
    one.gathering()
    one.register()
    for worker in (0, 1):
        one.message(worker, UnitFinished(E1))
    assert appended(one.ready()) == [JobFinished(E1, CheckpointId(0))]


# Failures in a row.


def fails_and_recovers(one: Talk, epoch: int, *, progresses: bool) -> None:
    if progresses:
        one.message(1, UnitProgressed(Epoch(epoch)))
    one.failed(epoch)
    one.fire("forget-failure", 0, epoch)
    if one.coordinator.phase is Phase.WAITING:
        one.fire("restart", epoch)
    one.hear(EntryAppended(at(epoch + 1)))
    one.ready(epoch + 1)


def test_a_job_whose_logs_grow_between_its_failures_goes_on_for_ever() -> None:
    one = running(delay_ms=0, failures_max=3)
    for epoch in range(1, 10):
        fails_and_recovers(one, epoch, progresses=True)
        assert one.coordinator.phase is Phase.RUNNING
    assert one.coordinator.restart_count == 9


def test_without_progress_it_is_given_up_however_far_apart_the_failures_are() -> None:
    one = running(delay_ms=0, failures_max=3)
    for epoch in range(1, 4):
        fails_and_recovers(one, epoch, progresses=False)
    end = one.failed(4)[-1]
    assert isinstance(end, EndJob) and end.cause is not None
    assert "4 failures in a row, without progress" in end.cause.message


def test_progress_of_an_epoch_that_is_over_is_none() -> None:
    one = running(delay_ms=100)
    one.failed()
    assert one.message(1, UnitProgressed(E1)) == []
    assert one.coordinator.dropped["late progress of a worker"] == 1


# Stops.

PAUSED = [SendMessage(link, PauseSources(E1, is_paused=True)) for link in LINKS]


def stopped_owing(why: str) -> EndJob:
    message = (
        f"the logs of the workers may hold output that is not known to be committed ({why}); the next start "
        f"commits it"
    )
    return EndJob("stopped", FailureCause("Uncommitted", message, is_transient=True))


def test_a_stop_waits_until_what_the_logs_hold_is_visible() -> None:
    one = running()
    assert one.hear(StopRequested()) == [StartTimer(Timer("stop", E1), 60_000), *PAUSED]
    assert one.hear(StopRequested()) == []
    assert one.message(0, UnitFinished(E1)) == []
    assert one.message(1, UnitFinished(E1))[-1] == EndJob("stopped")


def test_a_worker_that_has_finished_before_the_stop_need_not_say_it_again() -> None:
    one = running()
    one.message(0, UnitFinished(E1))
    one.hear(StopRequested())
    assert one.message(1, UnitFinished(E1))[-1] == EndJob("stopped")


def test_a_stop_that_takes_too_long_says_that_output_may_be_owed() -> None:
    one = running()
    one.hear(StopRequested())
    one.message(0, UnitFinished(E1))
    why = "not all of it was committed within checkpoint_timeout=60 s"
    assert one.fire("stop")[-1] == stopped_owing(why)


def test_a_failure_ends_a_stop_and_says_that_output_may_be_owed() -> None:
    one = running()
    one.hear(StopRequested())
    assert one.failed()[-1] == stopped_owing(f"task {K0} failed: {CAUSE.message}")


def test_a_stop_between_two_epochs_says_that_output_may_be_owed() -> None:
    one = talk(delay_ms=100)
    one.gathering()
    assert one.hear(StopRequested())[-1] == EndJob("stopped")
    one = running(delay_ms=100)
    one.failed()
    assert one.hear(StopRequested())[-1] == stopped_owing("the job was restarting")


def test_a_stop_of_a_job_that_has_just_finished_waits_for_the_log() -> None:
    one = running()
    for worker in (0, 1):
        one.message(worker, UnitFinished(E1))
    assert one.hear(StopRequested()) == []
    assert one.hear(EntryAppended(at(2)))[-1] == EndJob("finished")


def test_workers_are_deployed_from_the_beginning() -> None:
    """Their logs say how far they are."""
    one = talk()
    one.gathering()
    deployed = [
        effect.message
        for effect in one.register()
        if isinstance(effect, SendMessage) and isinstance(effect.message, DeployTasks)
    ]
    assert [(found.restore, found.snapshots) for found in deployed] == [(0, ()), (0, ())]


IDENTITY = coordinator_spec().identity


@pytest.mark.parametrize(
    ("found", "ours", "parallelism"),
    [("objects", "", 2), ("segment files", "objects", 2), ("objects", "objects", 3)],
)
def test_logs_of_another_kind_or_number_are_refused(found: str, ours: str, parallelism: int) -> None:
    tail = [(at(1), SegmentOpened(replace(OURS, unit_log=found), None))]
    job = replace(IDENTITY, unit_log=ours, parallelism=parallelism)
    decision = recovery.claim(tail, job)
    assert decision == recovery.NotThisJob(recovery.OtherUnitLogs(found, ours, 2))
    assert "parallelism=2" in recovery.refusal(decision)


def test_checkpoints_are_no_beginning_for_logs() -> None:
    tail = [(at(1), SegmentOpened(claim(), None)), (at(2), completed(1))]
    decision = recovery.claim(tail, replace(IDENTITY, unit_log="objects"))
    assert isinstance(decision, recovery.NotThisJob)
    assert "it holds checkpoints" in recovery.refusal(decision)


def test_a_job_that_has_come_to_nothing_may_begin_again_with_logs() -> None:
    tail = [(at(1), SegmentOpened(claim(), None))]
    decision = recovery.claim(tail, replace(IDENTITY, unit_log="objects"))
    assert isinstance(decision, recovery.Claim) and decision.entry.unit_log == "objects"


def test_the_same_logs_are_gone_on_from() -> None:
    decision = recovery.claim([(at(1), SegmentOpened(OURS, None))], replace(IDENTITY, unit_log="objects"))
    assert isinstance(decision, recovery.Claim)
    assert decision.entry.splits == SPLITS and decision.entry.epoch == E2
