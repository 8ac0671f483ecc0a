"""Recovery decisions: who owns the next epoch, where state comes from, whether to restart."""

from dataclasses import replace

import pytest

from crosscut.ids import CheckpointId, Epoch, Lineage
from crosscut.protocol.messages import (
    CHECKPOINT_IDS_LEAD_MAX,
    CheckpointCompleted,
    EpochClaimed,
    FailureCause,
    JobFinished,
    LogEntry,
)
from crosscut.protocol.recovery import (
    MISTAKES,
    AlreadyFinished,
    Claim,
    FromMemory,
    FromNothing,
    FromStore,
    GiveUp,
    JobIdentity,
    NotThisJob,
    RestartAfter,
    RestartPolicy,
    claim,
    restart,
    restore_from,
)

JOB = JobIdentity("driver 2", Lineage("new"), "graph", 2, 8, "host 2")
OLD = EpochClaimed(Epoch(3), Lineage("old"), "driver 1", "graph", 2, 8, CheckpointId(1), "host 1")
POLICY = RestartPolicy(
    failures_max=5, window_ms=300_000, delay_ms=0, delay_step_ms=100, delay_max_ms=1_000, same_record_max=3
)


def completed(n: int, epoch: int = 3) -> CheckpointCompleted:
    return CheckpointCompleted(Epoch(epoch), CheckpointId(n), ())


def tail(*entries: LogEntry, first: int = 7) -> tuple[tuple[int, LogEntry], ...]:
    return tuple(enumerate(entries, first))


def ours(epoch: int, lineage: str, first: int) -> EpochClaimed:
    return replace(
        OLD,
        epoch=Epoch(epoch),
        lineage=Lineage(lineage),
        driver=JOB.driver,
        first_checkpoint_id=CheckpointId(first),
        description=JOB.description,
    )


def test_an_empty_log_is_claimed_with_epoch_1_and_a_new_lineage() -> None:
    assert claim((), JOB) == Claim(1, ours(1, "new", 1), None, ())


def test_a_job_that_completed_nothing_starts_again_in_the_next_epoch_of_its_lineage() -> None:
    assert claim(tail(OLD), JOB) == Claim(8, ours(4, "old", 2_001), None, ())


def test_a_job_goes_on_from_its_newest_completed_checkpoint() -> None:
    """B1, B2: an id that was never completed is void; one that was is restored."""
    found = claim(tail(completed(4), OLD, completed(5)), JOB)
    assert found == Claim(10, ours(4, "old", 2_001), completed(5), (completed(4), completed(5)))


@pytest.mark.parametrize("used", [1, 2, 998, 999, 1_000, 1_001, 1_999, 2_000, 2_001, 123_456])
def test_a_new_driver_steps_over_every_id_that_may_have_been_used(used: int) -> None:
    """C2: ids above the newest known one are used without a word in the log, up to the lead."""
    for entries in (
        tail(replace(OLD, first_checkpoint_id=CheckpointId(used))),
        tail(OLD, completed(used)),
    ):
        found = claim(entries, JOB)
        assert isinstance(found, Claim)
        assert found.entry.first_checkpoint_id > used + CHECKPOINT_IDS_LEAD_MAX


def test_a_finished_job_has_nothing_to_do() -> None:
    finished = JobFinished(Epoch(3), CheckpointId(5))
    assert claim(tail(OLD, completed(5), finished), JOB) == AlreadyFinished(finished)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (tail(replace(OLD, fingerprint="other")), "a different graph"),
        (tail(replace(OLD, max_parallelism=16)), "in 16 key groups"),
        (tail(replace(OLD, parallelism=3), completed(5)), "resume with parallelism=3"),
        (tail(completed(5)), "no epoch claim"),
        (
            tail(replace(OLD, fingerprint="other"), JobFinished(Epoch(3), CheckpointId(5))),
            "a different graph",
        ),
    ],
)
def test_the_state_of_something_else_is_refused(
    entries: tuple[tuple[int, LogEntry], ...], reason: str
) -> None:
    """H3: before any side effect."""
    found = claim(entries, JOB)
    assert isinstance(found, NotThisJob)
    assert reason in found.reason


def test_parallelism_may_change_as_long_as_nothing_was_completed() -> None:
    assert isinstance(claim(tail(replace(OLD, parallelism=3)), JOB), Claim)


def test_state_comes_from_memory_only_for_the_very_checkpoint() -> None:
    assert restore_from(CheckpointId(0), [CheckpointId(0)]) == FromNothing()
    assert restore_from(CheckpointId(5), [CheckpointId(4), CheckpointId(5)]) == FromMemory(CheckpointId(5))
    assert restore_from(CheckpointId(5), [CheckpointId(4), CheckpointId(6)]) == FromStore(CheckpointId(5))


LOST = FailureCause("WorkerLost", "worker 1 is lost")
BAD = FailureCause("ValueError", "bad", "parse", "'x'")


def test_the_first_failure_restarts_at_once_and_the_delay_doubles_up_to_its_maximum() -> None:
    policy = replace(POLICY, failures_max=10)
    delays = [restart([LOST] * count, count, policy) for count in range(1, 8)]
    assert delays == [RestartAfter(ms) for ms in (0, 100, 200, 400, 800, 1_000, 1_000)]


def test_a_completed_checkpoint_starts_the_delay_again() -> None:
    policy = replace(POLICY, failures_max=10)
    assert restart([LOST] * 7, 1, policy) == RestartAfter(policy.delay_ms)
    assert restart([LOST] * 7, 2, policy) == RestartAfter(policy.delay_step_ms)


def test_failures_without_progress_end_the_job_however_far_apart_they_are() -> None:
    policy = replace(POLICY, failures_max=3)
    assert isinstance(restart([LOST], 3, policy), RestartAfter)
    assert restart([LOST], 4, policy) == GiveUp(LOST, "4 failures in a row, without progress")


def test_a_very_long_series_has_the_maximum_delay() -> None:
    assert restart([LOST] * 5_000, 5_000, replace(POLICY, failures_max=9_999)) == RestartAfter(1_000)


def test_too_many_failures_end_the_job_with_the_first_cause() -> None:
    causes = [BAD, *[LOST] * 5]
    assert restart(causes, 1, POLICY) == GiveUp(BAD, "6 failures within 300 s")


def test_no_failure_is_tolerated_if_the_policy_says_so() -> None:
    assert restart([LOST], 1, replace(POLICY, failures_max=0)) == GiveUp(LOST, "1 failures within 300 s")


def test_the_same_record_failing_three_times_in_a_row_ends_the_job() -> None:
    """K1."""
    assert isinstance(restart([LOST, BAD, BAD], 1, POLICY), RestartAfter)
    assert restart([LOST, BAD, BAD, BAD], 1, POLICY) == GiveUp(BAD, "the same record failed 3 times in a row")


def test_progress_between_failures_of_the_same_record_does_not_break_their_series() -> None:
    """K1: what was completed in between may lie before the record."""
    one_in_a_row = restart([BAD, BAD, BAD], 1, POLICY)
    assert one_in_a_row == restart([BAD, BAD, BAD], 3, POLICY)
    assert isinstance(one_in_a_row, GiveUp)


def test_another_failure_in_between_or_another_record_breaks_the_series() -> None:
    other = replace(BAD, record="'y'")
    assert isinstance(restart([BAD, BAD, LOST, BAD], 1, POLICY), RestartAfter)
    assert isinstance(restart([BAD, BAD, other], 1, POLICY), RestartAfter)
    assert isinstance(restart([LOST, LOST, LOST], 1, POLICY), RestartAfter)


def test_how_often_one_record_may_fail_is_a_setting() -> None:
    """K1, K5."""
    assert isinstance(restart([BAD], 1, replace(POLICY, same_record_max=1)), GiveUp)
    many = replace(POLICY, failures_max=100, same_record_max=5)
    assert isinstance(restart([BAD] * 4, 4, many), RestartAfter)
    assert restart([BAD] * 5, 5, many) == GiveUp(BAD, "the same record failed 5 times in a row")
    assert isinstance(restart([BAD] * 100, 100, replace(many, same_record_max=0)), RestartAfter)


def test_different_records_that_fail_in_one_operator_count_as_any_other_failure() -> None:
    """K5: a service that the operator calls is down; it has the whole restart strategy to come back."""
    causes = [replace(BAD, record=f"'{letter}'") for letter in "xyzxyz"]
    assert restart(causes[:5], 5, POLICY) == RestartAfter(800)
    assert restart(causes, 6, POLICY) == GiveUp(causes[0], "6 failures within 300 s")


OUTSIDE = [
    replace(BAD, is_first=True),
    replace(BAD, is_from_outside=True),
    replace(BAD, kind="ConnectionRefusedError", is_first=True, is_from_outside=True),
]


@pytest.mark.parametrize("cause", OUTSIDE)
def test_a_record_is_not_to_blame_for_what_no_record_gets_past(cause: FailureCause) -> None:
    """K5: after each restart the same record comes first, and meets the service that is down."""
    assert restart([cause] * 5, 5, POLICY) == RestartAfter(800)
    assert restart([cause] * 6, 6, POLICY) == GiveUp(cause, "6 failures within 300 s")
    # Behind a real strike it ends the series.
    assert isinstance(restart([BAD, BAD, cause, BAD], 4, POLICY), RestartAfter)


@pytest.mark.parametrize("kind", sorted(MISTAKES))
def test_a_mistake_in_the_code_needs_no_other_record_to_be_told(kind: str) -> None:
    cause = replace(BAD, kind=kind, is_first=True)
    assert isinstance(restart([cause] * 2, 2, POLICY), RestartAfter)
    assert isinstance(restart([cause] * 3, 3, POLICY), GiveUp)
    assert isinstance(restart([replace(cause, is_from_outside=True)] * 3, 3, POLICY), RestartAfter)
