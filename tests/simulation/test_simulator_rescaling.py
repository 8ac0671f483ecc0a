"""Jobs that go on at another parallelism each time their driver dies (H1): the output is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.drawn import drawn_options, world_of
from tests.proof.worlds.graphs import GRAPHS, Graph, built
from tests.proof.worlds.shrinking import live, report
from tests.simulation.planted import must_break
from tests.simulation.seeds import some_of

import crosscut as cc
from crosscut.contracts.process import EVENT_TIMERS
from crosscut.flow.stream import Stream
from crosscut.foundation.ids import TaskId
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshots import TaskSnapshot
from crosscut.protocol.splits import rescaling
from crosscut.state.predecessor_state import PredecessorState
from crosscut.task import rerouting
from crosscut.testing.simulator.options import PROTOCOLS, Options, PlannedFault, options_of
from crosscut.testing.simulator.world import World
from crosscut.worker import deployment

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


@some_of(14, few=5)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_job_goes_on_at_any_parallelism_with_exact_output(protocol: ProtocolKind, seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        life = live(world(seed, protocol), None, world_of)
        assert not life.failure, report(life)
        seen += life.seen
    must = ["rescaled", "rescaled: logical sink tasks retired"]
    if protocol == "unaligned":
        must += ["rescaled: records on their way"]
    missing = [name for name in must if not seen[name]]
    assert not missing, f"{missing} in no world: {sorted(seen.items())}"


@some_of(8, few=5)
@pytest.mark.parametrize("protocol", ["unaligned", "switching"])
def test_records_of_a_key_keep_their_order_on_edges_that_are_not_by_key(
    protocol: ProtocolKind, seeds: range
) -> None:
    """I16: of two records on their way, and of one that is read later, in calls too."""
    seen: Counter[str] = Counter()
    # Before these no world of the switching protocol has any on their way.
    for seed in (11 + one for one in seeds):
        drawn = options_of(seed, ("detours",), (protocol,))
        deaths = tuple(PlannedFault(at_ms, "kill the driver") for at_ms in range(60, 800, 60))
        crowd: dict[str, Any] = {**DEATHS, **CROWD, "faults": deaths, "is_periodic": True}
        life = live(replace(drawn, parallelism=2, rescaled_to=WAYS[seed % len(WAYS)], **crowd))
        assert not life.failure, report(life)
        seen += life.seen
    assert seen["rescaled: records on their way"]


# Planted bugs of rescaling, beside those of test_simulator_bugs. Each is found in the world of one seed.

Plant = Callable[[pytest.MonkeyPatch], None]
OFTEN: dict[str, Any] = {
    "interval_ms": 10,
    "pause_ms": 0,
    "step_us": 500,
    "latency_us": 100,
    "store_us": 200,
    "checkpoint_timeout_ms": 1_000,
    "record_count": 15,
    "batch_rows": 1,
    "channel_bytes": 50,
    "spark_start_ms": 5,
    "source_ms": 150,
    "safety_ms": 800,
}
CROWDED: dict[str, Any] = {**OFTEN, "step_us": 2_000, "batch_rows": 3, "record_count": 25, "source_ms": 20}


def dying(seed: int, graph: str, protocol: ProtocolKind, changed: dict[str, Any]) -> Options:
    """A job whose driver dies again and again, and each successor has another parallelism."""
    deaths = tuple(PlannedFault(at_ms, "kill the driver") for at_ms in range(60, 800, 60))
    options = replace(options_of(seed, (graph,), (protocol,)), is_periodic=True, faults=deaths, **changed)
    return replace(options, parallelism=2, rescaled_to=(3, 1, 4))


def _happened(record: Any) -> int:
    _, k = record
    return int(100 + k) * 1_000


def _key(record: Any) -> Any:
    (number, split), k = record
    return f"key {(number + 3 * split + 5 * k) % 7}"


def _windows(flow: cc.Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    """Each watermark closes the windows of the records before it."""
    left, right = (source().assign_timestamps(_happened, out_of_orderness="0ms") for _ in range(2))
    keyed = left.union(right).key_by(_key)
    sink(keyed.window(cc.tumbling("1s")).count())


OWN = {"windows": Graph(_windows, survives_duplicates=False, is_punctual=True)}


def job_world(options: Options) -> World:
    return World(options, built(options, OWN.get(options.graph)))


def changing(change: Callable[[TaskSnapshot], TaskSnapshot]) -> Callable[..., Any]:
    plain = rescaling.rescaled
    return lambda *arguments: tuple(map(change, plain(*arguments)))


def watermark_of_the_slowest(patch: pytest.MonkeyPatch) -> None:
    """Behind a shuffle the lowest watermark counts, as where nothing is on its way."""

    def lower(one: TaskSnapshot) -> TaskSnapshot:
        floors = one.snapshot.floors
        known = [floor for floor in floors if floor is not None]
        slowest = min(known, default=None) if len(known) == len(floors) else None
        return replace(one, snapshot=replace(one.snapshot, watermark=slowest)) if floors else one

    patch.setattr(rescaling, "rescaled", changing(lower))


def sources_forget(patch: pytest.MonkeyPatch) -> None:
    """Splits begin without the watermarks that they had."""
    patch.setattr(rescaling, "_assigned", lambda saved: None)


def timers_lost(patch: pytest.MonkeyPatch) -> None:
    plain = PredecessorState.blocks

    def blocks(self: PredecessorState, *arguments: Any) -> Iterator[Any]:
        return (one for one in plain(self, *arguments) if one.table != EVENT_TIMERS)

    patch.setattr(PredecessorState, "blocks", blocks)


def splits_dropped(patch: pytest.MonkeyPatch) -> None:
    """Only the first task of a source goes on with its splits."""

    def drop(one: TaskSnapshot) -> TaskSnapshot:
        has_dropped = one.task.index and one.snapshot.positions
        return replace(one, snapshot=replace(one.snapshot, positions=[])) if has_dropped else one

    patch.setattr(rescaling, "rescaled", changing(drop))


def on_their_way_for_all(patch: pytest.MonkeyPatch) -> None:
    """Each task takes all records that were on their way."""
    patch.setattr(rerouting, "_with_keys_of", lambda batch, index, owner_of: batch)


def on_their_way_by_place(patch: pytest.MonkeyPatch) -> None:
    """What was on its way to a task that is there no more goes to nobody."""
    plain = rerouting.rerouted

    def rerouted(logs: Any, task: TaskId, *arguments: Any) -> Iterator[Any]:
        mine = ([one for one in log if one.channel.target.index == task.index] for log in logs)
        return plain(mine, task, *arguments)

    patch.setattr(deployment, "rerouted", rerouted)


def on_their_way_at_the_newest_watermark(patch: pytest.MonkeyPatch) -> None:
    """Records that were punctual for the task that they were on their way to are late."""
    plain = rerouting.rerouted

    def rerouted(logs: Any, task: TaskId, graph: Any, owner_of: Any, before: int, floors: Any) -> Any:
        newest = max((floor for floor in floors if floor is not None), default=None)
        return plain(logs, task, graph, owner_of, before, [newest] * before)

    patch.setattr(deployment, "rerouted", rerouted)


BUGS: dict[Plant, tuple[Options, str]] = {
    watermark_of_the_slowest: (dying(17, "timers", "unaligned", CROWDED), "I14"),
    sources_forget: (dying(0, "event time", "halting", OFTEN), "I14"),
    timers_lost: (dying(0, "timers", "halting", OFTEN), "I1"),
    splits_dropped: (dying(0, "union", "aligned", OFTEN), "I1"),
    on_their_way_for_all: (dying(0, "union", "unaligned", CROWDED), "I4"),
    on_their_way_by_place: (dying(0, "union", "unaligned", CROWDED), "I1"),
    on_their_way_at_the_newest_watermark: (dying(2, "windows", "unaligned", CROWDED), "I1"),
}


@pytest.mark.parametrize("plant", BUGS, ids=lambda one: one.__name__)
def test_a_planted_bug_of_rescaling_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    options, invariant = BUGS[plant]
    life = live(options, make=job_world)
    assert not life.failure, report(life)
    plant(monkeypatch)
    must_break(invariant, [live(options, make=job_world).failure])
