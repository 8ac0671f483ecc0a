"""What must hold, judged from outside: from what is in the store, at the sink, and in the sources.

The checkers keep a history of their own. They are told of every entry of the job log when it comes
into being, and of every transaction when it becomes visible; they ask no task and no coordinator.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from crosscut.contracts.connected_process import SHARED_KINDS
from crosscut.contracts.connectors import CommitPermit
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import groups_of_task, key_group
from crosscut.graph.specs import AsyncMapSpec
from crosscut.operators.final_results import ordinal_of
from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    LogEntry,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.snapshots import Part, Snapshot
from crosscut.protocol.splits.rescaling import final_progress_ranges
from crosscut.protocol.unit_log.entries import COMMIT_NUMBER_BITS
from crosscut.state.encoding import contents
from crosscut.state.keyed import MAIN
from crosscut.task.channel_log import decoded_log
from crosscut.task.splits import splits_from_json
from crosscut.testing.simulator.event_time import WatermarksKept
from crosscut.testing.simulator.oracle import Cut, Item, has_sequential_run, run_from, state_name
from crosscut.testing.simulator.simulated_job import SimulatedJob
from crosscut.testing.simulator.sinks import Resource, checkpoint_of
from crosscut.testing.simulator.sources import GrowingSource, ReplayedSource
from crosscut.testing.simulator.violation import ensure, violate
from crosscut.wire.batches import decode_batch


class Checkers:
    """The invariants of one world.

    Args:
        read: Returns the stored bytes of a part, None if there are none.
        damaged: Parts that are not what was written: a broken promise of the disk.
        is_exactly_once: Else records may count twice, but none is lost.
        logged: Returns an entry of the log of a worker if it was ever durable; None: workers have no logs.
    """

    def __init__(
        self,
        job: SimulatedJob,
        read: Callable[[str], bytes | None],
        damaged: set[str],
        resource: Callable[[], Resource],
        *,
        is_exactly_once: bool,
        logged: Callable[[str], bytes | None] | None = None,
    ) -> None:
        graph = job.graph
        self._logged = logged
        self._graph_of_process = job.graph_of_process
        self._zoo = job.judged_as
        self._read = read
        self._resource = resource
        self._is_exactly_once = is_exactly_once
        self._has_sequential_run = has_sequential_run(graph, ignores_tasks=job.ignores_tasks)
        self._left_behind = job.left_behind
        self._can_be_compared = job.is_comparable
        self._is_comparable = job.is_comparable and (is_exactly_once or job.judged_as.survives_duplicates)
        self._sources: dict[str, ReplayedSource] = {}
        self._vertices = [VertexId(vertex.vertex_id) for vertex in graph.vertices]
        self._max_parallelism = graph.max_parallelism
        heads = ((vertex.vertex_id, vertex.chain[0].spec) for vertex in graph.vertices)
        self._calling = [vertex for vertex, spec in heads if isinstance(spec, AsyncMapSpec)]
        self._shared = {
            (vertex.vertex_id, name)
            for vertex in graph.vertices
            for name, kind in getattr(vertex.chain[0].spec, "states", ())
            if kind in SHARED_KINDS
        }
        self._folds = {vertex.vertex_id for vertex in graph.vertices if hasattr(vertex.chain[0].spec, "emit")}
        for vertex in graph.vertices:
            spec = vertex.source
            if spec is not None and isinstance(spec.source, ReplayedSource):
                self._sources[vertex.vertex_id] = spec.source
        self.expected = self._expected(job)
        self.log: list[LogEntry] = []
        self.damaged = damaged
        self._manifest_of: dict[str, CheckpointId] = {}
        self._acknowledged: set[str] = set()
        self._watermarks = WatermarksKept()

    # Told by the store.

    @property
    def epoch(self) -> Epoch:
        """The newest epoch that is claimed."""
        return max((one.epoch for one in self._claims), default=Epoch(0))

    @property
    def _claims(self) -> list[EpochClaimed]:
        return claims_in(self.log)

    @property
    def completed(self) -> list[CheckpointCompleted]:
        """The completed checkpoints, oldest first."""
        return [one for one in self.log if isinstance(one, CheckpointCompleted)]

    @property
    def newest_id(self) -> CheckpointId:
        """The newest completed checkpoint, 0 if there is none."""
        return CheckpointId(max((one.checkpoint_id for one in self.completed), default=0))

    @property
    def is_finished(self) -> bool:
        """Whether the log says that the job is."""
        return bool(self.log) and isinstance(self.log[-1], JobFinished)

    def appended(self, entry: LogEntry) -> None:
        """An entry of the job log has come into being."""
        if self.is_finished:
            violate(f"{entry!r:.80} after the job finished")
        completed = self.completed
        match entry:
            case EpochClaimed():
                ensure(entry.epoch > self.epoch, f"I6: epoch {entry.epoch} is claimed again")
            case SegmentOpened(claim):
                is_same = bool(self._claims) and claim == self._claims[-1]
                ensure(
                    is_same or claim.epoch > self.epoch,
                    f"I7: a segment is opened in epoch {claim.epoch} when epoch {self.epoch} owns the job",
                )
            case SegmentClosed():
                pass
            case CheckpointCompleted(epoch, n):
                ensure(epoch == self.epoch, f"I7: checkpoint {n} of epoch {epoch} in epoch {self.epoch}")
                newest = completed[-1].checkpoint_id if completed else 0
                ensure(n > newest, f"I6: checkpoint {n} completes after {newest}")
                self._check_cut(entry)
                self._watermarks.completed(entry)
            case JobFinished():
                if self._logged is not None:
                    self._check_logged_is_visible()
                else:
                    is_final = bool(completed) and completed[-1].is_final
                    ensure(is_final, "F5: finished without a final checkpoint")
                    self.check_committed(completed[-1])
        self.log.append(entry)

    @property
    def watermarks_restored(self) -> int:
        """How often tasks have gone on from a watermark in another epoch."""
        return self._watermarks.restored_count

    def check_committed(self, checkpoint: CheckpointCompleted | None) -> None:
        """The job says that everything of `checkpoint`, or of the logs of its workers, is visible: is it?"""
        if self._logged is not None:
            self._check_logged_is_visible()
        for one in checkpoint.snapshots if checkpoint else ():
            for pending in one.snapshot.pending:
                is_committed = pending.handle in self._resource().committed
                ensure(is_committed, f"F5 I9: the job ends well, but {pending.handle} is not committed")

    def deleted(self, path: str) -> None:
        """Something was deleted: does the newest checkpoint need it?"""
        for entry in self.completed[-1:]:
            for one in entry.snapshots:
                held = (one.held for one in one.snapshot.pending if one.held is not None)
                is_needed = any(part.path == path for part in (*one.snapshot.parts, *one.snapshot.log, *held))
                ensure(not is_needed, f"I8: {path} is deleted, and checkpoint {entry.checkpoint_id} needs it")

    # Told by the sink.

    def may_become_visible(self, handle: str, permit: CommitPermit) -> None:
        """A transaction is about to become visible."""
        if self._logged is not None:
            ensure(
                checkpoint_of(handle) <= permit.checkpoint_id,
                f"I3: {handle} becomes visible with a permit for {permit}",
            )
            ensure(self._is_logged(handle), f"I3: {handle} becomes visible, and no durable group holds it")
            return
        n = self._manifest_of.get(handle)
        ensure(
            n is not None and n <= permit.checkpoint_id,
            f"I3: {handle} becomes visible with a permit for {permit.checkpoint_id}; it is in the manifest "
            f"of {n}",
        )
        is_complete = any(one.checkpoint_id == permit.checkpoint_id for one in self.completed)
        ensure(is_complete, f"I3: {handle} becomes visible, and {permit.checkpoint_id} is not complete")

    def _is_logged(self, handle: str) -> bool:
        """Whether the log of its worker has the group that a transaction belongs to."""
        context, _ = self._resource().staged[handle]
        number = checkpoint_of(handle)
        segment, place = number >> COMMIT_NUMBER_BITS, number & ((1 << COMMIT_NUMBER_BITS) - 1)
        path = f"units/{context.task.index}/{segment:020d}/{place:020d}"
        entry = self._logged(path) if self._logged is not None else None
        return entry is not None and handle.encode() in entry

    def _check_logged_is_visible(self) -> None:
        """The job says that it has finished: is all output visible that a log holds?"""
        left = [handle for handle in self._resource().staged if self._is_logged(handle)]
        ensure(not left, f"F5 I9: the job ends well, but {left} are not committed")

    # Told by the world.

    def check_end(self, *, is_tidy: bool = True) -> None:
        """The job has finished: is the output what it has to be?

        Args:
            is_tidy: Nothing may be left staged.
        """
        # Records come twice only after a restore, so a job of one epoch has no excuse.
        is_exact = self._is_exactly_once or self.epoch == 1
        if self._is_comparable or (self._can_be_compared and is_exact):
            self._compare(self._tokens(self._visible()), "the visible output", is_exact=is_exact)
        for (sink_uid, task), records in self._visible_by_task().items():
            newest: dict[Any, Any] = {}
            for record in records if self._is_exactly_once else ():
                found = self._zoo.lane(sink_uid, record)
                if found is not None:
                    lane, rank = found
                    if lane in newest and not newest[lane] < rank:
                        violate(
                            f"I5: at {sink_uid} {task}, {record!r} of {lane!r} comes after {newest[lane]!r}"
                        )
                    newest[lane] = rank
        if is_exact or self._zoo.survives_duplicates:
            self._left_behind.check_calls()
        final = self.completed[-1] if self._logged is None else None
        if final is not None and is_exact and not self.damaged:
            snapshots = {one.task: one.snapshot for one in final.snapshots}
            self._left_behind.check_states(
                snapshots, lambda task: contents(map(self._content, snapshots[task].parts))
            )
        left = [
            handle
            for handle, (owner, _) in self._resource().staged.items()
            if owner.epoch == self.epoch and (final is None or final.epoch == self.epoch)
        ]
        ensure(not left or not is_tidy, f"I11: {left} is staged for ever")

    def acknowledged(self, snapshot: Snapshot) -> None:
        """The driver has heard of the parts of a snapshot: from now on they are its affair."""
        self._acknowledged |= {one.path for one in (*snapshot.parts, *snapshot.log)}
        self._acknowledged |= {one.held.path for one in snapshot.pending if one.held is not None}

    def check_tidy(self, parts: Iterable[str]) -> None:
        """Nothing has died in the newest epoch: is deleted what was given up before anybody heard of it?"""
        if self._logged is not None:
            return
        final = self.completed[-1]
        left = []
        for path in parts:
            _, n, name = path.split("/")
            epoch = int(name.rsplit("-", 2)[1])
            if epoch == final.epoch and int(n) < final.checkpoint_id and path not in self._acknowledged:
                left.append(path)
        ensure(not left, f"I11: {left} were given up, and nobody has deleted them")

    def difference(self) -> tuple[Counter[Any], Counter[Any]]:
        """Return what is missing from the visible output, and what is there too often."""
        found = self._tokens(self._visible())
        return self.expected - found, found - self.expected

    # Cuts.

    def _check_cut(self, entry: CheckpointCompleted) -> None:
        n = entry.checkpoint_id
        snapshots = {one.task: one.snapshot for one in entry.snapshots}
        parallelism = self._claims[-1].parallelism
        tasks = {TaskId(vertex, index) for vertex in self._vertices for index in range(parallelism)}
        ensure(snapshots.keys() == tasks, f"I4: checkpoint {n} is torn: {sorted(map(str, snapshots))}")
        needed = {path.path for one in snapshots.values() for path in (*one.parts, *one.log) if path.path}
        resource = self._resource()
        outputs = self._visible()
        handles = [str(one.handle) for snapshot in snapshots.values() for one in snapshot.pending]
        for handle in handles:
            self._manifest_of.setdefault(handle, n)
            if handle not in resource.committed:
                ensure(handle in resource.staged, f"I9: checkpoint {n} needs {handle}, which is not staged")
                context, records = resource.staged[handle]
                outputs.setdefault(context.sink_uid, []).extend(records)
        if needed & self.damaged:
            return
        cut = self._cut_of(snapshots, parallelism)
        for one in entry.known_splits:
            source = self._sources.get(one.source)
            if isinstance(source, GrowingSource):
                cut.unread += [(one.source, source.records[name]) for name in source.to_come(one.known)]
        if entry.is_final and (cut.under_way or any(list(records) for _, records in cut.unread)):
            violate(f"F5: checkpoint {n} is called final: {cut!r:.300}")
        if not self._is_comparable or not self._has_sequential_run:
            return
        for sink_uid, records in run_from(self._graph_of_process(), cut).items():
            outputs.setdefault(sink_uid, []).extend(records)
        self._compare(
            self._tokens(outputs), f"going on from checkpoint {n}, the output", is_exact=self._is_exactly_once
        )

    def _cut_of(self, snapshots: Mapping[TaskId, Snapshot], parallelism: int) -> Cut:
        cut = Cut()
        for task, snapshot in sorted(snapshots.items()):
            tables = contents(map(self._content, snapshot.parts))
            groups = groups_of_task(task.index, self._max_parallelism, parallelism)
            if task.vertex in self._folds:
                strange = [key for key in tables.get(MAIN, {}) if self._group(key) not in groups]
                ensure(not strange, f"I4: {task} has {strange[:3]}, which are not its own")
            for table, values in tables.items():
                whole = cut.states.setdefault(state_name(task.vertex, table), {})
                is_whole = (task.vertex, table) in self._shared or not whole.keys() & values.keys()
                ensure(is_whole, f"I4: two tasks of {task.vertex} have one key")
                whole.update(values)
            state = tables.get(MAIN, {})
            if snapshot.ended:
                cut.emitted.setdefault(task.vertex, set()).update(state)
            elif snapshot.said is not None and task.vertex not in self._calling:
                # Calls that wait are the task's that has the record, whatever group their number is of.
                cut.emitted.setdefault(task.vertex, set()).update(self._emitted(snapshot, state, groups))
            for part in snapshot.log:
                for logged in decoded_log(self._content(part)):
                    batch = decode_batch(logged.data)
                    ensure(batch.marker is None, f"I4: the log of {task} holds a latency marker")
                    keys = _keys_of(batch)
                    times = batch.timestamps if batch.timestamps is not None else [None] * len(batch)
                    cut.under_way += [
                        (logged.channel.target.vertex, Item(*one, logged.channel.input))
                        for one in zip(batch.records, keys, times, strict=True)
                    ]
            if task.vertex in self._sources:
                for split, position in splits_from_json(snapshot.positions):
                    records = self._sources[task.vertex].records[split.split_id]
                    cut.unread.append((task.vertex, records[int(str(position)) :]))
        for vertex in self._calling:
            # What is in its state waits for a call, and has had no effect.
            waiting = cut.states.pop(state_name(vertex, MAIN), {}).values()
            cut.under_way += [(vertex, Item(record, None, timestamp)) for record, timestamp in waiting]
        return cut

    def _group(self, key: Any) -> int:
        return key_group(key, self._max_parallelism)

    def _emitted(self, snapshot: Snapshot, state: Mapping[Any, Any], groups: range) -> set[Any]:
        """Return the keys whose final results have been emitted, by this task or a predecessor."""
        emitted_up_to = {
            group: reached for ranges, reached in final_progress_ranges(snapshot, groups) for group in ranges
        }
        return {key for key in state if emitted_up_to[self._group(key)] >= (0, ordinal_of(key))}

    def _content(self, part: Part) -> bytes:
        data = self._read(part.path) if part.path else base64.b64decode(part.inline)
        ensure(data is not None, f"I8: {part.path} is needed and does not exist")
        found = data or b""
        is_whole = hashlib.sha256(found).hexdigest() == part.sha256
        ensure(is_whole or part.path in self.damaged, f"I8: {part.path} is not what was written")
        return found

    # Output.

    def _expected(self, job: SimulatedJob) -> Counter[Any]:
        if job.expected is not None:
            return self._tokens(job.expected)
        found = _EXPECTED.get(job.known_by)
        if found is None:
            found = self._tokens(self._sequential_run())
            if job.known_by is not None:
                _EXPECTED[job.known_by] = found
        return found

    def _sequential_run(self) -> dict[str, list[Any]]:
        unread: list[tuple[str, Iterable[Any]]] = [
            (vertex, records)
            for vertex, source in self._sources.items()
            for records in source.records.values()
        ]
        return run_from(self._graph_of_process(), Cut(unread=unread))

    def _visible(self) -> dict[str, list[Any]]:
        outputs: dict[str, list[Any]] = {}
        for context, records in self._resource().committed.values():
            outputs.setdefault(context.sink_uid, []).extend(records)
        return outputs

    def _visible_by_task(self) -> dict[tuple[str, TaskId], list[Any]]:
        outputs: dict[tuple[str, TaskId], list[Any]] = {}
        for context, records in self._resource().committed.values():
            outputs.setdefault((context.sink_uid, context.task), []).extend(records)
        return outputs

    def _tokens(self, outputs: Mapping[str, Iterable[Any]]) -> Counter[Any]:
        return Counter(
            (uid, _hashable(token))
            for uid, records in outputs.items()
            for record in records
            for token in self._zoo.tokens(record)
        )

    def _compare(self, found: Counter[Any], what: str, *, is_exact: bool) -> None:
        # Nearly always, and far faster than to ask what is lacking.
        if dict.__eq__(found, self.expected):
            return
        lost, added = self.expected - found, found - self.expected
        if lost:
            violate(f"I1: {what} lacks {_shown(lost)}")
        if is_exact and added:
            violate(f"I2: {what} has too often {_shown(added)}")


_EXPECTED: dict[Hashable, Counter[Any]] = {}
"""The tokens of jobs of the zoo: most worlds of a batch run one that another has run."""


def _hashable(token: Any) -> Any:
    try:
        hash(token)
    except TypeError:
        return repr(token)
    return token


def _shown(tokens: Counter[Any]) -> str:
    some = ", ".join(f"{token!r:.80}" for token in list(tokens)[:4])
    return f"{sum(tokens.values())} tokens: {some}"


def _keys_of(batch: Batch) -> Sequence[Any]:
    if isinstance(batch.records, FrameRows) and batch.records.key_columns:
        return batch.records.key_values()
    return batch.keys if batch.keys is not None else [None] * len(batch)
