"""Who has which place, and who waits for it."""

from crosscut.ids import AttemptId, WorkerIndex
from crosscut.protocol.job.roster import Roster
from crosscut.protocol.messages import RegisterWorker


def worker(index: int, attempt: int) -> RegisterWorker:
    return RegisterWorker(WorkerIndex(index), AttemptId(attempt), "10.0.0.1", 1, 2)


def roster() -> Roster:
    """Return one with worker 0 on link 10, a second attempt of it on link 11, and worker 1 on link 20."""
    found = Roster(2, heartbeat_timeout_ms=1_000)
    for link, index, attempt in ((10, 0, 1), (11, 0, 2), (20, 1, 3)):
        found.register(link, worker(index, attempt))
    return found


def test_a_link_is_known_by_the_place_it_holds_and_one_in_reserve_holds_none() -> None:
    found = roster()
    assert [found.index_of(link) for link in (10, 11, 20, 99)] == [0, None, 1, None]
    assert [found.knows(link) for link in (10, 11, 20, 99)] == [True, True, True, False]


def test_whoever_waits_has_the_place_once_its_holder_is_lost() -> None:
    found = roster()
    vacated = found.lose(10)
    assert vacated is not None and (vacated.index, vacated.place.link) == (0, 10)
    assert (found.index_of(10), found.index_of(11), found.knows(10)) == (None, 0, False)
    assert found.lose(10) is None


def test_one_in_reserve_that_is_lost_vacates_nothing() -> None:
    found = roster()
    assert found.lose(11) is None
    assert (found.knows(11), found.index_of(10)) == (False, 0)
    vacated = found.lose(10)
    assert vacated is not None and not found.is_full


def test_one_that_was_turned_away_is_not_known() -> None:
    found = roster()
    found.register(12, worker(0, 4))
    assert not found.knows(12)
    assert found.lose(12) is None


def test_nobody_is_known_after_all_were_dismissed() -> None:
    found = roster()
    assert {place.link for place in found.dismiss_all()} == {10, 11, 20}
    assert not any(found.knows(link) for link in (10, 11, 20))
