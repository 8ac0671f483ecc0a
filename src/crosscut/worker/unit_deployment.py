"""Tasks from the log of a unit: what `deployment` needs to build them as they were at its end."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from crosscut.errors import StateError
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.operators.operator import named_state_error
from crosscut.protocol.messages import DeployTasks
from crosscut.protocol.snapshots import Part, PendingTransaction, TaskSnapshot
from crosscut.state.keyed import KeyedState
from crosscut.task.inputs import InputQueue
from crosscut.task.items import EndOfInput
from crosscut.task.unit_restore import RestoredTask, RestoredUnit
from crosscut.wire.batches import decode_batch
from crosscut.worker.local_state_cache import Patient


def deploy_from_log(deploy: DeployTasks, unit: RestoredUnit, parts: Sequence[Part] = ()) -> DeployTasks:
    """Return `deploy` with what the log of this worker says instead of a checkpoint.

    The commit number of the newest group takes the place of the checkpoint's id: all that sinks have cut off
    up to there is in the log, and so is to be committed. Without a group, the worker begins as `deploy` says.

    Args:
        parts: Of the snapshot of the unit, if its log begins with one.
    """
    if not unit.number:
        return deploy
    snapshots = tuple(
        TaskSnapshot(
            task,
            replace(
                one.snapshot,
                pending=_with_records(one),
                parts=(parts[one.state_part],) if one.state_part else (),
            ),
        )
        for task, one in unit.tasks.items()
    )
    return replace(deploy, restore=unit.number, snapshots=snapshots, splits=())


def _with_records(task: RestoredTask) -> tuple[PendingTransaction, ...]:
    held = dict(task.held)
    return tuple(
        replace(one, held=_part(one.checkpoint_id, held[one.checkpoint_id]))
        if one.checkpoint_id in held
        else one
        for one in task.snapshot.pending
    )


def _part(number: CheckpointId, data: bytes) -> Part:
    """Return a part that has `data` in itself."""
    digest = hashlib.sha256(data).hexdigest()
    return Part("", len(data), digest, base64.b64encode(data).decode("ascii"), number)


async def replay(state: KeyedState, task: RestoredTask, uid: str, host: Patient) -> None:
    """Make the changes of the log in the state of operator `uid`, which is empty.

    Raises:
        StateError: They can't be decoded, or are of another operator.
    """
    try:
        for changes in task.changes:
            for _ in state.replaying(changes):
                await host.pause()
    except StateError as error:
        raise named_state_error(uid, error) from error


def put_back(task: RestoredTask, queues: Mapping[ChannelId, InputQueue]) -> None:
    """Let what had not been taken wait in the inputs of a task again, and the end of inputs that have one."""
    for one in task.waiting:
        queues[one.channel].append(decode_batch(one.data) if one.data else EndOfInput())
    if not task.is_end_forwarded:
        for channel in task.ended_inputs:
            queues[channel].append(EndOfInput())
