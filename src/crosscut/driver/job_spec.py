"""The job spec: graph and settings, compiled once for the coordinator, the workers and batches."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from crosscut.contracts.connectors import JSON, CommittedOutput, Source, Split
from crosscut.contracts.dynamic_source import DynamicSource
from crosscut.contracts.engines import Auto, TriggerName
from crosscut.contracts.invariants import Invariant
from crosscut.contracts.settings import Settings
from crosscut.contracts.snapshot_protocols import Logged
from crosscut.driver.untried import untried_in_copies
from crosscut.errors import ConnectorError, FlowError
from crosscut.foundation.ids import Lineage, TaskId, VertexId
from crosscut.graph.components import links_of, loops_of
from crosscut.graph.global_commit import sinks_together
from crosscut.graph.identity import identity_of
from crosscut.graph.logged import check_logged
from crosscut.graph.shipping import Exceptions, pack_graph
from crosscut.graph.source_groups import joined_sources, source_groups
from crosscut.graph.specs import JobGraph, Vertex
from crosscut.graph.stages import check_batches
from crosscut.microbatch.output import check_sinks
from crosscut.monitoring.metrics import shown_settings
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.job.spec import CheckpointSpec, CoordinatorSpec
from crosscut.protocol.log.recovery import JobIdentity, Predecessor
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.microbatch.engine_switch import Engine
from crosscut.protocol.snapshots import KnownSplits
from crosscut.protocol.unit_log.appending import LogKind
from crosscut.protocol.unit_log.spec import UnitLogSpec
from crosscut.task.discovery import checked_discovery, dynamic_sources, known_splits, undiscovered
from crosscut.task.flow_control import UNBOUNDED_BYTES
from crosscut.task.splits import check_shares, checked_splits, split_as_json
from crosscut.worker.deployment import TaskSettings
from crosscut.worker.lines import LogSettings

_ID_BYTES = 8


Discover = Callable[[Vertex, Source], Sequence[Split]]


def assignments(graph: JobGraph, discover: Discover | None = None) -> tuple[SplitAssignment, ...]:
    """Discover the splits of every source and deal them out, the heaviest first to the least loaded.

    Args:
        discover: Returns those of a source; default: what it says itself.

    Raises:
        ConnectorError: A source has nothing to read, what it has found is not usable, or is too much.
    """
    assignments = []
    for vertex in graph.vertices:
        spec = vertex.source
        if spec is None:
            continue
        shares: list[list[Split]] = [[] for _ in range(graph.parallelism)]
        loads = [0] * graph.parallelism
        source, uid = spec.source, vertex.chain[0].uid
        known: KnownSplits | None = None
        is_coming = False
        found: Sequence[Split]
        if isinstance(source, DynamicSource):
            try:
                first_discovered = source.discover(None)
            except Exception as error:
                raise undiscovered(uid, error) from error
            discovered = checked_discovery(first_discovered, uid)
            found, known = discovered.splits, known_splits(VertexId(vertex.vertex_id), discovered)
            is_coming = discovered.is_coming
        else:
            declared = source.splits(graph.parallelism) if discover is None else discover(vertex, source)
            found = checked_splits(declared, uid)
        for split in sorted(found, key=lambda one: (-one.weight, one.split_id)):
            index = loads.index(min(loads))
            shares[index].append(split)
            loads[index] += max(split.weight, 1)
        for index, share in enumerate(shares):
            task = TaskId(VertexId(vertex.vertex_id), index)
            rows: JSON = [split_as_json(split) for split in share]
            assignments.append(
                SplitAssignment(task, rows, known, is_coming) if index == 0 else SplitAssignment(task, rows)
            )
    check_shares(assignments)
    return tuple(assignments)


def committed_output(
    graph: JobGraph, asking: Callable[[str], AbstractContextManager[object]] = nullcontext
) -> tuple[CommittedOutput, ...]:
    """Ask every sink what has been committed where it writes.

    Args:
        asking: Called with the uid of each sink; the sink is asked within what it returns.

    Raises:
        ConnectorError: One can't say; the message names it.
    """
    found: list[CommittedOutput] = []
    for vertex in graph.vertices:
        if vertex.sink is None:
            continue
        uid = vertex.chain[-1].uid
        try:
            with asking(uid):
                found += vertex.sink.sink.committed()
        except Exception as error:
            # It may be a sink of the user's own, which may raise anything.
            raise ConnectorError(
                f"sink {uid!r} can't report what it has committed, so it is unknown whether this job "
                f"would write it again: {type(error).__name__}: {error}"
            ) from error
    return tuple(found)


def unit_log_kind(logged: Logged) -> LogKind:
    """Return what the logs of workers are made of; of "auto", which is decided before: of objects."""
    return "segment files" if logged.log == "files" else "objects"


def identity(graph: JobGraph, settings: Settings) -> JobIdentity:
    """Return a new identity of the job, for a driver."""
    return JobIdentity(
        driver=secrets.token_hex(_ID_BYTES),
        new_lineage=Lineage(secrets.token_hex(_ID_BYTES)),
        fingerprint=graph.fingerprint,
        parallelism=graph.parallelism,
        max_parallelism=graph.max_parallelism,
        flow=identity_of(graph),
        host=socket.gethostname(),
        pid=os.getpid(),
        accepts_changes=settings.accept_changes,
        is_fresh=settings.fresh,
        unit_log=unit_log_kind(settings.logged) if settings.logged is not None else "",
    )


def _tasks(graph: JobGraph, is_wanted: Callable[[Vertex], bool]) -> frozenset[TaskId]:
    return frozenset(
        TaskId(VertexId(vertex.vertex_id), index)
        for vertex in graph.vertices
        if is_wanted(vertex)
        for index in range(graph.parallelism)
    )


def source_tasks(graph: JobGraph) -> frozenset[TaskId]:
    return _tasks(graph, lambda vertex: vertex.source is not None)


BATCH_ROWS_MIN = 8_192
"""Records in a batch on its way through Spark's shuffle; fewer are not waited for."""

BATCH_TIMEOUT_MIN_MS = 24 * 3_600_000
"""Whether a batch takes too long is for Spark to know, which watches its tasks."""


def task_settings(settings: Settings) -> TaskSettings:
    """Return the settings that concern tasks."""
    kind, alignment_timeout_ms = settings.snapshot_kind()
    continuous, logged = settings.continuous, settings.logged
    return TaskSettings(
        batch_rows=settings.batch_rows,
        channel_bytes=continuous.channel_bytes,
        commit_attempts=settings.commit_attempts,
        sink_timeout_ms=int(settings.milliseconds("checkpoint_timeout")),
        snapshots="aligned" if kind == "none" or kind == "logged" else kind,
        is_periodic=kind not in ("none", "logged"),
        unit_log=None if logged is None else UnitLogSpec(unit_log_kind(logged), int(logged.interval_ms)),
        alignment_timeout_ms=alignment_timeout_ms,
        spill_bytes=continuous.spill_bytes,
        spill_dir=None if continuous.spill_dir is None else os.fspath(continuous.spill_dir),
        state_backend=settings.state_backend,
        state_dir=None if settings.state_dir is None else os.fspath(settings.state_dir),
        state_cache_bytes=settings.state_cache_bytes,
        tries_in_copies=settings.restart.same_record > 0,
    )


def batch_task_settings(settings: Settings) -> TaskSettings:
    """Return the same for tasks that run in batches: what they send goes to Spark, which takes all."""
    return replace(
        task_settings(settings),
        batch_rows=max(settings.batch_rows, BATCH_ROWS_MIN),
        channel_bytes=UNBOUNDED_BYTES,
        snapshots="aligned",
        is_periodic=True,
        spill_bytes=0,
    )


def settings_of(settings: Settings, engine: Engine, at_once: int | None) -> Settings:
    """Return the settings of a job while it runs under `engine`.

    Args:
        at_once: How many tasks are worth running at once; None: not known.
    """
    both = settings.engine_settings
    if not isinstance(both, Auto):
        return settings
    if engine == "continuous":
        return replace(settings, engine=both.continuous)
    parallelism = min(max(settings.parallelism, at_once or 0), settings.max_parallelism)
    return replace(settings, engine=both.micro_batch, parallelism=both.batch_parallelism or parallelism)


def coordinator_spec(
    graph: JobGraph,
    settings: Settings,
    slot_count: int | None,
    *,
    awaits_verdict: bool,
    discover_timeout_ms: int = 0,
) -> CoordinatorSpec:
    """Return the terms of a new driver of the job."""
    milliseconds = settings.milliseconds
    restart = settings.restart
    runs_in_batches = settings.engine_name == "micro-batch"
    timeout_ms = int(milliseconds("checkpoint_timeout"))
    return CoordinatorSpec(
        source_groups=source_groups(graph),
        joined_sources=joined_sources(graph),
        # In micro-batches what was staged is one task's before the coordinator hears of it.
        together=frozenset() if runs_in_batches else sinks_together(graph),
        dynamic_sources=dynamic_sources(graph),
        sink_names=tuple(
            (VertexId(one.vertex_id), one.chain[-1].uid) for one in graph.vertices if one.sink is not None
        ),
        edges=links_of(graph.edges),
        loops=loops_of(graph.edges),
        identity=identity(graph, settings),
        tasks=_tasks(graph, lambda vertex: True),
        sources=source_tasks(graph),
        sinks=_tasks(graph, lambda vertex: vertex.sink is not None),
        checkpoints=CheckpointSpec(
            periodic=runs_in_batches or settings.snapshot_kind()[0] not in ("none", "logged"),
            interval_ms=int(milliseconds("checkpoint_interval")),
            timeout_ms=max(timeout_ms, BATCH_TIMEOUT_MIN_MS) if runs_in_batches else timeout_ms,
            failures_max=settings.checkpoint_failures,
            pause_ms=int(milliseconds("checkpoint_pause")),
            uncommitted_max=settings.checkpoints_uncommitted,
            in_flight_max=1 if runs_in_batches else settings.checkpoints_in_flight,
            are_batches=runs_in_batches,
            outage_ms=int(milliseconds("outage_timeout")),
        ),
        restart=RestartPolicy(
            failures_max=restart.failures,
            window_ms=restart.milliseconds("window"),
            delay_ms=restart.milliseconds("delay"),
            delay_step_ms=restart.milliseconds("delay_step"),
            delay_max_ms=restart.milliseconds("delay_max"),
            same_record_max=restart.same_record,
            last_delay_ms=restart.milliseconds("last_delay"),
            untried=untried_in_copies(graph, state_is_in_memory=settings.state_backend == "memory"),
        ),
        retain=settings.retain,
        heartbeat_timeout_ms=int(milliseconds("heartbeat_timeout")),
        start_timeout_ms=int(milliseconds("start_timeout")),
        discover_timeout_ms=discover_timeout_ms,
        slots=slot_count,
        awaits_verdict=awaits_verdict,
    )


class Program(Protocol):
    """What a user has written: a flow. Its class is not imported, as its `start` leads here."""

    @property
    def name(self) -> str: ...

    @property
    def invariants(self) -> tuple[Invariant, ...]: ...

    def compile(self, parallelism: int, max_parallelism: int) -> JobGraph: ...


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What runs under one engine.

    Attributes:
        packed: The graph, for the workers.
        job: For the coordinator. Each run has an identity of its own; see `job_after`.
        marker_interval_ms: Between two latency markers.
        records_max: Of all sources together, in one batch.
        trigger: When a job in batches stops by itself; see `MicroBatch`.
    """

    engine: Engine
    graph: JobGraph
    packed: bytes
    job: CoordinatorSpec
    tasks: TaskSettings
    linger_ms: float
    marker_interval_ms: float
    log: LogSettings
    records_max: int
    trigger: TriggerName

    def job_after(self, follows: Predecessor | None, draw_bytes: Callable[[int], bytes]) -> CoordinatorSpec:
        """Return the terms for a new driver; `follows` as in `JobIdentity`."""
        driver, lineage = draw_bytes(_ID_BYTES).hex(), Lineage(draw_bytes(_ID_BYTES).hex())
        claimant = replace(self.job.identity, driver=driver, new_lineage=lineage, follows=follows)
        return replace(self.job, identity=claimant)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """When a job with two engines changes from one to the other; see `Engines`.

    Attributes:
        look_every_ms: How often the job looks how far behind it is.
    """

    caught_up_at: int
    behind_at: int
    behind_for_ms: int
    look_every_ms: int = 250


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job, as it is run.

    Attributes:
        engines: Those that may run.
        choice: Of two engines; None: there is one.
        store_url: Of the checkpoint store, as every process finds it.
        savepoint_timeout_s: How long a change of the engine waits for savepoints that are being written.
        shown_settings: As text, for people.
    """

    name: str
    engines: Mapping[Engine, EngineSpec]
    choice: EngineChoice | None
    invariants: tuple[Invariant, ...]
    store_url: str
    savepoint_timeout_s: float
    shown_settings: Mapping[str, str]

    @property
    def graph(self) -> JobGraph:
        """The graph at the parallelism that was asked for."""
        return next(iter(self.engines.values())).graph

    @property
    def packed(self) -> bytes:
        """That graph, packed."""
        return next(iter(self.engines.values())).packed


def _check_logged_job(name: str, invariants: Sequence[Invariant]) -> None:
    if invariants:
        raise FlowError(
            f"flow {name!r}: invariant {invariants[0].name!r} is judged on checkpoints, and with "
            f"snapshots='logged' there are none yet; leave it out, or use snapshots='aligned'"
        )


def job_spec(
    name: str,
    settings: Settings,
    graph_of: Callable[[int], JobGraph],
    *,
    store_url: str,
    invariants: Sequence[Invariant],
    slots: int | None,
    at_once: int | None,
    discover_timeout_ms: int,
    exceptions: Exceptions,
) -> JobSpec:
    """Compile a job.

    Args:
        graph_of: Makes the graph of a parallelism, ready to be shipped.
        slots: That the cluster has; None: not known.
        at_once: How many tasks are worth running at once; None: not known.
        discover_timeout_ms: How long the sources may take to return their splits; 0: `start_timeout`.
        exceptions: What of the user's code can't travel in the usual way.

    Raises:
        FlowError: The flow, or one of its sinks, can't run in batches.
    """
    auto = settings.engine_settings
    engines: tuple[Engine, ...] = (
        ("continuous", "micro-batch") if settings.engine_name == "auto" else (settings.engine_name,)
    )
    specs: dict[Engine, EngineSpec] = {}
    for engine in engines:
        own = settings_of(settings, engine, at_once)
        graph = graph_of(own.parallelism)
        if engine == "micro-batch":
            check_batches(graph)
            check_sinks(graph)
        if own.logged is not None:
            check_logged(graph)
            _check_logged_job(name, invariants)
        specs[engine] = EngineSpec(
            engine=engine,
            graph=graph,
            packed=pack_graph(graph, exceptions),
            job=coordinator_spec(
                graph,
                own,
                slots,
                awaits_verdict=any(one.on_broken == "stop" for one in invariants),
                discover_timeout_ms=discover_timeout_ms,
            ),
            tasks=batch_task_settings(own) if engine == "micro-batch" else task_settings(own),
            linger_ms=own.continuous.milliseconds("linger"),
            marker_interval_ms=own.continuous.milliseconds("latency_interval"),
            log=LogSettings(name, own.log_level, own.log_format),
            records_max=own.micro_batch.records_max,
            trigger=own.micro_batch.trigger,
        )
    return JobSpec(
        name=name,
        engines=specs,
        choice=EngineChoice(auto.caught_up_at, auto.behind_at, auto.behind_for_ms)
        if isinstance(auto, Auto)
        else None,
        invariants=tuple(invariants),
        store_url=store_url,
        savepoint_timeout_s=settings.milliseconds("checkpoint_timeout") / 1_000,
        shown_settings=shown_settings(settings),
    )
