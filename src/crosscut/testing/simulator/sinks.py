"""A staged sink in memory that is as nasty as its contract allows: commits whose outcome is unknown,
half applied, failed; requests that arrive after their sender's death."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    CommittedOutput,
    Sink,
    SinkContext,
    SinkWriter,
)
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.testing.simulator.processes import Call
from crosscut.testing.simulator.violation import Violation, ensure
from crosscut.worker.runner import TaskRunner

CommitFault = Literal["not applied", "applied", "half applied"]


class Resource:
    """The place of output, outside of every process: a stage, and the committed output.

    Args:
        on_visible: Asked before a transaction becomes visible: may it?
        permit: Called before each operation, with the sink: the process that runs may not be there any more.
        under_way: Returns the call that the running process makes in a thread, if it is in one.
        is_together: The first task of a sink commits what all have staged.
    """

    def __init__(
        self,
        on_visible: Callable[[str, CommitPermit], None],
        permit: Callable[[str, str], None] = lambda *_: None,
        under_way: Callable[[], Call | None] = lambda: None,
        *,
        is_together: bool = False,
    ) -> None:
        self._on_visible = on_visible
        self._permit = permit
        self.under_way = under_way
        self.is_together = is_together
        self.staged: dict[str, tuple[SinkContext, list[Any]]] = {}
        self.committed: dict[str, tuple[SinkContext, list[Any]]] = {}
        self.aborted: set[str] = set()
        # Staged by attempts at a task, of which there may be several.
        self._of_attempts: set[str] = set()
        self._attempt_count = 0
        self.commit_faults: deque[CommitFault] = deque()
        self.prepare_faults: deque[str] = deque()
        self._newest_epoch: dict[tuple[str, TaskId], Epoch] = {}

    def begin_attempt(self, context: SinkContext, handles: Sequence[str]) -> int:
        """Return a number that no other attempt has, at any task."""
        self._permit("begin an attempt", context.sink_uid)
        hidden = [one for one in handles if one not in self.committed]
        ensure(not hidden, f"I3: an attempt at {context.task} begins when {hidden} are not visible")
        self._attempt_count += 1
        return self._attempt_count

    def stage(
        self, context: SinkContext, checkpoint_id: CheckpointId, records: list[Any], attempt: int = 0
    ) -> str:
        """Make a transaction durable; return its handle.

        Args:
            attempt: The number of the attempt that stages it; 0: it is the only writer of its task.
        """
        self._permit("stage", context.sink_uid)
        if self.prepare_faults:
            raise ConnectorError(self.prepare_faults.popleft())
        of_attempt = f"/attempt-{attempt}" if attempt else ""
        handle = f"{context.sink_uid}/{context.task}/{context.epoch}{of_attempt}/{checkpoint_id}"
        if attempt:
            self._of_attempts.add(handle)
        ensure(handle not in self.staged, f"transaction {handle} is prepared twice")
        self.staged[handle] = (context, records)
        return handle

    def recover(self, context: SinkContext, permit: CommitPermit | None, handles: Sequence[str]) -> None:
        """Commit `handles`, then abort all that older epochs of this task left."""
        if permit is not None:
            self.commit(context, permit, handles)
        self._permit("recover", context.sink_uid)
        self._check_known(context, permit)
        writer = (context.sink_uid, context.task)
        self._newest_epoch[writer] = max(self._newest_epoch.get(writer, Epoch(0)), context.epoch)
        for handle, (owner, _) in list(self.staged.items()):
            if (owner.sink_uid, owner.task) != writer or owner.epoch >= context.epoch:
                continue
            is_restored = permit is not None and checkpoint_of(handle) <= permit.checkpoint_id
            if not self.is_together or not is_restored or context.task.index == 0:
                del self.staged[handle]
                self.aborted.add(handle)

    def abort(self, context: SinkContext, handles: Sequence[str]) -> None:
        """Remove what attempts have staged and nobody has taken."""
        self._permit("abort", context.sink_uid)
        for handle in handles:
            ensure(handle not in self.committed, f"I1: {handle} is visible, and is to be removed")
            if self.staged.pop(handle, None) is not None:
                self.aborted.add(handle)

    def sweep(self, context: SinkContext) -> None:
        """Remove all that attempts at this task have staged in this epoch."""
        self._permit("sweep", context.sink_uid)
        mine = (context.sink_uid, context.task, context.epoch)
        for handle, (owner, _) in list(self.staged.items()):
            if (owner.sink_uid, owner.task, owner.epoch) == mine and handle in self._of_attempts:
                del self.staged[handle]
                self.aborted.add(handle)

    def commit(self, context: SinkContext, permit: CommitPermit, handles: Sequence[str]) -> None:
        """Make transactions visible."""
        self._permit("commit", context.sink_uid)
        self._check_known(context, permit)
        if self.is_together:
            self._check_together(context, permit, handles)
        fault = self.commit_faults.popleft() if self.commit_faults else None
        if fault == "not applied":
            raise ConnectorError("the connection was refused")
        for handle in handles[: len(handles) // 2] if fault == "half applied" else handles:
            if handle in self.committed:
                continue
            ensure(
                handle in self.staged,
                f"I1 F3: transaction {handle} can't be committed: "
                f"{'it was aborted' if handle in self.aborted else 'it is not staged'}",
            )
            newest = self._newest_epoch.get((context.sink_uid, context.task), Epoch(0))
            ensure(
                context.epoch >= newest, f"I7: epoch {context.epoch} commits {handle} after epoch {newest}"
            )
            self._on_visible(handle, permit)
            self.committed[handle] = self.staged.pop(handle)
        if fault is not None:
            raise ConnectorError("no answer to the commit")

    def _check_known(self, context: SinkContext, permit: CommitPermit | None) -> None:
        """Nothing is taken for confirmed that is not visible: a job would end for no loss."""
        if permit is None or not permit.committed:
            return
        newest = max((checkpoint_of(one) for one in self.committed if self._is_of(one, context)), default=0)
        ensure(
            permit.committed <= newest,
            f"P7: checkpoint {permit.committed} of {context.task} is taken for committed, and {newest} is",
        )

    def _is_of(self, handle: str, context: SinkContext) -> bool:
        """Whether the task commits the transaction."""
        owner, _ = self.committed[handle]
        if owner.sink_uid != context.sink_uid:
            return False
        return owner.task == context.task or (self.is_together and context.task.index == 0)

    def _check_together(self, context: SinkContext, permit: CommitPermit, handles: Sequence[str]) -> None:
        ensure(not handles or context.task.index == 0, f"I3: {context.task} commits for itself: {handles}")
        left = [
            handle
            for handle, (owner, _) in self.staged.items()
            if (owner.sink_uid, owner.epoch) == (context.sink_uid, context.epoch)
            and checkpoint_of(handle) <= permit.checkpoint_id
            and handle not in handles
            # Of several attempts one is taken.
            and handle not in self._of_attempts
        ]
        ensure(not left, f"I3: {context.task} commits {handles} without {left}")

    def outputs(self) -> tuple[CommittedOutput, ...]:
        """Return the memory of all tasks of all sinks."""
        newest: dict[tuple[str, TaskId], CommittedOutput] = {}
        for handle, (context, _) in self.committed.items():
            n = checkpoint_of(handle)
            found = newest.get((context.sink_uid, context.task))
            if found is None or found.checkpoint_id < n:
                newest[context.sink_uid, context.task] = CommittedOutput(
                    "memory",
                    context.lineage,
                    context.sink_uid,
                    context.task,
                    context.epoch,
                    context.driver,
                    n,
                )
        return tuple(newest.values())

    def records(self, sink_uid: str) -> list[Any]:
        """Return the output of one sink that readers see."""
        return [
            record
            for context, records in self.committed.values()
            if context.sink_uid == sink_uid
            for record in records
        ]


def checkpoint_of(handle: str) -> CheckpointId:
    """Return at whose barrier a transaction was cut off."""
    return CheckpointId(int(handle.rpartition("/")[2]))


class SimulatedSink(Sink):
    """The description; `resource` is given by the world before it runs."""

    def __init__(self) -> None:
        self.resource: Resource | None = None

    @property
    def commits_together(self) -> bool:
        """As the world wants it."""
        return self.resource is not None and self.resource.is_together

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        if self.resource is None:
            raise Violation("the sink belongs to no world")
        return StagingWriter(self.resource, context)


class StagingWriter(SinkWriter):
    """Its methods run in threads that take time, one at a time, and never after `close`."""

    def __init__(self, resource: Resource, context: SinkContext) -> None:
        self._resource = resource
        self._context = context
        self._open: list[Any] = []
        self._is_closed = False
        self._attempt = 0
        # The newest call of a method, and what it was.
        self._call: Call | None = None
        self._called = ""

    def close(self) -> None:
        self._is_closed = True

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._check("recover")
        self._resource.recover(self._context, permit, [str(one) for one in handles])

    def write(self, records: list[Any]) -> None:
        self._open.extend(records)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        records, self._open = self._open, []
        return (checkpoint_id, records) if records else None

    def prepare(self, transaction: Any) -> JSON:
        self._check("prepare")
        checkpoint_id, records = transaction
        return self._resource.stage(self._context, checkpoint_id, records, self._attempt)

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        self._check("begin_attempt")
        self._attempt = self._resource.begin_attempt(self._context, [str(one) for one in handles])

    def abort(self, handles: Sequence[JSON]) -> None:
        self._check("abort")
        self._resource.abort(self._context, [str(one) for one in handles])

    def sweep(self) -> None:
        self._check("sweep")
        self._resource.sweep(self._context)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._check("commit")
        self._resource.commit(self._context, permit, [str(one) for one in handles])

    def _check(self, method: str) -> None:
        task = self._context.task
        ensure(not self._is_closed, f"I9: the writer of {task} is used after it was closed")
        ensure(
            self._call is None or self._call.is_over,
            f"I9: {method} of the writer of {task} is called while {self._called} has not returned",
        )
        self._call, self._called = self._resource.under_way(), method


class _WatchedLock(asyncio.Lock):
    """Counts calls that wait until the one before has returned."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self._seen = seen

    async def acquire(self) -> Literal[True]:
        self._seen["a call of a sink waits for another"] += self.locked()
        return await super().acquire()


def watch_calls(runner: TaskRunner, seen: Counter[str]) -> None:
    """Count where calls of the sink of a task, which has just been built, would overlap."""
    background = runner.background
    if not isinstance(background._writer_lock, _WatchedLock):
        background._writer_lock = _WatchedLock(seen)
