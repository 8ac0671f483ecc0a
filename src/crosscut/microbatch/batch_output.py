"""The output of batches: sinks recover, commit and abort on the driver, one call at a time, in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from crosscut.foundation.ids import Epoch, TaskId, VertexId
from crosscut.graph.specs import JobGraph
from crosscut.graph.stages import stages_of
from crosscut.host.calls import Calls, StartThread
from crosscut.host.failpoints import Failpoints
from crosscut.microbatch.output import Output, OutputError
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.net.causes import failure_cause
from crosscut.operators.connector_errors import name_connector
from crosscut.protocol.job.restarts import is_hopeless
from crosscut.protocol.messages import DeployTasks, FailureCause
from crosscut.protocol.microbatch import effects as do
from crosscut.protocol.microbatch import events as on
from crosscut.protocol.microbatch.attempts import Attempt
from crosscut.store.checkpoint_store import CheckpointStore


class BatchOutput:
    """The sinks of one job, of one epoch at a time. Everything is called on the loop of the job.

    Args:
        name: Of the job.
        post: Takes the answers.
        failed: Takes a failure that is no answer.
    """

    def __init__(
        self,
        name: str,
        graph: JobGraph,
        store: CheckpointStore,
        failpoints: Failpoints,
        post: Callable[[on.BatchEvent], None],
        failed: Callable[[FailureCause], None],
        start_thread: StartThread,
    ) -> None:
        self._name = name
        self._graph = graph
        self._store = store
        self._failpoints = failpoints
        self._post = post
        self._failed = failed
        self._start_thread = start_thread
        self._loop = asyncio.get_running_loop()
        # It lets them in one after the other, in the order in which they ask.
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self._threads = Calls("crosscut-failpoints", start_thread)
        self._output: Output | None = None

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The sink tasks of the epoch; none before it has recovered."""
        return tuple(self._output.tasks) if self._output is not None else ()

    def recover(self, epoch: Epoch, deploys: tuple[DeployTasks, ...]) -> None:
        """Commit what the restored checkpoint commits; answered by `OutputRecovered` or `RecoveryFailed`."""
        self._call(self._recover, epoch, deploys)

    def commit(self, effect: do.CommitBatch) -> None:
        """Make a batch visible; answered by `OutputCommitted` or `CommitFailed`."""
        self._call(self._commit, effect)

    def abort(self, attempts: tuple[Attempt, ...]) -> None:
        """Remove what these attempts have staged."""
        self._call(self._remove, lambda output: output.abort(attempts))

    def sweep(self) -> None:
        """Remove all that is staged."""
        self._call(self._remove, Output.sweep)

    async def close(self) -> None:
        """Close the writers after the calls under way; no other call follows.

        If this is cancelled, what a sink has not answered by then counts for nothing.
        """
        # A task, like the calls before it: those made in this turn of the loop have not asked for their
        # turn yet.
        closing = self._loop.create_task(self._in_turn(self._close))
        try:
            await closing
        finally:
            for call in self._under_way:
                call.cancel()

    def _call(self, call: Callable[..., Awaitable[None]], *args: object) -> None:
        calling = self._loop.create_task(self._in_turn(call, *args))
        self._under_way.add(calling)
        calling.add_done_callback(self._called)

    async def _in_turn(self, call: Callable[..., Awaitable[None]], *args: object) -> None:
        async with self._turn:
            await call(*args)

    def _called(self, call: asyncio.Task[None]) -> None:
        self._under_way.discard(call)
        # Errors of sinks are answers. With any other one the coordinator would wait for an answer in vain.
        if not call.cancelled() and (error := call.exception()) is not None:
            self._failed(failure_cause(error))

    # In turn.

    async def _pass(self, failpoint: str) -> None:
        # In a thread: what waits there must not hold the loop up.
        if self._failpoints.is_armed:
            await asyncio.wrap_future(self._threads.start(self._failpoints, failpoint))

    async def _close(self) -> None:
        """Close the writers. What they have not committed is recovered: an error here loses nothing."""
        try:
            if self._output is not None:
                await self._output.close()
        except OutputError as error:
            cause = error.__cause__
            LOGGER.warning(
                "job %r: %s could not be closed: %s: %s", self._name, error, type(cause).__name__, cause
            )

    async def _recover(self, epoch: Epoch, deploys: tuple[DeployTasks, ...]) -> None:
        await self._close()
        try:
            one = deploys[0]
            self._output = Output(
                self._graph, one.lineage, epoch, one.driver, self._store.read_part, self._start_thread
            )
            await self._output.recover(deploys)
        except OutputError as error:
            self._post(on.RecoveryFailed(epoch, error.task, failure_cause(error.__cause__ or error)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator has to know
            task = TaskId(VertexId(stages_of(self._graph)[0][0]), 0)
            self._post(on.RecoveryFailed(epoch, task, failure_cause(error)))
        else:
            self._post(on.OutputRecovered(epoch))

    async def _commit(self, effect: do.CommitBatch) -> None:
        epoch, n = effect.epoch, effect.checkpoint_id
        await self._pass("commit.before")
        try:
            if self._output is not None:
                await self._output.commit(n, effect.taken)
                if effect.sweeps:
                    await self._remove(Output.sweep)
        except OutputError as error:
            found = error.__cause__ or error
            reason = f"{type(found).__name__}: {found}"
            cause = failure_cause(name_connector("sink", error.uid, found))
            self._post(
                on.CommitFailed(
                    epoch, n, error.task, reason, error.uid, is_hopeless(cause), cause.is_transient
                )
            )
        else:
            await self._pass("commit.after")
            self._post(on.OutputCommitted(epoch, n))

    async def _remove(self, call: Callable[[Output], Awaitable[None]]) -> None:
        try:
            if self._output is not None:
                await call(self._output)
        except OutputError as error:
            LOGGER.warning(
                "job %r: could not remove all that attempts have staged which were not taken: %s; it is "
                "never committed, and goes at the next start",
                self._name,
                error.__cause__,
            )
