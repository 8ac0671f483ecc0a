"""How often a worker sends a heartbeat."""

import pytest

from crosscut.net.control import (
    HEARTBEATS_PER_S_MAX,
    HEARTBEATS_PER_TIMEOUT,
    HeartbeatSchedule,
    heartbeat_interval_s,
)


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


def beats(cost_ms: float, load: float, timeout_s: float = 10) -> float:
    """Return how often a worker beats in the end that uses such a share of a processor."""
    pace, now_ns, used_ns, interval_s = HeartbeatSchedule(timeout_s, 2), 0, 0, 0.0
    for _ in range(20):
        cost_ns = int(cost_ms * 1e6)
        interval_s = pace.next_s(now_ns, used_ns, used_ns + cost_ns)
        now_ns += int(interval_s * 1e9)
        used_ns += int(interval_s * load * 1e9)
    return interval_s


@pytest.mark.parametrize("load", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("cost_ms", [0.05, 0.3, 2.0])
def test_heartbeats_cost_a_worker_half_a_percent_of_what_it_has_of_a_processor(
    cost_ms: float, load: float
) -> None:
    interval_s = beats(cost_ms, load)
    assert cost_ms / 1e3 / (interval_s * load) == pytest.approx(0.005) or interval_s == 0.1
    assert cost_ms / 1e3 / (interval_s * load) < 0.005_1


def test_a_worker_with_nothing_to_do_or_much_to_say_is_known_alive_all_the_same() -> None:
    assert beats(0.1, 0.0) == 0.1
    assert beats(0.4, 0.0) == pytest.approx(0.32)
    assert beats(1_000.0, 1.0) == 2.5
    assert beats(1_000.0, 0.1, timeout_s=1) == 0.25


def test_a_heartbeat_that_was_held_up_once_puts_off_none() -> None:
    pace = HeartbeatSchedule(10, 2)
    assert pace.next_s(0, 0, 100_000) == 0.1
    assert pace.next_s(100_000_000, 100_000_000, 150_000_000) == 0.1


def test_what_most_heartbeats_cost_counts_and_not_the_cheapest() -> None:
    pace, found = HeartbeatSchedule(10, 2), 0.0
    for beat, cost_ms in enumerate((1, 3, 3, 1, 3, 3, 1, 3)):
        at_ns = beat * 1_000_000_000
        found = pace.next_s(at_ns, at_ns, at_ns + cost_ms * 1_000_000)
    assert found == pytest.approx(0.6)
