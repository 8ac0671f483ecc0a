"""The start of a flow: what it needs of Spark, and the job."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext

from crosscut.contracts.settings import Settings
from crosscut.driver.job_spec import Program
from crosscut.errors import SettingsError
from crosscut.foundation.urls import shown_url
from crosscut.graph.specs import JobGraph
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.spark.cluster import session
from crosscut.spark.cluster.checks import held_slots
from crosscut.spark.cluster.finished import status_if_finished
from crosscut.spark.cluster.job import Job
from crosscut.spark.cluster.partitions import with_partitions


def start_job(flow: Program, settings: Settings, spark: Any, graph: JobGraph | None = None) -> Job:
    """Start `flow`; see `Flow.start`.

    Args:
        graph: What is to run instead of the flow, compiled.
    """
    settings = with_partitions(settings, spark)
    job = Job(flow, settings, graph)
    # Asked here as well as by the coordinator, which decides: it takes Spark some seconds to start.
    if (finished := status_if_finished(flow, settings, graph)) is not None:
        LOGGER.warning(
            "job %r in %s has finished before: nothing is read or written; to run it again, choose another "
            "checkpoint_dir and another location for its output",
            flow.name,
            shown_url(job.checkpoint_dir),
        )
        return job.finished_before(finished)
    job.rehearse()
    with session.starting:
        if spark is not None:
            context = _context_of(spark)
            session.check_is_there(context)
        else:
            context, _ = session.spark_context(settings.parallelism, f"crosscut: {flow.name}")
        # A batch waits for its turn like any Spark job.
        held = 0 if settings.engine == "micro-batch" else settings.parallelism
        holding = held_slots(flow.name, held, context)
    try:
        return job.begin(context, holding)
    except BaseException:
        holding.release()
        job.close_page()
        raise


def _context_of(spark: Any) -> SparkContext:
    context = spark if isinstance(spark, SparkContext) else getattr(spark, "sparkContext", None)
    if not isinstance(context, SparkContext):
        raise SettingsError(f"spark={spark!r}: expected a SparkSession or a SparkContext")
    return context
