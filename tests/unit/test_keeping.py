"""What is kept of the log: old segments are deleted when nothing needs them, and what fences them stays."""

from __future__ import annotations

from tests.proof.stores import at, checkpoint, claim, closed

from crosscut.protocol.checkpoint.retention import Retention, ended, left_over
from crosscut.protocol.effects import DeleteParts, StartTimer
from crosscut.protocol.events import Timer
from crosscut.protocol.log.entries import SegmentOpened

HEAD = SegmentOpened(claim(1), None)
SECOND = SegmentOpened(claim(2), at(4))
THIRD = SegmentOpened(claim(2), at(2, 2))


def test_of_a_segment_that_was_closed_the_head_and_what_closed_it_are_kept() -> None:
    tail = [(at(3), checkpoint(1, 2)), (at(4), closed(2)), (at(0, 2), SECOND), (at(1, 2), checkpoint(2, 3))]
    assert ended(tail) == (at(3), at(2), at(1)), "nobody who reads back comes to what is left meanwhile"


def test_of_a_segment_that_its_own_driver_left_the_head_is_kept() -> None:
    tail = [(at(0, 2), SECOND), (at(1, 2), checkpoint(2, 3)), (at(2, 2), claim(3)), (at(0, 3), THIRD)]
    assert ended(tail) == (at(2, 2), at(1, 2))


def test_nothing_is_known_of_a_segment_that_was_not_read() -> None:
    assert ended([(at(0, 2), SECOND), (at(1, 2), checkpoint(2, 3))]) == ()
    assert ended([(at(0), HEAD)]) == ()


def test_what_is_left_over_in_segments_that_nothing_needs_is_swept_but_for_the_newest_of_each() -> None:
    """That may be what closed it: a driver died before it could delete the rest."""
    listed = [at(2), at(3), at(4), at(7, 2), at(1, 3), at(2, 3), at(1, 4), at(2, 4)]
    assert left_over(listed, 4) == (at(3), at(2), at(1, 3))
    assert left_over(listed, 3) == (at(3), at(2))
    assert left_over(listed, 0) == ()


def test_a_head_is_never_swept() -> None:
    assert left_over([at(0), at(0, 2), at(1, 2)], 9) == ()


# The machine that remembers


def kept(retain: int = 2) -> Retention:
    """Return what a driver keeps that has just opened segment 2."""
    machine = Retention(retain, 60_000)
    entries = [(at(2), checkpoint(1, 1)), (at(3), checkpoint(1, 2)), (at(4), closed(2))]
    machine.found([*entries, (at(0, 2), SECOND)])
    return machine


def test_an_old_segment_is_deleted_when_no_retained_checkpoint_is_in_it_and_not_before() -> None:
    """I8: its successor is durable, and holds all that is needed."""
    machine = kept()
    assert machine.delete(frozenset()) == []
    machine.add(checkpoint(2, 3), 2, ())
    assert machine.delete(frozenset()) == []
    machine.add(checkpoint(2, 4), 2, ())
    call = DeleteParts((), (at(3), at(2), at(1)))
    assert machine.delete(frozenset()) == [call, StartTimer(Timer("delete"), 60_000)]
    machine.deleted()
    assert machine.delete(frozenset()) == [], "once"


def test_a_segment_that_the_driver_leaves_itself_is_deleted_likewise() -> None:
    machine = kept(retain=1)
    machine.add(checkpoint(2, 3), 2, ())
    machine.deleted() if machine.delete(frozenset()) else None
    machine.add(checkpoint(2, 4), 3, (at(1, 2),))
    (call, _) = machine.delete(frozenset())
    assert call == DeleteParts((), (at(1, 2),))


def test_what_others_have_left_of_old_segments_is_deleted_with_the_next() -> None:
    machine = kept()
    machine.add(checkpoint(2, 3), 2, ())
    machine.add(checkpoint(2, 4), 2, ())
    machine.delete(frozenset())
    machine.deleted()
    machine.waste_entries([at(2), at(4), at(1, 2), at(2, 2)])
    (call, _) = machine.delete(frozenset())
    assert call == DeleteParts((), (at(2),))


def test_while_nothing_is_complete_nothing_is_swept() -> None:
    """The oldest segment that is needed is not known."""
    machine = Retention(2, 60_000)
    machine.found([(at(0), HEAD)])
    machine.waste_entries([at(1), at(2), at(1, 2), at(2, 2)])
    assert machine.delete(frozenset()) == []
