"""Decides which workers probe for a record that ends their process, how long, and what to report without one.

A worker that dies can't say what it was at. When the same worker has died twice, its successor tries each
batch in a copy of its process first, which costs it about half its speed; see decision 0097. Pure decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

from crosscut.foundation.ids import WorkerIndex
from crosscut.protocol.messages import FailureCause

DEATHS_MIN = 2
"""Deaths after which a worker probes: one alone is most often a lost machine or a killed process."""

DEATHS_ANYWHERE = 3
"""Deaths in a row, of any workers, after which all probe: each time another one may get the same record."""

CHECKPOINTS = 4
"""Checkpoints for which a worker probes after two deaths; twice as many after each further one.

A worker that probes is slower. It needs more than one checkpoint to come as far as the one that died.
"""

SPARK_TASK_DIED = "SparkTaskDied"
"""The kind of failure in which Spark has given up a batch, since a process of one of its tasks has died."""

_DOUBLINGS_MAX = 10


def deaths_of(worker: WorkerIndex, failures: Sequence[FailureCause]) -> int:
    """Return the deaths for which `worker` probes, 0 if it does not.

    Args:
        failures: Those within the window of the restart strategy, the newest last.
    """
    own = sum(one.worker == worker or one.kind == SPARK_TASK_DIED for one in failures)
    if own >= DEATHS_MIN:
        return own
    newest = failures[-DEATHS_ANYWHERE:]
    is_anywhere = len(newest) == DEATHS_ANYWHERE and all(map(is_death, newest))
    return DEATHS_MIN if is_anywhere else 0


def is_death(cause: FailureCause) -> bool:
    """Return whether a process has ended by itself, as far as that is known."""
    return cause.worker is not None or cause.kind == SPARK_TASK_DIED


def advice(failures: Sequence[FailureCause], untried: str) -> str:
    """Return what to look at if workers die though copies survive their records; "" if that is not so.

    Args:
        failures: Those within the window of the restart strategy, the newest last.
        untried: Operators that are not tried in copies.
    """
    if not is_death(failures[-1]) or sum(map(is_death, failures)) <= DEATHS_MIN:
        return ""
    return (
        f"; copies of the process have found no record that ends it, and don't try {untried}: look there for "
        f"native code and os._exit; a worker that crashes writes its stack to standard error, and the system "
        f"logs which processes it kills for their memory"
    )


def checkpoints_to_probe(deaths: int) -> int:
    """Return for how many completed checkpoints a worker probes after so many deaths."""
    return CHECKPOINTS << min(deaths - DEATHS_MIN, _DOUBLINGS_MAX) if deaths >= DEATHS_MIN else 0
