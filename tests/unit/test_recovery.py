"""Recovery decisions: who owns the next epoch, where state comes from, whether to restart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.protocol.job.restarts import MISTAKES, GiveUp, RestartAfter, RestartPolicy, restart
from crosscut.protocol.log.entries import (
    CHECKPOINT_IDS_LEAD_MAX,
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    LogEntry,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.identity import Claimant, FlowIdentity, OperatorIdentity
from crosscut.protocol.log.recovery import (
    AlreadyFinished,
    Claim,
    FromMemory,
    FromNothing,
    FromStore,
    JobIdentity,
    NotThisJob,
    Predecessor,
    claim,
    refusal,
    restore_from,
    taken_over,
    takeover,
)
from crosscut.protocol.log.segments import LogEnd
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot

POLICY = RestartPolicy(
    failures_max=5, window_ms=300_000, delay_ms=0, delay_step_ms=100, delay_max_ms=1_000, same_record_max=3
)
NUMBERS = OperatorIdentity("numbers", "source", connector="Lines", details="/data/*.txt")
FLOW = FlowIdentity("sums", (NUMBERS,))
JOB = JobIdentity("driver 2", Lineage("new"), "graph", 2, 8, FLOW, "host 2", 22)
OLD = EpochClaimed(
    Epoch(3), Lineage("old"), "driver 1", "graph", 2, 8, CheckpointId(1), FLOW, Claimant("host 1", 11, "noon")
)


def completed(n: int, epoch: int = 3) -> CheckpointCompleted:
    return CheckpointCompleted(Epoch(epoch), CheckpointId(n), ())


def tail(*entries: LogEntry, first: int = 7) -> tuple[tuple[LogIndex, LogEntry], ...]:
    return tuple((LogIndex(1, number), entry) for number, entry in enumerate(entries, first))


def ends(number: int, segment: int = 1, *, is_closed: bool = False) -> LogEnd:
    return LogEnd(LogIndex(segment, number), is_closed)


def ours(epoch: int, lineage: str, first: int) -> EpochClaimed:
    return replace(
        OLD,
        epoch=Epoch(epoch),
        lineage=Lineage(lineage),
        driver=JOB.driver,
        first_checkpoint_id=CheckpointId(first),
        claimant=Claimant(JOB.host, JOB.pid, "one o'clock"),
    )


def test_an_empty_log_is_claimed_with_epoch_1_and_a_new_lineage() -> None:
    assert claim((), JOB, "one o'clock") == Claim(LogEnd(), ours(1, "new", 1), None)


def test_a_job_that_completed_nothing_starts_again_in_the_next_epoch_of_its_lineage() -> None:
    assert claim(tail(OLD), JOB, "one o'clock") == Claim(ends(7), ours(4, "old", 2_001), None, OLD)


def test_who_follows_a_driver_of_the_same_run_leaves_the_job_to_a_newer_driver() -> None:
    """B5, C1: at the seam of two engines nobody writes, and so nothing but this fences the older program."""
    follower = replace(JOB, follows=Predecessor(OLD.driver, OLD.epoch))
    # Perhaps of a changed flow; it may have ended meanwhile.
    newer = replace(
        OLD, epoch=Epoch(4), driver="driver 3", flow=FlowIdentity("sums", ()), fingerprint="other"
    )
    over = JobFinished(Epoch(4), CheckpointId(6))
    for entries in ((newer,), (newer, completed(6, 4)), (newer, completed(6, 4), over)):
        assert taken_over(tail(OLD, completed(5), *entries), follower) == newer
        assert taken_over(tail(OLD, completed(5), *entries), JOB) is None
    # The last two are claims of the run itself, of which it never heard that they are durable.
    mine = (replace(OLD, epoch=Epoch(4)), ours(4, "old", 2_001))
    for entries in ((), (completed(5),), *((one,) for one in mine)):
        assert taken_over(tail(OLD, *entries), follower) is None
    # D5: a log of before. A claim there finds its entry taken, and the log is read again.
    assert taken_over(tail(replace(OLD, epoch=Epoch(2), driver="driver 0")), follower) is None
    assert taken_over((), follower) is None


def test_a_job_goes_on_from_its_newest_completed_checkpoint() -> None:
    """B1, B2: an id that was never completed is void; one that was is restored."""
    found = claim(tail(completed(4), OLD, completed(5)), JOB, "one o'clock")
    assert found == Claim(ends(9), ours(4, "old", 2_001), completed(5), OLD)


def test_a_claim_may_stand_in_the_head_of_a_segment() -> None:
    log = [*tail(completed(4)), (LogIndex(2, 0), SegmentOpened(OLD, LogIndex(1, 7)))]
    found = claim([*log, (LogIndex(2, 1), completed(5))], JOB, "one o'clock")
    assert found == Claim(ends(1, 2), ours(4, "old", 2_001), completed(5), OLD)


def test_a_log_that_was_closed_goes_on_in_the_next_segment() -> None:
    """B5: whoever closed it has not claimed it."""
    found = claim(tail(OLD, SegmentClosed(Epoch(4), "driver 9", Claimant())), JOB, "one o'clock")
    assert found == Claim(ends(8, is_closed=True), ours(4, "old", 2_001), None, OLD)
    assert isinstance(found, Claim) and found.end.next == LogIndex(2, 0)


def test_a_takeover_names_the_driver_before_and_why_the_ids_jump() -> None:
    """B5."""
    found = claim(tail(OLD, completed(20)), JOB)
    assert isinstance(found, Claim)
    assert takeover(found) == (
        "takes over from epoch 3 (pid 11 on host 1, since noon UTC) at checkpoint 20; the next ones start at "
        "2001, since no id is ever used twice and that driver may have used some that it did not complete"
    )
    found = claim(tail(OLD), JOB)
    assert isinstance(found, Claim)
    assert takeover(found).endswith("since noon UTC), which has completed no checkpoint")
    found = claim((), JOB)
    assert isinstance(found, Claim) and takeover(found) == ""


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
        (tail(completed(5)), "no epoch claim"),
        (
            tail(replace(OLD, fingerprint="other"), JobFinished(Epoch(3), CheckpointId(5))),
            "a different graph",
        ),
    ],
)
def test_the_state_of_something_else_is_refused(
    entries: tuple[tuple[LogIndex, LogEntry], ...], reason: str
) -> None:
    """H3: before any side effect."""
    found = claim(entries, JOB)
    assert isinstance(found, NotThisJob)
    assert reason in refusal(found)


def at(parallelism: int, checkpoint: CheckpointCompleted) -> CheckpointCompleted:
    tasks = (TaskId(VertexId("out"), index) for index in range(parallelism))
    return replace(checkpoint, snapshots=tuple(TaskSnapshot(one, Snapshot()) for one in tasks))


def test_a_job_goes_on_at_another_parallelism_and_says_so() -> None:
    """H1: and the claim remembers how many there were that may have staged something."""
    found = claim(tail(replace(OLD, parallelism=3), at(3, completed(5))), JOB)
    assert isinstance(found, Claim)
    assert found.restored == at(3, completed(5))
    assert (found.entry.parallelism, found.entry.writers) == (2, 3)
    assert "and restores checkpoint 5 at parallelism 2, was 3; the next ones" in takeover(found)


OTHER_INPUT = replace(OLD, flow=replace(FLOW, operators=(replace(NUMBERS, details="/elsewhere/*.txt"),)))


@pytest.mark.parametrize(
    "entries",
    [
        tail(OTHER_INPUT, completed(5)),
        tail(OTHER_INPUT, completed(5), JobFinished(Epoch(3), CheckpointId(5))),
    ],
)
def test_a_source_that_reads_something_else_is_asked_for(
    entries: tuple[tuple[LogIndex, LogEntry], ...],
) -> None:
    """N2: the positions of the old input would go on in silence; a job that has finished would do nothing."""
    found = claim(entries, JOB)
    assert isinstance(found, NotThisJob)
    both = "source 'numbers' is '/data/*.txt' in this flow, and was '/elsewhere/*.txt'"
    assert refusal(found).startswith(both) and "--accept-changes" in refusal(found)


def test_a_source_that_reads_something_else_may_be_accepted_and_is_then_in_the_claim() -> None:
    """N2."""
    found = claim(tail(OTHER_INPUT, completed(5)), replace(JOB, accepts_changes=True))
    assert isinstance(found, Claim)
    assert found.restored == completed(5) and found.entry.flow == FLOW


def test_a_source_may_read_something_else_as_long_as_nothing_was_completed() -> None:
    assert isinstance(claim(tail(OTHER_INPUT), JOB), Claim)


def test_another_flow_is_refused_even_if_changes_are_accepted() -> None:
    """N2: it would fence the first, or find that all is done."""
    other = replace(OLD, flow=replace(FLOW, name="products"))
    for job in (JOB, replace(JOB, accepts_changes=True)):
        found = claim(tail(other), job)
        assert isinstance(found, NotThisJob)
        assert refusal(found) == (
            "it belongs to flow 'products', and this is flow 'sums'; it is claimed by pid 11 on host 1, "
            "since noon UTC; choose another checkpoint_dir, or run the flow that it belongs to"
        )


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
    assert restart([LOST], 4, policy) == GiveUp(LOST, "4 failures in a row, without progress", may_pass=True)


def test_a_very_long_series_has_the_maximum_delay() -> None:
    assert restart([LOST] * 5_000, 5_000, replace(POLICY, failures_max=9_999)) == RestartAfter(1_000)


def lasts_s(settings: cc.Restart) -> float:
    """Return how long an outage is survived in which each restart fails at once."""
    delay, step, most, window = (
        settings.milliseconds(name) for name in ("delay", "delay_step", "delay_max", "window")
    )
    policy = RestartPolicy(settings.failures, window, delay, step, most, settings.same_record)
    failed_at_ms = [0]
    while True:
        recent = sum(1 for one in failed_at_ms if one > failed_at_ms[-1] - window)
        decision = restart([LOST] * recent, len(failed_at_ms), policy)
        if isinstance(decision, GiveUp):
            return failed_at_ms[-1] / 1_000
        failed_at_ms.append(failed_at_ms[-1] + decision.delay_ms)


def test_outages_are_survived_for_as_long_as_the_guide_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guide" / "operations.md").read_text()
    assert "survives outages of three hours" in text and "The defaults last\nfor a quarter of an hour" in text
    example = text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102
    settings = names["settings"]
    assert lasts_s(cc.Restart()) > 900
    assert lasts_s(settings.restart) > 3 * 3_600 and settings.milliseconds("outage_timeout") >= 3 * 3_600_000


def test_too_many_failures_end_the_job_with_the_first_cause() -> None:
    causes = [BAD, *[LOST] * 5]
    assert restart(causes, 1, POLICY) == GiveUp(BAD, "6 failures within 300 s", may_pass=True)


def test_no_failure_is_tolerated_if_the_policy_says_so() -> None:
    assert restart([LOST], 1, replace(POLICY, failures_max=0)) == GiveUp(
        LOST, "1 failures within 300 s", may_pass=True
    )


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
    assert restart(causes, 6, POLICY) == GiveUp(causes[0], "6 failures within 300 s", may_pass=True)


HEALING = {
    "a lost worker": LOST,
    "a sink that hangs": FailureCause("SinkHungError", "no answer", "out", is_transient=True, is_first=True),
    "a commit without an answer": FailureCause("CommitFailed", "no answer", "out", is_transient=True),
    "a store that refuses": FailureCause("CheckpointsFailed", "disk full", is_transient=True),
    "a service that refuses": replace(BAD, kind="ConnectionRefusedError", is_from_outside=True),
}


@pytest.mark.parametrize("what", HEALING)
def test_what_can_heal_has_the_whole_restart_strategy(what: str) -> None:
    """I15: in a row, without progress; only what can't heal ends a job at once."""
    policy, cause = replace(POLICY, failures_max=10), HEALING[what]
    for count in range(1, 11):
        assert isinstance(restart([cause] * count, count, policy), RestartAfter), count
        assert isinstance(restart([cause] * count, 1, policy), RestartAfter), count
    final = replace(cause, is_final=True)
    assert restart([final], 1, policy) == GiveUp(final, "a failure that no restart can mend")


OUTSIDE = [
    replace(BAD, is_first=True),
    replace(BAD, is_from_outside=True),
    replace(BAD, kind="ConnectionRefusedError", is_first=True, is_from_outside=True),
]


@pytest.mark.parametrize("cause", OUTSIDE)
def test_a_record_is_not_to_blame_for_what_no_record_gets_past(cause: FailureCause) -> None:
    """K5: after each restart the same record comes first, and meets the service that is down."""
    assert restart([cause] * 5, 5, POLICY) == RestartAfter(800)
    assert restart([cause] * 6, 6, POLICY) == GiveUp(cause, "6 failures within 300 s", may_pass=True)
    # Behind a real strike it ends the series.
    assert isinstance(restart([BAD, BAD, cause, BAD], 4, POLICY), RestartAfter)


@pytest.mark.parametrize("kind", sorted(MISTAKES))
def test_a_mistake_in_the_code_needs_no_other_record_to_be_told(kind: str) -> None:
    cause = replace(BAD, kind=kind, is_first=True)
    assert isinstance(restart([cause] * 2, 2, POLICY), RestartAfter)
    assert isinstance(restart([cause] * 3, 3, POLICY), GiveUp)
    assert isinstance(restart([replace(cause, is_from_outside=True)] * 3, 3, POLICY), RestartAfter)


@pytest.mark.parametrize(
    "mistake", [replace(BAD, kind="TypeError"), replace(BAD, kind="KeyError", is_certain=True)]
)
def test_a_mistake_is_the_same_one_at_the_first_records_of_all_tasks(mistake: FailureCause) -> None:
    """Of many tasks it is another one each time that is the first to say so."""
    causes = [
        replace(mistake, message=f"task 1[{index}] failed: bad", is_first=True, record=f"'{letter}'")
        for index, letter in enumerate("xyz")
    ]
    assert isinstance(restart(causes[:2], 2, POLICY), RestartAfter)
    given_up = restart(causes, 3, POLICY)
    assert given_up == GiveUp(causes[2], "the same mistake 3 times in a row, without progress")
    # Records got through meanwhile, or it is not the same, or it may be mended, or nobody wants it counted.
    assert isinstance(restart(causes, 2, POLICY), RestartAfter)
    for other in (replace(causes[1], operator="else"), replace(causes[1], kind="NameError", record="''")):
        assert isinstance(restart([causes[0], other, causes[2]], 3, POLICY), RestartAfter)
    assert isinstance(
        restart([replace(one, is_from_outside=True) for one in causes], 3, POLICY), RestartAfter
    )
    assert isinstance(restart(causes, 3, replace(POLICY, same_record_max=0)), RestartAfter)


UNSURE = {
    "an error of the user's own lines": replace(BAD, kind="RuntimeError", is_certain=True, may_heal=True),
    "a record that fails after others": BAD,
}


@pytest.mark.parametrize("what", UNSURE)
def test_the_last_restart_waits_for_an_outage_to_pass(what: str) -> None:
    """K5, I15: a lookup that fails raises in the user's own lines, for the same record each time."""
    policy, cause = replace(POLICY, last_delay_ms=10_000), UNSURE[what]
    assert restart([cause], 1, policy) == RestartAfter(policy.delay_ms)
    assert restart([cause] * 2, 2, policy) == RestartAfter(10_000)
    assert isinstance(restart([cause] * 3, 3, policy), GiveUp)
    # The delay of the strategy, if that is longer.
    longer = replace(policy, delay_step_ms=20_000, delay_max_ms=60_000)
    assert restart([cause] * 2, 2, longer) == RestartAfter(20_000)
    # It is the last one only if the same comes again, and if that is counted.
    assert restart([cause, LOST], 2, policy) == RestartAfter(policy.delay_step_ms)
    assert restart([cause] * 2, 2, replace(policy, same_record_max=0)) == RestartAfter(policy.delay_step_ms)


@pytest.mark.parametrize(
    "cause",
    [
        replace(BAD, kind="TypeError"),
        replace(BAD, kind="KeyError", is_certain=True),
        FailureCause("ConnectorError", "not null", "out", is_permanent=True),
    ],
    ids=lambda cause: cause.kind,
)
def test_what_is_certain_to_be_a_mistake_is_not_waited_for(cause: FailureCause) -> None:
    policy = replace(POLICY, last_delay_ms=10_000)
    assert restart([cause] * 2, 2, policy) == RestartAfter(policy.delay_step_ms)


REFUSED = FailureCause("ConnectorError", "sink 'out': not null", "out", "{'id': 7}", is_permanent=True)


def test_three_refusals_of_one_sink_in_a_row_end_the_job_whatever_their_records_and_messages() -> None:
    """A commit is refused after its checkpoint is complete: that progress excuses nothing."""
    second = replace(REFUSED, kind="CommitFailed", message="could not be committed: not null", record="")
    assert isinstance(restart([REFUSED, second], 2, POLICY), RestartAfter)
    assert restart([second, REFUSED, REFUSED], 1, POLICY) == GiveUp(
        REFUSED, "'out' was refused 3 times in a row"
    )
    elsewhere = replace(REFUSED, operator="audit")
    assert isinstance(restart([REFUSED, elsewhere, REFUSED], 3, POLICY), RestartAfter)
    assert isinstance(restart([REFUSED, LOST, REFUSED], 3, POLICY), RestartAfter)
    assert isinstance(restart([replace(REFUSED, is_permanent=False)] * 3, 3, POLICY), GiveUp)  # One record.
    assert isinstance(restart([replace(REFUSED, is_permanent=False, record="")] * 3, 3, POLICY), RestartAfter)
    assert isinstance(restart([REFUSED] * 3, 3, replace(POLICY, same_record_max=0)), RestartAfter)


def test_a_mistake_of_a_source_or_sink_needs_no_record() -> None:
    cause = FailureCause("TypeError", "sink 'out' raised TypeError: no set", "out", is_first=True)
    assert isinstance(restart([cause] * 2, 2, POLICY), RestartAfter)
    assert isinstance(restart([cause] * 3, 3, POLICY), GiveUp)
    # Of no operator, it is no user's mistake.
    assert isinstance(restart([replace(cause, operator="")] * 3, 3, POLICY), RestartAfter)
