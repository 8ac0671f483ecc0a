"""What an entry of a unit's log holds of one task: all that the task needs to go on from there.

A section has two kinds of content. *Changes* add up over the groups: rows of keyed state, splits. All else is
short, stands in each section, and the newest counts.

The bytes hold JSON and, as they are, the bytes that the state, the batches and the sinks have made. An entry
of a log has a digest of its own, so what is wrong here was written by another release.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.errors import StateError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.protocol.snapshots import KnownCommitted

MAGIC = b"CCS1"
_HEAD = struct.Struct(">4sQI")
"""`MAGIC`, the commit number of the group, how many sections there are."""
_LENGTHS = struct.Struct(">II")
"""Of a section: its JSON, and the bytes after that."""
_GROUP = struct.Struct(">Q")
"""Of the sections of a group, in a snapshot."""


@dataclass(frozen=True, slots=True)
class SplitChanges:
    """What has become of the splits of a source task in a group.

    Attributes:
        given: Splits that it was given, in the form of `SplitQueue.positions`.
        moved: Split id and position of those that were read.
        ended: Ids of those that have no other record.
    """

    given: tuple[JSON, ...] = ()
    moved: tuple[tuple[str, JSON], ...] = ()
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """An item that a task of the same unit has sent, and this one has not taken.

    Attributes:
        data: A batch without numbers; b"": the end of input.
    """

    channel: ChannelId
    data: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class TaskSection:
    """One task at the end of a group.

    Attributes:
        changes: `KeyedState.changes`.
        fields: See `Snapshot`, as for `said`, `assigned`, `watermark`, `now_ms`, `committed` and the
            counters.
        splits: None: the task is no source.
        waiting: In the order of each channel.
        ended_inputs: Those whose end has been taken.
        is_said: The operators have said all that they say at the end of input.
        is_end_forwarded: The end has been passed on. Nothing comes out of the task any more.
        has_transaction: The sink has output in this group.
        handle: Of that transaction.
        held: What its writer holds of it; None: nothing.
        record_fields: As in `Snapshot`, of all that tasks of the unit have sent, held, or not taken yet: in
            the section of the first task.
        state_part: In a snapshot of the unit: which of its parts holds the keyed state; 0: none does.
    """

    task: TaskId
    changes: bytes = b""
    fields: JSON = None
    splits: SplitChanges | None = None
    waiting: tuple[WaitingItem, ...] = ()
    ended_inputs: tuple[ChannelId, ...] = ()
    is_said: bool = False
    is_end_forwarded: bool = False
    said: JSON = None
    watermark: int | None = None
    assigned: JSON = None
    now_ms: int = 0
    records_in: int = 0
    records_out: int = 0
    late_records: int = 0
    has_transaction: bool = False
    handle: JSON = None
    held: bytes | None = None
    committed: KnownCommitted | None = None
    record_fields: JSON = None
    state_part: int = 0


def encode_sections(number: CheckpointId, sections: Sequence[TaskSection]) -> bytes:
    """Return the sections of the group with commit number `number`.

    Raises:
        StateError: A position or a handle is not JSON.
    """
    parts = [_HEAD.pack(MAGIC, number, len(sections))]
    for section in sections:
        blobs = [section.changes, section.held or b"", *(one.data for one in section.waiting)]
        try:
            text = json.dumps(_as_json(section), separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise StateError(
                f"task {section.task}: a position of its source or a handle of its sink is not JSON: {error}"
            ) from error
        parts += (_LENGTHS.pack(len(text), sum(map(len, blobs))), text, *blobs)
    return b"".join(parts)


def decode_sections(data: bytes) -> tuple[CheckpointId, tuple[TaskSection, ...]]:
    """Return what `encode_sections` was given.

    Raises:
        StateError: It is something else.
    """
    try:
        magic, number, count = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ValueError(f"they begin with {magic!r}")
        at = _HEAD.size
        sections = []
        for _ in range(count):
            text_bytes, blob_bytes = _LENGTHS.unpack_from(data, at)
            at += _LENGTHS.size
            end = at + text_bytes + blob_bytes
            if end > len(data):
                raise ValueError("they are cut off")
            sections.append(_section(json.loads(data[at : at + text_bytes]), data[at + text_bytes : end]))
            at = end
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes follow them")
    except (struct.error, ValueError, TypeError, KeyError) as error:
        raise StateError(
            f"the sections of a group in a log, {len(data)} bytes, can't be read: {error}; go on with the "
            f"release of Crosscut that has written them"
        ) from error
    return CheckpointId(number), tuple(sections)


def encode_groups(groups: Sequence[bytes]) -> bytes:
    """Return the sections of several groups as one, for a snapshot of the unit."""
    return b"".join(part for data in groups for part in (_GROUP.pack(len(data)), data))


def decode_groups(data: bytes) -> tuple[bytes, ...]:
    """Return what `encode_groups` was given.

    Raises:
        StateError: It is something else.
    """
    groups, at = [], 0
    while at < len(data):
        end = at + _GROUP.size
        if end <= len(data):
            end += _GROUP.unpack_from(data, at)[0]
        if end > len(data) or end < at + _GROUP.size:
            raise StateError(f"the snapshot of a unit, {len(data)} bytes, is cut off at {at}")
        groups.append(data[at + _GROUP.size : end])
        at = end
    return tuple(groups)


def _as_json(section: TaskSection) -> dict[str, Any]:
    splits, committed = section.splits, section.committed
    return {
        "task": [section.task.vertex, section.task.index],
        "changes": len(section.changes),
        "held": None if section.held is None else len(section.held),
        "waiting": [[*_sender(one.channel), one.rows, len(one.data)] for one in section.waiting],
        "ended_inputs": [_sender(channel) for channel in section.ended_inputs],
        "splits": None if splits is None else [splits.given, splits.moved, splits.ended],
        "committed": None if committed is None else [committed.checkpoint_id, committed.location],
        **{name: getattr(section, name) for name in _PLAIN},
    }


_PLAIN = (
    "fields",
    "is_said",
    "is_end_forwarded",
    "said",
    "watermark",
    "assigned",
    "now_ms",
    "records_in",
    "records_out",
    "late_records",
    "has_transaction",
    "handle",
    "record_fields",
    "state_part",
)


def _section(fields: dict[str, Any], blobs: bytes) -> TaskSection:
    vertex, index = fields["task"]
    task = TaskId(VertexId(vertex), index)
    at = fields["changes"]
    held = None
    if fields["held"] is not None:
        held = blobs[at : at + fields["held"]]
        at += fields["held"]
    waiting = []
    for *sender, rows, size in fields["waiting"]:
        waiting.append(WaitingItem(_channel(sender, task), blobs[at : at + size], rows))
        at += size
    if at != len(blobs):
        raise ValueError(f"task {task} has {len(blobs)} bytes, and says {at}")
    splits = None
    if fields["splits"] is not None:
        given, moved, ended = fields["splits"]
        splits = SplitChanges(
            tuple(given), tuple((split, position) for split, position in moved), tuple(ended)
        )
    committed = None
    if fields["committed"] is not None:
        number, location = fields["committed"]
        committed = KnownCommitted(CheckpointId(number), location)
    return TaskSection(
        task,
        changes=blobs[: fields["changes"]],
        held=held,
        waiting=tuple(waiting),
        ended_inputs=tuple(_channel(sender, task) for sender in fields["ended_inputs"]),
        splits=splits,
        committed=committed,
        **{name: fields[name] for name in _PLAIN},
    )


def _sender(channel: ChannelId) -> list[JSON]:
    return [channel.input, channel.source.vertex, channel.source.index]


def _channel(sender: Sequence[Any], task: TaskId) -> ChannelId:
    position, vertex, index = sender
    return ChannelId(position, TaskId(VertexId(vertex), index), task)
