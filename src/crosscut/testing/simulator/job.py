"""What a simulated job is: terms of its coordinator, plan of its workers, splits, functions that fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.contracts.dynamic_source import DynamicSource
from crosscut.foundation.ids import Lineage, TaskId, VertexId
from crosscut.graph.components import links_of, loops_of
from crosscut.graph.global_commit import sinks_together
from crosscut.graph.identity import identity_of
from crosscut.graph.source_groups import joined_sources, source_groups
from crosscut.graph.specs import (
    FilterSpec,
    FlatMapSpec,
    InspectSpec,
    JobGraph,
    KeyBySpec,
    MapSpec,
    dead_letters_of,
)
from crosscut.net.connections import Credentials
from crosscut.net.encryption import JobCertificate, make_certificate
from crosscut.protocol.job.coordinator import CoordinatorSpec
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.recovery import JobIdentity
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.unit_log.spec import UnitLogSpec
from crosscut.task.discovery import dynamic_sources, known_splits
from crosscut.task.splits import split_as_json
from crosscut.testing.simulator.options import Options
from crosscut.wire.handshake import JOB_BYTES, SECRET_BYTES
from crosscut.worker.deployment import TaskSettings
from crosscut.worker.lines import LogSettings
from crosscut.worker.worker import WorkerPlan


def credentials_of(options: Options) -> Credentials:
    """Return what the processes of the job know."""
    return Credentials(
        b"s" * SECRET_BYTES,
        b"j" * JOB_BYTES,
        certificate() if options.is_encrypted else None,
        options.heartbeat_timeout_ms,
        seals_frames=options.is_sealed and not options.is_encrypted,
    )


@cache
def certificate() -> JobCertificate:
    """Return a certificate."""
    # One for all worlds: it takes a few milliseconds to make, and nothing depends on what is in it.
    return make_certificate()


def terms_of(options: Options, graph: JobGraph, driver: int) -> CoordinatorSpec:
    """Return the terms of the job, for one driver."""

    def tasks(kind: str) -> frozenset[TaskId]:
        return frozenset(
            TaskId(VertexId(vertex.vertex_id), index)
            for vertex in graph.vertices
            if kind == "all" or getattr(vertex, kind) is not None
            for index in range(graph.parallelism)
        )

    return CoordinatorSpec(
        source_groups=source_groups(graph),
        joined_sources=joined_sources(graph),
        dynamic_sources=dynamic_sources(graph),
        identity=JobIdentity(
            f"driver {driver}",
            Lineage(f"lineage {driver}"),
            graph.fingerprint,
            graph.parallelism,
            graph.max_parallelism,
            identity_of(graph),
            unit_log="objects" if options.is_logged else "",
        ),
        tasks=tasks("all"),
        sources=tasks("source"),
        sinks=tasks("sink"),
        checkpoints=CheckpointSpec(
            periodic=options.is_periodic and not options.is_logged,
            interval_ms=options.interval_ms,
            timeout_ms=options.checkpoint_timeout_ms,
            failures_max=None if options.outage_ms else 10_000,
            outage_ms=options.outage_ms,
            pause_ms=options.pause_ms,
            in_flight_max=options.in_flight_max,
            uncommitted_max=options.uncommitted_max,
            held_back_ms=options.held_back_ms,
        ),
        restart=RestartPolicy(10_000, 60_000, 0 if options.seed % 2 else 20, 20, 200, 3),
        retain=options.retain,
        segment_entries_max=options.segment_entries_max,
        heartbeat_timeout_ms=options.heartbeat_timeout_ms,
        start_timeout_ms=5_000,
        together=sinks_together(graph),
        edges=links_of(graph.edges),
        loops=loops_of(graph.edges),
    )


def plan_of(options: Options, credentials: Credentials, address: tuple[str, int]) -> WorkerPlan:
    """Return what the workers of the driver at `address` know."""
    return WorkerPlan(
        credentials=credentials,
        coordinator_host=address[0],
        coordinator_port=address[1],
        bind_host=None,
        packed_graph=b"",
        store_url="",
        terms=TaskSettings(
            batch_rows=options.batch_rows,
            channel_bytes=options.channel_bytes,
            commit_attempts=3,
            sink_timeout_ms=options.checkpoint_timeout_ms,
            snapshots=options.snapshots,
            is_periodic=options.is_periodic and not options.is_logged,
            unit_log=UnitLogSpec(
                "objects", options.group_interval_ms, tail_groups_max=options.tail_groups_max
            )
            if options.is_logged
            else None,
            alignment_timeout_ms=options.alignment_timeout_ms,
            spill_bytes=options.spill_bytes,
        ),
        linger_ms=options.linger_ms,
        marker_interval_ms=options.marker_interval_ms,
        heartbeat_timeout_ms=options.heartbeat_timeout_ms,
        failpoints=None,
        log=LogSettings("simulated"),
    )


def assignments_of(graph: JobGraph) -> tuple[SplitAssignment, ...]:
    """Return the splits of every source task."""
    found = []
    for vertex in graph.vertices:
        if vertex.source is not None:
            source, uid = vertex.source.source, VertexId(vertex.vertex_id)
            known = None
            if isinstance(source, DynamicSource):
                discovered = source.discover(None)
                splits, known = discovered.splits, known_splits(uid, discovered)
            else:
                splits = source.splits(graph.parallelism)
            for index in range(graph.parallelism):
                mine: JSON = [split_as_json(one) for one in splits[index :: graph.parallelism]]
                found.append(SplitAssignment(TaskId(uid, index), mine, None if index else known))
    return tuple(found)


def rewritten(graph: JobGraph, turns: int) -> JobGraph:
    """Return `graph` as if its independent parts had been written in another order.

    That is the same job: whatever depends on the order can't go on from its checkpoints.
    """
    parts: list[set[str]] = []
    for vertex in graph.vertices:
        joined = {vertex.vertex_id}
        for edge in graph.edges:
            if vertex.vertex_id in (edge.source, edge.target):
                joined |= {edge.source, edge.target}
        apart = [one for one in parts if not one & joined]
        parts = [*apart, joined.union(*(one for one in parts if one & joined))]
    if len(parts) == 1:
        return graph
    order = sorted(parts, key=lambda part: [v.vertex_id in part for v in graph.vertices].index(True))
    order = order[turns % len(order) :] + order[: turns % len(order)]
    return replace(
        graph,
        vertices=tuple(one for part in order for one in graph.vertices if one.vertex_id in part),
        edges=tuple(one for part in order for one in graph.edges if one.target in part),
    )


def with_faults(graph: JobGraph, is_due: Callable[[], bool]) -> JobGraph:
    """Return `graph` with functions that raise when `is_due` says so."""

    def node_with_faults(node: Any) -> Any:
        # To an operator that sets records aside it would be one more of them.
        if dead_letters_of(node.spec):
            return node
        if not isinstance(node.spec, MapSpec | FilterSpec | FlatMapSpec | InspectSpec | KeyBySpec):
            return node
        function = node.spec.function

        def may_raise(record: Any) -> Any:
            if is_due():
                raise ZeroDivisionError("planted by the simulator")
            return function(record)

        return replace(node, spec=replace(node.spec, function=may_raise))

    vertices = (
        replace(vertex, chain=tuple(map(node_with_faults, vertex.chain))) for vertex in graph.vertices
    )
    return replace(graph, vertices=tuple(vertices))
