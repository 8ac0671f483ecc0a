"""Which messages of the coordinator a worker obeys, and when its tasks make room for those of the next epoch.

A message may come late, or twice. So a deployment counts only if it is newer than all before it, a halt only
if nothing newer has been asked for, and an order only if it is about the tasks that are here. Tasks of an
epoch that is over end first, with all that they have called: two epochs never run beside each other in one
process.
"""

from __future__ import annotations

from collections import Counter
from typing import assert_never

from crosscut.errors import ProtocolError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import Epoch
from crosscut.protocol.messages import (
    CoordinatorHeartbeat,
    CoordinatorMessage,
    DeployTasks,
    ForTasks,
    HaltTasks,
    Peer,
    ShutDown,
    StandBy,
    TaskOrder,
)


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """No task is here any more, and what they had called has returned."""


@dataclass(frozen=True, slots=True)
class LearnPeers:
    """Remember where these are reached: it is not said again.

    After: -
    Answer: nothing
    Lost: with the process; another attempt is told of all
    """

    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class EndTasks:
    """End the tasks that are here, if there are any.

    After: -
    Answer: TasksEnded; the worker exits if a call hangs
    Lost: with the process, and the tasks with it
    """


@dataclass(frozen=True, slots=True)
class BeginTasks:
    """Build the tasks of an epoch, and connect them.

    After: -
    Answer: nothing; the coordinator hears WorkerReady or TaskFailed
    Lost: with the process, whose silence says so
    """

    deploy: DeployTasks


@dataclass(frozen=True, slots=True)
class ForwardToTasks:
    """Pass an order on to the tasks that are here, or are being built.

    After: -
    Answer: nothing
    Lost: with the process
    """

    order: TaskOrder


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Exit. `failed`: so that Spark starts another attempt.

    After: -
    Answer: nothing
    Lost: with the process
    """

    reason: str
    failed: bool


WorkerEvent = CoordinatorMessage | TasksEnded
WorkerEffect = LearnPeers | EndTasks | BeginTasks | ForwardToTasks | EndWorker


class WorkerLifecycle:
    """The machine of one worker."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        """What has been dropped, by reason."""
        self._newest = Epoch(0)
        # The epoch whose tasks are here, if any are and it isn't over.
        self._current: Epoch | None = None
        self._wanted: DeployTasks | None = None
        self._are_ending = False

    def handle(self, event: WorkerEvent) -> list[WorkerEffect]:
        """Return what to do about a message of the coordinator, or about the end of the tasks.

        Raises:
            ProtocolError: Tasks have ended without being asked to.
        """
        match event:
            case DeployTasks():
                return self._deploy(event)
            case HaltTasks(epoch):
                return self._halt(epoch)
            case TasksEnded():
                return self._ended()
            case ShutDown(reason, failed, _):
                return [EndWorker(reason, failed)]
            case CoordinatorHeartbeat() | StandBy():
                return []
            case ForTasks():
                return self._forward(event)
            case _:
                assert_never(event)

    def _deploy(self, deploy: DeployTasks) -> list[WorkerEffect]:
        if deploy.epoch <= self._newest:
            return self._stale()
        self._newest = deploy.epoch
        self._wanted = deploy
        # At once: if this epoch is over before it begins, they are not said again for the next.
        return [LearnPeers(deploy.peers), *self._end()]

    def _halt(self, epoch: Epoch) -> list[WorkerEffect]:
        if epoch < self._newest:
            return self._stale()
        self._wanted = None
        return self._end()

    def _end(self) -> list[WorkerEffect]:
        self._current = None
        if self._are_ending:
            return []
        self._are_ending = True
        return [EndTasks()]

    def _ended(self) -> list[WorkerEffect]:
        if not self._are_ending:
            raise ProtocolError("the tasks of a worker have ended, and nobody has asked them to")
        self._are_ending = False
        deploy, self._wanted = self._wanted, None
        if deploy is None:
            return []
        self._current = deploy.epoch
        return [BeginTasks(deploy)]

    def _forward(self, order: TaskOrder) -> list[WorkerEffect]:
        if order.epoch != self._current:
            return self._stale()
        return [ForwardToTasks(order)]

    def _stale(self) -> list[WorkerEffect]:
        self.dropped["stale epoch"] += 1
        return []
