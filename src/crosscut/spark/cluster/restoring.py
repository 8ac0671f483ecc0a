"""How a job begins with a savepoint, or with a checkpoint of another job."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crosscut.contracts.settings import Settings
from crosscut.driver.job_spec import committed_output
from crosscut.driver.slow_sinks import SLOW_LOOK_S, warn
from crosscut.foundation.data_pickles import only_data, passing_on
from crosscut.foundation.urls import shown_url
from crosscut.graph.specs import JobGraph
from crosscut.host.clock import SystemClock
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.protocol.log.identity import Claimant
from crosscut.savepoints.child import files_by_child
from crosscut.savepoints.loading import EPOCH
from crosscut.savepoints.manifest import Savepoint
from crosscut.savepoints.migrations import Migrations
from crosscut.savepoints.starting import begin_with, has_begun
from crosscut.savepoints.tables import as_savepoint, origin_of
from crosscut.spark.data.staging import Staging
from crosscut.store.checkpoint_store import CheckpointStore


def begin_with_savepoint(
    path: str | os.PathLike[str],
    name: str,
    graph: JobGraph,
    store: CheckpointStore,
    staging: Staging,
    settings: Settings,
    packed_graph: bytes,
) -> None:
    """Have job `name` begin with what is at `path`, unless it has begun with it before.

    This process loads only data of it. Whatever else there is gets into the first checkpoint as it is, and is
    loaded by workers.

    Args:
        staging: Of the splits of sources that the savepoint does not know.
        packed_graph: The same graph, for a process that may load everything.

    Raises:
        CrosscutError: It can't; nothing has been changed.
    """
    shown = shown_url(os.fspath(path))
    # Before anything is copied: a job is started often, and begins once.
    if has_begun(origin_of(path), store):
        LOGGER.info("job %r: has begun with %s before, and goes on", name, shown)
        return
    with tempfile.TemporaryDirectory(prefix="crosscut-restore-") as scratch:
        savepoint = _savepoint_at(path, Path(scratch) / "savepoint", packed_graph)
        with passing_on():
            found = begin_with(
                savepoint,
                store,
                graph,
                discover=lambda graph: staging.assignments(graph, EPOCH),
                look=lambda: committed_output(graph, _warned_if_slow),
                allow_dropped_state=settings.allow_dropped_state,
                accept_changes=settings.accept_changes,
                is_fresh=settings.fresh,
                migrations=Migrations(settings.migrate_state),
                claimant=Claimant(socket.gethostname(), os.getpid(), SystemClock().now().isoformat()),
            )
    if found is not None:
        n, then = found.checkpoint_id, found.parallelism
        LOGGER.info("job %r: begins with checkpoint %s of %s, of parallelism %s", name, n, shown, then)


@contextmanager
def _warned_if_slow(uid: str) -> Iterator[None]:
    """As `crosscut.driver.slow_sinks`, where no event loop runs yet."""
    timer = threading.Timer(SLOW_LOOK_S, warn, (uid,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _savepoint_at(path: str | os.PathLike[str], scratch: Path, packed_graph: bytes) -> Savepoint:
    with only_data():
        return as_savepoint(path, scratch, lambda where, store: files_by_child(where, store, packed_graph))
