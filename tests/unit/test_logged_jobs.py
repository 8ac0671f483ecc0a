"""A job whose workers have logs of their own, as its coordinator sees it: no checkpoints, one end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.conversation import (
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
)
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.log import recovery
from crosscut.protocol.log.entries import EpochClaimed, JobFinished, SegmentOpened
from crosscut.protocol.messages import DeployTasks, ShutDown, UnitFinished

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


def test_a_stop_ends_it_at_once() -> None:
    one = running()
    assert one.hear(StopRequested())[-1] == EndJob("stopped")


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
