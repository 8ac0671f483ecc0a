"""The output of batches, on the driver: the writers that commit, recover and remove."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from crosscut.contracts.connectors import JSON, HeldData, SinkContext, SinkWriter
from crosscut.errors import FlowError
from crosscut.foundation.data_pickles import only_data
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.graph.global_commit import sinks_together
from crosscut.graph.specs import JobGraph, Vertex
from crosscut.host.calls import Calls, StartThread, start_thread
from crosscut.operators.connector_errors import name_connector
from crosscut.protocol.messages import DeployTasks
from crosscut.protocol.microbatch.attempts import Attempt, committer
from crosscut.protocol.snapshot.commit import known_before, restore_permit
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.state.field_names import check_record_fields

P = ParamSpec("P")
R = TypeVar("R")

THREADS_MAX = 8
"""Writers that are called at a time, each in a thread."""


class OutputError(Exception):
    """A writer has failed; `__cause__` says why.

    Attributes:
        task: Whose.
        uid: Of the sink.
    """

    def __init__(self, task: TaskId, uid: str) -> None:
        super().__init__(f"the output of task {task} of sink {uid!r}")
        self.task = task
        self.uid = uid


@dataclass(frozen=True, slots=True)
class _Writer:
    task: TaskId
    writer: SinkWriter
    held: HeldData


def check_sinks(graph: JobGraph) -> None:
    """Refuse sinks whose writers can't be several attempts at a task.

    Raises:
        FlowError: It names the sink.
    """
    for vertex in graph.vertices:
        if vertex.sink is None:
            continue
        uid = vertex.chain[-1].uid
        context = SinkContext(Lineage("check"), Epoch(1), TaskId(VertexId(vertex.vertex_id), 0), uid)
        writer = vertex.sink.sink.writer(context)
        if type(writer).begin_attempt is SinkWriter.begin_attempt:
            raise FlowError(
                f"flow {graph.name!r}: sink {uid!r} ({type(vertex.sink.sink).__qualname__}) can't be written "
                f"by engine='micro-batch', where a task may be tried twice at the same time: its writer has "
                f"no `begin_attempt`; run the flow with engine='continuous', or write to files",
                operator=uid,
            )


class Output:
    """The writers of one epoch's sink tasks, on the driver.

    Each writer is called in a thread. The caller waits for one method before it calls the next.
    """

    def __init__(
        self,
        graph: JobGraph,
        lineage: Lineage,
        epoch: Epoch,
        driver: str,
        read_part: Callable[[Part], bytes],
        start: StartThread = start_thread,
    ) -> None:
        self._vertices: dict[str, Vertex] = {one.vertex_id: one for one in graph.vertices if one.sink}
        self._parallelism = graph.parallelism
        self._job = graph.name
        self._global_sinks = sinks_together(graph)
        self._lineage = lineage
        self._epoch = epoch
        self._driver = driver
        self._read_part = read_part
        # Those that have recovered.
        self._writers: dict[TaskId, _Writer] = {}
        # Those that have to be closed. Any thread changes it, in one operation.
        self._open: list[_Writer] = []
        self._calls = Calls("crosscut-output", start)

    @property
    def tasks(self) -> list[TaskId]:
        """The sink tasks."""
        return [TaskId(VertexId(one), index) for one in self._vertices for index in range(self._parallelism)]

    async def recover(self, deploys: Sequence[DeployTasks]) -> None:
        """Commit what the restored checkpoint commits, and remove what older epochs have staged.

        Raises:
            OutputError: It could not be done.
        """
        restore = deploys[0].restore
        found = {one.task: one.snapshot for deploy in deploys for one in deploy.snapshots}
        retired = [one for deploy in deploys for one in deploy.retired if one.task.vertex in self._vertices]
        for one in retired:
            await self._in_thread(self._recover_retired, one, restore)
        for writer in await self._each(
            lambda task: self._recover(task, found.get(task, Snapshot()), restore), self.tasks
        ):
            self._writers[writer.task] = writer

    def _recover_retired(self, one: TaskSnapshot, restore: CheckpointId) -> None:
        self._close(self._recover(one.task, one.snapshot, restore))

    def _recover(self, task: TaskId, snapshot: Snapshot, restore: CheckpointId) -> _Writer:
        vertex = self._vertices[task.vertex]
        assert vertex.sink is not None
        held = HeldData()
        uid = self._uid(task)
        context = SinkContext(self._lineage, self._epoch, task, uid, held, self._driver, self._job)
        try:
            one = _Writer(task, vertex.sink.sink.writer(context), held)
            self._open.append(one)
            # Only modules that are loaded already are checked: the driver holds the key of the job log and
            # imports nothing that a worker names.
            check_record_fields(snapshot.record_fields, task, is_to_import=False)
            self._take_held(one, snapshot)
            known = known_before(snapshot, vertex.sink.sink.describe()).checkpoint_id
            permit = restore_permit(self._lineage, self._epoch, restore, known)
            # Workers have made the handles, so the driver, which has the key of the job log, loads data only.
            with only_data():
                one.writer.recover(permit, [pending.handle for pending in snapshot.pending])
            held.forget(restore)
        except BaseException as error:  # noqa: BLE001 - a sink may raise anything; raised again
            raise OutputError(task, uid) from name_connector("sink", uid, error)
        return one

    def _uid(self, task: TaskId) -> str:
        return self._vertices[task.vertex].chain[-1].uid

    async def commit(self, n: CheckpointId, taken: Iterable[Attempt]) -> None:
        """Make visible what checkpoint n commits, whose entry is durable.

        Raises:
            OutputError: Not all of it is visible, or that is not known; it may be tried again.
        """
        snapshots = {
            one.task: one.snapshot for attempt in taken for one in attempt.snapshots if one.snapshot.pending
        }

        def commit(task: TaskId) -> None:
            one, snapshot = self._writers[task], snapshots[task]
            known = snapshot.committed.checkpoint_id if snapshot.committed is not None else CheckpointId(0)
            permit = restore_permit(self._lineage, self._epoch, n, known)
            assert permit is not None
            try:
                self._take_held(one, snapshot)
                with only_data():
                    one.writer.commit(permit, [pending.handle for pending in snapshot.pending])
                one.held.forget(n)
            except BaseException as error:
                raise OutputError(task, self._uid(task)) from error

        await self._each(commit, list(snapshots))

    def _take_held(self, one: _Writer, snapshot: Snapshot) -> None:
        for pending in snapshot.pending:
            if pending.held is not None:
                one.held.keep(pending.checkpoint_id, self._read_part(pending.held))

    async def abort(self, attempts: Iterable[Attempt]) -> None:
        """Remove what these have staged.

        Raises:
            OutputError: Something is left over, which goes when a later epoch recovers.
        """
        await self._in_thread(self._abort, [one for attempt in attempts for one in attempt.snapshots])

    def _abort(self, snapshots: Iterable[TaskSnapshot]) -> None:
        handles: dict[TaskId, list[JSON]] = {}
        for one in snapshots:
            staged = [each.handle for each in one.snapshot.pending]
            handles.setdefault(committer(one.task, self._global_sinks), []).extend(staged)
        # One call for each writer, which may abort for several tasks.
        for task, staged in handles.items():
            if staged and task in self._writers:
                try:
                    with only_data():
                        self._writers[task].writer.abort(staged)
                except BaseException as error:
                    raise OutputError(task, self._uid(task)) from error

    async def sweep(self) -> None:
        """Remove all that is staged.

        Raises:
            OutputError: As in `abort`.
        """
        await self._in_thread(self._sweep)

    def _sweep(self) -> None:
        for one in self._writers.values():
            try:
                one.writer.sweep()
            except BaseException as error:
                raise OutputError(one.task, self._uid(one.task)) from error

    async def close(self) -> None:
        """Close all writers.

        Raises:
            OutputError: One could not be closed; the others are.
        """
        await self._in_thread(self._close_all)

    def _close_all(self) -> None:
        failed: OutputError | None = None
        self._writers.clear()
        while self._open:
            try:
                self._close(self._open[-1])
            except OutputError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _close(self, one: _Writer) -> None:
        self._open.remove(one)
        try:
            one.writer.close()
        except BaseException as error:
            raise OutputError(one.task, self._uid(one.task)) from error

    async def _each(self, call: Callable[[TaskId], R], tasks: Sequence[TaskId]) -> list[R]:
        found: list[R] = []
        for first in range(0, len(tasks), THREADS_MAX):
            some = [self._in_thread(call, task) for task in tasks[first : first + THREADS_MAX]]
            # All of them: none may be at work any more when another method is called.
            for one in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(one, BaseException):
                    raise one
                found.append(one)
        return found

    def _in_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        return asyncio.wrap_future(self._calls.start(call, *args, **kwargs))
