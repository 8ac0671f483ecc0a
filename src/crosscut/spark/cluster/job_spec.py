"""From a graph and settings to what the coordinator has to know."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from crosscut.contracts.connectors import JSON, CommittedOutput, Source, Split
from crosscut.contracts.dynamic_source import DynamicSource
from crosscut.contracts.settings import Settings
from crosscut.errors import ConnectorError, StoreError
from crosscut.flow.flow import Flow
from crosscut.foundation.ids import Lineage, TaskId, VertexId
from crosscut.graph.components import links_of, loops_of
from crosscut.graph.identity import identity_of
from crosscut.graph.source_groups import joined_sources, source_groups
from crosscut.graph.specs import JobGraph, Vertex
from crosscut.graph.together import sinks_together
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.status import JobStatus, finished_status
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.job.spec import CheckpointTerms, JobTerms
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.recovery import (
    AlreadyFinished,
    JobIdentity,
    NotThisJob,
    Predecessor,
    claim,
)
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.microbatch.engine_switch import Engine, Engines
from crosscut.protocol.snapshots import KnownSplits
from crosscut.spark.cluster.checks import (
    check_checkpoint_dir,
    check_checkpoint_dir_is_private,
    check_origin_is_private,
)
from crosscut.spark.cluster.untried import untried_in_copies
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.log_key import log_key
from crosscut.task.discovery import checked_discovery, dynamic_sources, known_splits, undiscovered
from crosscut.task.flow_control import UNBOUNDED_BYTES
from crosscut.task.splits import check_shares, checked_splits, split_as_json
from crosscut.worker.deployment import TaskTerms

SLOW_LOOK_S = 5.0


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
                said_first = source.discover(None)
            except Exception as error:
                raise undiscovered(uid, error) from error
            discovered = checked_discovery(said_first, uid)
            found, known = discovered.splits, known_splits(VertexId(vertex.vertex_id), discovered)
            is_coming = discovered.is_coming
        else:
            said = source.splits(graph.parallelism) if discover is None else discover(vertex, source)
            found = checked_splits(said, uid)
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


def committed_output(graph: JobGraph) -> tuple[CommittedOutput, ...]:
    """Ask every sink what has been committed where it writes.

    Raises:
        ConnectorError: One can't say; the message names it.
    """
    found: list[CommittedOutput] = []
    for vertex in graph.vertices:
        if vertex.sink is None:
            continue
        uid = vertex.chain[-1].uid
        # If it never answers, the start fails in the end; this tells which sink it was.
        slow = threading.Timer(
            SLOW_LOOK_S,
            LOGGER.warning,
            ("sink %r has not said for %g s what it has committed", uid, SLOW_LOOK_S),
        )
        slow.daemon = True
        slow.start()
        try:
            found += vertex.sink.sink.committed()
        except Exception as error:
            # It may be a sink of the user's own, which may raise anything.
            raise ConnectorError(
                f"sink {uid!r} can't say what it has committed, so whether this job would write it again is "
                f"not known: {type(error).__name__}: {error}"
            ) from error
        finally:
            slow.cancel()
    return tuple(found)


def status_if_finished(flow: Flow, settings: Settings, graph: JobGraph | None = None) -> JobStatus | None:
    """Return how the job in its checkpoint directory has finished, or None: asked before Spark is started.

    Args:
        graph: That runs; default: the flow, compiled.

    Raises:
        StoreError: The directory holds the state of another job, or its job log can't be read; or the job has
            begun with something else than what `restore_from` names now.
    """
    graph = graph or flow.compile(settings.parallelism, settings.max_parallelism)
    url = settings.store_of(flow.name)
    check_checkpoint_dir(url)
    check_checkpoint_dir_is_private(url, strict=settings.strict)
    if settings.restore_from is not None:
        check_origin_is_private(settings.restore_from, strict=settings.strict)
    if "://" not in url and not os.path.isdir(url):
        return None
    store = open_store(url, create=False, key=log_key())
    tail = store.tail()
    found = claim(tail, _identity(graph, settings))
    if isinstance(found, NotThisJob):
        raise StoreError(f"job {flow.name!r}: can't use this checkpoint_dir: {found.reason}")
    if not isinstance(found, AlreadyFinished):
        return None
    if settings.restore_from is not None:
        _check_origin(flow, store, settings.restore_from)
    completed = [entry for _, entry in tail if isinstance(entry, CheckpointCompleted)]
    return finished_status(
        flow.name, found.entry.epoch, completed[-1] if completed else None, _sources(graph)
    )


def _check_origin(flow: Flow, store: CheckpointStore, path: str | os.PathLike[str]) -> None:
    from crosscut.savepoints.starting import has_begun
    from crosscut.savepoints.tables import origin_of

    try:
        origin = origin_of(path)
    except StoreError as error:
        # What is gone was not edited, and the job needs nothing of it.
        LOGGER.warning(
            "job %r: restore_from can't be compared with what the job began with: %s", flow.name, error
        )
        return
    has_begun(origin, store)


def _identity(graph: JobGraph, settings: Settings, follows: Predecessor | None = None) -> JobIdentity:
    return JobIdentity(
        driver=secrets.token_hex(8),
        new_lineage=Lineage(secrets.token_hex(8)),
        fingerprint=graph.fingerprint,
        parallelism=graph.parallelism,
        max_parallelism=graph.max_parallelism,
        flow=identity_of(graph),
        host=socket.gethostname(),
        pid=os.getpid(),
        accepts_changes=settings.accept_changes,
        is_fresh=settings.fresh,
        follows=follows,
    )


def _tasks(graph: JobGraph, is_wanted: Callable[[Vertex], bool]) -> frozenset[TaskId]:
    return frozenset(
        TaskId(VertexId(vertex.vertex_id), index)
        for vertex in graph.vertices
        if is_wanted(vertex)
        for index in range(graph.parallelism)
    )


def _sources(graph: JobGraph) -> frozenset[TaskId]:
    return _tasks(graph, lambda vertex: vertex.source is not None)


BATCH_ROWS_MIN = 8_192
"""Records in a batch on its way through Spark's shuffle: nobody waits for fewer."""

BATCH_TIMEOUT_MIN_MS = 24 * 3_600_000
"""Whether a batch takes too long is for Spark to know, which watches its tasks."""


def task_terms(settings: Settings) -> TaskTerms:
    """Return the settings that concern tasks."""
    kind, alignment_timeout_ms = settings.snapshot_kind()
    return TaskTerms(
        batch_rows=settings.batch_rows,
        channel_bytes=settings.channel_bytes,
        commit_attempts=settings.commit_attempts,
        sink_timeout_ms=int(settings.milliseconds("checkpoint_timeout")),
        snapshots="aligned" if kind == "none" else kind,
        is_periodic=kind != "none",
        alignment_timeout_ms=alignment_timeout_ms,
        spill_bytes=settings.spill_bytes,
        spill_dir=None if settings.spill_dir is None else os.fspath(settings.spill_dir),
        state_backend=settings.state_backend,
        state_dir=None if settings.state_dir is None else os.fspath(settings.state_dir),
        state_cache_bytes=settings.state_cache_bytes,
        tries_in_copies=settings.restart.same_record > 0,
    )


def batch_terms(settings: Settings) -> TaskTerms:
    """Return the same for tasks that run in batches: what they send goes to Spark, which takes all."""
    return replace(
        task_terms(settings),
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
    if settings.engine != "auto":
        return settings
    if engine == "continuous":
        return replace(settings, engine=engine)
    parallelism = min(max(settings.parallelism, at_once or 0), settings.max_parallelism)
    return replace(settings, engine=engine, parallelism=settings.batch_parallelism or parallelism)


def engines_of(settings: Settings) -> Engines:
    """Return what decides which engine runs."""
    return Engines(
        caught_up_at=settings.caught_up_at,
        behind_at=settings.behind_at,
        behind_for_ms=int(settings.milliseconds("behind_for")),
    )


def job_terms(
    graph: JobGraph,
    settings: Settings,
    slot_count: int | None,
    *,
    awaits_verdict: bool,
    discover_timeout_ms: int = 0,
    follows: Predecessor | None = None,
) -> JobTerms:
    """Return the terms of a new driver of the job; `follows` as in `JobIdentity`."""
    milliseconds = settings.milliseconds
    restart = settings.restart
    runs_in_batches = settings.engine == "micro-batch"
    timeout_ms = int(milliseconds("checkpoint_timeout"))
    return JobTerms(
        source_groups=source_groups(graph),
        joined_sources=joined_sources(graph),
        # In micro-batches what was staged is one task's before the coordinator hears of it.
        together=frozenset() if runs_in_batches else sinks_together(graph),
        dynamic_sources=dynamic_sources(graph),
        edges=links_of(graph.edges),
        loops=loops_of(graph.edges),
        identity=_identity(graph, settings, follows),
        tasks=_tasks(graph, lambda vertex: True),
        sources=_sources(graph),
        sinks=_tasks(graph, lambda vertex: vertex.sink is not None),
        checkpoints=CheckpointTerms(
            periodic=runs_in_batches or settings.snapshot_kind()[0] != "none",
            interval_ms=int(milliseconds("checkpoint_interval")),
            timeout_ms=max(timeout_ms, BATCH_TIMEOUT_MIN_MS) if runs_in_batches else timeout_ms,
            failures_max=settings.checkpoint_failures,
            pause_ms=int(milliseconds("checkpoint_pause")),
            uncommitted_max=settings.checkpoints_uncommitted,
            in_flight_max=1 if runs_in_batches else settings.checkpoints_in_flight,
            are_batches=runs_in_batches,
        ),
        restart=RestartPolicy(
            failures_max=restart.failures,
            window_ms=restart.milliseconds("window"),
            delay_ms=restart.milliseconds("delay"),
            delay_step_ms=restart.milliseconds("delay_step"),
            delay_max_ms=restart.milliseconds("delay_max"),
            same_record_max=restart.same_record,
            untried=untried_in_copies(graph, state_is_in_memory=settings.state_backend == "memory"),
        ),
        retain=settings.retain,
        heartbeat_timeout_ms=int(milliseconds("heartbeat_timeout")),
        start_timeout_ms=int(milliseconds("start_timeout")),
        discover_timeout_ms=discover_timeout_ms,
        slots=slot_count,
        awaits_verdict=awaits_verdict,
    )
