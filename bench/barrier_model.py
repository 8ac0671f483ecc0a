"""How long a barrier takes through a chain of all-to-all shuffles, in virtual time: a model, not a run.

P workers host task i of each vertex of a chain. The coordinator, one thread, sends a trigger to one
worker after the other. A source that is triggered captures and sends the barrier to each of the P tasks
of the next vertex; a task that has it from all P inputs does the same. Every message takes `hop_us` to
arrive, sending or handling one takes its worker's one thread, and messages of one vertex are handled in
the order in which they arrive, those of an earlier vertex first.

There are 3 P^2 channels, 18.75 million at 10,000 tasks: more than there could be an object for each of.
None is needed. The barriers from task i reach task j at `sent(i) + (j + 1) * send + hop`, the same order
for every j, so what a task waits for is a maximum that all share, shifted by its own place:

    captured(j) = max(max over i of (sent(i) + (P - rank(i)) * handle) + (j + 1) * send + hop,
                      free(j) + P * handle)

P operations a shuffle instead of P^2. tests/unit/test_bench_barrier_model.py holds it against the real
protocol machines on real channels, one event at a time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """What one message costs, in microseconds.

    Attributes:
        hop_us: From leaving one process to being readable in another.
        trigger_us: The coordinator, for each TriggerCheckpoint.
        start_us: A source, to take a trigger and capture.
        send_us: A task, to send one barrier.
        handle_us: A task, to take one barrier in.
    """

    hop_us: float
    trigger_us: float
    start_us: float
    send_us: float
    handle_us: float


def barrier_latency_us(parallelism: int, shuffles: int, costs: Costs) -> float:
    """Return the time from the first trigger to the moment when the last task has captured."""
    places = range(1, parallelism + 1)
    captured = [place * costs.trigger_us + costs.hop_us + costs.start_us for place in places]
    for _ in range(shuffles):
        last_us = max(at + (parallelism - rank) * costs.handle_us for rank, at in enumerate(sorted(captured)))
        free = [at + parallelism * costs.send_us for at in captured]
        captured = [
            max(last_us + place * costs.send_us + costs.hop_us, at + parallelism * costs.handle_us)
            for place, at in zip(places, free, strict=True)
        ]
    return max(captured)
