"""Which workers look for a record that ends their process, and for how long. Pure decisions.

A worker that dies can't say what it was at. When the same worker has died twice, its successor tries each
batch in a copy of its process first, which costs it about half its speed; see decision 0097.
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

_DOUBLINGS_MAX = 10


def deaths_of(worker: WorkerIndex, failures: Sequence[FailureCause]) -> int:
    """Return the deaths for which `worker` probes, 0 if it does not.

    Args:
        failures: Those within the window of the restart strategy, the newest last.
    """
    own = sum(one.worker == worker for one in failures)
    if own >= DEATHS_MIN:
        return own
    newest = failures[-DEATHS_ANYWHERE:]
    is_anywhere = len(newest) == DEATHS_ANYWHERE and all(one.worker is not None for one in newest)
    return DEATHS_MIN if is_anywhere else 0


def checkpoints_to_probe(deaths: int) -> int:
    """Return for how many completed checkpoints a worker probes after so many deaths."""
    return CHECKPOINTS << min(deaths - DEATHS_MIN, _DOUBLINGS_MAX) if deaths >= DEATHS_MIN else 0
