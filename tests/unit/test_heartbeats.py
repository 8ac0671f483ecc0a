"""How often a worker sends a heartbeat."""

import pytest

from crosscut.net.control import HEARTBEATS_PER_S_MAX, HEARTBEATS_PER_TIMEOUT, heartbeat_interval_s


def test_a_few_workers_say_ten_times_a_second_how_far_they_are() -> None:
    assert heartbeat_interval_s(10, 2) == 0.1
    assert heartbeat_interval_s(10, 200) == 0.1


@pytest.mark.parametrize("timeout_s", [0.2, 10, 60])
@pytest.mark.parametrize("parallelism", [1, 100, 10_000])
def test_a_timeout_is_always_some_heartbeats_long(timeout_s: float, parallelism: int) -> None:
    assert heartbeat_interval_s(timeout_s, parallelism) <= timeout_s / HEARTBEATS_PER_TIMEOUT


@pytest.mark.parametrize("parallelism", [1_000, 5_000])
def test_many_workers_leave_the_coordinator_time_for_other_things(parallelism: int) -> None:
    assert parallelism / heartbeat_interval_s(60, parallelism) <= HEARTBEATS_PER_S_MAX


@pytest.mark.parametrize(("cost_ms", "expected_s"), [(0.3, 0.1), (0.5, 0.1), (2.0, 0.4), (1_000.0, 2.5)])
def test_a_worker_with_many_tasks_counts_less_often_but_never_too_seldom_to_be_known_alive(
    cost_ms: float, expected_s: float
) -> None:
    assert heartbeat_interval_s(10, 2, cost_ms / 1e3) == pytest.approx(expected_s)
