"""Jobs that go on at another parallelism each time their driver dies (H1): the output is exact."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.drawn import drawn_options, world_of
from tests.proof.worlds.graphs import GRAPHS
from tests.proof.worlds.shrinking import live, report

from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.options import PROTOCOLS, Options, PlannedFault, options_of

WORLDS = 14
WAYS = ((3, 1, 4), (1, 3), (4, 2), (2, 1, 3))
DEATHS: dict[str, Any] = {"interval_ms": 10, "pause_ms": 0, "in_flight_max": 1, "spark_start_ms": 5}
CROWD: dict[str, Any] = {
    "step_us": 2_000,
    "latency_us": 100,
    "store_us": 200,
    "checkpoint_timeout_ms": 1_000,
    "channel_bytes": 50,
    "batch_rows": 3,
    "record_count": 25,
    "source_ms": 20,
    "safety_ms": 800,
}
"""Much is on its way whenever a driver dies."""


def world(seed: int, protocol: ProtocolKind) -> Options:
    drawn = drawn_options(seed, (protocol,)) if seed % 2 else options_of(seed, tuple(GRAPHS), (protocol,))
    crowd = CROWD if seed % 4 < 2 and not drawn.flow else {}
    options = replace(drawn, is_periodic=True, **DEATHS, **crowd)
    gap_ms = max(options.safety_ms // 8, 40)
    deaths = (PlannedFault(at_ms, "kill the driver") for at_ms in range(gap_ms, options.safety_ms, gap_ms))
    faults = sorted((*options.faults[::3], *deaths), key=lambda one: one.at_ms)
    return replace(options, parallelism=2, rescaled_to=WAYS[seed % len(WAYS)], faults=tuple(faults))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_job_goes_on_at_any_parallelism_with_exact_output(protocol: ProtocolKind) -> None:
    seen: Counter[str] = Counter()
    for seed in range(WORLDS):
        life = live(world(seed, protocol), None, world_of)
        assert not life.failure, report(life)
        seen += life.seen
    must = ["rescaled", "rescaled: logical sink tasks retired"]
    if protocol == "unaligned":
        must += ["rescaled: records on their way"]
    missing = [name for name in must if not seen[name]]
    assert not missing, f"{missing} in no world: {sorted(seen.items())}"


@pytest.mark.parametrize("protocol", ["unaligned", "switching"])
def test_records_of_a_key_keep_their_order_on_edges_that_are_not_by_key(protocol: ProtocolKind) -> None:
    """I16: of two records on their way, and of one that is read later, in calls too."""
    seen: Counter[str] = Counter()
    for seed in range(8):
        drawn = options_of(seed, ("detours",), (protocol,))
        deaths = tuple(PlannedFault(at_ms, "kill the driver") for at_ms in range(60, 800, 60))
        crowd: dict[str, Any] = {**DEATHS, **CROWD, "faults": deaths, "is_periodic": True}
        life = live(replace(drawn, parallelism=2, rescaled_to=WAYS[seed % len(WAYS)], **crowd))
        assert not life.failure, report(life)
        seen += life.seen
    assert seen["rescaled: records on their way"]
