"""Jobs of a notebook: a cell that is run again replaces the job that it has started before."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from crosscut.errors import JobFailedError
from crosscut.foundation.urls import absolute, shown_url
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.live import kernel_shell
from crosscut.protocol.effects import Outcome

if TYPE_CHECKING:
    from crosscut.spark.cluster.job import Job

STOP_TIMEOUT_S = 120.0
"""A job that has not ended by then is fenced by the next one."""

_started: dict[str, Job] = {}
"""The newest job of this process, by checkpoint directory. A cell need not keep what it has started."""


def note_start(job: Job) -> None:
    """Note that `job` owns its checkpoint directory from now on."""
    _started[absolute(job.checkpoint_dir)] = job


def stop_earlier(name: str, checkpoint_dir: str) -> None:
    """In a notebook, stop the job that this process runs on `checkpoint_dir`, with a last checkpoint.

    In a program such a job is left alone: the next one fences it.
    """
    earlier = _started.get(absolute(checkpoint_dir))
    if kernel_shell() is None or earlier is None or earlier.status in get_args(Outcome):
        return
    LOGGER.warning(
        "job %r: an earlier cell has started it on %s, and it still runs: it is stopped with a last "
        "checkpoint, from which the new one resumes",
        name,
        shown_url(checkpoint_dir),
    )
    try:
        has_ended = earlier.stop(STOP_TIMEOUT_S)
    except JobFailedError:
        # What it has to say, it has said; the new one resumes from its last checkpoint all the same.
        return
    if not has_ended:
        LOGGER.warning("job %r: the earlier one has not stopped in %g s: it is fenced", name, STOP_TIMEOUT_S)
