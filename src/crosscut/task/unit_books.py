"""Collects a group from the tasks of a unit: what the log needs of them to go on from its end.

No task writes the books itself: each knows what has changed in it since the last group, and they are asked
at the end of a group, when all are between two batches. `unit_restore` is the way back.

A group ends in two steps. `cut` takes what the tasks are now, and cuts off the transactions of their sinks.
These have to be durable before the entry says that they are to be committed, so the tasks stand still until
`ended` has something to return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from crosscut.contracts.connectors import JSON
from crosscut.errors import InternalError, ProtocolError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId
from crosscut.protocol.unit_log.entries import START, ChannelPosition, GroupContent
from crosscut.protocol.unit_log.events import GroupEnded
from crosscut.protocol.unit_log.positions import advanced
from crosscut.state.field_names import FieldNames
from crosscut.task.task import Task
from crosscut.task.task_section import TaskSection, encode_groups, encode_sections

ROW_BYTES = 64
"""About what a changed row of keyed state takes in an entry."""


@dataclass(frozen=True, slots=True)
class FrozenUnit:
    """The tasks of a unit at the end of a group, for a snapshot.

    Attributes:
        number: Commit number of the group.
        sections: One a task.
        pending: The sections of groups whose transactions are not known to be visible, oldest first.
    """

    number: CheckpointId
    sections: tuple[TaskSection, ...]
    pending: tuple[bytes, ...]

    def encoded(self, state_parts: Mapping[TaskId, int]) -> bytes:
        """Return all but the keyed state.

        Args:
            state_parts: Which part of the snapshot holds the state of a task.
        """
        sections = [replace(one, state_part=state_parts.get(one.task, 0)) for one in self.sections]
        return encode_groups([*self.pending, encode_sections(self.number, sections)])


class UnitBooks:
    """The books of a unit whose tasks are restored, and have not run yet.

    Args:
        tasks: In topological order.
        taken: How far the log has taken each channel from another unit.
        are_splits_logged: The log has the splits of the sources. Else the first group holds them.
        record_fields: What the log says of the classes of its records.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        taken: Mapping[ChannelId, ChannelPosition],
        *,
        are_splits_logged: bool,
        record_fields: JSON = None,
    ) -> None:
        self._records = FieldNames()
        self._records.restore(record_fields, "")
        self._tasks = tasks
        self._taken = dict(taken)
        self._sent_bytes = 0
        self._has_sent = False
        self._cut: tuple[CheckpointId, list[TaskSection], GroupEnded] | None = None
        for task in tasks:
            task.record_changes(are_splits_logged=are_splits_logged)
        # Splits that were given and are in no log are content.
        self._has_splits = not are_splits_logged and any(task.is_source for task in tasks)
        self._versions = [task.group_version for task in tasks]

    @property
    def has_content(self) -> bool:
        """Whether a task has processed or sent something since the last group was cut."""
        if self._has_sent or self._has_splits:
            return True
        for task, version in zip(self._tasks, self._versions, strict=True):
            if task.group_version != version:
                return True
        return False

    @property
    def size_bytes(self) -> int:
        """About how long the entry of the group would be."""
        size = self._sent_bytes
        for task in self._tasks:
            size += ROW_BYTES * task.changed_rows
        return size

    @property
    def is_cut(self) -> bool:
        """Whether a group was cut, and `ended` has not returned it yet."""
        return self._cut is not None

    def note_sent(self, payload: bytes) -> None:
        """A task has sent something to another unit."""
        self._has_sent = True
        self._sent_bytes += len(payload)
        self._records.note(payload)

    def cut(self, number: CheckpointId) -> None:
        """End the group with this commit number: all tasks are between two batches, and have sent all.

        Raises:
            StateError: A value can't be stored. The unit ends.
            WireError: A record can't be. As above.
        """
        if self._cut is not None:
            raise ProtocolError(f"group {number} was cut before the one before has ended")
        sections = [task.cut_group(number) for task in self._tasks]
        taken: dict[ChannelId, ChannelPosition] = {}
        for task in self._tasks:
            for channel, position in task.input_gate.take_positions().items():
                before = self._taken.get(channel, START)
                taken[channel] = self._taken[channel] = advanced(before, position.record, position.news)
        positions = {
            position_key(task, split_id): position
            for task in self._tasks
            for split_id, position in task.listening.items()
        }
        content = GroupContent(positions=tuple(positions.items()))
        self._cut = number, sections, GroupEnded(content, tuple(taken.items()))
        self._has_sent = self._has_splits = False
        self._sent_bytes = 0
        self._versions = [task.group_version for task in self._tasks]

    def ended(self) -> GroupEnded | None:
        """Return the group that was cut, once its transactions are durable; None: not all of them are.

        Raises:
            StateError: A position or a handle is not JSON.
        """
        if self._cut is None:
            return None
        number, sections, event = self._cut
        if any(task.transactions.newest_prepared < task.transactions.newest_cut_off for task in self._tasks):
            return None
        self._cut = None
        whole = [_with_transaction(*one, number) for one in zip(self._tasks, sections, strict=True)]
        for one in whole:
            for waiting in one.waiting:
                self._records.note(waiting.data)
            if one.held is not None:
                self._records.note_any(one.held)
        whole[0] = replace(whole[0], record_fields=self._records.as_json())
        sinks: JSON = [str(one.task) for one in whole if one.has_transaction] or None
        content = replace(event.content, sections=encode_sections(number, whole), sink=sinks)
        return replace(event, content=content)

    def freeze(self, number: CheckpointId) -> FrozenUnit:
        """Freeze the tasks at the end of the group with this commit number: `ended` has just returned it."""
        pending: dict[CheckpointId, list[TaskSection]] = {}
        for task in self._tasks:
            held = dict(task.held.up_to(number))
            for one in task.transactions.pending(number):
                n = one.checkpoint_id
                section = TaskSection(task.task_id, has_transaction=True, handle=one.handle, held=held.get(n))
                pending.setdefault(n, []).append(section)
        older = tuple(encode_sections(n, sections) for n, sections in sorted(pending.items()))
        sections = [task.freeze_unit(number) for task in self._tasks]
        sections[0] = replace(sections[0], record_fields=self._records.as_json())
        return FrozenUnit(number, tuple(sections), older)

    def acknowledge(self, positions: Sequence[tuple[str, JSON]]) -> None:
        """Tell the readers of sources what is durable."""
        known = dict(positions)
        for task in self._tasks:
            for split_id in task.listening:
                if (key := position_key(task, split_id)) in known:
                    task.acknowledge_split(split_id, known[key])


def position_key(task: Task, split_id: str) -> str:
    """Return what a split is called among those of all sources."""
    return f"{task.task_id.vertex}/{split_id}"


def _with_transaction(task: Task, section: TaskSection, number: CheckpointId) -> TaskSection:
    if not section.has_transaction:
        return section
    found = [one.handle for one in task.transactions.pending(number) if one.checkpoint_id == number]
    if len(found) != 1:
        raise InternalError(f"task {task.task_id}: {len(found)} transactions were cut off at group {number}")
    held = dict(task.held.up_to(number)).get(number)
    return replace(section, handle=found[0], held=held)
