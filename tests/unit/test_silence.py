"""Sources that give nothing and do not say why: told once, by the driver's own clock."""

from crosscut.foundation.ids import TaskId, VertexId
from crosscut.monitoring.silent_sources import SILENT_S, Silences, SilentSource
from crosscut.protocol.messages import TaskStatistics

TASK = TaskId(VertexId("numbers"), 1)
SECOND_NS = 1_000_000_000
LONG_NS = int(SILENT_S) * SECOND_NS


def silent(split: str = "a") -> list[TaskStatistics]:
    return [TaskStatistics(TASK, empty_split=split)]


def test_a_source_that_has_given_nothing_for_long_enough_is_told_of_once() -> None:
    silences = Silences()
    assert silences.note(SECOND_NS, silent()) == []
    assert silences.note(LONG_NS, silent()) == []
    (text,) = silences.note(SECOND_NS + LONG_NS, silent())
    assert text.startswith("source numbers[1] has given nothing for 10 s though it is not drained")
    assert "split 'a' returns empty lists" in text
    assert silences.note(2 * LONG_NS, silent()) == []
    assert silences.status(3 * LONG_NS + SECOND_NS) == (SilentSource(TASK, "a", 30.0),)


def test_a_source_that_gives_something_again_is_as_good_as_new() -> None:
    silences = Silences()
    silences.note(0, silent())
    assert len(silences.note(LONG_NS, silent())) == 1
    assert silences.note(LONG_NS + 1, silent("")) == []
    assert silences.status(9 * LONG_NS) == ()
    assert silences.note(2 * LONG_NS, silent("b")) == []
    assert len(silences.note(3 * LONG_NS, silent("b"))) == 1


def test_a_short_silence_and_a_source_that_waits_are_nobodys_business() -> None:
    silences = Silences()
    silences.note(0, [*silent(), TaskStatistics(TaskId(VertexId("other"), 0))])
    assert silences.status(LONG_NS - 1) == ()
