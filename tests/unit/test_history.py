"""Does what sinks have made visible belong to the checkpoints that a job goes on from?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from crosscut.contracts.connectors import CommitPermit, CommittedOutput, SinkContext
from crosscut.errors import HistoryError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed
from crosscut.protocol.log.history import (
    AnotherDriver,
    Conflict,
    ForeignOutput,
    NewerOutput,
    SetBack,
    check_history,
    check_not_set_back,
    conflict_at_start,
    conflict_of_task,
    shown,
)
from crosscut.protocol.log.recovery import Claim
from crosscut.protocol.log.segments import LogEnd

TASK = TaskId(VertexId("out"), 1)
LINEAGE = Lineage("ours")
CONTEXT = SinkContext(LINEAGE, Epoch(5), TASK, "out", driver="b")
VISIBLE = CommittedOutput("directory /out", LINEAGE, "out", TASK, Epoch(4), "a", CheckpointId(7))


def epoch_claimed(epoch: int, driver: str) -> EpochClaimed:
    return EpochClaimed(Epoch(epoch), LINEAGE, driver, "graph", 2, 8, CheckpointId(1))


FIRST = Claim(LogEnd(), epoch_claimed(1, "b"), None)
SEVEN = CheckpointCompleted(Epoch(4), CheckpointId(7), ())
RESUMED = Claim(LogEnd(LogIndex(1, 29)), epoch_claimed(5, "b"), SEVEN, epoch_claimed(4, "a"))


def at_start(claim: Claim, *found: CommittedOutput, is_fresh: bool = False) -> Conflict | None:
    return conflict_at_start(claim, found, is_fresh=is_fresh)


# Before an epoch is claimed.


def test_a_job_goes_on_beside_its_own_output_and_that_of_others() -> None:
    others = replace(VISIBLE, lineage=Lineage("theirs"), checkpoint_id=CheckpointId(99), epoch=Epoch(99))
    behind = replace(VISIBLE, task=TaskId(TASK.vertex, 0), checkpoint_id=CheckpointId(3), epoch=Epoch(2))
    assert at_start(RESUMED) is None
    assert at_start(RESUMED, VISIBLE, others, behind) is None


def test_output_that_is_newer_than_what_is_restored_is_refused_also_if_fresh() -> None:
    """N1: the newest entries of the log are lost, or this is a copy or a backup."""
    newer = replace(VISIBLE, checkpoint_id=CheckpointId(8))
    for is_fresh in (False, True):
        assert at_start(RESUMED, VISIBLE, newer, is_fresh=is_fresh) == NewerOutput(newer, CheckpointId(7))


def test_output_of_a_job_whose_log_has_no_checkpoint_any_more_is_refused() -> None:
    assert at_start(replace(RESUMED, restored=None), VISIBLE) == NewerOutput(VISIBLE, CheckpointId(0))


def test_a_writer_of_an_epoch_that_the_log_does_not_know_is_refused() -> None:
    """N1: a copy has been started, and has committed nothing yet."""
    ahead = replace(VISIBLE, epoch=Epoch(5), driver="c")
    assert at_start(RESUMED, ahead) == AnotherDriver(ahead, Epoch(5), "b")
    beyond = replace(VISIBLE, epoch=Epoch(6), driver="a", checkpoint_id=CheckpointId(0))
    assert at_start(RESUMED, beyond) == AnotherDriver(beyond, Epoch(5), "b")
    beside = replace(VISIBLE, driver="c")
    assert at_start(RESUMED, beside) == AnotherDriver(beside, Epoch(5), "b")


def test_a_writer_whose_driver_is_not_known_any_more_is_told_by_its_epoch_alone() -> None:
    assert at_start(RESUMED, replace(VISIBLE, driver="")) is None


def test_a_new_history_is_begun_beside_output_only_if_that_is_wanted() -> None:
    """The checkpoints were deleted, and the output was not."""
    theirs = replace(VISIBLE, lineage=Lineage("theirs"))
    assert at_start(FIRST, theirs) == ForeignOutput(theirs)
    assert at_start(FIRST, theirs, is_fresh=True) is None


def test_a_new_history_is_begun_where_nothing_is_visible() -> None:
    assert at_start(FIRST, replace(VISIBLE, lineage=Lineage("theirs"), checkpoint_id=CheckpointId(0))) is None


def test_a_history_that_has_begun_does_not_mind_the_output_of_others() -> None:
    """It was wanted when it began; or somebody else has come since, and minded."""
    theirs = replace(VISIBLE, lineage=Lineage("theirs"))
    assert at_start(replace(RESUMED, restored=None), theirs) is None


# Of one task, at the sink.


def test_a_task_goes_on_from_what_it_has_committed() -> None:
    assert conflict_of_task(CONTEXT, CheckpointId(7), [VISIBLE]) is None


def test_a_task_refuses_newer_output_and_other_drivers() -> None:
    assert conflict_of_task(CONTEXT, CheckpointId(6), [VISIBLE]) == NewerOutput(VISIBLE, CheckpointId(6))
    beside = replace(VISIBLE, epoch=Epoch(5))
    assert conflict_of_task(CONTEXT, CheckpointId(7), [beside]) == AnotherDriver(beside, Epoch(5), "b")


def test_a_task_does_not_mind_what_this_epoch_has_written_itself() -> None:
    own = replace(VISIBLE, epoch=Epoch(5), driver="b", checkpoint_id=CheckpointId(9))
    assert conflict_of_task(CONTEXT, CheckpointId(7), [own]) is None


# In words.


@pytest.mark.parametrize(
    ("conflict", "words"),
    [
        (NewerOutput(VISIBLE, CheckpointId(3)), ["up to checkpoint 7", "from checkpoint 3", "lost entries"]),
        (NewerOutput(VISIBLE, CheckpointId(0)), ["begins with nothing", "this is a copy"]),
        (AnotherDriver(VISIBLE, Epoch(4), "b"), ["epoch 4 of driver 'a'", "epoch 4 of driver 'b'", "copy"]),
        (ForeignOutput(VISIBLE), ["lineage ours", "up to checkpoint 7", "--fresh"]),
        (ForeignOutput(replace(VISIBLE, lineage=Lineage(""))), ["not known any more"]),
        (SetBack(VISIBLE, CheckpointId(9)), ["up to checkpoint 9", "only up to checkpoint 7", "set back"]),
        (SetBack(replace(VISIBLE, checkpoint_id=CheckpointId(0)), CheckpointId(9)), ["nothing", "backup"]),
    ],
)
def test_a_refusal_names_the_sink_what_is_there_and_what_to_do(conflict: Conflict, words: list[str]) -> None:
    text = shown(conflict)
    assert text.startswith(f"directory /out: task {TASK} of sink 'out'")
    assert [one for one in words if one not in text] == []


def test_a_sink_of_ones_own_is_refused_by_the_same_rule() -> None:
    check_history(CONTEXT, CommitPermit(LINEAGE, Epoch(5), CheckpointId(7)), [VISIBLE])
    with pytest.raises(HistoryError, match="begins with nothing"):
        check_history(CONTEXT, None, [VISIBLE])


def test_a_sink_that_remembers_less_than_it_has_confirmed_was_set_back() -> None:
    """P7. What is complete and not confirmed is no loss: the checkpoint holds it."""
    permit = CommitPermit(LINEAGE, Epoch(5), CheckpointId(9), committed=CheckpointId(7))
    for found in (7, 8, 9):
        check_not_set_back(CONTEXT, permit, CheckpointId(found), "directory /out")
    with pytest.raises(HistoryError, match=r"up to checkpoint 7 is committed, and now remembers only up to"):
        check_not_set_back(CONTEXT, permit, CheckpointId(6), "directory /out")
    with pytest.raises(HistoryError, match="remembers nothing"):
        check_not_set_back(CONTEXT, permit, CheckpointId(0), "directory /out")
    check_not_set_back(CONTEXT, None, CheckpointId(0), "directory /out")
    with pytest.raises(HistoryError, match="up to checkpoint 8 is committed"):
        check_not_set_back(CONTEXT, permit, CheckpointId(7), "directory /out", confirmed=CheckpointId(8))
