"""Consistent cuts, as a user's predicate sees them.

The snapshots of one completed checkpoint are a state that the running job could have been in at one
moment: whatever a task has received on it, another one has sent on it. So a statement that is true of
every state of the job is true of every cut, and a cut on which it is false shows a fault.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from crosscut.foundation.ids import CheckpointId, Epoch

OnBroken = Literal["report", "stop"]


class Cut(ABC):
    """The job at one completed checkpoint. Read when asked, kept for the other predicates: don't change it.

    With `snapshots="at-least-once"` it is not consistent: a task may have received what no task has sent
    yet on the cut.
    """

    @property
    @abstractmethod
    def checkpoint_id(self) -> CheckpointId:
        """The checkpoint."""

    @property
    @abstractmethod
    def epoch(self) -> Epoch:
        """The epoch in which it was taken."""

    @property
    @abstractmethod
    def is_quiet(self) -> bool:
        """Whether every source has been read to its end and no record is on its way in a channel.

        Only results that operators send at the end of their input (`emit="final"`) may still come, and
        records made from those. So this is stable in a flow without such operators; in others, ask for
        `is_exhausted`.
        """

    @abstractmethod
    def is_exhausted(self, uid: str) -> bool:
        """Return whether operator `uid` can get no record any more: a stable property.

        Everything that feeds it, or the loop it is in, has sent its last record, final results included;
        and nothing is on its way to it, or in its loop.

        Raises:
            FlowError: The flow has no such operator.
        """

    @abstractmethod
    def values(self, uid: str, state: str = "") -> Mapping[Any, Any]:
        """Return the value of each key of operator `uid`, of all tasks.

        Args:
            uid: A count, sum, reduce, aggregate or process.
            state: Of a process: which of its states.

        Raises:
            FlowError: The flow has no such operator, or it has no such keyed state.
            StateError: A class in the state can't be loaded on the driver.
            StoreError: The checkpoint is not kept any more; the predicate is then not held against it.
        """

    @abstractmethod
    def in_flight(self, uid: str | None = None) -> Sequence[Any]:
        """Return the records on their way to operator `uid`, or all that are on their way.

        Records of one channel are in order. A stream that two operators read is sent to each of them,
        so a record of it may be on its way twice: ask for one of the two.

        Args:
            uid: An operator that records reach through a channel, that is, the first of a vertex.

        Raises:
            FlowError: The flow has no such operator, or it is reached by a plain call.
            WireError: A class of a record can't be loaded on the driver.
            StoreError: As in `values`.
        """


Predicate = Callable[[Cut], object]


@dataclass(frozen=True, slots=True)
class Invariant:
    """A statement that must be true of every cut.

    Attributes:
        predicate: Called on the driver, in a thread of its own, never in a worker.
        on_broken: Whether a cut on which it is false is reported only, or ends the job as failed.
    """

    name: str
    predicate: Predicate
    on_broken: OnBroken


def no_deadlock(uid: str, waiting: Callable[[Any], object]) -> Predicate:
    """Return a predicate that is false on a cut on which somebody waits for a record that can't come.

    It is Chandy and Lamport's deadlock detection: `uid` can get no record any more (`Cut.is_exhausted`),
    and yet `waiting(value)` is true for a key of it. A deadlock that it finds is certain and will not pass.
    It does not find keys that wait while the feeders of `uid` may still have more, or while records of others
    go round in the same loop (also for ever).

    Args:
        uid: A keyed operator, as in `Cut.values`.
        waiting: Whether a key with this value needs another record to go on.

    Examples:
        >>> import crosscut as cc
        >>> flow = cc.Flow("forks")
        >>> flow.invariant("nobody starves", cc.no_deadlock("philosophers", lambda one: one == "hungry"))
    """

    def holds(cut: Cut) -> bool:
        return not (cut.is_exhausted(uid) and any(map(waiting, cut.values(uid).values())))

    return holds
