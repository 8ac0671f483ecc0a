"""The task effects of a task: lists that its performer empties after each call."""

from __future__ import annotations

from crosscut.foundation.batch import LatencyMarker
from crosscut.foundation.ids import ChannelId
from crosscut.protocol.messages import WorkerMessage
from crosscut.task.items import Item
from crosscut.task.requests import Errand


class TaskEffects:
    """Work that a task has left, in the order in which the task effects are to be emptied.

    Attributes:
        errands: Work for the background.
        outbox: Items for other tasks, to be handed over now.
        emptied: Inputs in which nothing waits any more, though `run` has not read them empty.
        marks: That have come by; the records before them are processed.
        messages: For the coordinator.
    """

    __slots__ = ("emptied", "errands", "marks", "messages", "outbox")

    def __init__(self) -> None:
        self.errands: list[Errand] = []
        self.outbox: list[tuple[ChannelId, Item]] = []
        self.emptied: list[ChannelId] = []
        self.marks: list[LatencyMarker] = []
        self.messages: list[WorkerMessage] = []
