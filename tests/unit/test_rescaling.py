"""A checkpoint at another parallelism: everything of it has exactly one owner (H1)."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import StateError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import groups_of_task
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import KnownCommitted, Part, PendingTransaction, Snapshot, TaskSnapshot
from crosscut.protocol.splits.rescaling import (
    ALL_EMITTED,
    FinalProgress,
    Reached,
    StateAssignment,
    by_worker,
    combined_final_progress,
    final_progress_ranges,
    parallelism_of,
    read_final_progress,
    rescaled,
    retired,
    shown_final_progress,
    state_assignment,
    wholly_taken,
    writers,
)

SOURCE, COUNTS, OUT = map(VertexId, ("source", "counts", "out"))
EDGES = ((SOURCE, COUNTS, True), (COUNTS, OUT, False))
GROUPS = 12


def part(name: str) -> Part:
    return Part(f"parts/7/{name}", 1, "00", "", CheckpointId(7))


def split(name: str, weight: int = 1) -> list[Any]:
    return [name, 0, None, weight, 5]


def checkpoint(parallelism: int, **tasks: list[Snapshot]) -> CheckpointCompleted:
    snapshots = [
        TaskSnapshot(TaskId(VertexId(vertex), index), one)
        for vertex, all_of_it in tasks.items()
        for index, one in enumerate(all_of_it)
    ]
    assert len(snapshots) == parallelism * len(tasks)
    return CheckpointCompleted(Epoch(2), CheckpointId(7), tuple(snapshots))


def of(snapshots: tuple[TaskSnapshot, ...], vertex: VertexId) -> list[Snapshot]:
    return [one.snapshot for one in snapshots if one.task.vertex == vertex]


def test_the_parallelism_of_a_checkpoint_is_told_by_its_tasks() -> None:
    assert parallelism_of(checkpoint(3, counts=[Snapshot()] * 3)) == 3


def test_a_task_reads_the_parts_of_all_that_had_one_of_its_key_groups_each_chain_in_order() -> None:
    chains = [(part(f"{index} whole"), part(f"{index} changes")) for index in range(3)]
    before = checkpoint(3, counts=[Snapshot(parts=chain) for chain in chains])
    # Groups 0-3, 4-7, 8-11 become 0-5, 6-11.
    assert [one.parts for one in of(rescaled(before, 2, GROUPS, ()), COUNTS)] == [
        (*chains[0], *chains[1]),
        (*chains[1], *chains[2]),
    ]
    assert [one.parts for one in of(rescaled(before, 6, GROUPS, ()), COUNTS)] == [
        chains[index // 2] for index in range(6)
    ]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(9, 40))
def test_a_chain_is_taken_whole_only_if_no_key_group_of_it_is_anothers(
    before: int, parallelism: int, groups: int
) -> None:
    for index in range(parallelism):
        mine = set(groups_of_task(index, groups, parallelism))
        had = [set(groups_of_task(old, groups, before)) for old in range(before)]
        heirs = [one for one in had if one & mine]
        whole = wholly_taken(index, before, parallelism, groups, len(heirs))
        assert whole == {place for place, one in enumerate(heirs) if one <= mine}
        if len(heirs) < before:
            # Keys that belong to no group may be in any of them.
            assert not wholly_taken(index, before, parallelism, groups, before)


def test_unfinished_splits_are_dealt_out_anew_the_heaviest_to_the_least_loaded() -> None:
    before = checkpoint(
        2,
        source=[
            Snapshot(positions=[split("a", 9), split("b", 4)]),
            Snapshot(positions=[split("c", 5), split("d")]),
        ],
    )
    assert [one.positions for one in of(rescaled(before, 3, GROUPS, ()), SOURCE)] == [
        [split("a", 9)],
        [split("c", 5)],
        [split("b", 4), split("d")],
    ]
    assert [one.positions for one in of(rescaled(before, 1, GROUPS, ()), SOURCE)] == [
        [split("a", 9), split("c", 5), split("b", 4), split("d")]
    ]


def test_a_source_that_has_been_read_to_its_end_stays_a_source() -> None:
    before = checkpoint(1, source=[Snapshot(positions=[])])
    assert [one.positions for one in of(rescaled(before, 2, GROUPS, ()), SOURCE)] == [[], []]


def test_positions_that_are_none_are_named() -> None:
    with pytest.raises(StateError, match="positions of source source"):
        rescaled(checkpoint(1, source=[Snapshot(positions="nowhere")]), 2, GROUPS, ())


def test_a_staged_transaction_stays_with_the_logical_task_that_staged_it() -> None:
    staged = [(PendingTransaction(CheckpointId(7), f"of {index}"),) for index in range(3)]
    before = checkpoint(3, out=[Snapshot(pending=one) for one in staged])
    found = rescaled(before, 2, GROUPS, ())
    assert [one.pending for one in of(found, OUT)] == staged[:2]
    # The third is there no more: one of the others recovers it, in its name.
    gone = retired(before, 2, 0, [OUT])
    assert gone == (TaskSnapshot(TaskId(OUT, 2), Snapshot(pending=staged[2])),)
    assert by_worker(gone, 2) == {0: list(gone)}
    assert [one.pending for one in of(rescaled(before, 4, GROUPS, ()), OUT)] == [*staged, ()]
    assert retired(before, 4, 0, [OUT]) == ()


def test_what_a_logical_task_is_known_to_have_committed_stays_with_its_name() -> None:
    """P7: so a sink that was set back meanwhile is found out, whatever the parallelism."""
    known = [KnownCommitted(CheckpointId(n), "here") for n in (5, 6, 7)]
    before = checkpoint(3, out=[Snapshot(committed=one) for one in known])
    assert [one.committed for one in of(rescaled(before, 2, GROUPS, ()), OUT)] == known[:2]
    assert [one.committed for one in of(rescaled(before, 4, GROUPS, ()), OUT)] == [*known, None]
    assert retired(before, 2, 0, [OUT]) == (TaskSnapshot(TaskId(OUT, 2), Snapshot(committed=known[2])),)


def test_those_who_may_have_left_something_without_a_checkpoint_are_recovered_too() -> None:
    """F6: an epoch of four tasks that completed nothing has left what it staged."""
    before = checkpoint(2, out=[Snapshot()] * 2)
    assert [one.task.index for one in retired(before, 2, 4, [OUT])] == [2, 3]
    assert [one.task.index for one in retired(None, 1, 3, [OUT])] == [1, 2]


def test_writers_are_remembered_until_a_checkpoint_shows_that_all_were_recovered() -> None:
    old = checkpoint(2, out=[Snapshot()] * 2)
    assert writers(3, None, None) == 0
    assert writers(2, (2, 0, Epoch(2)), old) == 0
    assert writers(1, (2, 0, Epoch(2)), old) == 2
    assert writers(3, (2, 0, Epoch(2)), old) == 0
    # An epoch of four that has completed nothing, and then one of two.
    assert writers(2, (4, 0, Epoch(3)), old) == 4
    assert writers(2, (2, 4, Epoch(4)), old) == 4
    assert writers(2, (2, 4, Epoch(4)), replace(old, epoch=Epoch(4))) == 0
    assert writers(1, (2, 4, Epoch(4)), replace(old, epoch=Epoch(4))) == 2


def test_a_task_gets_all_logs_that_may_hold_something_for_it_each_once() -> None:
    logs = {name: (part(f"log of {name}"),) for name in ("s0", "s1", "c0", "c1", "o0")}
    before = checkpoint(
        2,
        source=[Snapshot(log=logs["s0"]), Snapshot(log=logs["s1"])],
        counts=[Snapshot(log=logs["c0"]), Snapshot(log=logs["c1"])],
        out=[Snapshot(log=logs["o0"]), Snapshot()],
    )
    # The second edge leads back to the vertex that it comes from.
    found = rescaled(before, 3, GROUPS, (*EDGES, (COUNTS, COUNTS, False)))
    for one in of(found, COUNTS):
        assert Counter(one.log) == Counter((*logs["c0"], *logs["c1"], *logs["s0"], *logs["s1"]))
    for one in of(found, OUT):
        assert one.log == (*logs["o0"], *logs["c0"], *logs["c1"])


@given(st.integers(1, 6), st.integers(1, 6))
def test_counters_add_up_to_what_they_were(before: int, after: int) -> None:
    old = checkpoint(
        before,
        counts=[Snapshot(records_in=10 + i, records_out=100 * i, late_records=i) for i in range(before)],
    )
    found = of(rescaled(old, after, GROUPS, ()), COUNTS)
    assert len(found) == after
    assert sum(one.records_in for one in found) == sum(10 + i for i in range(before))
    assert sum(one.records_out for one in found) == sum(100 * i for i in range(before))
    assert sum(one.late_records for one in found) == sum(range(before))


# How far final results have been said.

PLACES = st.sampled_from([(0, ""), (0, "3"), (0, "7"), ALL_EMITTED])


def said_by_group(snapshots: list[Snapshot]) -> dict[int, tuple[int, str]]:
    found = {}
    for index, one in enumerate(snapshots):
        for groups, place in final_progress_ranges(one, groups_of_task(index, GROUPS, len(snapshots))):
            for group in groups:
                assert group not in found
                found[group] = place
    return found


def snapshot_that_said(place: tuple[int, str]) -> Snapshot:
    return Snapshot(ended=True) if place == ALL_EMITTED else Snapshot(said=shown_final_progress(place, ()))


@given(st.lists(PLACES, min_size=1, max_size=6), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_what_has_been_said_of_a_key_group_is_known_after_any_changes(
    places: list[tuple[int, str]], ways: list[int]
) -> None:
    snapshots = [snapshot_that_said(place) for place in places]
    expected = said_by_group(snapshots)
    assert sorted(expected) == list(range(GROUPS))
    for parallelism in ways:
        before = checkpoint(len(snapshots), counts=snapshots, source=[Snapshot()] * len(snapshots))
        snapshots = of(rescaled(before, parallelism, GROUPS, EDGES[:1]), COUNTS)
        assert said_by_group(snapshots) == expected


@pytest.mark.parametrize("edges", [(), ((SOURCE, COUNTS, False),)], ids=["splits", "forward"])
def test_where_input_is_not_by_key_a_task_has_said_only_what_all_before_it_had(edges: Any) -> None:
    """P3: a split that has not ended may come to any of them, and records on a forward edge too."""
    for places, reached in [
        ([ALL_EMITTED, (0, "")], (False, None)),
        ([ALL_EMITTED, (1, "3")], (False, [1, "3"])),
        ([(0, "7"), (0, "3")], (False, [0, "3"])),
        ([ALL_EMITTED, ALL_EMITTED], (True, None)),
    ]:
        said = [snapshot_that_said(one) for one in places]
        before = checkpoint(2, counts=said, source=[Snapshot()] * 2)
        for parallelism in (1, 3, 4):
            found = of(rescaled(before, parallelism, GROUPS, edges), COUNTS)
            assert [(one.ended, one.said) for one in found] == [reached] * parallelism


def test_a_task_that_has_input_of_both_kinds_has_ended_only_if_all_before_it_had() -> None:
    """Its keys have had their final results all the same: they are not said again."""
    edges = ((SOURCE, COUNTS, True), (OUT, COUNTS, False))
    others = [Snapshot(), Snapshot()]
    before = checkpoint(2, counts=[Snapshot(ended=True), Snapshot()], source=others, out=others)
    first, *_ = of(rescaled(before, 4, GROUPS, edges), COUNTS)
    assert (first.ended, read_final_progress(first.said)) == (False, ((0, ""), [(range(3), ALL_EMITTED)]))
    keyed, *_ = of(rescaled(before, 4, GROUPS, edges[:1]), COUNTS)
    assert keyed.ended


def test_a_task_that_goes_on_saying_carries_all_its_groups_along() -> None:
    progress = combined_final_progress([(range(4), (0, "5")), (range(4, 8), ALL_EMITTED)], range(2, 8))
    assert not progress.ended
    assert read_final_progress(progress.position) == (
        (0, ""),
        [(range(2, 4), (0, "5")), (range(4, 8), ALL_EMITTED)],
    )
    own, before = (0, "6"), read_final_progress(progress.position)[1]
    later = Snapshot(said=shown_final_progress(own, before))
    assert final_progress_ranges(later, range(2, 8)) == [(range(2, 4), (0, "6")), (range(4, 8), ALL_EMITTED)]


def test_a_task_has_said_everything_only_if_all_had_whose_groups_it_has() -> None:
    def combined(first: Reached, second: Reached, mine: range) -> FinalProgress:
        return combined_final_progress([(range(4), first), (range(4, 8), second)], mine)

    assert combined(ALL_EMITTED, ALL_EMITTED, range(2, 6)) == FinalProgress(ended=True)
    assert combined((0, "5"), (0, "5"), range(2, 6)) == FinalProgress([0, "5"])
    assert combined((0, ""), ALL_EMITTED, range(4)) == FinalProgress()


@pytest.mark.parametrize("said", [7, [1], ["a", 0], [0, "a", 3], [0, "a", [[1, 2]]]])
def test_progress_that_is_none_is_named(said: Any) -> None:
    with pytest.raises(StateError, match=r"expected \[operator, ordinal\]"):
        read_final_progress(said)


# What an epoch starts with.


def test_at_the_same_parallelism_everybody_gets_what_he_had() -> None:
    before = checkpoint(2, counts=[Snapshot(parts=(part("a"),)), Snapshot(parts=(part("b"),))])
    assert state_assignment(before, 2, GROUPS, 0, [], EDGES) == StateAssignment(
        CheckpointId(7), 0, before.snapshots
    )


def test_a_start_from_nothing_still_recovers_those_who_are_there_no_more() -> None:
    found = state_assignment(None, 1, GROUPS, 2, [OUT], EDGES)
    assert found == StateAssignment(retired=(TaskSnapshot(TaskId(OUT, 1), Snapshot()),))


def test_another_parallelism_is_told() -> None:
    before = checkpoint(2, counts=[Snapshot(), Snapshot()])
    found = state_assignment(before, 3, GROUPS, 0, [], ())
    assert found.rescaled_from == 2 and len(found.snapshots) == 3


# Watermarks.


def test_where_keys_are_shuffled_the_highest_watermark_counts_and_each_is_known() -> None:
    """What is on its way, at the watermark that its receiver had, comes before that."""
    old = [Snapshot(watermark=one) for one in (5, None, 9)]
    for one in of(rescaled(checkpoint(3, source=[Snapshot()] * 3, counts=old), 2, GROUPS, EDGES[:1]), COUNTS):
        assert (one.watermark, one.floors) == (9, (5, None, 9))


def test_elsewhere_the_lowest_counts() -> None:
    found = of(
        rescaled(checkpoint(2, out=[Snapshot(watermark=5), Snapshot(watermark=9)]), 3, GROUPS, ()), OUT
    )
    assert [(one.watermark, one.floors) for one in found] == [(5, ())] * 3
    found = of(rescaled(checkpoint(2, out=[Snapshot(), Snapshot(watermark=9)]), 1, GROUPS, ()), OUT)
    assert [one.watermark for one in found] == [None]


def test_each_split_keeps_its_watermark_wherever_it_goes() -> None:
    saved = [
        {"times": [5, {"a": 7, "b": 5}], "again": [4, {"": 4}]},
        {"times": [8, {"c": 8}], "again": [6, {"": 6}]},
    ]
    old = checkpoint(2, source=[Snapshot(assigned=one) for one in saved])
    for one in of(rescaled(old, 3, GROUPS, ()), SOURCE):
        assert one.assigned == {"times": [5, {"a": 7, "b": 5, "c": 8}], "again": [4, {"": 4}]}


def test_since_when_a_split_is_quiet_in_batches_is_known_wherever_it_goes() -> None:
    saved = [
        {"times": [5, {"a": 7}, {"b": 100}], "again": [4, {"": 4}, {"": 300}]},
        {"times": [8, {"c": 8}], "again": [6, {"": 6}, {"": 200}]},
    ]
    old = checkpoint(2, source=[Snapshot(assigned=one) for one in saved])
    for one in of(rescaled(old, 3, GROUPS, ()), SOURCE):
        # Something came to one of the tasks later than to the other.
        assert one.assigned == {
            "times": [5, {"a": 7, "c": 8}, {"b": 100}],
            "again": [4, {"": 4}, {"": 300}],
        }


def test_no_task_sees_a_time_again_that_was_over() -> None:
    """I-1: processing time."""
    old = checkpoint(2, counts=[Snapshot(now_ms=5), Snapshot(now_ms=9)])
    assert [one.now_ms for one in of(rescaled(old, 3, GROUPS, ()), COUNTS)] == [9, 9, 9]


def test_each_field_of_a_snapshot_has_been_thought_of() -> None:
    """Whoever adds one says here what becomes of it at another parallelism."""
    taken_over = {
        "parts", "positions", "pending", "ended", "said", "log", "records_in", "records_out",
        "late_records", "watermark", "assigned", "now_ms", "committed",
        "fields", "record_fields",
    }  # fmt: skip
    made_anew = {"predecessors", "floors"}
    # They are said of a checkpoint, and nobody restores them.
    not_restored = {"drained", "at_rest", "freeze_us", "in_flight", "state_keys"}
    assert {one.name for one in fields(Snapshot)} == taken_over | made_anew | not_restored


def test_classes_by_position_of_any_predecessor_are_known_to_all_tasks() -> None:
    """Rows of each go to any."""
    named: list[Any] = [None, {"shop:Pair": ["a", "b"]}, {"shop:Pair": ["a", "b"], "shop:Row": ["c"]}]
    before = checkpoint(3, counts=[Snapshot(fields=one) for one in named])
    found = of(rescaled(before, 2, GROUPS, ()), COUNTS)
    assert [one.fields for one in found] == [{"shop:Pair": ["a", "b"], "shop:Row": ["c"]}] * 2


def test_classes_of_records_are_known_to_who_gets_what_is_on_its_way() -> None:
    """The snapshot of a sender has what its barrier has overtaken."""
    before = checkpoint(
        2,
        source=[Snapshot(record_fields={"shop:Pair": ["a", "b"]}), Snapshot()],
        counts=[Snapshot(), Snapshot(record_fields={"shop:Row": ["c"]})],
        out=[Snapshot(), Snapshot()],
    )
    found = rescaled(before, 3, GROUPS, EDGES)
    both = {"shop:Pair": ["a", "b"], "shop:Row": ["c"]}
    assert [one.record_fields for one in of(found, COUNTS)] == [both] * 3
    assert [one.record_fields for one in of(found, OUT)] == [{"shop:Row": ["c"]}] * 3
