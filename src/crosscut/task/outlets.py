"""What a task leaves for whoever runs it: lists that are emptied after each call."""

from __future__ import annotations

from crosscut.ids import ChannelId
from crosscut.protocol.messages import WorkerMessage
from crosscut.task.items import Item
from crosscut.task.requests import Errand


class Outlets:
    """What is to be done, in the order in which the outlets are to be emptied.

    Attributes:
        errands: Work for the background.
        outbox: What goes to other tasks now.
        emptied: Inputs in which nothing waits any more, though `run` has not read them empty.
        messages: What goes to the coordinator.
    """

    __slots__ = ("emptied", "errands", "messages", "outbox")

    def __init__(self) -> None:
        self.errands: list[Errand] = []
        self.outbox: list[tuple[ChannelId, Item]] = []
        self.emptied: list[ChannelId] = []
        self.messages: list[WorkerMessage] = []
