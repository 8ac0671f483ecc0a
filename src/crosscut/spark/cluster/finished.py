"""Whether a job has finished before: asked before Spark is started."""

from __future__ import annotations

import os

from crosscut.contracts.settings import Settings
from crosscut.driver.job_spec import Program, identity, source_tasks
from crosscut.errors import StoreError
from crosscut.graph.specs import JobGraph
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.status import JobStatus, finished_status
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.recovery import AlreadyFinished, NotThisJob, claim, refusal
from crosscut.spark.cluster.checks import (
    check_checkpoint_dir,
    check_checkpoint_dir_is_private,
    check_origin_is_private,
)
from crosscut.spark.cluster.unit_logs import as_found, kind_in
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.log_key import log_key


def status_if_finished(flow: Program, settings: Settings, graph: JobGraph | None = None) -> JobStatus | None:
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
    found = claim(tail, identity(graph, as_found(settings, kind_in(entry for _, entry in tail))))
    if isinstance(found, NotThisJob):
        raise StoreError(f"job {flow.name!r}: can't use this checkpoint_dir: {refusal(found)}")
    if not isinstance(found, AlreadyFinished):
        return None
    if settings.restore_from is not None:
        _check_origin(flow, store, settings.restore_from)
    completed = [entry for _, entry in tail if isinstance(entry, CheckpointCompleted)]
    return finished_status(
        flow.name, found.entry.epoch, completed[-1] if completed else None, source_tasks(graph)
    )


def _check_origin(flow: Program, store: CheckpointStore, path: str | os.PathLike[str]) -> None:
    from crosscut.savepoints.starting import has_begun
    from crosscut.savepoints.tables import origin_of

    try:
        origin = origin_of(path)
    except StoreError as error:
        # What is gone was not edited, and the job needs nothing of it.
        LOGGER.warning(
            "job %r: restore_from can't be compared with the savepoint that the job began with: %s",
            flow.name,
            error,
        )
        return
    has_begun(origin, store)
