"""What may be deleted, and what a snapshot may refer to."""

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.protocol.checkpoint.retention import (
    dangling,
    orphans,
    parts_of,
    paths_of,
    referenced,
    retained,
    unreferenced,
)
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Part, PendingTransaction, Snapshot, TaskSnapshot

TASK = TaskId(VertexId("count"), 0)


def part(path: str) -> Part:
    return Part(path, 1, "00")


def checkpoint(n: int, *paths: str) -> CheckpointCompleted:
    snapshot = Snapshot(parts=tuple(map(part, paths)))
    return CheckpointCompleted(Epoch(2), CheckpointId(n), (TaskSnapshot(TASK, snapshot),))


A, B, C = (f"parts/{n}/count-0-2-ab" for n in (1, 2, 3))


def test_inline_parts_have_no_path() -> None:
    snapshot = Snapshot(parts=(Part("", 3, "00", "YWJj"), part(A)))
    assert paths_of(snapshot) == (A,)
    assert parts_of(checkpoint(1, A, B, A)) == {A, B}


def test_the_newest_checkpoints_are_kept_in_order() -> None:
    three = tuple(checkpoint(n) for n in (1, 2, 3))
    assert retained(three, 2) == three[1:]
    assert retained(three, 9) == three


def test_a_part_that_a_kept_manifest_refers_to_is_never_deleted() -> None:
    """B6: the incremental checkpoint 3 shares a part with checkpoint 1."""
    assert unreferenced([B, A, B], [checkpoint(3, A, C)]) == (B,)
    assert unreferenced([A], []) == (A,)


def test_orphans_are_parts_of_older_epochs_that_nothing_refers_to() -> None:
    """A3: half-written snapshots of a lost worker; those of the running epoch may be under way."""
    running = "parts/9/count-0-3-ab"
    assert orphans([running, B, A], [checkpoint(1, A)], Epoch(3)) == (B,)


def test_parts_of_the_running_epoch_are_orphans_once_a_checkpoint_as_new_is_complete() -> None:
    """No snapshot that comes after it can refer to them."""
    kept = [checkpoint(2, A), checkpoint(3, A, C)]
    alike = "parts/3/count-0-2-cd"
    newer, staged = "parts/4/count-0-2-ab", "parts/0/in-0-2-ab"
    assert orphans([newer, alike, A, B, C], kept, Epoch(2)) == (B, alike)
    assert orphans([staged], kept, Epoch(2), frozenset({staged})) == ()
    assert orphans([A], [], Epoch(2)) == (), "nothing is complete"


def test_what_does_not_look_like_a_part_is_not_ours_to_delete() -> None:
    """M5."""
    strangers = [
        "parts/1/readme",
        "parts/x/count-0-1-ab",
        "parts/1/count-0-1-xyz",
        "other/1/count-0-1-ab",
        "parts/1/../../log/0-0-1-ab",
        "parts/1/count-0-1-ab.tmp",
    ]
    assert orphans(strangers, [], Epoch(3)) == ()


def test_a_vertex_may_have_dashes_and_dots_in_its_name() -> None:
    assert orphans(["parts/1/a-9-9.b-0-1-ab"], [], Epoch(2)) == ("parts/1/a-9-9.b-0-1-ab",)
    assert orphans(["parts/1/a-1-1.b-0-2-ab"], [], Epoch(2)) == ()


def test_a_snapshot_may_build_on_its_own_and_on_kept_parts_only() -> None:
    snapshot = Snapshot(parts=(part(A), part(B), part(C)))
    assert dangling(snapshot, CheckpointId(3), referenced([checkpoint(1, A), checkpoint(2, B)])) == ()
    assert dangling(snapshot, CheckpointId(3), referenced([checkpoint(2, B)])) == (A,)
    assert dangling(snapshot, CheckpointId(4), frozenset()) == (A, B, C)


def test_the_records_of_a_pending_transaction_are_a_part_of_their_snapshot() -> None:
    held = PendingTransaction(CheckpointId(1), {"n": 1}, held=part(C))
    snapshot = Snapshot(parts=(part(A),), pending=(PendingTransaction(CheckpointId(1), "staged"), held))
    assert paths_of(snapshot) == (A, C)
    assert dangling(snapshot, CheckpointId(3), referenced([checkpoint(1, A)])) == ()
