"""State that only ever grows is told of, once."""

from __future__ import annotations

from crosscut.foundation.ids import TaskId, VertexId
from crosscut.monitoring.state_growth import WINDOW_S, WINDOWS_MIN, GrowingState, Growths
from crosscut.protocol.messages import TaskStatistics

WINDOW_NS = int(WINDOW_S * 1e9)


def tasks(rows: int, other: int = 5) -> list[TaskStatistics]:
    """Half of the rows are in either task; the state of another vertex stays as it is."""
    parts = [
        (VertexId("seen"), 0, rows // 2),
        (VertexId("seen"), 1, rows - rows // 2),
        (VertexId("b"), 0, other),
    ]
    return [TaskStatistics(TaskId(vertex, index), state_keys=count) for vertex, index, count in parts]


def test_state_that_grows_window_after_window_is_told_of_once() -> None:
    growths = Growths()
    told = []
    for window in range(WINDOWS_MIN + 3):
        for moment in range(3):
            rows = 1_000 + window * 600 + moment * 200
            told += growths.note(window * WINDOW_NS + moment * WINDOW_NS // 3, tasks(rows))
        assert bool(growths.status()) == (window >= WINDOWS_MIN)
    (text,) = told
    assert text == (
        "the state of 'seen' has grown for 5 minutes without a pause, from 1,000 to 4,000 rows: if its keys "
        "have no end, let values expire (ttl=), or clear them"
    )
    assert growths.status() == (GrowingState(VertexId("seen"), 5_600, 10.0, 7 * WINDOW_S),)


def test_state_that_has_come_to_its_size_is_nobodys_business() -> None:
    growths = Growths()
    told = []
    for window in range(4 * WINDOWS_MIN):
        rows = min(1_000 + 1_000 * window, 4_000) + window
        told += growths.note(window * WINDOW_NS, tasks(rows))
    assert (told, growths.status()) == ([], ())


def test_a_pause_or_a_way_back_begins_the_count_anew() -> None:
    growths = Growths()
    now_ns, rows = 0, 1_000
    for _ in range(3):
        for _ in range(WINDOWS_MIN):
            assert growths.note(now_ns, tasks(rows)) == []
            now_ns, rows = now_ns + WINDOW_NS, rows * 2
        rows //= 4
    assert growths.status() == ()
