"""Who has which place, and who waits for it."""

from crosscut.foundation.ids import AttemptId, Epoch, Lineage, WorkerIndex
from crosscut.protocol.effects import CloseLink, SendMessage
from crosscut.protocol.events import WorkersEnded
from crosscut.protocol.job.workers import Identity, WorkerRegistry
from crosscut.protocol.messages import DeployTasks, RegisterWorker
from crosscut.protocol.splits.rescaling import StateAssignment


def worker(index: int, attempt: int) -> RegisterWorker:
    return RegisterWorker(WorkerIndex(index), AttemptId(attempt), "10.0.0.1", 1, 40_000 + attempt)


def registry() -> WorkerRegistry:
    """Return one with worker 0 on link 10, a second attempt of it on link 11, and worker 1 on link 20."""
    found = WorkerRegistry(2, heartbeat_timeout_ms=1_000)
    for link, index, attempt in ((10, 0, 1), (11, 0, 2), (20, 1, 3)):
        register(found, link, worker(index, attempt))
    return found


def register(found: WorkerRegistry, link: int, newcomer: RegisterWorker) -> None:
    found.opened(link, Identity(newcomer.worker, newcomer.attempt))
    found.register(link, newcomer)


def test_a_link_is_known_by_the_place_it_holds_and_one_in_reserve_holds_none() -> None:
    found = registry()
    assert [found.index_of(link) for link in (10, 11, 20, 99)] == [0, None, 1, None]
    assert [found.knows(link) for link in (10, 11, 20, 99)] == [True, True, True, False]


def test_whoever_waits_has_the_place_once_its_holder_is_lost() -> None:
    found = registry()
    vacated = found.lose(10)
    assert vacated is not None and (vacated.index, vacated.place.link) == (0, 10)
    assert (found.index_of(10), found.index_of(11), found.knows(10)) == (None, 0, False)
    assert found.lose(10) is None


def test_one_in_reserve_that_is_lost_vacates_nothing() -> None:
    found = registry()
    assert found.lose(11) is None
    assert (found.knows(11), found.index_of(10)) == (False, 0)
    vacated = found.lose(10)
    assert vacated is not None and not found.is_full


def test_one_that_was_turned_away_is_not_known() -> None:
    found = registry()
    register(found, 12, worker(0, 4))
    assert not found.knows(12)
    assert found.lose(12) is None


def test_no_worker_is_known_after_spark_has_ended_all() -> None:
    found = registry()
    effects, cause = found.ended(WorkersEnded("cancelled"))
    assert effects == [CloseLink(10), CloseLink(20), CloseLink(11)]
    assert (cause.kind, cause.message) == ("SparkJobEnded", "Spark ended the workers: cancelled")
    assert not any(found.knows(link) for link in (10, 11, 20))


# Addresses


def told(found: WorkerRegistry, epoch: int) -> dict[int, list[int]]:
    """Deploy; return the attempts whose addresses each link is told of."""
    said = {}
    for effect in found.deploy(Epoch(epoch), Lineage("l"), StateAssignment(), (), "driver", lambda _: 0):
        assert isinstance(effect, SendMessage)
        assert isinstance(effect.message, DeployTasks)
        said[effect.link] = [peer.data_port - 40_000 for peer in effect.message.peers]
    return said


def test_the_lower_of_two_workers_is_told_of_the_other_and_nobody_twice() -> None:
    found = registry()
    assert told(found, 1) == {10: [3], 20: []}
    assert told(found, 2) == {10: [], 20: []}


def test_one_who_waited_for_long_is_told_of_all_above() -> None:
    found = registry()
    told(found, 1)
    found.lose(10)
    assert told(found, 2) == {11: [3], 20: []}
    assert told(found, 3) == {11: [], 20: []}


def test_one_who_was_not_there_at_a_failover_is_told_of_what_it_missed() -> None:
    found = registry()
    told(found, 1)
    found.lose(20)
    found.lose(10)
    # Worker 0 goes through an epoch that worker 1 has no part in.
    assert told(found, 2) == {11: []}
    register(found, 21, worker(1, 4))
    assert told(found, 3) == {11: [4], 21: []}


def test_a_link_that_is_used_again_has_been_told_nothing() -> None:
    found = registry()
    told(found, 1)
    found.lose(20)
    register(found, 20, worker(1, 5))
    assert told(found, 2) == {10: [5], 20: []}
    found.lose(10)
    found.lose(11)
    register(found, 10, worker(0, 6))
    assert told(found, 3) == {10: [5], 20: []}


def test_what_a_failover_says_of_addresses_grows_with_the_workers_and_not_with_their_square() -> None:
    count = 200
    found = WorkerRegistry(count, heartbeat_timeout_ms=1_000)
    for index in range(count):
        register(found, index, worker(index, index))
    assert sum(map(len, told(found, 1).values())) == count * (count - 1) // 2
    found.lose(7)
    register(found, count, worker(7, count))
    assert sum(map(len, told(found, 2).values())) == count - 1
