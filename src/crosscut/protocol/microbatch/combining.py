"""Whether folds of a batch may begin before their shuffle. A pure decision."""

from __future__ import annotations

from collections.abc import Iterable

from crosscut.protocol.snapshots import TaskSnapshot


def may_combine(begins_with: Iterable[TaskSnapshot]) -> bool:
    """Return whether all that comes through a shuffle in a batch comes from tasks of this batch.

    Records that a snapshot has found under way, in the other engine, come to a fold as they are: one that
    expects accumulators would take them for some. All attempts at a batch go by the same answer, so it is
    told them, and none looks for itself.
    """
    return not any(one.snapshot.log for one in begins_with)
