"""The task effects of a task: lists that its performer empties after each call."""

from __future__ import annotations

from crosscut.foundation.batch import LatencyMarker
from crosscut.foundation.ids import ChannelId
from crosscut.protocol.messages import WorkerMessage
from crosscut.task.items import Item
from crosscut.task.requests import BackgroundJob


class TaskEffects:
    """Work that a task has left, in the order in which the task effects are to be emptied.

    Attributes:
        background_jobs: Work for the background.
        outbox: Items for other tasks, to be handed over now.
        emptied: Inputs in which nothing waits any more, though `run` has not read them empty.
        markers: That have come by; the records before them are processed.
        messages: For the coordinator.
    """

    __slots__ = ("background_jobs", "emptied", "markers", "messages", "outbox")

    def __init__(self) -> None:
        self.background_jobs: list[BackgroundJob] = []
        self.outbox: list[tuple[ChannelId, Item]] = []
        self.emptied: list[ChannelId] = []
        self.markers: list[LatencyMarker] = []
        self.messages: list[WorkerMessage] = []
