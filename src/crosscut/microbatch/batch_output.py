"""The output of batches: sinks recover, commit and abort on the driver, one call at a time, in a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from crosscut.foundation.ids import Epoch, TaskId, VertexId
from crosscut.graph.specs import JobGraph
from crosscut.graph.stages import stages_of
from crosscut.host.calls import StartThread
from crosscut.host.failpoints import Failpoints
from crosscut.microbatch.one_by_one import OneByOne
from crosscut.microbatch.output import Output, OutputError
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.net.causes import failure_cause
from crosscut.protocol.job.restarts import is_hopeless
from crosscut.protocol.messages import DeployTasks, FailureCause
from crosscut.protocol.microbatch import effects as do
from crosscut.protocol.microbatch import events as on
from crosscut.protocol.microbatch.attempts import Attempt
from crosscut.store.checkpoint_store import CheckpointStore


class BatchOutput:
    """The sinks of one job, of one epoch at a time.

    Args:
        name: Of the job.
        post: Takes the answers, in the thread.
        failed: Takes a failure that is no answer, in the thread.
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
        self._calls = OneByOne(f"crosscut-output-{name}", start_thread)
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

    def close(self) -> Future[None]:
        """Close the writers after the calls under way; no other call follows."""
        closing = self._calls.add(self._close)
        self._calls.end()
        return closing

    def _call(self, call: Callable[..., None], *args: object) -> None:
        self._calls.add(lambda: call(*args)).add_done_callback(self._called)

    def _called(self, call: Future[None]) -> None:
        # Errors of sinks are answers. With any other one the coordinator would wait for an answer in vain.
        if (error := call.exception()) is not None:
            self._failed(failure_cause(error))

    # In the thread.

    def _close(self) -> None:
        """Close the writers. What they have not committed is recovered: an error here loses nothing."""
        try:
            if self._output is not None:
                self._output.close()
        except OutputError as error:
            cause = error.__cause__
            LOGGER.warning(
                "job %r: %s could not be closed: %s: %s", self._name, error, type(cause).__name__, cause
            )

    def _recover(self, epoch: Epoch, deploys: tuple[DeployTasks, ...]) -> None:
        self._close()
        try:
            one = deploys[0]
            self._output = Output(
                self._graph, one.lineage, epoch, one.driver, self._store.read_part, self._start_thread
            )
            self._output.recover(deploys)
        except OutputError as error:
            self._post(on.RecoveryFailed(epoch, error.task, failure_cause(error.__cause__ or error)))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the coordinator has to know
            task = TaskId(VertexId(stages_of(self._graph)[0][0]), 0)
            self._post(on.RecoveryFailed(epoch, task, failure_cause(error)))
        else:
            self._post(on.OutputRecovered(epoch))

    def _commit(self, effect: do.CommitBatch) -> None:
        epoch, n = effect.epoch, effect.checkpoint_id
        self._failpoints("commit.before")
        try:
            if self._output is not None:
                self._output.commit(n, effect.taken)
                if effect.sweeps:
                    self._remove(Output.sweep)
        except OutputError as error:
            found = error.__cause__ or error
            cause, reason = failure_cause(found), f"{type(found).__name__}: {found}"
            self._post(
                on.CommitFailed(
                    epoch, n, error.task, reason, error.uid, is_hopeless(cause), cause.is_transient
                )
            )
        else:
            self._failpoints("commit.after")
            self._post(on.OutputCommitted(epoch, n))

    def _remove(self, call: Callable[[Output], None]) -> None:
        try:
            if self._output is not None:
                call(self._output)
        except OutputError as error:
            LOGGER.warning(
                "job %r: could not remove all that attempts have staged which were not taken: %s; it is "
                "never committed, and goes at the next start",
                self._name,
                error.__cause__,
            )
