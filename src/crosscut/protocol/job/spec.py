"""The job spec: what the coordinator of a job gets before it starts."""

from __future__ import annotations

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import TaskId, VertexId
from crosscut.protocol.checkpoint.termination import Component
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.log.recovery import JobIdentity
from crosscut.protocol.log.writer import SEGMENT_ENTRIES_MAX
from crosscut.protocol.splits.rescaling import Link


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """When to take checkpoints, in milliseconds.

    Attributes:
        periodic: False: only on request and at the end (`snapshots="none"`).
        failures_max: The number of failed checkpoints in a row that the job tolerates; None: any number, for
            as long as `outage_ms`.
        pause_ms: The least time between the end of a checkpoint and the periodic start of the next.
        in_flight_max: The number of checkpoints in progress at once.
        are_batches: Each checkpoint is a micro-batch: tasks read nothing between two of them.
        uncommitted_max: The number of complete checkpoints that may wait for the commits of sinks.
        held_back_ms: Sources wait for commits if no checkpoint has started for this time. Commits that take a
            little longer than a short interval only make checkpoints less frequent.
        outage_ms: How long the store may refuse or hang, or checkpoints may fail in a row, before that counts
            as a failure of the job.
    """

    periodic: bool
    interval_ms: int
    timeout_ms: int
    failures_max: int | None
    pause_ms: int = 0
    in_flight_max: int = 1
    are_batches: bool = False
    uncommitted_max: int = 4
    held_back_ms: int = 1_000
    outage_ms: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """The job and its settings, for its coordinator; durations in milliseconds.

    Attributes:
        edges: Source and target of each edge between vertices, and whether it shuffles by key.
        loops: The components of the graph that have back edges.
        slots: The number of workers that Spark can run at once, if known; only for the error text.
        awaits_verdict: An invariant may end the job as failed, so the job finishes only after the final cut
            was evaluated.
        discover_timeout_ms: The time limit for the first split discovery; 0: `start_timeout_ms`.
        source_groups: Sources whose fast splits wait for slow ones, each with the name of its group.
        joined_sources: The same for the sources of a join, each with the name of the join.
        dynamic_sources: Sources that discover splits while the job runs, each with the delay between calls.
        together: Sinks with a global committer: the first task commits what all tasks have staged.
        sink_names: The uid of the sink of each vertex that has one.
        segment_entries_max: The number of entries of a segment of the log. Older segments can be deleted.
    """

    identity: JobIdentity
    tasks: frozenset[TaskId]
    sources: frozenset[TaskId]
    sinks: frozenset[TaskId]
    checkpoints: CheckpointSpec
    restart: RestartPolicy
    retain: int
    heartbeat_timeout_ms: int
    start_timeout_ms: int
    discover_timeout_ms: int = 0
    edges: tuple[Link, ...] = ()
    loops: tuple[Component, ...] = ()
    slots: int | None = None
    awaits_verdict: bool = False
    source_groups: tuple[tuple[VertexId, str], ...] = ()
    joined_sources: tuple[tuple[VertexId, str], ...] = ()
    dynamic_sources: tuple[tuple[VertexId, int], ...] = ()
    together: frozenset[VertexId] = frozenset()
    sink_names: tuple[tuple[VertexId, str], ...] = ()
    segment_entries_max: int = SEGMENT_ENTRIES_MAX
