"""A savepoint as the first checkpoint of a new job.

It is written into the job's own checkpoint directory, at the parallelism that it was taken at, as the
first checkpoint of a new lineage. From there on it is a checkpoint like any other: the job that starts next
restores it, at any parallelism. Before its entry is durable nothing has begun; a start that finds a half of
it says so.

Its id is the next one after that of the checkpoint that the savepoint is a copy of. Rows of lists, and calls
under way, are named by the checkpoint that their task began with (`Begins`): with an id that an ancestor has
used, new rows would be written over old ones.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from crosscut.contracts.connectors import CommittedOutput
from crosscut.errors import HistoryError, InternalError, StoreError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Lineage, LogIndex, TaskId, VertexId
from crosscut.graph.components import reached_from
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import JobGraph
from crosscut.host.clock import SystemClock
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed, LogEntry, SegmentOpened
from crosscut.protocol.log.history import shown
from crosscut.protocol.log.identity import Claimant
from crosscut.protocol.log.restoring import (
    Begin,
    Content,
    GoOn,
    Refused,
    beginning,
    conflict_with_output,
    fitting,
    open_output,
)
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.log.writer import Appended
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot
from crosscut.protocol.splits.rescaling import merged_fields
from crosscut.protocol.splits.staged import BEFORE_ALL, staged_files, with_files_at
from crosscut.savepoints.loading import EPOCH, blocks_of, parts_of
from crosscut.savepoints.manifest import Origin, Savepoint, SavepointManifest, staged_name, verified
from crosscut.savepoints.migrations import NO_MIGRATIONS, Migrations
from crosscut.savepoints.rows import IN_FLIGHT_COLUMNS, STATE_COLUMNS, RowFile
from crosscut.savepoints.values import from_text
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.task.channel_log import encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.wire.batches import encode_batch

_BOTH = frozenset({False, True})


def has_begun(origin: Origin, store: CheckpointStore) -> bool:
    """Return whether the job in the store has begun with `origin`; if not, there is none yet.

    Raises:
        StoreError: The store holds something else.
    """
    log = [entry for _, entry in store.tail(1)]
    match beginning(log, claims_in(log), origin.ancestors, origin.digest):
        case GoOn():
            return True
        case Refused(reason):
            raise StoreError(f"can't restore {origin.name} into this checkpoint_dir: {reason}")
        case Begin():
            return False


def begin_with(
    savepoint: Savepoint,
    store: CheckpointStore,
    graph: JobGraph,
    *,
    discover: Callable[[JobGraph], Sequence[SplitAssignment]],
    look: Callable[[], Iterable[CommittedOutput]],
    allow_dropped_state: bool = False,
    accept_changes: bool = False,
    is_fresh: bool = False,
    migrations: Migrations = NO_MIGRATIONS,
    claimant: Claimant = Claimant(),
) -> SavepointManifest | None:
    """Write a savepoint into an empty checkpoint store, for `graph` to go on from. Blocks.

    Its files are read twice: which states they have, then the rows of one operator at a time.

    Args:
        discover: Returns the splits of all sources of a graph: for those that the savepoint does not know.
        look: Returns what the sinks have committed.
        migrations: What turns old state into new.

    Returns:
        What was restored; None if the job in the store has begun with this very savepoint before.

    Raises:
        StoreError: The savepoint is damaged, does not fit the flow, or the store holds something else.
        HistoryError: There is output that would be written a second time.
        StateError: A value can't be decoded.
    """
    manifest, path = savepoint.manifest, savepoint.name
    if has_begun(Origin(path, manifest.ancestors, savepoint.digest), store):
        return None
    contents = _contents(savepoint)
    if problem := migrations.problem((one.uid, one.state) for one in contents if one.kind == "state"):
        raise StoreError(f"{path}: {problem}")
    fits = fitting(
        contents,
        manifest.flow,
        identity_of(graph),
        allow_dropped=allow_dropped_state,
        accepts_changes=accept_changes,
        is_migrated=migrations.covers,
    )
    if fits.refused:
        raise StoreError(f"{path}: {fits.refused}")
    _check_input(path, manifest)
    dropped = {(one.kind, one.uid, one.state) for one in fits.dropped}
    _check_key_groups(savepoint, graph, dropped)
    outputs = tuple(look())
    left = open_output(manifest.pending, manifest.ancestors, outputs)
    if left is not None and not is_fresh:
        raise StoreError(
            f"{path}: output of task {left.task}, of checkpoint {left.checkpoint_id}, is not known to be "
            f"committed, and a new job would never commit it. Start the job that it is of once more, which "
            f"does; or take a savepoint of it (job.stop(savepoint=...)); or leave that output out with "
            f"fresh=True"
        )
    conflict = conflict_with_output(manifest.ancestors, outputs, is_fresh=is_fresh)
    if conflict is not None:
        raise HistoryError(shown(conflict), location=conflict.output.location)
    # Its tasks as they were: the start that follows distributes them anew if it has to.
    graph = replace(graph, parallelism=manifest.parallelism)
    checkpoint = _checkpoint(savepoint, store, graph, discover, migrations, dropped)
    *older, newest = manifest.ancestors
    claim = EpochClaimed(
        epoch=EPOCH,
        lineage=Lineage(secrets.token_hex(8)),
        driver=secrets.token_hex(8),
        fingerprint=graph.fingerprint,
        parallelism=graph.parallelism,
        max_parallelism=graph.max_parallelism,
        first_checkpoint_id=checkpoint.checkpoint_id,
        flow=identity_of(graph),
        claimant=claimant,
        ancestors=(*older, replace(newest, digest=savepoint.digest)),
    )
    _append(store, LogIndex(1, 0), SegmentOpened(claim, None))
    # Decision moment: the job has a first checkpoint.
    _append(store, LogIndex(1, 1), checkpoint)
    return manifest


def _append(store: CheckpointStore, index: LogIndex, entry: LogEntry) -> None:
    outcome = store.append(index, entry)
    if not isinstance(outcome, Appended) and store.read(index) != entry:
        raise StoreError(
            f"entry {index} of the job log is somebody else's, or it is not known whether it was written "
            f"({outcome}): start again"
        )


def _contents(savepoint: Savepoint) -> list[Content]:
    manifest = savepoint.manifest
    states: Counter[tuple[str, str]] = Counter()
    records: Counter[str] = Counter()
    for file in manifest.state_files():
        of_file = Counter(
            (row["operator"], row["state"]) for row in savepoint.rows_of(file, STATE_COLUMNS[1:3])
        )
        if strange := sorted(uid for uid, _ in of_file if uid != _operator_of(file)):
            raise StoreError(
                f"{file.path} in {savepoint.name} has rows of operator {strange[0]!r}: they belong into a "
                f"file of that operator"
            )
        states += of_file
    for file in manifest.in_flight_files():
        records.update(row["target"] for row in savepoint.rows_of(file, ["target"]))
    splits: Counter[str] = Counter()
    for one in manifest.tasks:
        if isinstance(one.snapshot.positions, list):
            splits[one.task.vertex] += len(one.snapshot.positions)
    return [
        *(Content(uid, state, "state", count) for (uid, state), count in states.items()),
        *(Content(uid, "", "splits", count) for uid, count in splits.items()),
        *(Content(one.source, "", "search", 1) for one in manifest.known_splits),
        *(Content(uid, "", "records", count) for uid, count in records.items()),
    ]


def _check_input(path: str, manifest: SavepointManifest) -> None:
    there = {one.path for one in manifest.files}
    for one in manifest.tasks:
        if not there.issuperset(map(staged_name, staged_files(one.snapshot.positions))):
            raise StoreError(
                f"{path} was taken before source {one.task.vertex!r} had read its DataFrame to the end, by a "
                f"release that left staged rows out of savepoints. Take it when they are read, or go on with "
                f"the job in its own checkpoint_dir"
            )


def _staged_again(savepoint: Savepoint, store: CheckpointStore) -> dict[str, str]:
    """Write the rows that have still to be read into the store; return where, by where they were before."""
    files = {one.path: one for one in savepoint.manifest.files}
    moved: dict[str, str] = {}
    for one in savepoint.manifest.tasks:
        for path in staged_files(one.snapshot.positions):
            if path not in moved:
                data = verified(savepoint.folder, files[staged_name(path)], savepoint.name)
                part = store.write_part(BEFORE_ALL, one.task, EPOCH, [data], may_inline=False)
                moved[path] = part.path
    return moved


def _operator_of(file: RowFile) -> str:
    return file.path.split("/")[1]


def _check_key_groups(
    savepoint: Savepoint, graph: JobGraph, dropped: Collection[tuple[str, str, str]]
) -> None:
    manifest, path = savepoint.manifest, savepoint.name
    if manifest.max_parallelism == graph.max_parallelism:
        return
    if manifest.parallelism > graph.max_parallelism:
        raise StoreError(
            f"{path} was taken at parallelism {manifest.parallelism}, above max_parallelism="
            f"{graph.max_parallelism}: take it at a smaller one"
        )
    # Keys go to other tasks: what else a task has of them would stay behind.
    with_state = set(map(_operator_of, manifest.state_files()))
    ended: dict[str, set[bool]] = {}
    for one in manifest.tasks:
        if one.task.vertex in with_state:
            ended.setdefault(one.task.vertex, set()).add(one.snapshot.ended)
    if any(one.snapshot.said is not None for one in manifest.tasks) or any(
        map(_BOTH.issubset, ended.values())
    ):
        raise StoreError(
            f"{path} was taken while final results were being said, by key group of "
            f"{manifest.max_parallelism}: restore it with that max_parallelism"
        )
    for file in manifest.in_flight_files():
        for row in savepoint.rows_of(file, ["target", "key"]):
            if row["key"] is not None and ("records", row["target"], "") not in dropped:
                raise StoreError(
                    f"{path} has records on their way to {row['target']!r}, to the owners of their keys by "
                    f"{manifest.max_parallelism} key groups: restore it with that max_parallelism, or take a "
                    f"savepoint under snapshots='aligned', which has none outside of loops"
                )


def _checkpoint(
    savepoint: Savepoint,
    store: CheckpointStore,
    graph: JobGraph,
    discover: Callable[[JobGraph], Sequence[SplitAssignment]],
    migrations: Migrations,
    dropped: set[tuple[str, str, str]],
) -> CheckpointCompleted:
    manifest = savepoint.manifest
    n = CheckpointId(manifest.checkpoint_id + 1)
    before = {one.task: one.snapshot for one in manifest.tasks}
    # One of a history has no splits: its sources begin with all that they find.
    known = {task.vertex for task, one in before.items() if one.positions is not None}
    found: dict[TaskId, Any] = {}
    new = [one.vertex_id for one in graph.vertices if one.source is not None and one.vertex_id not in known]
    has_more_input = {reached for uid in new for reached in reached_from(uid, graph.edges)}
    sources = {one.vertex_id for one in graph.vertices if one.source is not None}
    known_splits = [one for one in manifest.known_splits if one.source in sources]
    if new:
        assigned = discover(graph)
        found = {one.task: one.splits for one in assigned}
        known_splits += [one.known for one in assigned if one.known is not None and one.task.vertex in new]
    logs = _logs(savepoint, graph, dropped)
    staged = _staged_again(savepoint, store)
    snapshots = []
    for vertex in graph.vertices:
        uid = VertexId(vertex.vertex_id)
        blocks = list(blocks_of(savepoint, uid, migrations, dropped))
        for index in range(graph.parallelism):
            task = TaskId(uid, index)
            snapshot = before.get(task, Snapshot())
            if vertex.source is None:
                snapshot = replace(snapshot, positions=None)
            elif uid not in known:
                snapshot = replace(snapshot, positions=found.get(task))
            else:
                snapshot = replace(snapshot, positions=with_files_at(snapshot.positions, staged))
            if uid in has_more_input:
                # The end of input that the task has heard of was not this one.
                snapshot = replace(snapshot, ended=False, said=None)
            parts = parts_of(vertex, task, blocks, graph, store, n)
            log = logs.get(task, [])
            snapshot = replace(snapshot, record_fields=None)
            if log:
                log_part = store.write_part(n, task, EPOCH, encoded_log(log))
                snapshot = replace(
                    snapshot,
                    log=(log_part,),
                    in_flight=sum(one.rows for one in log),
                    # The sender's snapshot may have had it.
                    record_fields=merged_fields(one.snapshot.record_fields for one in manifest.tasks),
                )
            snapshots.append(TaskSnapshot(task, replace(snapshot, parts=parts)))
    return CheckpointCompleted(
        EPOCH,
        n,
        tuple(snapshots),
        wall_clock=SystemClock().now().isoformat(timespec="seconds"),
        known_splits=tuple(known_splits),
    )


def _logs(
    savepoint: Savepoint, graph: JobGraph, dropped: set[tuple[str, str, str]]
) -> dict[TaskId, list[LoggedBatch]]:
    """Return what was on its way, by the task that it is for: as if its sender had sent all of it."""
    received: dict[TaskId, list[LoggedBatch]] = {}
    unsent: dict[TaskId, list[LoggedBatch]] = {}
    vertices = {vertex.vertex_id for vertex in graph.vertices}
    for file in savepoint.manifest.in_flight_files():
        for rows in _batches(savepoint.rows_of(file, IN_FLIGHT_COLUMNS)):
            first = rows[0]
            uid = first["target"]
            if ("records", uid, "") in dropped:
                continue
            if uid not in vertices:
                raise InternalError(f"records for {uid!r}, which was judged to be there")
            target = TaskId(VertexId(uid), first["target_index"])
            source = TaskId(VertexId(first["source"]), first["source_index"])
            channel = ChannelId(first["input"], source, target)
            where = unsent if first["by_sender"] else received
            data = encode_batch(_batch(rows))
            where.setdefault(target, []).append(LoggedBatch(channel, data, len(rows), by_sender=False))
    return {task: received.get(task, []) + unsent.get(task, []) for task in {*received, *unsent}}


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        if batch and row["batch"] != batch[0]["batch"]:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _batch(rows: Sequence[dict[str, Any]]) -> Batch:
    records = [from_text(row["record"]) for row in rows]
    times = None if rows[0]["timestamp"] is None else [row["timestamp"] for row in rows]
    if rows[0]["key"] is None:
        return Batch(records, None, times)
    if rows[0]["is_key"]:
        return Batch(records, records, times)
    return Batch(records, [from_text(row["key"]) for row in rows], times)
