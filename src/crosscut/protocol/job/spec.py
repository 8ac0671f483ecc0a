"""The terms of a job: all that its coordinator is told before it starts."""

from __future__ import annotations

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import TaskId, VertexId
from crosscut.protocol.checkpoint.termination import Component
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.log.recovery import JobIdentity
from crosscut.protocol.log.writer import SEGMENT_ENTRIES_MAX
from crosscut.protocol.splits.rescaling import Link


@dataclass(frozen=True, slots=True)
class CheckpointTerms:
    """When to take checkpoints, in milliseconds.

    Attributes:
        periodic: False: only on request and at the end (`snapshots="none"`).
        failures_max: Failed checkpoints in a row that are tolerated.
        pause_ms: At least so long between the end of one and the periodic start of the next.
        in_flight_max: Checkpoints that may be under way at once.
        are_batches: Nothing is read between two of them: what there is of a job is what its newest one has.
        uncommitted_max: Completed checkpoints that may wait for sinks to commit them.
        held_back_ms: Sources wait for commits when no checkpoint has started for so long. Commits that each
            take a little longer than a short interval need no more than a slower pace of checkpoints.
    """

    periodic: bool
    interval_ms: int
    timeout_ms: int
    failures_max: int
    pause_ms: int = 0
    in_flight_max: int = 1
    are_batches: bool = False
    uncommitted_max: int = 4
    held_back_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class JobTerms:
    """The job and its settings, as its coordinator sees them; durations in milliseconds.

    Attributes:
        edges: Source and target of each edge between vertices, and whether it shuffles by key.
        loops: The components of the graph that have back edges.
        slots: How many workers Spark can run at once, where known; only for the error text.
        awaits_verdict: An invariant may end the job as failed, so it has not finished before the final
            cut has been judged.
        discover_timeout_ms: How long the sources may take to say what there is to read; 0: as long as
            `start_timeout_ms`.
        source_groups: Sources of which fast ones wait for slow ones, each with the name of its group.
        joined_sources: Those that a join brings together, each with the name of their join: so are these.
        dynamic_sources: Those that are asked again and again for splits that have come, and how long to wait
            before each call.
        together: Sinks of which the first task commits what all have staged.
        segment_entries_max: After so many entries the log goes on in a new segment, so that the older ones
            can be deleted.
    """

    identity: JobIdentity
    tasks: frozenset[TaskId]
    sources: frozenset[TaskId]
    sinks: frozenset[TaskId]
    checkpoints: CheckpointTerms
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
    segment_entries_max: int = SEGMENT_ENTRIES_MAX
