"""What the files of a file sink are called, what their handles say, and what is to be done with one.

Pure: nothing here looks at a disk. Every handle is compared with the names that its own task would have
made, so one that was tampered with, or belongs to another task, sink, lineage or directory, leads nowhere.

    part-00003-000000000017-00000002-<sink uid>-<digest>.jsonl                          committed
    merged-000000000001-000000000017-<sink uid>-<digest>.jsonl                          several of these
    country=DE/part-00003-000000000017-00000002-<sink uid>-<digest>.jsonl               likewise, divided
    .crosscut/<lineage>/<sink uid>/<vertex>-3/2-<random>.jsonl.staged                   staged
    .crosscut/<lineage>/<sink uid>/<vertex>-3/2-<driver>.ledger                         what is committed
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b

from crosscut.connectors.files.partitions import is_partition
from crosscut.contracts.connectors import JSON, SinkContext
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import (
    PLAIN_NAME,
    CheckpointId,
    Epoch,
    Lineage,
    TaskId,
    VertexId,
    checked_name,
)

STAGE_DIRECTORY = ".crosscut"
NO_DRIVER = "unnamed"
SIZE_MAX = 2**63

FINAL_BYTES_MAX = 200
"""Of the name of a committed file, with a slash before it."""


# [0-9], as \d takes digits of every script; and as many as fit, since int() refuses thousands of them.
_STAGED = re.compile(
    r"(?P<epoch>[0-9]{1,18})-[0-9a-f]{16}\.(?P<suffix>[A-Za-z0-9]+(\.[A-Za-z0-9]+)?)\.staged"
)
_LEDGER = re.compile(r"(?P<epoch>[0-9]{1,18})-(?P<driver>[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63})\.ledger")
_TASK = re.compile(r"(?P<vertex>[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63})-(?P<index>[0-9]{1,9})")
_FINAL = re.compile(
    r"part-(?P<index>[0-9]{5,9})-(?P<checkpoint>[0-9]{12,18})-(?P<epoch>[0-9]{8,18})-"
    r"(?P<uid>[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63})-([0-9a-f]{6})?[0-9a-f]{12}\."
    r"(?P<suffix>[A-Za-z0-9]+(\.[A-Za-z0-9]+)?)"
)
_MERGED = re.compile(
    r"merged-(?P<first>[0-9]{12,18})-(?P<last>[0-9]{12,18})-(?P<uid>[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63})-"
    r"[0-9a-f]{16}\.(?P<suffix>[A-Za-z0-9]+)"
)


@dataclass(frozen=True, slots=True)
class HandleFile:
    """One file of a transaction.

    Attributes:
        staged: Name in the stage of the task.
        final: Path in the sink's directory.
    """

    staged: str
    final: str
    size_bytes: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Handle:
    """A transaction of this very task, checked.

    Attributes:
        staged: Name of its first file in the stage of the task: what the transaction is called.
        after: That of the transaction before it, "" if it is the first.
        files: One at least.
        before: Those before `after`, the newest that was committed first, if `after` was not committed yet:
            it may be dropped.
    """

    staged: str
    after: str
    checkpoint_id: CheckpointId
    files: tuple[HandleFile, ...]
    before: tuple[str, ...] = ()

    @property
    def record_count(self) -> int:
        """How many records it has."""
        return sum(one.record_count for one in self.files)

    @property
    def size_bytes(self) -> int:
        """How many bytes all its files have."""
        return sum(one.size_bytes for one in self.files)


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A file of a transaction as its writer has staged it.

    Attributes:
        name: In the stage of the task.
        partition: Path of the directory where it will be, below the sink's own; "" for that itself.
    """

    name: str
    partition: str
    size_bytes: int
    record_count: int


@dataclass(frozen=True, slots=True)
class LedgerName:
    """Whose ledger a file is."""

    epoch: Epoch
    driver: str


class TaskNames:
    """The names that one task of a sink gives, in one epoch.

    Raises:
        FlowError: A part of the context can't be part of a path.
    """

    def __init__(self, context: SinkContext, suffix: str) -> None:
        self._suffix = suffix
        self._epoch = context.epoch
        self._lineage = checked_name(context.lineage, "lineage")
        self._uid = checked_name(context.sink_uid, "sink uid")
        self._vertex = checked_name(context.task.vertex, "vertex id")
        self._index = context.task.index
        self.stage = (STAGE_DIRECTORY, self._lineage, self._uid, f"{self._vertex}-{self._index}")
        """The names of the directories down to the stage of the task."""
        self.ledger = f"{self._epoch}-{checked_name(context.driver or NO_DRIVER, 'driver')}.ledger"

    def new_staged(self) -> str:
        """Return an unused name."""
        return f"{self._epoch}-{secrets.token_hex(8)}.{self._suffix}.staged"

    def epoch_of_staged(self, name: str) -> Epoch | None:
        """Return which epoch has staged a file, None if it is no staged file."""
        found = _STAGED.fullmatch(name)
        return Epoch(int(found["epoch"])) if found else None

    def handle(
        self,
        parts: Sequence[StagedPart],
        after: str,
        checkpoint_id: CheckpointId,
        before: Sequence[str] = (),
    ) -> JSON:
        """Return the handle of a transaction that this task has staged in this epoch."""
        files: list[JSON] = [
            {
                "staged": "/".join((*self.stage, one.name)),
                "final": self._final(
                    one.name,
                    one.partition,
                    after,
                    checkpoint_id,
                    self._epoch,
                    number if len(parts) > 1 else None,
                ),
                "bytes": one.size_bytes,
                "records": one.record_count,
            }
            for number, one in enumerate(parts)
        ]
        handle: dict[str, JSON] = {"after": after}
        handle.update(files[0])  # type: ignore[arg-type]
        if before:
            handle["before"] = list(before)
        return handle | {"more": files[1:]} if files[1:] else handle

    def checked(self, handle: JSON, directory: str) -> Handle:
        """Return `handle` as what it says, if it is one that this task has made in this or an older epoch.

        Raises:
            ConnectorError: It is not.
        """
        match handle:
            case {"after": str(after), **first}:
                more, before = first.get("more", []), _texts(first.get("before", []))
                entries: list[JSON] = [handle, *more] if isinstance(more, list) else []
                found = [
                    one
                    for number, entry in enumerate(entries)
                    if (one := self._checked_file(entry, after, number)) is not None
                ]
                ids = {n for _, n in found}
                if before is not None and len(found) == len(entries) and len(ids) == 1:
                    files = tuple(file for file, _ in found)
                    return Handle(files[0].staged, after, ids.pop(), files, before)
            case _:
                pass
        raise ConnectorError(
            f"{handle!r:.500} is not a transaction of sink {self._uid!r}, task {self._vertex}[{self._index}] "
            f"of lineage {self._lineage}, in {directory}: the checkpoint belongs to another sink or was "
            f"changed; nothing of it was committed. Restore the checkpoint directory from a backup",
            directory=directory,
        )

    def _checked_file(self, found: JSON, after: str, number: int) -> tuple[HandleFile, CheckpointId] | None:
        match found:
            case {"staged": str(staged), "final": str(final), "bytes": int(size), "records": int(count)}:
                *stage, name = staged.split("/")
                partition, _, last = final.rpartition("/")
                parts, made = _FINAL.fullmatch(last), self.epoch_of_staged(name)
                if parts is None or made is None or tuple(stage) != self.stage or not _are_sizes(size, count):
                    return None
                n = CheckpointId(int(parts["checkpoint"]))
                is_inside = not partition or is_partition(partition)
                # Files of one transaction had no numbers at first.
                names = (self._final(name, partition, after, n, made, one) for one in (number, None))
                if is_inside and final in names:
                    return HandleFile(name, final, size, count), n
            case _:
                pass
        return None

    def _final(
        self,
        staged: str,
        partition: str,
        after: str,
        checkpoint_id: CheckpointId,
        epoch: Epoch,
        number: int | None,
    ) -> str:
        """Return a unique path whose name sorts by task, then checkpoint.

        Args:
            number: Of the file in its transaction, by which it sorts then: files follow one another there.
                None: it is the only one.
        """
        numbers = f"{self._index:05d}-{checkpoint_id:012d}-{epoch:08d}"
        whole = f"{self._lineage}/{self._vertex}/{numbers}/{staged}/{after}"
        digest = blake2b(whole.encode(errors="replace"), digest_size=6).hexdigest()
        place = "" if number is None else f"{number:06x}"
        name = f"part-{numbers}-{self._uid}-{place}{digest}.{self._suffix}"
        return f"{partition}/{name}" if partition else name


def _are_sizes(*found: int) -> bool:
    return all(type(one) is int and 0 < one < SIZE_MAX for one in found)


def ledger_name(name: str) -> LedgerName | None:
    """Return whose ledger a file of that name is, None if it is none."""
    found = _LEDGER.fullmatch(name)
    return LedgerName(Epoch(int(found["epoch"])), found["driver"]) if found else None


def task_of(name: str) -> TaskId | None:
    """Return the task whose stage a directory of that name is, None if it is none."""
    found = _TASK.fullmatch(name)
    return TaskId(VertexId(found["vertex"]), int(found["index"])) if found else None


def lineage_of(name: str) -> Lineage | None:
    """Return the lineage whose stage a directory of that name is, None if it is none."""
    return Lineage(name) if PLAIN_NAME.fullmatch(name) else None


@dataclass(frozen=True, slots=True)
class CommittedName:
    """What the name of a committed file says.

    Attributes:
        index: Of the task; 0 for a file that was merged of others, perhaps of many tasks.
        first: The oldest checkpoint that it has output of.
        checkpoint_id: The newest one; mostly the same.
        epoch: That has committed it; 0 for a file that was merged.
    """

    index: int
    checkpoint_id: CheckpointId
    epoch: Epoch
    sink_uid: str
    first: CheckpointId
    suffix: str


def committed_name(name: str, suffix: str) -> CommittedName | None:
    """Return what the name of a file says, None if no file sink has committed it."""
    found = committed_file(name)
    return found if found is not None and found.suffix == suffix else None


def committed_file(name: str) -> CommittedName | None:
    """Return what the name of a file of any format says, None if no file sink has committed it."""
    if (found := _FINAL.fullmatch(name)) is not None:
        n, index, epoch = (
            CheckpointId(int(found["checkpoint"])),
            int(found["index"]),
            Epoch(int(found["epoch"])),
        )
        return CommittedName(index, n, epoch, found["uid"], n, found["suffix"])
    if (found := _MERGED.fullmatch(name)) is not None:
        first, last = CheckpointId(int(found["first"])), CheckpointId(int(found["last"]))
        return CommittedName(0, last, Epoch(0), found["uid"], first, found["suffix"])
    return None


def merged_name(first: CheckpointId, last: CheckpointId, uid: str, digest: str, suffix: str) -> str:
    """Return the name of a file that takes the place of others of one sink."""
    return f"merged-{first:012d}-{last:012d}-{uid}-{digest}.{suffix}"


def _texts(found: object) -> tuple[str, ...] | None:
    """Return `found`, if it is a list of texts."""
    if not isinstance(found, list):
        return None
    texts = tuple(one for one in found if isinstance(one, str))
    return texts if len(texts) == len(found) else None


def staged_by(handle: JSON, sink_uid: str) -> tuple[Lineage, TaskId] | None:
    """Return which task has staged a transaction, None if it is not one of sink `sink_uid`."""
    match handle:
        case {"staged": str(staged)}:
            parts = staged.split("/")
            if len(parts) == 5 and parts[2] == sink_uid:
                lineage, task = lineage_of(parts[1]), task_of(parts[3])
                return None if lineage is None or task is None else (lineage, task)
        case _:
            pass
    return None


# What is known to be committed.


@dataclass(frozen=True, slots=True)
class Published:
    """Transactions of one task that are visible or were: all up to `through`, except those in `missing`.

    Attributes:
        missing: What was to be published and could not be found anywhere: it may come back from a backup.
        last: Staged name of the newest one, "" if nothing is published.
        epoch: Who has published it.
        driver: Of that epoch.
    """

    through: CheckpointId = CheckpointId(0)
    missing: frozenset[CheckpointId] = frozenset()
    last: str = ""
    epoch: Epoch = Epoch(0)
    driver: str = ""

    def __contains__(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id <= self.through and checkpoint_id not in self.missing

    def with_more(
        self, found: Iterable[Handle], lost: Iterable[Handle], epoch: Epoch, driver: str
    ) -> Published:
        """Return what is published once `epoch` has published `found`, although `lost` is not there."""
        more = {one.checkpoint_id: one for one in found}
        newest = max(more, default=CheckpointId(0))
        through = max(self.through, newest)
        newly_lost = {one.checkpoint_id for one in lost if self.through < one.checkpoint_id < through}
        missing = (self.missing | newly_lost) - more.keys()
        if newest <= self.through:
            return replace(self, missing=missing)
        return Published(through, missing, more[newest].staged, epoch, driver)

    def joined(self, other: Published) -> Published:
        """Return what is published according to one of the two."""
        missing = {n for n in self.missing | other.missing if n not in self and n not in other}
        newer = self if self.through >= other.through else other
        return replace(newer, missing=frozenset(missing))

    def leads_to(self, handles: Sequence[Handle], committed: CheckpointId = CheckpointId(0)) -> bool:
        """Whether these are the transactions that come next, some of which may be published already.

        They are all that a checkpoint has to publish, in order, so the newest that is published is one of
        them, or the one before the first; or the ones in between were dropped. If it is none of these, they
        belong to another history: two drivers may go on from one checkpoint, with the same ids.

        Args:
            committed: The newest transaction that is known to be published, so it was not dropped.
        """
        if not handles or not self.last:
            return True
        if handles[0].after == self.last or any(one.staged == self.last for one in handles):
            return True
        return self.last in handles[0].before and self.through >= committed


class Step(Enum):
    """What there is to do for one transaction that is to be published."""

    PUBLISH = "it is staged and not visible: give the file its final name"
    TIDY = "it is visible, and the staged name is another one of the same file: remove that"
    DONE = "it is visible"
    TAKEN = "it has been published, and somebody took it away since"
    LOST = "it is nowhere, and was never published"
    IN_THE_WAY = "another file has its final name"


def next_step(*, is_staged: bool, is_visible: bool, is_one_file: bool, is_published: bool) -> Step:
    """Decide about one transaction.

    A rename moves the file, so it has either of the two names: if it is staged, it is not published, whatever
    the ledger says, which is written before.

    Args:
        is_staged: There is a file with its staged name.
        is_visible: There is a file with its final name.
        is_one_file: They are the same (a file system may show both after a crash).
        is_published: The ledger has it. Only matters if there is neither.
    """
    if is_staged and is_visible:
        return Step.TIDY if is_one_file else Step.IN_THE_WAY
    if is_staged:
        return Step.PUBLISH
    if is_visible:
        return Step.DONE
    return Step.TAKEN if is_published else Step.LOST
