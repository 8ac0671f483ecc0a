"""What happens to a job, as `Job.on_event` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crosscut.foundation.ids import CheckpointId, Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something has happened.

    Attributes:
        job: Name of the job.
        at_ms: When, in milliseconds since 1970, by the clock of the driver.
        epoch: Of the job, then.
    """

    job: str
    at_ms: int
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(JobEvent):
    """The tasks run, for the first time since the driver started.

    Attributes:
        resumed_from: The checkpoint that the job goes on from, None: from the beginning.
        parallelism: Tasks of each vertex.
        query_id: UUID of the job's history: the same after each start that goes on with it.
        run_id: UUID of this start.
    """

    resumed_from: CheckpointId | None
    parallelism: int
    query_id: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled(JobEvent):
    """The tasks were sent state of a checkpoint that was taken at another parallelism."""

    parallelism_before: int
    parallelism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSwitched(JobEvent):
    """Of a job with `engine="auto"`: what has run has ended at a checkpoint, and the other engine follows.

    `Started` is told again when its tasks run.

    Attributes:
        engine: The one that follows, "continuous" or "micro-batch".
        reason: How far behind the job was.
        resumes_from: The checkpoint that it goes on from, None: from the beginning.
    """

    engine: str
    reason: str
    resumes_from: CheckpointId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCompleted(JobEvent):
    """A checkpoint is complete.

    Attributes:
        state_bytes: A restore reads so many.
        new_bytes: This checkpoint added so many to the store.
        is_final: The input has ended, and nothing comes after it.
        alignment_ms: Of the task that took longest for it: from its first barrier to its freeze.
        freeze_ms: As above: how long it stood still.
        store_ms: As above: from the freeze until all of it was durable.
        append_ms: From the last acknowledgement until the entry of the job log was durable.
    """

    checkpoint_id: CheckpointId
    duration_ms: int
    state_bytes: int
    new_bytes: int
    is_final: bool
    alignment_ms: float = 0.0
    freeze_ms: float = 0.0
    store_ms: float = 0.0
    append_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(JobEvent):
    """What was done since the checkpoint before, in the shape of Structured Streaming's progress.

    Told once a checkpoint is complete; of a job in micro-batches, once the output of a batch is visible, too.

    Attributes:
        progress: See `Job.last_progress`.
    """

    progress: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(JobEvent):
    """A checkpoint was given up; the job runs on, unless it says something else."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOver(JobEvent):
    """The tasks of the epoch have been stopped, and are about to go back to the newest checkpoint.

    Attributes:
        kind: Name of the exception class, or "WorkerLost", "Timeout", ...
        message: What failed, and what to do.
        operator: uid of the operator whose user code failed, or "".
        record: repr of the record to blame, shortened, or "".
        traceback: Of user code, or "".
    """

    kind: str
    message: str
    operator: str
    record: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(JobEvent):
    """Records flow again.

    Attributes:
        resumed_from: The checkpoint that the job went back to, None: to the beginning.
        seconds: Since the failure was noticed.
    """

    resumed_from: CheckpointId | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(JobEvent):
    """The job is over: the last event.

    Attributes:
        outcome: "finished", "stopped", "cancelled", "failed" or "fenced".
        cause: Why, or what it has left undone; "" if there is nothing to say.
        resumes_from: The checkpoint that the next start goes on from, None: from the beginning.
        query_id: As of `Started`; "" if the job did not come to own its directory.
        run_id: As of `Started`; "" if the job did not come to own its directory.
    """

    outcome: str
    cause: str
    resumes_from: CheckpointId | None
    query_id: str = ""
    run_id: str = ""


def __dir__() -> list[str]:
    return sorted(
        name for name, one in globals().items() if isinstance(one, type) and issubclass(one, JobEvent)
    )
