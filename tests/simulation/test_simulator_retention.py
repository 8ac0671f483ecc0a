"""What a job that lives long leaves in its store: as much as one that does not."""

from __future__ import annotations

from dataclasses import replace

from tests.proof.worlds.graphs import built

from crosscut.testing.simulator.options import options_of
from crosscut.testing.simulator.world import World

SEGMENT_ENTRIES = 50
RETAINED = 3


def world_of(length_ms: int) -> World:
    """A job without faults that takes a checkpoint every few milliseconds for so long."""
    options = replace(
        options_of(1, ("totals",), ("aligned",)),
        faults=(),
        theme="",
        parallelism=1,
        splits_per_task=1,
        record_count=200,
        batch_rows=10,
        source_ms=length_ms,
        is_periodic=True,
        interval_ms=4,
        pause_ms=0,
        in_flight_max=1,
        retain=RETAINED,
        segment_entries_max=SEGMENT_ENTRIES,
        inline_bytes=0,
        is_encrypted=False,
        latency_us=20,
        step_us=10,
        store_us=50,
        checkpoint_timeout_ms=1_000,
        heartbeat_timeout_ms=1_000,
        safety_ms=0,
    )
    world = World(options, built(options))
    world.run()
    return world


def test_a_store_is_no_larger_after_a_thousand_checkpoints_than_after_a_hundred() -> None:
    """I11. Only one entry of each older segment of the job log stays, which leads from one to the next."""
    short, long = world_of(1_000), world_of(8_000)
    assert len(short.checkers.completed) > 100
    assert len(long.checkers.completed) > 1_000
    for world in (short, long):
        content = world.files.content
        segments = len(world.checkers.completed) // SEGMENT_ENTRIES + 1
        parts = [path for path in content if path.startswith("parts/")]
        log = [path for path in content if path.startswith("log/")]
        assert len(parts) <= 10 * RETAINED, sorted(parts)
        assert len(log) <= 2 * SEGMENT_ENTRIES + 2 * segments, sorted(log)

    def stored(world: World, kind: str) -> int:
        return sum(len(data) for path, data in world.files.content.items() if path.startswith(kind))

    assert stored(long, "parts/") < 3 * stored(short, "parts/")
    # How many entries the newest segment has is a matter of the moment at which the job ends.
    per_entry = [
        stored(one, "log/") / sum(path.startswith("log/") for path in one.files.content)
        for one in (short, long)
    ]
    assert per_entry[1] < 3 * per_entry[0]
