"""What a user implements to bring a source or a sink of their own.

Both are *descriptions*: they are pickled once on the Spark driver and unpickled in every worker, so
they hold addresses and options, never open files or sockets. Readers and writers are made from them
inside the worker, live for one epoch, and are used by one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

from crosscut.contracts.decoding import DecodingTrial
from crosscut.errors import ConnectorError, RefusedRecordError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId
from crosscut.foundation.text import ShortRepr
from crosscut.foundation.type_variables import Record, Written

Guarantee = Literal["exactly once", "idempotent", "at least once"]

_SHOWN = ShortRepr(200).repr

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
"""A value that JSON can hold. Positions and transaction handles are JSON: they go into the job log,
where people read them and nothing needs unpickling."""

HAS_NO_RECORDS = "crosscut no records"
"""A key in the handle of a transaction that moves nothing the sink remembers: of dead letters alone, say."""


@dataclass(frozen=True, slots=True)
class Split:
    """One part of a source, which can be read on its own, from any position.

    Attributes:
        split_id: Unique within the source and the same at every discovery of the same input.
        start: Position of the first record.
        detail: Whatever else the reader needs to open it.
        weight: Relative amount of work (bytes, records), for balanced assignment.
    """

    split_id: str
    start: JSON
    detail: JSON = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to read now: ask again after `delay_ms` (0: as soon as there is nothing better to do), or when
    the reader wakes the task up (`SplitReader.wake_by`).

    Attributes:
        is_coming: There is more, or soon known whether there is: it has been asked for, and is on its way. In
            micro-batches a batch waits for that; it ends where there is nothing to read.
    """

    delay_ms: float
    is_coming: bool = False


@dataclass(frozen=True, slots=True)
class EndOfSplit:
    """The split will never have another record."""


class SplitReader(ABC, Generic[Record]):
    """Reads one split from a position on. Made by `Source.reader`, closed once at the end."""

    @property
    @abstractmethod
    def position(self) -> JSON:
        """Where the next record is read: after every record that `read` has returned so far.

        A reader opened at this position returns exactly the records that this one would have. It may be the
        same object each time, changed in place: it is copied.
        """

    @abstractmethod
    def read(self, limit: int) -> list[Record] | Wait | EndOfSplit:
        """Return the next records in order, at least one and at most `limit`, or Wait, or EndOfSplit.

        An empty list is taken for a short Wait; a reader that returns nothing else is reported by name.

        Must not block for longer than a few milliseconds: barriers wait meanwhile.

        Raises:
            ConnectorError: The input cannot be read; the message names it. The task fails and the
                job restarts from the last checkpoint.
        """

    @property
    def lag(self) -> int | None:
        """How many records are known to wait after `position`, None if that can't be told at once.

        Shown to people, and asked some times a second: it must neither block nor raise.
        """
        return None

    def acknowledge(self, position: JSON) -> None:
        """Every record before `position` is part of a completed checkpoint, and is not read again.

        Called between reads, for some of the completed checkpoints, in order, and never for one that
        may still be undone; after a crash perhaps not for the newest. In micro-batches a reader hears of
        the position that it begins with, once, before it reads. Must not block. For systems
        that keep or show how far a reader has come; a failure of theirs must not fail the job.
        """

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Take a function that ends a Wait early: the task asks again at once.

        For readers that learn from a thread of their own that something has come, and so need not be asked
        every few milliseconds. Called once, before the first `read`, or not at all: in micro-batches a reader
        is asked when its Wait is over, and only then. Not for longer than some 100 ms at a time all the same:
        a split is found to have fallen idle (`idle_after`) only when it is asked. `wake` may be called by any
        thread, at any time, also after `close`; it never blocks.
        """

    def try_decoding(self, trial: DecodingTrial | None) -> None:
        """Take what tries records in a copy of the process before they are decoded here; None: no more.

        For readers that call a function of the user in `read`, which may end the process. Called before the
        first `read` or between two of them, after workers have died. A record that ends the copies is treated
        as one that can't be decoded.
        """

    def close(self) -> None:
        """Release what the reader holds. Called once, also after an error."""


class Source(ABC, Generic[Record]):
    """A replayable input: a set of splits, each readable from any position.

    `Source[int]` tells a type checker what the records are; `Source` alone does as well.

    Attributes:
        open_splits_max: How many splits one task reads in turn; the others wait until one of these has
            ended or has nothing to read. Endless splits that all have to advance need more.
    """

    open_splits_max: int = 4

    @property
    def is_replayable(self) -> bool:
        """Whether a reader that is opened at an old position gives the same records again.

        Else the job can't be exact: what was read since the last checkpoint is lost in a failure.
        `Flow.explain` says so. For trying things out, and for inputs that are not retained.
        """
        return True

    @property
    def is_repeatable(self) -> bool:
        """Whether records that are read again after a failure are those of the first time.

        Else a record that no complete checkpoint has may never come again. A sink that shows records at once
        would keep it, so the build refuses such a pair.
        """
        return True

    @abstractmethod
    def splits(self, parallelism: int) -> Sequence[Split]:
        """Discover the splits. Called on the Spark driver when a job starts with no checkpoint.

        At least one, each with an id of its own: else the job does not start. The result becomes part of
        the job's state: a resumed job goes on with the splits it had.

        Raises:
            ConnectorError: There is nothing to read; the message says what was looked for.
        """

    @abstractmethod
    def reader(self, split: Split, position: JSON) -> SplitReader[Record]:
        """Open `split` at `position` (either `split.start` or a position that a reader reported).

        If it raises, the task fails with the split's id and the position in the message.
        """

    def describe(self) -> str:
        """Return in one line what is read: a path, an address, a topic; "" if there is nothing to say.

        It stands in the checkpoint directory (so: no password), and a job resumes only if it has not
        changed. Called on the Spark driver; the same input gives the same text in every process.
        """
        return ""


class HeldData:
    """Records of transactions, kept in the snapshot itself, by checkpoint.

    For systems that stage nothing without a limit of time, or without showing it: the transaction is then
    one short call at its commit, made from the held records. A writer calls `keep` in `prepare`, and `data`
    in `commit` and `recover`. The runtime makes the data durable with the snapshot, brings it back after any
    failure, and forgets it once its commit has succeeded.

    Threading: any method may be called by any thread; each is one operation on a dict.
    """

    def __init__(self) -> None:
        self._data: dict[CheckpointId, bytes] = {}
        self._refusal = ""

    @property
    def size_bytes(self) -> int:
        """Size of all that is held; it is in memory, too."""
        return sum(len(data) for data in tuple(self._data.values()))

    def keep(self, checkpoint_id: CheckpointId, data: bytes) -> None:
        """Hold `data` under the checkpoint that the writer was rotated at; it replaces earlier data.

        Raises:
            ConnectorError: The sink commits together.
        """
        if self._refusal:
            raise ConnectorError(self._refusal)
        self._data[checkpoint_id] = data

    def refuse(self, reason: str) -> None:
        """Hold nothing from now on, because of `reason`. For the runtime."""
        self._refusal = reason

    def data(self, checkpoint_id: CheckpointId) -> bytes:
        """Return what is held under `checkpoint_id`.

        Raises:
            ConnectorError: Nothing is: the handle belongs to another snapshot, or is committed already.
        """
        try:
            return self._data[checkpoint_id]
        except KeyError:
            raise ConnectorError(
                f"no data is held for checkpoint {checkpoint_id}, only for {sorted(self._data)}: was the "
                f"transaction's handle taken from another snapshot?"
            ) from None

    def up_to(self, checkpoint_id: CheckpointId) -> list[tuple[CheckpointId, bytes]]:
        """Return all that is held at or below `checkpoint_id`, oldest first. For the runtime."""
        return sorted((n, data) for n, data in tuple(self._data.items()) if n <= checkpoint_id)

    def forget(self, checkpoint_id: CheckpointId) -> None:
        """Forget all that is held at or below `checkpoint_id`: it is committed. For the runtime."""
        for n in [n for n in tuple(self._data) if n <= checkpoint_id]:
            self._data.pop(n, None)


class CommitProgress:
    """How far the commit of a transaction has come, for systems that take it piece by piece.

    A note outlives its process: the next writer of the same logical task reads it, in any epoch. It may be
    lost, be older than the newest one, or concern another transaction. So a note names its transaction, says
    only what the system has acknowledged, and a writer ignores one that names no handle of its own.

    This class keeps notes in memory; the runtime gives writers one that keeps them in the checkpoint store.

    Threading: for the thread of `recover` and `commit`.
    """

    def __init__(self) -> None:
        self._noted: JSON = None

    def noted(self) -> JSON:
        """Return the newest note that can be read, None if there is none."""
        return self._noted

    def note(self, progress: JSON) -> None:
        """Replace the note, durably if the store can be reached: a note that is lost is no error.

        The runtime drops notes while a commit has refused records whose dead letters are not written yet.
        """
        self._noted = progress


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Who is writing: a sink names and fences its transactions by it.

    Attributes:
        lineage: Identity of the job's history. Marks of other lineages are not ours to touch.
        epoch: Fencing token. A resource that can refuse older epochs must do so.
        task: The writing task; the same logical task in every epoch.
        sink_uid: uid of the sink operator.
        held: Keeps the records of transactions in the snapshot, where the resource can't stage them.
        driver: Token of the driver that claimed the epoch. Two drivers that run copies of one checkpoint
            directory claim the same epoch, with different tokens.
        job: Name of the flow, for people: two jobs may have the same one. What tells them apart is `lineage`.
        progress: Remembers how far a commit has come, where the resource takes a transaction piece by piece.
    """

    lineage: Lineage
    epoch: Epoch
    task: TaskId
    sink_uid: str
    held: HeldData = field(default_factory=HeldData, compare=False)
    driver: str = ""
    job: str = ""
    progress: CommitProgress = field(default_factory=CommitProgress, compare=False)


@dataclass(frozen=True, slots=True)
class CommittedOutput:
    """A sink's memory of one task, kept as long as it can: how much is visible, and who wrote it.

    Attributes:
        location: Where, as people call it: a directory, a table.
        lineage: Of the job; "" if it is not known any more.
        sink_uid: uid of the sink operator.
        task: The logical task.
        epoch: The newest epoch that has written there.
        driver: The token of its driver.
        checkpoint_id: Everything of this task up to there is visible, or has been made visible and was
            taken away since; 0 if nothing is.
    """

    location: str
    lineage: Lineage
    sink_uid: str
    task: TaskId
    epoch: Epoch
    driver: str
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Proof that checkpoint `checkpoint_id` is complete: its log entry is durable.

    Only `crosscut.protocol.snapshot.commit` makes one, and `SinkWriter.commit` cannot be called without:
    committing too early can't be written by accident.

    Attributes:
        committed: The newest transaction of the task that is known to be visible: the sink has confirmed
            its commit. 0 if none is. A sink that remembers less was set back (`crosscut.check_not_set_back`).
    """

    lineage: Lineage
    epoch: Epoch
    checkpoint_id: CheckpointId
    committed: CheckpointId = CheckpointId(0)


class SinkWriter(ABC):
    """Writes into a stage that readers don't see, one transaction per checkpoint.

    Order of calls: `recover` once, then `write` and `rotate` any number of times, with `prepare` for
    each rotated transaction and `commit` at any time after it, then `close`. `write` and `rotate` are
    called from the worker's event loop; `recover`, `prepare` and `commit` may block: they run in a
    thread of their own, one at a time for each writer, while `write` goes on.

    A record that the system behind the sink will never take goes to `refuse`, as early as that can be found
    out: in `write`, or in `prepare`, where the system can be tried. Once a checkpoint is complete, its output
    can't be taken back: a refusal in `commit` stops the job until the record is a dead letter, or its
    transaction is dropped (`crosscut transactions`).

    Attributes:
        set_aside: Takes a refused record and the reason, if the user asked for dead letters. Set by the
            runtime before `recover`.
        takes_frames: Whether `write` takes `FrameRows` of a frame as they are. Else it gets lists of dicts.
    """

    takes_frames: bool = False
    set_aside: Callable[[Any, str], None] | None = None

    def refuse(self, record: Any, reason: str) -> None:
        """Set `record` aside as a dead letter: the caller leaves it out and goes on with the others.

        Args:
            record: As it was given to `write`, or what is left of it.
            reason: In the system's words: which column, limit or rule.

        A `commit` that is called again after a failure must not refuse again what it has refused.

        Raises:
            RefusedRecordError: The user did not ask for dead letters of this sink. A writer that raises it in
                `prepare` has staged nothing of the transaction.
        """
        if self.set_aside is not None:
            self.set_aside(record, reason)
            return
        shown = _SHOWN(record)
        raise RefusedRecordError(f"record {shown} is refused: {reason}", record=shown, reason=reason)

    def pending_records(self, handles: Sequence[JSON]) -> Iterable[Any]:
        """Yield the records of prepared transactions, for `crosscut transactions export`.

        Called on a writer that has not recovered, after the job has stopped. It must change nothing.

        Args:
            handles: Of the restored checkpoint, oldest first; some may be committed already.

        Raises:
            ConnectorError: They can't be read, or this sink can't show them (the default).
        """
        raise ConnectorError(f"{type(self).__qualname__} can't show the records of a transaction")

    @abstractmethod
    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        """Commit `handles`, then abort whatever this logical task staged in older epochs.

        First of all, before it writes anything, it refuses if something newer than the restored checkpoint
        is visible of this task and lineage, or if a newer epoch has written, or another driver of this epoch
        (`crosscut.check_history` decides that and words the error). From here on the resource refuses every
        older epoch of this task, and other drivers of this epoch. It must remember which handles it has
        committed for as long as readers may take the output away: handles may come again.

        Args:
            permit: For the restored checkpoint, None if the job starts with none (then `handles` is
                empty and everything staged is an orphan).
            handles: Transactions of the restored snapshot, oldest first; may be committed already.

        Raises:
            HistoryError: The checkpoints don't belong to what is visible. The job ends, without a restart.
            ConnectorError: Not all could be committed. The job fails rather than go on.
        """

    @abstractmethod
    def write(self, records: list[Any]) -> None:
        """Add records to the open transaction, opening one if there is none. Order is kept."""

    @abstractmethod
    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        """Cut the open transaction off at barrier `checkpoint_id`, in one step and at once.

        Returns the transaction (any object; it goes to `prepare`), or None if nothing was written.
        Records written from now on belong to a later transaction.
        """

    @abstractmethod
    def prepare(self, transaction: Any) -> JSON:
        """Make the rotated transaction durable and return its handle; still invisible to readers.

        The handle must be enough for another process, after any crash, to commit it. Nothing may
        expire between prepare and commit.
        """

    @abstractmethod
    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        """Make the transactions visible, oldest first. Idempotent: repeated handles are no-ops.

        Try all of them, then raise for the first that failed.

        Raises:
            ConnectorError: Not committed or unknown; it is tried again a bounded number of times.
        """

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """Begin as one of several writers of the same task and epoch, of which one at most is committed.

        Called instead of `recover`, by engine="micro-batch": there Spark may try a task twice, at the same
        time. Such a writer only stages (`write`, `rotate`, `prepare`), under names that no other one uses,
        beside a writer on the driver that has recovered and commits. `handles` are visible already.

        Args:
            handles: The transactions of the checkpoint that the attempt goes on from; see `recover`.

        Raises:
            ConnectorError: The sink can't; a writer that does not override this is refused at the start.
        """
        raise ConnectorError(f"{type(self).__qualname__} can't be one of several attempts at a task")

    def abort(self, handles: Sequence[JSON]) -> None:
        """Remove what attempts have staged and no checkpoint will ever have; best effort.

        Called on a writer that has recovered. What is left over goes with `sweep`, or when a later epoch
        recovers.
        """

    def sweep(self) -> None:
        """Remove all that attempts of this task have staged in this epoch: nothing of it is awaited any more.

        Called on a writer that has recovered, when it has committed everything. Attempts that died may have
        left something that is recorded nowhere.
        """

    def close(self) -> None:
        """Release what the writer holds; staged data stays. Called once, also after an error."""


class Sink(ABC, Generic[Written]):
    """Takes results with a two-phase commit.

    `Sink[int]` tells a type checker what may be written; `Sink` alone takes anything.
    """

    @abstractmethod
    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch. Must have no side effect yet."""

    @property
    def guarantee(self) -> Guarantee:
        """What readers may rely on. A sink that stages, and shows on commit, is "exactly once".

        One that shows each record at once is "idempotent" if a record that comes again replaces itself, as an
        upsert by key does: after a failure that is the same only if the flow is deterministic. Else it is
        "at least once". `Flow.explain` warns of both.
        """
        return "exactly once"

    @property
    def shows_at_once(self) -> bool:
        """Whether readers see records before their checkpoint is complete, and so also records that a source
        does not give again.

        By default any sink that is not "exactly once". Override it for one that shows records on commit, but
        may show them twice.
        """
        return self.guarantee != "exactly once"

    @property
    def has_one_task(self) -> bool:
        """Whether one task of the job writes all records: for systems that take a checkpoint as a whole."""
        return False

    @property
    def commits_together(self) -> bool:
        """Whether the writer of the first task commits what those of all tasks have staged, in one call: for
        systems that take a checkpoint as a whole, while all tasks write.

        Then a handle has to say all that a commit needs, and a writer that recovers leaves alone what its
        task has staged for the restored checkpoint or an older one. `HeldData` can't be used.
        """
        return False

    def check(self) -> None:
        """Raise ConnectorError if the sink can't work. Called on the Spark driver before anything starts."""

    def describe(self) -> str:
        """Return in one line where the results go: see `Source.describe`."""
        return ""

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what is remembered of all that was ever committed to this place, by whomever.

        Called on the Spark driver each time a job starts, in a thread, before anything is claimed or read; it
        may take as long as `start_timeout`. Nothing that anybody sees may be changed. A job that begins with
        nothing is refused if there is output, unless `fresh` is set; a job whose checkpoints are older than
        its own output is refused in any case. A sink that can't tell returns nothing: then only what
        `SinkWriter.recover` of each task finds protects from writing twice.

        Raises:
            ConnectorError: It can't be read: the job does not start.
        """
        return ()
