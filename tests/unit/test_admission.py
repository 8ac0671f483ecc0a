"""Who is worker i: one live attempt for each place (C5)."""

from tests.simulation.conversation import registration

from crosscut.foundation.ids import WorkerIndex
from crosscut.protocol.job.workers import Admit, KeepOnStandby, RegisteredAttempt, TurnAway, admission

HELD = {WorkerIndex(0): RegisteredAttempt(11, registration(0, 1))}
WAITING = {WorkerIndex(0): RegisteredAttempt(12, registration(0, 2))}


def test_a_free_place_is_given_to_whoever_comes() -> None:
    assert admission(registration(1, 2), 2, HELD, {}) == Admit()


def test_a_second_live_attempt_waits() -> None:
    """C5: speculation, a slow kill: its attempt number may be the same, its id is not."""
    assert admission(registration(0, 2), 2, HELD, {}) == KeepOnStandby()


def test_a_third_live_attempt_is_turned_away() -> None:
    decision = admission(registration(0, 3), 2, HELD, WAITING)
    assert decision == TurnAway("worker 0 is held by one live attempt, and a second one waits already")


def test_the_holder_itself_can_not_come_a_second_time() -> None:
    decision = admission(registration(0, 1), 2, HELD, {})
    assert decision == TurnAway("attempt 1 of worker 0 is registered already")


def test_a_worker_that_the_job_does_not_have_is_turned_away() -> None:
    for index in (-1, 2):
        expected = TurnAway(f"worker {index} of a job that has workers 0 to 1")
        assert admission(registration(index, 1), 2, {}, {}) == expected
