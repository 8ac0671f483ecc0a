"""What the groups of a unit's log add up to for its tasks: the way back from `unit_books`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId
from crosscut.protocol.snapshots import PendingTransaction, Snapshot
from crosscut.task.task_section import SplitChanges, TaskSection, WaitingItem, decode_sections


@dataclass(frozen=True, slots=True)
class RestoredTask:
    """One task at the end of a log.

    Attributes:
        snapshot: All but the keyed state. What its sink has cut off and is not known to be visible is
            pending, without its records.
        changes: Of the keyed state, in order.
        held: Records of what is pending.
        waiting: Items that come before all that its inputs get.
        ended_inputs: They have ended, and their end does not come again.
        is_end_forwarded: Nothing comes out of the task any more.
        state_part: Which part of the unit's snapshot the changes come after; 0: none, or there is no
            snapshot.
    """

    snapshot: Snapshot
    changes: tuple[bytes, ...] = ()
    held: tuple[tuple[CheckpointId, bytes], ...] = ()
    waiting: tuple[WaitingItem, ...] = ()
    ended_inputs: tuple[ChannelId, ...] = ()
    is_end_forwarded: bool = False
    state_part: int = 0


@dataclass(frozen=True, slots=True)
class RestoredUnit:
    """The tasks of a unit at the end of its log.

    Attributes:
        number: The commit number of the newest group; 0: there is none.
    """

    number: CheckpointId
    tasks: dict[TaskId, RestoredTask]

    @property
    def record_fields(self) -> JSON:
        """Of the classes of records in the log; see `TaskSection`."""
        return next((one.snapshot.record_fields for one in self.tasks.values()), None)


def restored_unit(groups: Iterable[bytes]) -> RestoredUnit:
    """Return what the sections of these groups add up to, oldest first.

    Raises:
        StateError: One of them can't be read.
    """
    number = CheckpointId(0)
    tasks: dict[TaskId, _Sum] = {}
    for data in groups:
        number, sections = decode_sections(data)
        for section in sections:
            tasks.setdefault(section.task, _Sum()).add(number, section)
    return RestoredUnit(number, {task: one.restored() for task, one in tasks.items()})


class _Sum:
    """The sections of one task, added up."""

    def __init__(self) -> None:
        self._newest: TaskSection | None = None
        self._changes: list[bytes] = []
        self._splits: dict[str, Any] | None = None
        self._handles: dict[CheckpointId, JSON] = {}
        self._held: dict[CheckpointId, bytes] = {}
        self._state_part = 0

    def add(self, number: CheckpointId, section: TaskSection) -> None:
        self._newest = section
        self._state_part = section.state_part or self._state_part
        if section.changes:
            self._changes.append(section.changes)
        if section.splits is not None:
            self._splits = _moved(self._splits or {}, section.splits)
        if section.has_transaction:
            self._handles[number] = section.handle
            if section.held is not None:
                self._held[number] = section.held
        if section.committed is not None:
            known = section.committed.checkpoint_id
            self._handles = {n: handle for n, handle in self._handles.items() if n > known}
            self._held = {n: data for n, data in self._held.items() if n > known}

    def restored(self) -> RestoredTask:
        one = self._newest
        if one is None:
            return RestoredTask(Snapshot())
        return RestoredTask(
            Snapshot(
                positions=[*self._splits.values()] if self._splits is not None else None,
                pending=tuple(PendingTransaction(n, handle) for n, handle in self._handles.items()),
                ended=one.is_said,
                said=one.said,
                watermark=one.watermark,
                assigned=one.assigned,
                fields=one.fields,
                now_ms=one.now_ms,
                records_in=one.records_in,
                records_out=one.records_out,
                late_records=one.late_records,
                committed=one.committed,
                record_fields=one.record_fields,
            ),
            tuple(self._changes),
            tuple(self._held.items()),
            one.waiting,
            one.ended_inputs,
            one.is_end_forwarded,
            self._state_part,
        )


def _moved(splits: dict[str, Any], changes: SplitChanges) -> dict[str, Any]:
    given: Any
    for given in changes.given:
        splits[given[0]] = given
    for split, position in changes.moved:
        splits[split] = [*splits[split][:4], position]
    for split in changes.ended:
        splits.pop(split, None)
    return splits
