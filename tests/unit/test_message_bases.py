"""What a message is about, its base class says: the epoch, the task, or the tasks that a worker has."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from crosscut.protocol.messages import (
    CoordinatorMessage,
    EpochMessage,
    ForTasks,
    TaskMessage,
    TaskOrder,
    WorkerMessage,
)

WORKER = get_args(WorkerMessage)
COORDINATOR = get_args(CoordinatorMessage)


@pytest.mark.parametrize("kind", [*WORKER, *COORDINATOR], ids=lambda kind: kind.__name__)
def test_a_message_with_an_epoch_is_about_it(kind: type) -> None:
    has_epoch = "epoch" in [one.name for one in fields(kind)]
    assert issubclass(kind, EpochMessage) == has_epoch


@pytest.mark.parametrize("kind", WORKER, ids=lambda kind: kind.__name__)
def test_a_message_of_a_worker_with_a_task_is_about_it(kind: type) -> None:
    assert issubclass(kind, TaskMessage) == ("task" in [one.name for one in fields(kind)])


def test_a_worker_passes_on_the_messages_that_are_for_its_tasks() -> None:
    assert {kind for kind in COORDINATOR if issubclass(kind, ForTasks)} == set(get_args(TaskOrder))
