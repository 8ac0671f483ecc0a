"""What a task has left in its outlets, which are empty afterwards."""

from __future__ import annotations

from typing import Any

from crosscut.batch import Batch
from crosscut.task.requests import NotePause
from crosscut.task.task import Task


def sent(task: Task) -> list[Any]:
    """Return (channel, records) for batches, (channel, item) for the rest."""
    items, task.outlets.outbox = task.outlets.outbox, []
    return [(channel, item.records if isinstance(item, Batch) else item) for channel, item in items]


def said(task: Task) -> list[Any]:
    """Return the messages to the coordinator."""
    messages, task.outlets.messages = task.outlets.messages, []
    return messages


def asked(task: Task) -> list[Any]:
    """Return the errands, without that pauses are to be noted: each capture asks for that."""
    errands, task.outlets.errands = task.outlets.errands, []
    return [errand for errand in errands if not isinstance(errand, NotePause)]
