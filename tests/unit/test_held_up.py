"""Watermarks that never move: told once, with whom everybody waits for, by the driver's own clock."""

from __future__ import annotations

from crosscut.foundation.ids import TaskId, VertexId
from crosscut.monitoring.stalled_watermarks import STILL_S, StillWatermark, StillWatermarks
from crosscut.protocol.messages import TaskStatistics

TASK = TaskId(VertexId("windows"), 1)
SECOND_NS = 1_000_000_000
LONG_NS = int(STILL_S) * SECOND_NS


def at(watermark: int | None, records_in: int, held_up_by: str = "source[2]") -> list[TaskStatistics]:
    return [TaskStatistics(TASK, records_in, watermark=watermark, held_up_by=held_up_by)]


def test_a_watermark_that_stands_still_while_records_come_is_told_of_once_with_who_holds_it_up() -> None:
    watermarks = StillWatermarks()
    assert watermarks.note(0, at(None, 5)) == []
    assert watermarks.note(LONG_NS - 1, at(None, 9)) == []
    (text,) = watermarks.note(LONG_NS, at(None, 9))
    assert "watermark of windows[1] has not moved for 30 s" in text
    assert "source[2] holds it up" in text
    assert watermarks.note(2 * LONG_NS, at(None, 20)) == []
    assert watermarks.status(2 * LONG_NS) == (StillWatermark(TASK, None, "source[2]", 60.0),)
    # It moves: all is well, until it stands still again.
    assert watermarks.note(2 * LONG_NS, at(7, 21)) == []
    assert watermarks.status(9 * LONG_NS) == ()
    assert watermarks.note(3 * LONG_NS, at(7, 22)) != []


def test_where_no_records_come_nothing_has_to_move() -> None:
    watermarks = StillWatermarks()
    for second in range(0, 3 * int(STILL_S), 10):
        assert watermarks.note(second * SECOND_NS, at(7, 5)) == []
    assert watermarks.status(9 * LONG_NS) == ()


def test_a_task_that_waits_for_nobody_is_no_matter() -> None:
    watermarks = StillWatermarks()
    watermarks.note(0, at(7, 5))
    watermarks.note(1, at(7, 6, held_up_by=""))
    assert watermarks.note(LONG_NS + 1, at(7, 7)) == []
    assert watermarks.status(9 * LONG_NS) == ()


def test_who_is_held_up_by_one_that_is_held_up_is_not_told_of_as_well() -> None:
    """One split may hold up every task of a job: it is one thing to be mended."""
    watermarks = StillWatermarks()
    first, second = (TaskId(VertexId(name), 0) for name in ("times", "windows"))

    def heard(second_s: int, records_in: int, *, has_input: bool = True) -> list[str]:
        cause = TaskStatistics(first, records_in if has_input else 5, watermark=7, held_up_by="split-3")
        behind = TaskStatistics(second, records_in, watermark=7, held_up_by=str(first))
        return watermarks.note(second_s * SECOND_NS, [cause, behind])

    assert heard(0, 5) == []
    (text,) = heard(int(STILL_S), 6)
    assert "watermark of times[0]" in text and "split-3 holds it up" in text
    assert [one.task for one in watermarks.status(2 * LONG_NS)] == [first, second]
    # Where nothing comes in nobody waits for it to move; whoever gets records from elsewhere does.
    watermarks = StillWatermarks()
    assert heard(0, 5, has_input=False) == []
    (text,) = heard(int(STILL_S), 6, has_input=False)
    assert "watermark of windows[0]" in text and "times[0] holds it up" in text
