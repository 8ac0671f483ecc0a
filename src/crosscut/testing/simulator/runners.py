"""What a virtual pool is made of: a task with what it needs around it, and how calls leave it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from crosscut.errors import ConnectorError, StoreError, UserCodeError
from crosscut.ids import ChannelId, CheckpointId
from crosscut.interfaces import SinkWriter
from crosscut.runtime.items import Item
from crosscut.runtime.jobs import CompleteState, PrepareTransaction, StoreFrozen
from crosscut.runtime.task import Task
from crosscut.state.keyed import KeyedState
from crosscut.testing.simulator.outside import Answer, Place

EXPECTED_ERRORS = (UserCodeError, ConnectorError, StoreError)
"""What a task may fail with. Anything else is a bug, and ends the simulation."""


class OutgoingChannel(Protocol):
    """The sending end of a channel to another worker."""

    @property
    def is_full(self) -> bool:
        """Whether records have to wait."""

    def send_item(self, item: Item) -> None:
        """Send."""


class Call:
    """A call in a thread, for a coroutine that the pool drives by hand."""

    def __init__(self, work: Callable[[], Any], place: Place) -> None:
        self.work = work
        self.place = place

    def __await__(self) -> Generator[Call, Any, Any]:
        return (yield self)


@dataclass(eq=False)
class Runner:
    """One task with what it needs around it."""

    task: Task
    state: KeyedState | None
    writer: SinkWriter | None
    clogged: set[ChannelId] = field(default_factory=set)
    due_us: int = 0
    jobs: deque[PrepareTransaction | StoreFrozen | CompleteState] = field(default_factory=deque)
    is_busy: bool = False
    cancelled: set[CheckpointId] = field(default_factory=set)
    writing: tuple[CheckpointId, Answer] | None = None
    writer_calls: deque[tuple[Callable[[], Any], Answer]] = field(default_factory=deque)
    is_writer_busy: bool = False
