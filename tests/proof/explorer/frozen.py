"""A task of the explored world as a value, what never changes about it, and what it does to the world."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.proof.explorer.event_time import NO_TIME, Kept, TaskTime
from tests.proof.explorer.graphs import Graph
from tests.proof.explorer.items import Content, Log
from tests.proof.explorer.machines import MachineTable

from crosscut.foundation.ids import TaskId
from crosscut.protocol import effects as do
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    ResumeSources,
    TriggerCheckpoint,
)


class Captured(NamedTuple):
    """What a task was at barrier n. `log` is None until everything that belongs to it is there."""

    n: int
    state: int
    position: int
    said: bool
    ended: bool
    is_end_forwarded: bool
    kept: Kept
    log: Log | None


class Frozen(NamedTuple):
    """A task as a value."""

    epoch: int
    protocol: int
    committer: int
    is_started: bool
    position: int
    state: int
    said: bool
    ended: bool
    is_end_forwarded: bool
    ended_inputs: int
    queues: tuple[tuple[int, ...], ...]
    unsent: tuple[tuple[int, ...], ...]
    captured: tuple[Captured, ...]
    logs: tuple[tuple[int, Log], ...]
    timers: tuple[int, ...]
    open: int
    rotated: tuple[tuple[int, int], ...]
    time: TaskTime
    commit: do.CommitTransactions | None

    @classmethod
    def fresh(cls, site: Site, epoch: int, protocol: int, committer: int) -> Frozen:
        """Return a task that has seen nothing yet, in `epoch`; its machines by number."""
        inputs, outputs = ((),) * len(site.inputs), ((),) * len(site.outputs)
        return cls(
            epoch, protocol, committer, False, 0, 0, False, False, False, 0, inputs, outputs,
            (), (), (), 0, (), NO_TIME, None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartWritten:
    path: str
    content: Content


@dataclass(frozen=True, slots=True)
class Staged:
    handle: str
    records: int


@dataclass(frozen=True, slots=True)
class CommitAsked:
    """The commit that the committer asked for is carried out, and its outcome is told to it."""

    effect: do.CommitTransactions


Deed = PartWritten | Staged | CommitAsked


@dataclass
class Site:
    """What never changes about a task."""

    graph: Graph
    index: int
    has_outboxes: bool
    """Records wait to be sent, so that a barrier may overtake them."""
    is_exact: bool
    protocols: MachineTable
    committers: MachineTable
    task_id: TaskId = field(init=False)
    inputs: tuple[int, ...] = field(init=False)
    outputs: tuple[int, ...] = field(init=False)
    is_sink: bool = field(init=False)
    is_count: bool = field(init=False)
    records: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.task_id = self.graph.tasks[self.index]
        self.inputs = self.graph.inputs(self.index)
        self.outputs = self.graph.outputs(self.index)
        self.is_sink = self.index in self.graph.sinks
        self.is_count = self.index in self.graph.counts
        self.records = self.graph.records_of(self.index)

    def concerns(self, message: object) -> bool:
        """Whether `message` could make a difference to this task."""
        match message:
            case TriggerCheckpoint():
                return not self.inputs
            case CommitCheckpoint():
                return self.is_sink
            case AbortCheckpoint() | CaptureSnapshots() | ResumeSources():
                return True
            case CloseLoops(_, heads):
                return self.task_id.vertex in heads
            case _:
                return False
