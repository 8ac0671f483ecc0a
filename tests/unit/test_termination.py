"""What a cut says about the end of a job: every case of the decision, on the graphs that it is made for."""

from __future__ import annotations

from itertools import product

import pytest

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.protocol.checkpoint.termination import (
    FIRST_PAUSE_MS,
    Component,
    DrainBackoff,
    Termination,
    heads_to_close,
    is_exhausted,
    stillness,
    termination,
)
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot

DRAINED = Snapshot(drained=True, ended=True, at_rest=True)
"""It has said all, for good."""
WAITING = Snapshot(at_rest=True)
"""It holds nothing, and more may come to it: a record, or the end of its input."""
TOLD = Snapshot(ended=True, at_rest=True)
"""Its operators were told of the end in an older epoch; in this one the end has not come to it yet."""
LOGGING = Snapshot(in_flight=1)
"""A record is on its way to it or from it."""
SENDING = Snapshot(ended=True, in_flight=1)
"""It has ended, and the barrier has overtaken some of what it said."""


def component(members: str, feeders: str, heads: str = "") -> Component:
    return Component(
        frozenset(map(VertexId, members)), frozenset(map(VertexId, feeders)), tuple(map(VertexId, heads))
    )


def cut(**vertices: Snapshot | tuple[Snapshot, ...]) -> tuple[TaskSnapshot, ...]:
    """Snapshots by vertex, of all its tasks."""
    return tuple(
        TaskSnapshot(TaskId(VertexId(vertex), index), one)
        for vertex, snapshots in vertices.items()
        for index, one in enumerate(snapshots if isinstance(snapshots, tuple) else (snapshots,))
    )


def closed(*loops: Component, **vertices: Snapshot | tuple[Snapshot, ...]) -> str:
    return "".join(heads_to_close(loops, stillness(cut(**vertices))))


# a -> (h -> b -> h) -> z
LOOP = component("hb", "a", "h")


def test_a_loop_is_closed_when_what_feeds_it_is_drained_and_its_members_are_at_rest() -> None:
    """G4: the stable property."""
    assert closed(LOOP, a=DRAINED, h=WAITING, b=WAITING, z=WAITING) == "h"


def test_a_loop_whose_feeder_may_still_speak_is_not_closed() -> None:
    """A final result is said when the input has ended, and the loop has been empty until then."""
    assert closed(LOOP, a=WAITING, h=WAITING, b=WAITING, z=WAITING) == ""


def test_a_loop_is_not_closed_if_its_feeder_has_ended_and_its_last_records_were_overtaken() -> None:
    assert closed(LOOP, a=SENDING, h=WAITING, b=WAITING, z=WAITING) == ""


def test_what_an_older_epoch_has_told_a_feeder_closes_nothing() -> None:
    """At least once: what comes again goes through a task that had ended on the cut that was restored."""
    assert closed(LOOP, a=TOLD, h=WAITING, b=WAITING, z=WAITING) == ""


@pytest.mark.parametrize("restless", ["h", "b"])
def test_a_loop_in_which_a_record_goes_round_is_not_closed(restless: str) -> None:
    others = {"a": DRAINED, "h": WAITING, "b": WAITING, "z": WAITING}
    assert closed(LOOP, **(others | {restless: LOGGING})) == ""


def test_every_task_of_every_vertex_counts() -> None:
    still = {"a": (DRAINED, DRAINED), "h": (WAITING, WAITING), "b": (WAITING, WAITING)}
    assert closed(LOOP, **still) == "h"
    assert closed(LOOP, **(still | {"a": (DRAINED, WAITING)})) == ""
    assert closed(LOOP, **(still | {"b": (WAITING, LOGGING)})) == ""


def test_what_is_behind_a_loop_and_beside_it_does_not_matter() -> None:
    assert closed(LOOP, a=DRAINED, h=WAITING, b=WAITING, z=LOGGING, source=WAITING) == "h"


def test_a_loop_is_named_until_all_its_tasks_are_drained() -> None:
    """A word that got lost is said again; one that comes twice makes no difference."""
    assert closed(LOOP, a=DRAINED, h=DRAINED, b=WAITING) == "h"
    assert closed(LOOP, a=DRAINED, h=(DRAINED, WAITING), b=DRAINED) == "h"
    assert closed(LOOP, a=DRAINED, h=DRAINED, b=DRAINED) == ""


def test_after_a_restore_a_loop_that_was_closed_is_open_until_a_cut_of_the_new_epoch_shows_it() -> None:
    assert closed(LOOP, a=TOLD, h=TOLD, b=TOLD) == ""
    assert closed(LOOP, a=DRAINED, h=TOLD, b=TOLD) == "h"


def test_of_loops_in_a_row_each_is_closed_in_its_turn() -> None:
    """a -> (h) -> c, a final count -> (k) -> z"""
    first, second = component("h", "a", "h"), component("k", "c", "k")
    assert closed(first, second, a=DRAINED, h=WAITING, c=WAITING, k=WAITING) == "h"
    assert closed(first, second, a=DRAINED, h=DRAINED, c=WAITING, k=WAITING) == ""
    assert closed(first, second, a=DRAINED, h=DRAINED, c=SENDING, k=LOGGING) == ""
    assert closed(first, second, a=DRAINED, h=DRAINED, c=DRAINED, k=LOGGING) == ""
    assert closed(first, second, a=DRAINED, h=DRAINED, c=DRAINED, k=WAITING) == "k"


def test_a_loop_that_feeds_a_loop_is_a_feeder_like_any_other() -> None:
    first, second = component("h", "a", "h"), component("k", "h", "k")
    assert closed(first, second, a=DRAINED, h=WAITING, k=WAITING) == "h"
    assert closed(first, second, a=DRAINED, h=DRAINED, k=WAITING) == "k"


def test_loops_beside_each_other_are_closed_at_once() -> None:
    first, second = component("h", "a", "h"), component("k", "b", "k")
    assert closed(first, second, a=DRAINED, b=DRAINED, h=WAITING, k=WAITING) == "hk"
    assert closed(first, second, a=DRAINED, b=WAITING, h=WAITING, k=WAITING) == "h"


def test_loops_that_share_a_vertex_are_closed_together() -> None:
    """Nested: a -> (h -> (i -> b -> i) -> c -> h) -> z"""
    nested = component("hibc", "a", "hi")
    assert closed(nested, a=DRAINED, h=WAITING, i=WAITING, b=WAITING, c=WAITING) == "hi"
    assert closed(nested, a=DRAINED, h=WAITING, i=LOGGING, b=WAITING, c=WAITING) == ""


def test_a_vertex_in_no_loop_is_exhausted_by_the_same_rule() -> None:
    """So a deadlock is told from results that are still to come."""
    waiting = component("c", "ab")
    for a, b, c in product((DRAINED, WAITING, SENDING), (DRAINED, WAITING), (WAITING, LOGGING)):
        is_over = is_exhausted(waiting, stillness(cut(a=a, b=b, c=c)))
        assert is_over == (a is DRAINED and b is DRAINED and c is WAITING)


# How near the end


def checkpoint(*, is_final: bool = False, **vertices: Snapshot) -> CheckpointCompleted:
    return CheckpointCompleted(Epoch(1), CheckpointId(1), cut(**vertices), is_final)


@pytest.mark.parametrize(
    ("completed", "is_drained", "expected"),
    [
        (None, False, Termination.OPEN),
        (None, True, Termination.DRAINED),
        (checkpoint(a=DRAINED, h=WAITING, b=WAITING), False, Termination.OPEN),
        (checkpoint(a=DRAINED, h=WAITING, b=LOGGING), True, Termination.DRAINED),
        (checkpoint(a=DRAINED, h=WAITING, b=WAITING), True, Termination.QUIET),
        (checkpoint(a=DRAINED, h=DRAINED, b=DRAINED), True, Termination.QUIET),
        (checkpoint(a=DRAINED, h=DRAINED, b=DRAINED, is_final=True), True, Termination.FINAL),
        (checkpoint(a=DRAINED, h=DRAINED, b=DRAINED, is_final=True), False, Termination.FINAL),
    ],
)
def test_how_near_the_end_a_job_is(
    completed: CheckpointCompleted | None, is_drained: bool, expected: Termination
) -> None:
    assert termination(completed, (LOOP,), is_drained=is_drained) is expected


def test_a_job_without_loops_is_drained_and_then_final() -> None:
    assert termination(checkpoint(a=DRAINED, c=WAITING), (), is_drained=True) is Termination.DRAINED


# When to look again


def test_each_pause_between_looks_is_twice_the_one_before_up_to_the_interval() -> None:
    backoff = DrainBackoff(100)
    assert [backoff.next_ms(()) for _ in range(6)] == [FIRST_PAUSE_MS, 20, 40, 80, 100, 100]


def test_when_a_loop_is_closed_it_is_worth_looking_soon_but_once_only() -> None:
    backoff = DrainBackoff(1_000)
    head, other = VertexId("h"), VertexId("k")
    waited = [backoff.next_ms(closing) for closing in ((), (), (head,), (head,), (head,), (other,), ())]
    assert waited == [10, 20, 10, 20, 40, 10, 20]


def test_a_new_epoch_looks_soon_again() -> None:
    backoff = DrainBackoff(1_000)
    head = VertexId("h")
    assert [backoff.next_ms((head,)) for _ in range(3)] == [10, 20, 40]
    backoff.restart()
    assert [backoff.next_ms(()), backoff.next_ms((head,))] == [10, 10]
