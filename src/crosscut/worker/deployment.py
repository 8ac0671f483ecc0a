"""From a DeployTasks message to tasks: restore state, replay commits, build."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

from crosscut.contracts.connected_process import Begins
from crosscut.contracts.connectors import JSON, CommitProgress, HeldData, SinkContext, SinkWriter
from crosscut.contracts.dynamic_source import DynamicSource
from crosscut.contracts.settings import BackendName
from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId, WorkerIndex
from crosscut.foundation.keys import KeyRouter, OwnedKeys, groups_of_task, key_group, owner_of_group
from crosscut.graph.channels import back_edges_of, depths_of, inputs_of, read_aside
from crosscut.graph.frames import rows_of_batch
from crosscut.graph.lookup import LookupSpec
from crosscut.graph.source_groups import aligned_splits
from crosscut.graph.specs import AsyncMapSpec, JobGraph, Vertex
from crosscut.host.failpoints import Failpoints
from crosscut.operators.building import build, keyed_state
from crosscut.operators.connector_errors import raise_named
from crosscut.operators.final_results import Predecessors
from crosscut.operators.keyed import KeyedOperator
from crosscut.operators.operator import named_state_error
from crosscut.protocol.messages import DeployTasks
from crosscut.protocol.replay_order import ReplayOrder
from crosscut.protocol.snapshot.choosing import ProtocolKind, snapshot_protocol
from crosscut.protocol.snapshot.commit import Committer, known_after, known_before, restore_permit
from crosscut.protocol.snapshots import Part, Snapshot
from crosscut.protocol.splits.rescaling import (
    chains_of,
    copies_from,
    read_final_progress,
    taken_over_by,
    wholly_taken,
)
from crosscut.protocol.unit_log.spec import UnitLogSpec
from crosscut.state.field_names import check_record_fields
from crosscut.state.keyed import KeyedState
from crosscut.state.parts import PartChain
from crosscut.state.predecessor_state import PredecessorState
from crosscut.state.reading import ReadPart
from crosscut.state.rocksdb.database import BLOCK_CACHE_BYTES
from crosscut.task.channel_log import decoded_log
from crosscut.task.edge_outputs import outputs_of_task
from crosscut.task.inputs import InputQueue
from crosscut.task.items import REPLAYED, LoggedBatch
from crosscut.task.plan import TaskPlan
from crosscut.task.rerouting import rerouted
from crosscut.task.spilling import SpillSpaces
from crosscut.task.splits import SplitQueue, splits_from_json
from crosscut.task.task import Task
from crosscut.task.unit_restore import RestoredTask, RestoredUnit
from crosscut.wire.batches import encode_batch
from crosscut.worker.local_state_cache import LocalStateCache, Patient
from crosscut.worker.unit_deployment import put_back, replay

_LOG = logging.getLogger("crosscut")

SLOW_S = 5.0
"""A sink that recovers for longer is named."""

NewSplits = Callable[..., SplitQueue]
"""Makes the input of a source task; called as `SplitQueue` is."""

ProgressOf = Callable[[TaskId], CommitProgress]


class TaskHost(Patient, Protocol):
    """The pool of a worker, into which tasks are built."""

    def add(self, task: Task, state: KeyedState | None, writer: SinkWriter | None) -> None:
        """Add a task; in topological order."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings that concern tasks.

    Attributes:
        channel_bytes: Of batches that a channel between two workers may have under way.
        is_periodic: Checkpoints come by themselves, not only on request.
        spill_bytes: Disk for the input of blocked channels; 0: their senders wait.
        spill_dir: None: the system's directory for temporary files.
        state_dir: Where a backend on disk keeps its files; None: likewise.
        state_cache_bytes: Memory for what it has read there.
        tries_in_copies: After deaths of its process, records are tried in copies of it.
        unit_log: The log of the worker; None: it has none.
    """

    batch_rows: int
    channel_bytes: int
    commit_attempts: int
    sink_timeout_ms: int
    snapshots: ProtocolKind = "aligned"
    is_periodic: bool = True
    alignment_timeout_ms: float = 0.0
    spill_bytes: int = 0
    spill_dir: str | None = None
    state_backend: BackendName = "memory"
    state_dir: str | None = None
    state_cache_bytes: int = BLOCK_CACHE_BYTES
    tries_in_copies: bool = True
    unit_log: UnitLogSpec | None = None


async def build_tasks(
    pool: TaskHost,
    graph: JobGraph,
    worker: WorkerIndex,
    deploy: DeployTasks,
    at_hand: LocalStateCache,
    read_part: ReadPart,
    router: KeyRouter,
    terms: TaskSettings,
    spaces: SpillSpaces,
    failpoints: Failpoints,
    began: Callable[[TaskId], None] = lambda task: None,
    *,
    is_attempt: bool = False,
    depths: Mapping[VertexId, int] | None = None,
    new_splits: NewSplits = SplitQueue,
    progress_of: ProgressOf = lambda task: CommitProgress(),
    unit: RestoredUnit | None = None,
) -> None:
    """Build this worker's tasks into `pool`, restored, their replayed commits done.

    Args:
        began: Called before each task, which is the one to blame if this raises.
        is_attempt: This is one attempt of several at a part of a batch: nothing is committed here.
        depths: See `depths_of`; None: `graph` is whole, and has them.
        new_splits: Makes the input of a source task.
        progress_of: Returns what remembers how far the commits of a sink task have come.
        unit: What the log of the worker says of its tasks, besides what `deploy` has from there; None: it has
            no log, or an empty one.

    Raises:
        CrosscutError: A task can't be restored; the message says which and why.
    """
    snapshots = {one.task: one.snapshot for one in deploy.snapshots}
    splits = {one.task: one.splits for one in deploy.splits}

    def owner_of(key: Any) -> int:
        group = key_group(key, graph.max_parallelism)
        return owner_of_group(group, graph.max_parallelism, graph.parallelism)

    if depths is None:
        depths = depths_of(graph)
    owns = OwnedKeys(groups_of_task(worker, graph.max_parallelism, graph.parallelism), graph.max_parallelism)
    for vertex in graph.vertices:
        task_id = TaskId(VertexId(vertex.vertex_id), worker)
        began(task_id)
        snapshot = snapshots.get(task_id)
        if deploy.restore and snapshot is None:
            raise StateError(
                f"checkpoint {deploy.restore} has no snapshot of task {task_id}: it belongs to another graph"
            )
        snapshot = snapshot or Snapshot()
        # Before anything is read: a value with other fields looks like any other.
        check_record_fields(snapshot.record_fields, task_id)
        predecessor_state = (
            _predecessor_state(graph, vertex, worker, deploy.rescaled_from, snapshot, owns)
            if deploy.rescaled_from
            else None
        )
        new_state = at_hand.new_state(task_id)
        if not terms.is_periodic and (not deploy.restore or terms.unit_log is not None):
            # A restored one goes on as it was stored, which may be by slot; in a log it is by key.
            new_state = partial(new_state, is_often_frozen=False)
        states = ((node.uid, keyed_state(node, new_state)) for node in vertex.chain)
        keyed_uid, state = next(((uid, one) for uid, one in states if one is not None), ("", None))
        if state is not None:
            state.field_names.restore(snapshot.fields, keyed_uid)
            try:
                state = await at_hand.restored(
                    task_id, state, deploy.restore, snapshot.parts, read_part, pool, predecessor_state
                )
            except StateError as error:
                raise named_state_error(keyed_uid, error) from error
        logged = unit.tasks.get(task_id, RestoredTask(snapshot)) if unit is not None else None
        if logged is not None and state is not None:
            await replay(state, logged, keyed_uid, pool)
        failpoints("restore.state")
        for one in deploy.retired:
            if one.task.vertex == task_id.vertex:
                check_record_fields(one.snapshot.record_fields, one.task)
                gone = await _recovered(
                    pool, graph, vertex, one.task, one.snapshot, deploy, read_part, progress_of
                )
                if gone is not None:
                    gone[0].close()
        if is_attempt:
            recovered = await _begun(pool, graph, vertex, task_id, snapshot, deploy)
        else:
            recovered = await _recovered(
                pool, graph, vertex, task_id, snapshot, deploy, read_part, progress_of
            )
        writer, held = recovered if recovered is not None else (None, HeldData())
        committer = None
        if writer is not None and vertex.sink is not None:
            known = known_after(known_before(snapshot, vertex.sink.sink.describe()), snapshot)
            committer = Committer(deploy.lineage, deploy.epoch, terms.commit_attempts, known)
        await _open_tables(pool, vertex)
        begins = Begins(deploy.restore, worker)
        operators = [build(node, state, writer, read_aside(graph, node.uid), begins) for node in vertex.chain]
        for operator in operators:
            if operator is None:
                continue
            try:
                for _ in operator.loading():
                    await pool.pause()
            except StateError as error:
                raise named_state_error(operator.uid, error) from error
            operator.own(owns)
            if operator.uid == keyed_uid and state is not None and not state.is_in_memory:
                operator.runs_in_copies = False
        _, predecessor_progress = read_final_progress(snapshot.said)
        if predecessor_progress:
            predecessors = Predecessors(predecessor_progress, graph.max_parallelism)
            for operator in operators:
                if isinstance(operator, KeyedOperator):
                    operator.predecessors = predecessors
        source = vertex.source
        unread: JSON = snapshot.positions if deploy.restore else splits.get(task_id)
        inputs = inputs_of(graph, task_id)
        batch_rows = rows_of_batch(map(attrgetter("spec"), vertex.chain), terms.batch_rows)
        closing = back_edges_of(graph, task_id)
        queues = {
            channel: InputQueue(
                channel, spaces.boundless if channel in closing else spaces.bounded, batch_rows
            )
            for channel in inputs
        }
        unsent: list[LoggedBatch] = []
        sections: dict[ChannelId, int] = {}
        if deploy.rescaled_from and snapshot.log and inputs:
            # One for each input, since operators may tell them apart. A back edge always finds room on disk.
            through: dict[int, InputQueue] = {}
            for channel in sorted(inputs, key=lambda one: one not in closing):
                through.setdefault(channel.input, queues[channel])
            marker_count = await pool.in_thread(
                _hand_on, snapshot, read_part, task_id, graph, owner_of, through, deploy.rescaled_from
            )
            if marker_count:
                sections = {queue.channel: marker_count for _, queue in sorted(through.items())}
        elif not deploy.rescaled_from:
            for part in snapshot.log:
                unsent += await pool.in_thread(_put_back, part, read_part, queues)
        if logged is not None:
            put_back(logged, queues)
        order = None
        if deploy.rescaled_from:
            senders = {channel: depths[channel.source.vertex] for channel in inputs if channel not in closing}
            order = ReplayOrder(sections, depths[task_id.vertex], senders)
        task = Task(
            TaskPlan(
                task_id=task_id,
                epoch=deploy.epoch,
                protocol=snapshot_protocol(terms.snapshots, inputs, closing),
                inputs=queues,
                back_edges=closing,
                spills_blocked=terms.spill_bytes > 0,
                unsent=unsent,
                replay=order,
                log_space=spaces.boundless,
                chain=[operator for operator in operators if operator is not None],
                outputs=outputs_of_task(graph, vertex, task_id, router, terms.batch_rows),
                batch_rows=batch_rows,
                channel_bytes=terms.channel_bytes,
                splits=new_splits(
                    source.source,
                    splits_from_json(unread),
                    vertex.chain[0].uid,
                    is_open=isinstance(source.source, DynamicSource),
                )
                if source
                else None,
                source_uid=vertex.chain[0].uid,
                state=state,
                committer=committer,
                held=held,
                parts=PartChain(deploy.restore, () if deploy.rescaled_from else snapshot.parts),
                restored=snapshot if deploy.restore else None,
                has_event_time=vertex.has_event_time,
                untimed=vertex.untimed,
                aligned=aligned_splits(graph, vertex),
                ended_inputs=logged.ended_inputs if logged is not None else (),
                is_end_forwarded=logged is not None and logged.is_end_forwarded,
            )
        )
        pool.add(task, state, writer)
        failpoints("restore.task")


async def _open_tables(pool: TaskHost, vertex: Vertex) -> None:
    for node in vertex.chain:
        if isinstance(node.spec, LookupSpec):
            try:
                await pool.in_thread(node.spec.table.open)
            except Exception as error:  # noqa: BLE001 - a table may raise anything; raised again
                raise_named("lookup", node.uid, error)


def _put_back(part: Part, read_part: ReadPart, queues: Mapping[ChannelId, InputQueue]) -> list[LoggedBatch]:
    """Put channel records back into the inputs; return those that the outputs had not sent."""
    unsent = []
    for logged in decoded_log(read_part(part)):
        if logged.by_sender:
            unsent.append(logged)
        else:
            queues[logged.channel].restore(logged)
    return unsent


def _hand_on(
    snapshot: Snapshot,
    read_part: ReadPart,
    task: TaskId,
    graph: JobGraph,
    owner_of: Callable[[Any], int],
    through: Mapping[int, InputQueue],
    before: int,
) -> int:
    """Put records that were on their way at another parallelism, and are for `task`, into its inputs.

    Markers divide them into sections: the n-th of all inputs are taken before the next ones of any.

    Args:
        through: A queue for each input.
        before: The parallelism.

    Returns:
        How many markers there are in each of the queues; 0: there was nothing.
    """
    logs = (decoded_log(read_part(part)) for part in snapshot.log)
    marker_count = 0
    for floor, batches in rerouted(logs, task, graph, owner_of, before, snapshot.floors):
        marker_count += _restore_watermark(through, floor)
        for logged in batches:
            through[logged.channel.input].restore(logged)
        marker_count += _add_replay_markers(through)
    return marker_count + (_restore_watermark(through, snapshot.watermark) if marker_count else 0)


def _restore_watermark(through: Mapping[int, InputQueue], watermark: int | None) -> int:
    if watermark is None:
        return 0
    queue = next(iter(through.values()))
    news = LoggedBatch(queue.channel, encode_batch(Batch([], watermark=watermark)), 0, by_sender=False)
    queue.restore(news)
    # Else it would be merged with the records that follow, and come after them.
    return _add_replay_markers(through)


def _add_replay_markers(through: Mapping[int, InputQueue]) -> int:
    for queue in through.values():
        queue.restore_replay_marker(REPLAYED)
    return 1


async def _recovered(
    pool: TaskHost,
    graph: JobGraph,
    vertex: Vertex,
    task: TaskId,
    snapshot: Snapshot,
    deploy: DeployTasks,
    read_part: ReadPart,
    progress_of: ProgressOf,
) -> tuple[SinkWriter, HeldData] | None:
    """Return the writer of a logical sink task, what was pending committed; None: it is no sink's task."""
    held = HeldData()
    for pending in snapshot.pending:
        if pending.held is not None:
            held.keep(pending.checkpoint_id, await pool.in_thread(read_part, pending.held))
    writer = _writer_of(graph, vertex, task, deploy, held, progress_of(task))
    if writer is None:
        return None
    known = known_before(snapshot, vertex.sink.sink.describe()) if vertex.sink is not None else None
    permit = restore_permit(
        deploy.lineage, deploy.epoch, deploy.restore, known.checkpoint_id if known else CheckpointId(0)
    )
    try:
        with _warn_if_slow(vertex.chain[-1].uid, snapshot):
            await pool.in_thread(writer.recover, permit, [one.handle for one in snapshot.pending])
        held.forget(deploy.restore)
    except Exception as error:  # noqa: BLE001 - a sink may raise anything; raised again
        writer.close()
        raise_named("sink", vertex.chain[-1].uid, error)
    return writer, held


@contextmanager
def _warn_if_slow(uid: str, snapshot: Snapshot) -> Iterator[None]:
    """Warn if the block, in which sink `uid` recovers, takes long.

    If the sink never answers, the restore times out in the end; this tells which sink it was.
    """
    pending = [f"the output of checkpoint {one.checkpoint_id}" for one in snapshot.pending]

    def warn() -> None:
        _LOG.warning(
            "sink %r has been recovering for %g s, with %s to commit first; the job starts afterwards",
            uid,
            SLOW_S,
            pending[0] if pending else "nothing",
        )

    timer = asyncio.get_running_loop().call_later(SLOW_S, warn)
    try:
        yield
    finally:
        timer.cancel()


async def _begun(
    pool: TaskHost, graph: JobGraph, vertex: Vertex, task: TaskId, snapshot: Snapshot, deploy: DeployTasks
) -> tuple[SinkWriter, HeldData] | None:
    """Return a writer that only stages, as one attempt of several; None: it is no sink's task."""
    held = HeldData()
    writer = _writer_of(graph, vertex, task, deploy, held, CommitProgress())
    if writer is None:
        return None
    try:
        await pool.in_thread(writer.begin_attempt, [one.handle for one in snapshot.pending])
    except Exception as error:  # noqa: BLE001 - a sink may raise anything; raised again
        writer.close()
        raise_named("sink", vertex.chain[-1].uid, error)
    return writer, held


def _predecessor_state(
    graph: JobGraph, vertex: Vertex, index: WorkerIndex, before: int, snapshot: Snapshot, owns: OwnedKeys
) -> PredecessorState:
    chains = chains_of(snapshot)
    if isinstance(vertex.chain[0].spec, AsyncMapSpec):
        # All calls of a task stay together, and go where records go that were on their way to it: so they
        # stay in order.
        mine = tuple(one for i, one in enumerate(chains) if taken_over_by(i, graph.parallelism) == index)
        everything = OwnedKeys(range(graph.max_parallelism), graph.max_parallelism)
        return PredecessorState(mine, 0, everything, frozenset(range(len(mine))))
    whole = wholly_taken(index, before, graph.parallelism, graph.max_parallelism, len(chains))
    return PredecessorState(chains, copies_from(index, max(len(chains), 1)), owns, whole)


def _writer_of(
    graph: JobGraph,
    vertex: Vertex,
    task: TaskId,
    deploy: DeployTasks,
    held: HeldData,
    progress: CommitProgress,
) -> SinkWriter | None:
    spec = vertex.sink
    if spec is None:
        return None
    if spec.sink.commits_together:
        # The writer that commits would find its own records under the handles of all the others.
        held.refuse(
            f"sink {vertex.chain[-1].uid!r} ({type(spec.sink).__qualname__}) commits together, so its "
            f"records can't be held in snapshots: stage them in its system, or let one task write"
        )
    uid = vertex.chain[-1].uid
    return spec.sink.writer(
        SinkContext(deploy.lineage, deploy.epoch, task, uid, held, deploy.driver, graph.name, progress)
    )
