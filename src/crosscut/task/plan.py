"""The plan of a task: what it is made of, in one epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from crosscut.contracts.connectors import HeldData
from crosscut.foundation.ids import ChannelId, Epoch, TaskId
from crosscut.operators.operator import Operator
from crosscut.protocol.replay_order import ReplayOrder
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshots import Snapshot
from crosscut.protocol.splits.alignment import AlignedSplits
from crosscut.state.keyed import KeyedState
from crosscut.state.parts import PartChain
from crosscut.task.inputs import InputQueue
from crosscut.task.items import LoggedBatch
from crosscut.task.outputs import Output
from crosscut.task.spilling import SpillSpace
from crosscut.task.splits import SplitQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """What one task is made of.

    Attributes:
        chain: The operators, in order; a sink's is the last.
        channel_bytes: Of batches that each channel may have under way.
        spills_blocked: An input that is blocked may be spilled to disk; a back edge always may.
        aligned: Which splits of a source wait for slower ones; None: it is in no group.
        log_space: Takes the logs of snapshots that are too long for memory.
        splits: For a source task.
        state: For a task with keyed state.
        committer: For a sink task.
        held: Records that its writer keeps in the snapshot.
        restored: The snapshot that the task goes on from; None: from none.
        has_event_time: See `Chain`.
        untimed: As above.
        parts: Those of the restored checkpoint.
        unsent: Output in the restored snapshot: it is sent again.
        replay: See `InputGate`. Watermarks among the task's own channel records are its own.
        ended_inputs: Only where the end of input is logged: those whose end the task has taken. It waits in
            `inputs` once more, unless `is_end_forwarded`.
        is_end_forwarded: As above: the task has passed its end on.
    """

    task_id: TaskId
    epoch: Epoch
    protocol: SnapshotProtocol
    inputs: Mapping[ChannelId, InputQueue]
    chain: Sequence[Operator]
    outputs: Sequence[Output]
    batch_rows: int
    channel_bytes: int
    back_edges: frozenset[ChannelId] = frozenset()
    spills_blocked: bool = False
    splits: SplitQueue | None = None
    source_uid: str = ""
    state: KeyedState | None = None
    committer: Committer | None = None
    held: HeldData | None = None
    parts: PartChain | None = None
    restored: Snapshot | None = None
    has_event_time: bool = False
    untimed: Collection[str] = ()
    unsent: Sequence[LoggedBatch] = ()
    replay: ReplayOrder | None = None
    log_space: SpillSpace | None = None
    aligned: AlignedSplits | None = None
    ended_inputs: Collection[ChannelId] = ()
    is_end_forwarded: bool = False
