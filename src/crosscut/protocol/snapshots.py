"""The snapshot of a task, once it is durable: data only, as the messages and entries that it stands in."""

from __future__ import annotations

from typing import ClassVar

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId


@dataclass(frozen=True, slots=True)
class Part:
    """One immutable piece of a snapshot: a file in the store, or, when small, the bytes themselves.

    Attributes:
        path: Relative to the store's root, or "" if `inline` holds the content.
        size_bytes: Length of the content.
        sha256: Hex digest of the content.
        inline: The content in base64, or "". Small parts travel in the manifest, which saves a file
            and two fsyncs for each task and checkpoint.
        checkpoint_id: At whose barrier the content was frozen.
    """

    path: str
    size_bytes: int
    sha256: str
    inline: str = ""
    checkpoint_id: CheckpointId = CheckpointId(0)


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A staged sink transaction: prepared at barrier `checkpoint_id`, not known to be committed.

    Attributes:
        held: Its records, where the sink's system can't stage them. Each snapshot has a part of its own
            for them, even of a transaction that an older one holds too: so a part belongs to one
            checkpoint, and goes with it.
    """

    checkpoint_id: CheckpointId
    handle: JSON
    held: Part | None = None


@dataclass(frozen=True, slots=True)
class KnownCommitted:
    """What a logical sink task is known to have made visible: the sink has confirmed it.

    Attributes:
        checkpoint_id: The newest transaction that is confirmed, and so are all before it. 0: none is.
        location: Digest of what the sink says of itself (`Sink.describe`): at another location it means
            nothing.
    """

    checkpoint_id: CheckpointId = CheckpointId(0)
    location: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The snapshot of one task at barrier n, once durable: where its pieces are.

    Attributes:
        parts: Keyed state, oldest first: a full part and the changes since then.
        positions: For a source task, position by split id (unfinished splits only), with the split
            itself; else None.
        pending: For a sink task, every transaction that this checkpoint commits, oldest first.
        committed: For a sink task, what is known to be visible, none of which is in `pending`.
        drained: In this epoch the task has had the end of all its inputs, and passed it on after all
            that it had to say; and it is at rest. Nothing comes out of it any more.
        ended: The operators of the task have been told of the end of input, and have said all that they say
            then (it is told once, whatever the epoch).
        said: How far they have come with it, if they have begun and have not said all.
        at_rest: No record is on its way to the task or in it: none in `log`, and none of `map_async` whose
            result has not gone on. What its operators say at the end of input, timers and windows too, is
            not meant: see `drained`.
        watermark: Of the inputs together; None: none has come yet, or the flow has no event time.
        assigned: The watermarks that operators of the task make themselves, by operator.
        now_ms: The processing time of the task, in milliseconds since 1970; 0: it has no use for it.
        log: Records that were on their way in channels, where the protocol logs any.
        in_flight: How many those are.
        records_in: Records that the task has taken since the job's beginning; for a source, read.
        records_out: Those that it has sent on or, with a sink, written.
        late_records: Those that came too late for its operators.
        state_keys: Rows of its keyed state.
        predecessors: Only where a task takes over from those of another parallelism: how many of `parts` are
            of each, in order.
        floors: As above: the watermark of each task of the vertex then, by index, where keys are shuffled.
        fields: Of classes in the state whose objects are stored by position, the names of their fields.
        record_fields: The same for classes of the records in `log` and in what `pending` holds.
        freeze_us: How long the synchronous part of the snapshot stopped the task, in microseconds.
    """

    ADDED: ClassVar[dict[str, JSON]] = {"late_records": 0, "fields": None, "record_fields": None}
    """Fields, as JSON, that job logs of earlier releases lack."""

    parts: tuple[Part, ...] = ()
    positions: JSON = None
    pending: tuple[PendingTransaction, ...] = ()
    drained: bool = False
    ended: bool = False
    said: JSON = None
    at_rest: bool = False
    watermark: int | None = None
    assigned: JSON = None
    fields: JSON = None
    record_fields: JSON = None
    now_ms: int = 0
    freeze_us: int = 0
    log: tuple[Part, ...] = ()
    in_flight: int = 0
    records_in: int = 0
    records_out: int = 0
    late_records: int = 0
    state_keys: int = 0
    predecessors: tuple[int, ...] = ()
    floors: tuple[int | None, ...] = ()
    committed: KnownCommitted | None = None


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """A snapshot with the task it is of."""

    task: TaskId
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class KnownSplits:
    """How far the search for splits of a dynamic source has come.

    Attributes:
        known: What the source itself says of it.
        is_last: There will be no others.
        has_found: It has found a split, which may have ended since. Before that it holds the watermark.
    """

    source: VertexId
    known: JSON
    is_last: bool = False
    has_found: bool = False
