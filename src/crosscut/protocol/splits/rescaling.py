"""A checkpoint at another parallelism: what each of the new tasks takes over. Pure decisions.

Everything of a checkpoint has exactly one owner afterwards:

* **keyed state** by key group: a task reads the parts of all that had one of its groups, and keeps its keys;
* **splits** anew, the heaviest first to the least loaded;
* **staged transactions** stay with the logical task that staged them, under its name, since sinks name,
  mark and fence by it. A task that is there no more is *retired*: one of those that are there recovers it
  (commits, aborts what it has left, fences its zombies), and closes it;
* **what was on its way in channels** goes to the receivers: by key where a shuffle does, else with the
  task it was on its way to. A worker picks its own out of the logs (`crosscut.task.rerouting`);
* **what is broadcast** every task has: each goes on from one that had it, with what that one has made of it
  (`BroadcastState`) and the copies that were on their way to it;
* **watermarks** never go back. Where keys are shuffled, the highest counts when all that was on its way has
  been processed, each record at the watermark of the task it was on its way to. Elsewhere the lowest
  counts. A split keeps its own;
* **how far final results have been said** by key group where input is by key: two halves of a task may have
  come to different ordinals. Elsewhere records of any predecessor may come to any new task, so it goes on
  from where the last of them was, and has ended only if all had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.errors import StateError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import groups_of_task
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot

ALL_EMITTED = (1 << 30, "")
"""How far a task has come that has said everything it has to say at the end of its input."""
_WEIGHT = 3

Link = tuple[VertexId, VertexId, bool]
"""An edge between two vertices: source, target, and whether it shuffles by key."""

Reached = tuple[int, str]
"""How far a task has come with its final results: operator, and ordinal in its order."""


@dataclass(frozen=True, slots=True)
class FinalProgress:
    """How far a task has come with its final results, for its snapshot.

    Attributes:
        position: As `Snapshot.said`.
        ended: The task has emitted all of them.
    """

    position: JSON = None
    ended: bool = False


def parallelism_of(checkpoint: CheckpointCompleted) -> int:
    """Return how many tasks of each vertex the checkpoint has."""
    return max((one.task.index + 1 for one in checkpoint.snapshots), default=0)


def taken_over_by(index: int, parallelism: int) -> int:
    """Return which task has what belonged to task `index`, where no key decides."""
    return index % parallelism


def copies_from(index: int, before: int) -> int:
    """Return from which of the `before` tasks task `index` has what is broadcast.

    State and copies on their way: one had come further than another, so those of two don't add up.
    """
    return index % before


def writers(
    parallelism: int, before: tuple[int, int, Epoch] | None, restored: CheckpointCompleted | None
) -> int:
    """Return how many logical tasks of a sink may have left something, when an epoch is claimed.

    It is 0 if these are no more than there are.

    Args:
        parallelism: Of the epoch that is claimed.
        before: Of the newest claim so far: its parallelism, its count of writers, its epoch.
        restored: The checkpoint that the epoch goes on from.
    """
    if before is None:
        return 0
    tasks, known, epoch = before
    # With a checkpoint of that epoch, all that were retired in it have been recovered.
    left = tasks if restored is not None and restored.epoch == epoch else max(tasks, known)
    return left if left > parallelism else 0


def retired(
    checkpoint: CheckpointCompleted | None, parallelism: int, writers: int, sinks: Iterable[VertexId]
) -> tuple[TaskSnapshot, ...]:
    """Return the logical sink tasks that are there no more, with what each has left to commit."""
    held = {one.task: one.snapshot for one in checkpoint.snapshots} if checkpoint is not None else {}
    most = max(writers, parallelism_of(checkpoint) if checkpoint is not None else 0)
    return tuple(
        TaskSnapshot(
            task,
            Snapshot(pending=held[task].pending, committed=held[task].committed)
            if task in held
            else Snapshot(),
        )
        for vertex in sorted(sinks)
        for task in (TaskId(vertex, index) for index in range(parallelism, most))
    )


def rescaled(
    checkpoint: CheckpointCompleted,
    parallelism: int,
    max_parallelism: int,
    edges: Iterable[Link],
) -> tuple[TaskSnapshot, ...]:
    """Return what each task starts with when the job goes on with `parallelism` tasks of each vertex.

    Parts and logs of the new snapshots hold more than the task's own: it takes out what belongs to it.

    Args:
        edges: Between vertices.

    Raises:
        StateError: The checkpoint says something of its positions or final results that is not readable.
    """
    before = parallelism_of(checkpoint)
    old = {one.task: one.snapshot for one in checkpoint.snapshots}
    feeders: dict[VertexId, list[VertexId]] = {}
    keyed: set[VertexId] = set()
    unkeyed: set[VertexId] = set()
    for source, target, is_by_key in edges:
        feeders.setdefault(target, []).append(source)
        (keyed if is_by_key else unkeyed).add(target)
    found = []
    for vertex in sorted({task.vertex for task in old}):
        mine = [old[TaskId(vertex, index)] for index in range(before)]
        senders = [
            old[TaskId(feeder, index)]
            for feeder in sorted(set(feeders.get(vertex, ())))
            for index in range(before)
        ]
        positions = _dealt(vertex, [one.positions for one in mine], parallelism)
        watermarks = [one.watermark for one in mine]
        # After a shuffle all tasks hear the same: they differ by what is on its way, which comes first.
        is_keyed = vertex in keyed
        watermark = max((one for one in watermarks if one is not None), default=None)
        assigned = _assigned([one.assigned for one in mine])
        fields = merged_fields(one.fields for one in mine)
        record_fields = merged_fields(one.record_fields for one in (*mine, *senders))
        for index in range(parallelism):
            # States that are not by key may be anywhere: the task finds its own among all.
            heirs = mine
            if vertex not in unkeyed:
                heirs = [mine[i] for i in _with_groups_of(index, before, parallelism, max_parallelism)]
            named = [one for i, one in enumerate(mine) if taken_over_by(i, parallelism) == index]
            logs = [part for one in (*mine, *senders) for part in one.log]
            progress = _final_progress(
                mine,
                index,
                parallelism,
                max_parallelism,
                is_keyed=is_keyed,
                is_dealt=not is_keyed or vertex in unkeyed,
            )
            snapshot = Snapshot(
                parts=tuple(part for one in heirs for part in one.parts),
                predecessors=tuple(len(one.parts) for one in heirs),
                positions=positions[index],
                # What is staged goes by the name of the task, which is the same one.
                pending=mine[index].pending if index < before else (),
                committed=mine[index].committed if index < before else None,
                ended=progress.ended,
                said=progress.position,
                log=_once(logs),
                watermark=watermark if is_keyed else _lowest(watermarks),
                assigned=assigned,
                fields=fields,
                record_fields=record_fields,
                now_ms=max((one.now_ms for one in mine), default=0),
                floors=tuple(watermarks) if is_keyed else (),
                records_in=sum(one.records_in for one in named),
                records_out=sum(one.records_out for one in named),
                late_records=sum(one.late_records for one in named),
            )
            found.append(TaskSnapshot(TaskId(vertex, index), snapshot))
    return tuple(found)


def merged_fields(saved: Iterable[JSON]) -> JSON:
    """Return what several snapshots of one checkpoint say of the fields of classes.

    One program has written them all, so they don't contradict each other.
    """
    return {name: fields for one in saved if isinstance(one, dict) for name, fields in one.items()} or None


def _lowest(watermarks: Iterable[int | None]) -> int | None:
    """Return the lowest; None if one is not known."""
    known = list(watermarks)
    return None if None in known else min((one for one in known if one is not None), default=None)


def _assigned(saved: Sequence[JSON]) -> JSON:
    """Return the watermarks that operators of any new task begin with: of all splits, each takes its own.

    Raises:
        StateError: They are something else.
    """
    found: dict[str, list[tuple[int | None, dict[str, Any]]]] = {}
    quiet_since: dict[str, dict[str, Any]] = {}
    for one in saved:
        if one is None:
            continue
        if not isinstance(one, dict):
            raise _strange_watermarks(one)
        for uid, content in one.items():
            match content:
                case [int() | None as watermark, dict() as sides, *rest] if len(rest) <= 1:
                    for quiet in rest:
                        _take_latest(quiet_since.setdefault(uid, {}), quiet)
                    found.setdefault(uid, []).append((watermark, sides))
                case _:
                    raise _strange_watermarks(one)
    together: dict[str, list[JSON]] = {}
    for uid, all_of_it in found.items():
        merged: dict[str, JSON] = {}
        for _, some in all_of_it:
            merged |= some
        # What is no source has one side, of each task: the slowest is believed.
        if "" in merged:
            merged[""] = min(some[""] for _, some in all_of_it if "" in some)
        together[uid] = [_lowest(watermark for watermark, _ in all_of_it), merged]
        if uid in quiet_since:
            together[uid] = [*together[uid], quiet_since[uid]]
    return dict(together) or None


def _take_latest(known: dict[str, Any], quiet: Any) -> None:
    for split, since in quiet.items():
        known[split] = max(since, known.get(split, since))


def _strange_watermarks(found: JSON) -> StateError:
    return StateError(f"a snapshot says of watermarks {found!r:.100}: expected one by operator")


def chains_of(snapshot: Snapshot) -> tuple[tuple[Part, ...], ...]:
    """Return the parts of each predecessor of a task that `rescaled` has made."""
    ends = [*accumulate(snapshot.predecessors, initial=0)]
    return tuple(snapshot.parts[first:end] for first, end in pairwise(ends))


def wholly_taken(
    index: int, before: int, parallelism: int, max_parallelism: int, chain_count: int
) -> frozenset[int]:
    """Return which of the chains of task `index` have no key that is another task's, by their places.

    Args:
        chain_count: How many there are. If they are not those of the owners of its groups, their keys may
            be anywhere, and none is told.
    """
    heirs = _with_groups_of(index, before, parallelism, max_parallelism)
    if chain_count != len(heirs):
        return frozenset()
    mine = groups_of_task(index, max_parallelism, parallelism)
    return frozenset(
        place
        for place, other in enumerate(heirs)
        if (theirs := groups_of_task(other, max_parallelism, before)).start >= mine.start
        and theirs.stop <= mine.stop
    )


def _with_groups_of(index: int, before: int, parallelism: int, max_parallelism: int) -> list[int]:
    """Return which of the `before` tasks had a key group of task `index`."""
    mine = groups_of_task(index, max_parallelism, parallelism)
    return [
        other
        for other in range(before)
        if (theirs := groups_of_task(other, max_parallelism, before)).start < mine.stop
        and mine.start < theirs.stop
    ]


def _once(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return `parts` in order, each once: a vertex in a loop feeds itself."""
    return tuple(dict.fromkeys(parts))


def _dealt(vertex: VertexId, positions: Sequence[JSON], parallelism: int) -> list[JSON]:
    if all(one is None for one in positions):
        return [None] * parallelism
    rows: list[Any] = []
    for one in positions:
        if not isinstance(one, list):
            raise StateError(f"the positions of source {vertex} are not readable: {one!r:.200}")
        rows += one
    return deal(rows, parallelism)


def deal(rows: Iterable[Any], parallelism: int) -> list[JSON]:
    """Deal out unfinished splits (as `SplitQueue.positions` has them), the heaviest to the least loaded."""
    shares: list[list[Any]] = [[] for _ in range(parallelism)]
    loads = [0] * parallelism
    for row in sorted(rows, key=lambda one: (-one[_WEIGHT], one[0])):
        index = loads.index(min(loads))
        shares[index].append(row)
        loads[index] += max(row[_WEIGHT], 1)
    return [*shares]


# Final results: how far they have been said, by key group.


def final_progress_ranges(snapshot: Snapshot, groups: range) -> list[tuple[range, Reached]]:
    """Return how far a task that owns `groups` has come, by key group, in order.

    Raises:
        StateError: The snapshot says something else.
    """
    if snapshot.ended:
        return [(groups, ALL_EMITTED)]
    own, before = read_final_progress(snapshot.said)
    if not before:
        return [(groups, own)]
    return [(one, max(reached, own)) for one, reached in before]


def read_final_progress(final_progress: JSON) -> tuple[Reached, list[tuple[range, Reached]]]:
    """Return what `Snapshot.said` holds: the progress of the task, and of its predecessors by key group.

    Raises:
        StateError: It says something else.
    """
    match final_progress:
        case None:
            return (0, ""), []
        case [int() as position, str() as ordinal]:
            return (position, ordinal), []
        case [int() as position, str() as ordinal, list(ranges)]:
            return (position, ordinal), [_range(one, final_progress) for one in ranges]
        case _:
            raise _unreadable(final_progress)


def _range(found: Any, final_progress: JSON) -> tuple[range, Reached]:
    match found:
        case [int() as first, int() as stop, int() as position, str() as ordinal]:
            return range(first, stop), (position, ordinal)
        case _:
            raise _unreadable(final_progress)


def _unreadable(final_progress: JSON) -> StateError:
    return StateError(
        f"cannot read the final progress of a snapshot: found {final_progress!r:.100}, expected "
        f"[operator, ordinal]"
    )


def shown_final_progress(own: Reached, before: Iterable[tuple[range, Reached]]) -> JSON:
    """Return what `read_final_progress` reads; None before the first final result."""
    ranges: list[JSON] = [[one.start, one.stop, *reached] for one, reached in before]
    if not ranges:
        return None if own == (0, "") else [*own]
    return [*own, ranges]


def _final_progress(
    before: Sequence[Snapshot],
    index: int,
    parallelism: int,
    max_parallelism: int,
    *,
    is_keyed: bool,
    is_dealt: bool,
) -> FinalProgress:
    """Return how far task `index` has come with its final results.

    Args:
        is_keyed: Input comes by key.
        is_dealt: Input comes by other ways: splits, and records of any predecessor.
    """
    ranges = [
        one
        for other, snapshot in enumerate(before)
        for one in final_progress_ranges(snapshot, groups_of_task(other, max_parallelism, len(before)))
    ]
    if not is_keyed:
        reached = min(reached for _, reached in ranges)
        return (
            FinalProgress(ended=True)
            if reached == ALL_EMITTED
            else FinalProgress(shown_final_progress(reached, ()))
        )
    mine = groups_of_task(index, max_parallelism, parallelism)
    found = combined_final_progress(ranges, mine)
    if found.ended and is_dealt and not all(one.ended for one in before):
        # Its keys have had their final results. It has not had the end of what is not by key.
        return FinalProgress(shown_final_progress((0, ""), [(mine, ALL_EMITTED)]))
    return found


def combined_final_progress(before: Iterable[tuple[range, Reached]], mine: range) -> FinalProgress:
    """Return how far a task with the groups `mine` has come with its final results."""
    ranges = [
        (range(max(one.start, mine.start), min(one.stop, mine.stop)), reached)
        for one, reached in before
        if one.start < mine.stop and mine.start < one.stop
    ]
    found = {reached for _, reached in ranges}
    if found == {ALL_EMITTED}:
        return FinalProgress(ended=True)
    if len(found) == 1:
        return FinalProgress(shown_final_progress(found.pop(), ()))
    return FinalProgress(shown_final_progress((0, ""), ranges))


def shown(checkpoint_id: CheckpointId, parallelism: int, before: int) -> str:
    """Return what people are told of a change of parallelism."""
    return f"restores checkpoint {checkpoint_id} at parallelism {parallelism}, was {before}"


@dataclass(frozen=True, slots=True)
class StateAssignment:
    """What the tasks of an epoch start with.

    Attributes:
        checkpoint_id: That they go on from, 0 for none.
        rescaled_from: Its parallelism, if it is another one, else 0.
        snapshots: Of each task, in order.
        retired: Of logical sink tasks that are there no more.
    """

    checkpoint_id: CheckpointId = CheckpointId(0)
    rescaled_from: int = 0
    snapshots: tuple[TaskSnapshot, ...] = ()
    retired: tuple[TaskSnapshot, ...] = ()


def state_assignment(
    restored: CheckpointCompleted | None,
    parallelism: int,
    max_parallelism: int,
    writers: int,
    sinks: Iterable[VertexId],
    edges: Iterable[Link],
) -> StateAssignment:
    """Decide what the tasks of an epoch start with.

    Args:
        restored: The checkpoint to go back to, None for the very beginning.
        writers: How many logical tasks of a sink may have left something; see `writers`.

    Raises:
        StateError: As in `rescaled`.
    """
    left = retired(restored, parallelism, writers, sinks)
    if restored is None:
        return StateAssignment(retired=left)
    before = parallelism_of(restored)
    if before in (0, parallelism):
        return StateAssignment(restored.checkpoint_id, 0, restored.snapshots, left)
    snapshots = rescaled(restored, parallelism, max_parallelism, edges)
    return StateAssignment(restored.checkpoint_id, before, snapshots, left)


def by_worker(snapshots: Iterable[TaskSnapshot], parallelism: int) -> Mapping[int, list[TaskSnapshot]]:
    """Return what each worker gets of `snapshots`, by its index."""
    found: dict[int, list[TaskSnapshot]] = {}
    for one in snapshots:
        found.setdefault(taken_over_by(one.task.index, parallelism), []).append(one)
    return found
