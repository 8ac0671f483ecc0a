"""The start of a flow: what it needs of Spark, and the job."""

from __future__ import annotations

import secrets
from typing import Any

from pyspark import SparkContext

from crosscut.contracts.settings import Settings
from crosscut.driver.engine_run import RunContext
from crosscut.driver.job_spec import Program, job_spec
from crosscut.driver.run_ports import system_ports
from crosscut.driver.running_job import RunningJob
from crosscut.errors import SettingsError
from crosscut.foundation.urls import absolute, shown_url
from crosscut.graph.rehearsal import Rehearsal
from crosscut.graph.specs import JobGraph
from crosscut.graph.stages import check_batches
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.metrics import shown_settings
from crosscut.spark.cluster import session
from crosscut.spark.cluster.checks import (
    check_checkpoint_dir,
    check_directories_are_shared,
    check_local_dirs_are_private,
    check_log_key_stays_here,
    checked_network,
    held_slots,
    warn_of_single_attempts,
)
from crosscut.spark.cluster.finished import status_if_finished
from crosscut.spark.cluster.job import Job
from crosscut.spark.cluster.job_views import JobActions, Seeing
from crosscut.spark.cluster.notebook_jobs import note_start, stop_earlier
from crosscut.spark.cluster.partitions import with_partitions
from crosscut.spark.cluster.placing import directories_to_share, placed
from crosscut.spark.cluster.slots import Holding
from crosscut.spark.cluster.spark_cluster import SparkCluster
from crosscut.spark.cluster.unit_logs import check_keys_are_not_overheard, stored_kind, with_log
from crosscut.spark.data.staging import Staging, staging_timeout_ms
from crosscut.spark.data.stream_source import StreamSource
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import log_key
from crosscut.store.shared_directories import share


def start_job(flow: Program, settings: Settings, spark: Any, graph: JobGraph | None = None) -> Job:
    """Start `flow`; see `Flow.start`.

    Args:
        graph: What is to run instead of the flow, compiled.
    """
    settings = with_partitions(settings, spark)
    graph = graph or flow.compile(settings.parallelism, settings.max_parallelism)
    if settings.engine_name != "continuous":
        # Said before Spark starts, which takes some seconds.
        check_batches(graph)
    checkpoint_dir = settings.store_of(flow.name)
    stop_earlier(flow.name, checkpoint_dir)
    run = RunningJob(flow.name, graph, checkpoint_dir, shown_settings(settings))
    job = Job(flow.name, checkpoint_dir, run)
    # Asked here as well as by the coordinator, which decides: it takes Spark some seconds to start.
    if (finished := status_if_finished(flow, settings, graph)) is not None:
        LOGGER.warning(
            "job %r in %s has already finished, so nothing is read or written; to run it again, choose "
            "another "
            "checkpoint_dir and another location for its output",
            flow.name,
            shown_url(checkpoint_dir),
        )
        run.had_ended(finished)
        return job
    # While Spark starts.
    rehearsal = Rehearsal(graph)
    context, holding = _spark(flow.name, settings, spark)
    try:
        return _begin(job, run, flow, settings, graph, rehearsal, context, holding)
    except BaseException:
        holding.release()
        job.close_page()
        raise


def _spark(name: str, settings: Settings, spark: Any) -> tuple[SparkContext, Holding]:
    """Return the SparkContext to run on, and the slots that the job holds there."""
    with session.starting:
        if spark is not None:
            context = _context_of(spark)
            session.check_is_there(context)
        else:
            context, _ = session.spark_context(settings.parallelism, f"crosscut: {name}")
        # A batch waits for its turn like any Spark job.
        held = 0 if settings.engine_name == "micro-batch" else settings.parallelism
        return context, held_slots(name, held, context)


def _begin(
    job: Job,
    run: RunningJob,
    flow: Program,
    settings: Settings,
    graph: JobGraph,
    rehearsal: Rehearsal,
    context: SparkContext,
    holding: Holding,
) -> Job:
    warn_of_single_attempts(context)
    check_local_dirs_are_private(settings, context)
    check_log_key_stays_here(context, strict=settings.strict)
    network = checked_network(settings, context)
    check_checkpoint_dir(job.checkpoint_dir)
    store_url = absolute(job.checkpoint_dir)
    directories = directories_to_share(graph, store_url)
    if not network.is_local:
        check_directories_are_shared(directories, settings.checkpoint_dir, is_said=settings.shared)
    cluster = SparkCluster(context, store_url, context.getLocalProperty("spark.scheduler.pool"))

    def graph_of(parallelism: int) -> JobGraph:
        is_same = parallelism == graph.parallelism
        found = graph if is_same else flow.compile(parallelism, settings.max_parallelism)
        return placed(found, store_url, context)

    if settings.logged is not None:
        check_keys_are_not_overheard(network)
        settings, objects_because = with_log(
            settings, store_url, stored_kind(job.checkpoint_dir), is_local=network.is_local
        )
        if objects_because:
            LOGGER.info("job %r: the logs of its workers are objects: %s", flow.name, objects_because)
    spec = job_spec(
        flow.name,
        settings,
        graph_of,
        store_url=store_url,
        invariants=flow.invariants,
        slots=cluster.slots,
        at_once=session.tasks_at_once(context),
        discover_timeout_ms=staging_timeout_ms(graph),
        exceptions=rehearsal.result(),
    )
    _check_connectors(spec.graph)
    store = open_store(job.checkpoint_dir, key=log_key())
    LOGGER.info("job %r: %s", flow.name, store.protection)
    group = f"crosscut-{flow.name}-{secrets.token_hex(4)}"
    if settings.restore_from is not None:
        # No job is started slower because it could begin so.
        from crosscut.spark.cluster.restoring import begin_with_savepoint

        staging = Staging(context, name=flow.name, group=f"{group}-staging", store_url=store_url)
        begin_with_savepoint(
            settings.restore_from, flow.name, spec.graph, store, staging, settings, spec.packed
        )
    seeing = Seeing(
        flow.name, run.metrics, lambda: job.status, JobActions(job), job.checkpoint_dir, settings, context
    )
    job.begin(
        RunContext(
            cluster,
            spec,
            group,
            store,
            network,
            system_ports(),
            None if network.is_local else share(directories, secrets.token_hex(16)),
        ),
        seeing,
        holding.release,
    )
    note_start(job)
    return job


def _check_connectors(graph: JobGraph) -> None:
    for vertex in graph.vertices:
        if vertex.sink is not None:
            vertex.sink.sink.check()
        if vertex.source is not None and isinstance(vertex.source.source, StreamSource):
            vertex.source.source.check()


def _context_of(spark: Any) -> SparkContext:
    context = spark if isinstance(spark, SparkContext) else getattr(spark, "sparkContext", None)
    if not isinstance(context, SparkContext):
        raise SettingsError(f"spark={spark!r}: expected a SparkSession or a SparkContext")
    return context
