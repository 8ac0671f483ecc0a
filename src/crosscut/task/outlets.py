"""What a task leaves for whoever runs it: lists that are emptied after each call."""

from __future__ import annotations

from crosscut.ids import ChannelId
from crosscut.protocol.messages import WorkerMessage
from crosscut.task.items import Item
from crosscut.task.requests import Job


class Outlets:
    """What is to be done, in the order in which the outlets are to be emptied.

    Attributes:
        jobs: Work for the background.
        outbox: What goes to other tasks now.
        emptied: Inputs in which nothing waits any more, though `run` has not read them empty.
        messages: What goes to the coordinator.
    """

    __slots__ = ("emptied", "jobs", "messages", "outbox")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.outbox: list[tuple[ChannelId, Item]] = []
        self.emptied: list[ChannelId] = []
        self.messages: list[WorkerMessage] = []
