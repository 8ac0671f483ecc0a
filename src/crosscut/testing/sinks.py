"""Conformance suite for sinks: is output exactly-once, whatever is repeated, late, or killed?

Point it at a sink of your own. Every check needs a target of its own, with nothing in it yet:

    @pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
    def test_my_sink_conforms(check, tmp_path):
        check(SinkTarget(MySink(tmp_path), visible=lambda: read_committed(tmp_path)))

`check_sink` runs them all, in a place of its own each.

A check plays the runtime: it makes writers as workers do (from a pickled sink), hands handles over as
the job log does (as JSON), and makes the permits that in a job only a durable log entry yields. Every
check raises AssertionError with the visible output and the expected one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from crosscut.contracts.connectors import JSON, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.testing.sink_histories import (
    check_a_driver_that_was_overtaken_is_refused,
    check_a_system_that_was_set_back_is_refused,
    check_newer_output_is_refused,
    check_output_may_be_taken_away,
    check_two_drivers_of_one_epoch_exclude_each_other,
    check_what_is_committed_is_listed,
)
from crosscut.testing.sink_refusals import (
    check_a_refused_record_never_gets_past_prepare,
    check_dropped_output_is_never_visible_and_all_other_is,
    check_prepared_records_can_be_shown,
    check_the_others_are_written_if_refused_records_are_set_aside,
)
from crosscut.testing.sink_stalls import check_a_system_that_never_answers_is_an_error
from crosscut.testing.sink_targets import (
    TASK,
    SinkTarget,
    open_writer,
    permit,
    prepare,
    require,
    require_visible,
    stage,
)

__all__ = ["SINK_CHECKS", "SinkTarget", "check_sink", "open_writer", "permit", "prepare", "stage"]


def check_nothing_is_visible_before_commit(target: SinkTarget) -> None:
    """I3: not after write, not after rotate, not after prepare, not after close; all of it after commit."""
    require_visible(target, [])
    writer = open_writer(target.sink, 1)
    writer.write(target.records(0, 500))
    require_visible(target, [])
    transaction = writer.rotate(CheckpointId(1))
    require_visible(target, [])
    handle = prepare(writer, transaction)
    require_visible(target, [])
    writer.close()
    require_visible(target, [])
    open_writer(target.sink, 2, restore=1, handles=[handle]).close()
    require_visible(target, target.records(0, 500))


def check_order_is_kept(target: SinkTarget) -> None:
    """Records come out as they went in, over batches, transactions and epochs."""
    written = checkpoint_id = 0
    handles: list[JSON] = []
    for epoch in (1, 2):
        writer = open_writer(target.sink, epoch, restore=checkpoint_id, handles=handles)
        for checkpoint_id in range(10 * epoch, 10 * epoch + 3):
            for size in (1, 0, 30, 2):
                writer.write(target.records(written, written + size))
                written += size
            handles = [prepare(writer, writer.rotate(CheckpointId(checkpoint_id)))]
            writer.commit(permit(checkpoint_id, epoch), handles)
            require_visible(target, target.records(0, written))
        writer.close()


def check_rotation_cuts_at_once(target: SinkTarget) -> None:
    """Records written after rotate are in a later transaction, even if they are written before prepare."""
    writer = open_writer(target.sink, 1)
    writer.write(target.records(0, 10))
    transaction = writer.rotate(CheckpointId(1))
    writer.write(target.records(10, 20))
    handle = prepare(writer, transaction)
    writer.write(target.records(20, 30))
    writer.commit(permit(1), [handle])
    require_visible(target, target.records(0, 10))
    writer.commit(permit(2), [prepare(writer, writer.rotate(CheckpointId(2)))])
    require_visible(target, target.records(0, 30))
    writer.close()


def check_caller_may_reuse_the_list(target: SinkTarget) -> None:
    """The list given to write belongs to the caller again when write returns."""
    writer = open_writer(target.sink, 1)
    records = target.records(0, 5)
    writer.write(records)
    records.clear()
    writer.commit(permit(1), [prepare(writer, writer.rotate(CheckpointId(1)))])
    require_visible(target, target.records(0, 5))
    writer.close()


def check_empty_transaction_is_none(target: SinkTarget) -> None:
    """F8: a checkpoint without records has no transaction, first, in between and after an empty write."""
    writer = open_writer(target.sink, 1)
    require(writer.rotate(CheckpointId(1)) is None, "rotate() without a write returned a transaction")
    handle = stage(writer, target.records(0, 3), 2)
    require(writer.rotate(CheckpointId(3)) is None, "a second rotate() returned a transaction")
    writer.write([])
    require(writer.rotate(CheckpointId(4)) is None, "rotate() after write([]) returned a transaction")
    writer.commit(permit(4), [])
    writer.commit(permit(4), [handle])
    writer.close()
    require_visible(target, target.records(0, 3))


def check_commit_may_be_repeated(target: SinkTarget) -> None:
    """F1: the reply to a commit is lost; the same attempt and a new one commit again."""
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1)]
    for _ in range(3):
        writer.commit(permit(1), handles)
        require_visible(target, target.records(0, 10))
    handles.append(stage(writer, target.records(10, 20), 2))
    writer.commit(permit(2), handles)
    require_visible(target, target.records(0, 20))
    writer.close()
    successor = open_writer(target.sink, 2, restore=2, handles=handles)
    require_visible(target, target.records(0, 20))
    successor.commit(permit(2, 2), handles)
    successor.close()
    require_visible(target, target.records(0, 20))


def check_everything_pending_is_committed(target: SinkTarget) -> None:
    """F2, F8: two transactions are pending at once; the notification of the first never came."""
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1), stage(writer, target.records(10, 20), 2)]
    open_transaction = stage(writer, target.records(20, 30), 3)
    writer.commit(permit(2), handles)
    require_visible(target, target.records(0, 20))
    writer.commit(permit(3), [open_transaction])
    writer.close()
    require_visible(target, target.records(0, 30))


def check_checkpoint_may_be_restored_twice(target: SinkTarget) -> None:
    """F4: recovery fails after it committed, and starts again; the handles are a successor's only facts."""
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1), stage(writer, target.records(10, 20), 2)]
    writer.close()
    for epoch in (2, 3, 4):
        open_writer(target.sink, epoch, restore=2, handles=handles).close()
        require_visible(target, target.records(0, 20))


def check_orphans_are_never_visible(target: SinkTarget) -> None:
    """F6: staged, but in no complete checkpoint: gone after the next start, which writes it again."""
    writer = open_writer(target.sink, 1)
    kept = stage(writer, target.records(0, 10), 1)
    stage(writer, target.records(10, 20), 2)
    writer.write(target.records(20, 30))
    writer.close()
    successor = open_writer(target.sink, 2, restore=1, handles=[kept])
    require_visible(target, target.records(0, 10))
    successor.commit(permit(3, 2), [stage(successor, target.records(10, 30), 3)])
    successor.close()
    require_visible(target, target.records(0, 30))


def check_others_are_left_alone(target: SinkTarget) -> None:
    """F6: recovery of one task aborts nothing of another task, sink or lineage."""
    others: dict[str, dict[str, Any]] = {
        "same vertex": {"task": TaskId(TASK.vertex, 0)},
        "similar index": {"task": TaskId(TASK.vertex, 11)},
        "other vertex": {"task": TaskId(VertexId("other"), TASK.index)},
        "similar vertex": {"task": TaskId(VertexId(f"{TASK.vertex}-1"), TASK.index)},
        "other sink": {"sink_uid": "sink-2"},
        "other lineage": {"lineage": "another-lineage"},
    }
    staged: list[tuple[str, dict[str, Any], JSON]] = []
    for index, (name, identity) in enumerate(others.items()):
        writer = open_writer(target.sink, 1, **identity)
        staged.append((name, identity, stage(writer, target.records(index, index + 1), 1)))
        writer.close()
    open_writer(target.sink, 7).close()
    require_visible(target, [])
    for _, identity, handle in staged:
        open_writer(target.sink, 8, **identity, restore=1, handles=[handle]).close()
    found, expected = target.visible(), target.records(0, len(staged))
    require(
        sorted(map(repr, found)) == sorted(map(repr, expected)),
        f"recovery of one task touched others {list(others)}: visible {found!r}, expected {expected!r}",
    )


def check_zombie_changes_nothing(target: SinkTarget) -> None:
    """C1: a writer believed dead wakes up after its successor committed, commits again and stages more."""
    zombie = open_writer(target.sink, 1)
    handles = [stage(zombie, target.records(0, 10), 1)]
    zombie.write(target.records(10, 15))
    in_flight = zombie.rotate(CheckpointId(2))
    zombie.write(target.records(15, 20))

    successor = open_writer(target.sink, 2, restore=1, handles=handles)
    later = stage(successor, target.records(10, 30), 3)
    successor.commit(permit(3, 2), [later])

    # To be refused is as good as not to be seen.
    with suppress(ConnectorError):
        zombie.commit(permit(1, 1), handles)
    require_visible(target, target.records(0, 30))
    with suppress(ConnectorError):
        prepare(zombie, in_flight)
        stage(zombie, target.records(20, 25), 4)
    zombie.close()
    require_visible(target, target.records(0, 30))
    successor.close()
    open_writer(target.sink, 3, restore=3, handles=[later]).close()
    require_visible(target, target.records(0, 30))


def check_random_lives(target: SinkTarget, seed: int = 1, steps: int = 120) -> None:
    """I1, I2, I3: writes, checkpoints, aborts, late commits and crashes in any order, against a list.

    After every step the visible records are exactly those of the committed checkpoints.
    """
    choices = random.Random(seed)
    epoch = 1
    writer = open_writer(target.sink, epoch)
    zombies: list[SinkWriter] = []
    checkpoint_id = completed_id = 0
    written = completed = committed = 0
    pending: list[JSON] = []
    completed_handles: list[JSON] = []
    for _ in range(steps):
        match choices.choice(("write", "write", "complete", "complete", "abort", "commit", "crash")):
            case "write":
                size = choices.randint(0, 20)
                writer.write(target.records(written, written + size))
                written += size
            case "complete" | "abort" as outcome:
                checkpoint_id += 1
                transaction = writer.rotate(CheckpointId(checkpoint_id))
                if transaction is not None:
                    pending.append(prepare(writer, transaction))
                if outcome == "complete":
                    completed, completed_id, completed_handles = written, checkpoint_id, list(pending)
            case "commit" if completed_id:
                writer.commit(permit(completed_id, epoch), completed_handles)
                committed = completed
                if choices.random() < 0.7:
                    # Otherwise the reply is lost, and later checkpoints hold them again.
                    pending = [handle for handle in pending if handle not in completed_handles]
            case "crash":
                if choices.random() < 0.5:
                    writer.close()
                else:
                    zombies.append(writer)
                epoch += 1
                writer = open_writer(target.sink, epoch, restore=completed_id, handles=completed_handles)
                written = committed = completed
                pending = []
            case _:
                pass  # a commit before anything is complete
        require_visible(target, target.records(0, committed), f"seed {seed}")
    for open_one in (writer, *zombies):
        open_one.close()
    require_visible(target, target.records(0, committed), f"seed {seed}, after close")


SINK_CHECKS: tuple[Callable[[SinkTarget], None], ...] = (
    check_nothing_is_visible_before_commit,
    check_order_is_kept,
    check_rotation_cuts_at_once,
    check_caller_may_reuse_the_list,
    check_empty_transaction_is_none,
    check_commit_may_be_repeated,
    check_everything_pending_is_committed,
    check_checkpoint_may_be_restored_twice,
    check_orphans_are_never_visible,
    check_others_are_left_alone,
    check_zombie_changes_nothing,
    check_output_may_be_taken_away,
    check_newer_output_is_refused,
    check_two_drivers_of_one_epoch_exclude_each_other,
    check_a_driver_that_was_overtaken_is_refused,
    check_a_system_that_was_set_back_is_refused,
    check_what_is_committed_is_listed,
    check_a_refused_record_never_gets_past_prepare,
    check_the_others_are_written_if_refused_records_are_set_aside,
    check_prepared_records_can_be_shown,
    check_dropped_output_is_never_visible_and_all_other_is,
    check_a_system_that_never_answers_is_an_error,
    check_random_lives,
)


def check_sink(new_target: Callable[[str], SinkTarget]) -> None:
    """Run all of `SINK_CHECKS`.

    Args:
        new_target: Makes a target in which nothing is yet, from a name that no other one has: a directory, a
            table, a topic.

    Raises:
        AssertionError: The sink does not conform; it says what was visible, and the name of the check.
    """
    for check in SINK_CHECKS:
        try:
            check(new_target(check.__name__))
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
