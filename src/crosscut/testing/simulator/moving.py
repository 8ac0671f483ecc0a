"""What has to move while input stays open (I14): what is read, checkpoints, watermarks, committed output.

Bounded input hides what stands still: it ends, and then all windows close. So sources can be kept open after
their last record until the newest checkpoint shows that all has come as far as it can.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.graph.components import component_of
from crosscut.graph.source_groups import source_groups
from crosscut.graph.specs import Edge, JobGraph
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Snapshot
from crosscut.task.splits import splits_from_json
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.violation import ensure

if TYPE_CHECKING:
    from crosscut.testing.simulator.world import World


MOVES_MS = 30_000
"""By when all has to have moved as far as it can, once the faults have stopped."""
_LOOK_US = 5_000


def keep_open_until_all_moves(world: World) -> None:
    """Judge what has to move, if the sources are still open; then let them come to their ends.

    Raises:
        Violation: Something stands still.
    """
    before = world.checkers.newest_id
    moves_us = world.clock.now_us + MOVES_MS * 1_000
    look_us = 0
    # Splits that wait for slower ones are read when those end.
    is_judged = world.options.stays_open and world.options.is_periodic and not source_groups(world.graph)
    while is_judged and not world.has_finished:
        world.go_on()
        if world.clock.now_us < look_us:
            continue
        look_us = world.clock.now_us + _LOOK_US
        found = _found(world, before)
        if not found:
            world.seen["all moves"] += 1
            break
        ensure(
            world.clock.now_us <= moves_us,
            f"I14: {MOVES_MS} ms after the last fault there stands still: {found}",
        )
    for source in world.sources:
        source.stays_open = False


def _found(world: World, before: CheckpointId) -> str:
    running = [one for one in world.drivers if one.is_running]
    newest = world.checkers.completed[-1:]
    if not running or not newest or newest[0].checkpoint_id <= before:
        return f"checkpoints: none is complete after {before}"
    graph = running[-1].graph
    return stands_still(newest[0], graph, graph.parallelism, world.resource.committed)


def stands_still(
    entry: CheckpointCompleted, graph: JobGraph, parallelism: int, committed: Collection[str]
) -> str:
    """Return what has not moved as far as it can by this checkpoint, "" if everything has.

    Args:
        committed: Handles of transactions that are visible.
    """
    snapshots = {one.task: one.snapshot for one in entry.snapshots}
    if len(snapshots) != parallelism * len(graph.vertices):
        return f"the job: checkpoint {entry.checkpoint_id} is of another parallelism"
    return next(_standing(snapshots, graph, parallelism, committed), "")


def _standing(
    snapshots: Mapping[TaskId, Snapshot], graph: JobGraph, parallelism: int, committed: Collection[str]
) -> Iterator[str]:
    for vertex in graph.vertices:
        uid = VertexId(vertex.vertex_id)
        mine = [snapshots[TaskId(uid, index)] for index in range(parallelism)]
        if vertex.source is not None and isinstance(vertex.source.source, ReplayedSource):
            positions = {
                split.split_id: position
                for one in mine
                for split, position in splits_from_json(one.positions)
            }
            for name, records in vertex.source.source.records.items():
                if positions.get(name) != len(records):
                    yield f"lag: split {name} of {len(records)} records is read up to {positions.get(name)}"
    for task, snapshot in sorted(snapshots.items()):
        for operator, (watermark, lowest) in _made(snapshot).items():
            if lowest is not None and (watermark is None or watermark < lowest):
                yield f"watermark: {operator} of {task} says {watermark}, and all its splits are at {lowest}"
        incoming = [_leaving(snapshots[one]) for one in _feeders(task, graph, parallelism)]
        known = [one for one in incoming if one is not None]
        if known and len(known) == len(incoming):
            lowest = min(known)
            if snapshot.watermark is None or snapshot.watermark < lowest:
                yield f"watermark: {task} is at {snapshot.watermark}, and all that feed it are at {lowest}"
        for one in snapshot.pending:
            if one.handle not in committed:
                yield f"commit: {one.handle} of {task} is not visible"


def _made(snapshot: Snapshot) -> dict[str, tuple[int | None, int | None]]:
    """Return what each operator says that makes watermarks, and the lowest of its splits; None: unknown."""
    assigned: Any = snapshot.assigned or {}
    unfinished = [split.split_id for split, _ in splits_from_json(snapshot.positions)]
    found: dict[str, tuple[int | None, int | None]] = {}
    for operator, (watermark, sides, *_) in assigned.items():
        splits = unfinished if snapshot.positions is not None else [""]
        known = [sides[one] for one in splits if one in sides]
        found[operator] = (watermark, min(known) if known and len(known) == len(splits) else None)
    return found


def _leaving(snapshot: Snapshot) -> int | None:
    made = _made(snapshot)
    return [*made.values()][-1][0] if made else snapshot.watermark


def _feeders(task: TaskId, graph: JobGraph, parallelism: int) -> Iterator[TaskId]:
    for edge in graph.edges:
        if edge.target != task.vertex or _goes_round(edge, graph):
            continue
        indices = [task.index] if edge.partitioning == "forward" else range(parallelism)
        yield from (TaskId(VertexId(edge.source), index) for index in indices)


def _goes_round(edge: Edge, graph: JobGraph) -> bool:
    return edge.source in component_of(edge.target, graph.edges).members
