"""A sink with a place for the records that its system refuses, in the same transactions.

The dead letters of a sink are written by a second sink. Its transaction is prepared with that of the first
one, and one handle holds both, so a checkpoint commits both or neither.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from crosscut.contracts.connectors import (
    HAS_NO_RECORDS,
    JSON,
    CommitPermit,
    CommitProgress,
    CommittedOutput,
    Guarantee,
    HeldData,
    Sink,
    SinkContext,
    SinkWriter,
)
from crosscut.contracts.dead_letters import DeadLetter, SetsAside
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import NAME_CHARACTERS_MAX, CheckpointId

_DEAD_LETTERS = "crosscut dead letters"
_RECORDS = "records"
_HEAD = b"crosscut dead letters\n"
_LENGTH_BYTES = 8


@dataclass(frozen=True, eq=False)
class SinkWithDeadLetters(Sink[Any]):
    """`sink`, whose refused records go to `dead_letters` as `crosscut.DeadLetter`.

    In all that a job knows it by, it is `sink`: it may be added to a job that has run without it, and taken
    away again once nothing is pending.
    """

    sink: Sink[Any]
    dead_letters: Sink[Any]

    def __repr__(self) -> str:
        return f"{self.sink!r} with dead letters to {self.dead_letters!r}"

    @property
    def guarantee(self) -> Guarantee:
        """That of the first sink."""
        return self.sink.guarantee

    @property
    def shows_at_once(self) -> bool:
        """Whether one of both does."""
        return self.sink.shows_at_once or self.dead_letters.shows_at_once

    @property
    def has_one_task(self) -> bool:
        """As the first sink."""
        return self.sink.has_one_task

    def check(self) -> None:
        """Check both."""
        self.sink.check()
        self.dead_letters.check()

    def describe(self) -> str:
        """Return where the records go."""
        return self.sink.describe()

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what both remember."""
        return (*self.sink.committed(), *self.dead_letters.committed())

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return WriterWithDeadLetters(self.sink, self.dead_letters, context)


class WriterWithDeadLetters(SinkWriter, SetsAside):
    """See the module. Refusals at a commit are letters of a third writer, which commits at once."""

    def __init__(self, sink: Sink[Any], dead_letters: Sink[Any], context: SinkContext) -> None:
        self._uid = context.sink_uid
        self._at_commit: list[DeadLetter] = []
        self._writer = sink.writer(
            replace(
                context,
                held=_Share(context.held, is_of_dead_letters=False),
                progress=_ProgressAfterDeadLetters(context.progress, self._at_commit),
            )
        )
        # A task has one note of its progress, which is that of its records.
        context = replace(context, progress=CommitProgress())
        self._dead_letter_writer = dead_letters.writer(
            replace(
                context,
                sink_uid=dead_letters_uid(context.sink_uid),
                held=_Share(context.held, is_of_dead_letters=True),
            )
        )
        # What is refused at a commit belongs to no transaction that a snapshot could hold. Its writer is one
        # of this epoch alone: the memory of a logical task says that all of the restored checkpoint is
        # there, and letters of that very checkpoint may come while it is committed again.
        self._late_held = HeldData()
        self._late_sink = dead_letters
        self._late_context = replace(
            context,
            sink_uid=_uid_with(context.sink_uid, f"-dead-letters-at-commit-{context.epoch}"),
            held=self._late_held,
        )
        self._late: SinkWriter | None = None
        self._late_staged: list[JSON] = []
        self._open: list[DeadLetter] = []
        # Where a refusal goes, by thread: `write` goes on in one while `prepare` is under way in another.
        self._target = threading.local()
        self._count = itertools.count(1)
        self._writer.set_aside = self._set_aside

    def _set_aside(self, record: Any, reason: str) -> None:
        dead_letter = DeadLetter(record, reason, self._uid)
        getattr(self._target, "dead_letters", self._open).append(dead_letter)
        if self.on_dead_letter is not None:
            self.on_dead_letter(dead_letter, next(self._count))

    @contextmanager
    def _refusals_to(self, dead_letters: list[DeadLetter]) -> Iterator[None]:
        self._target.dead_letters = dead_letters
        try:
            yield
        finally:
            del self._target.dead_letters

    # Writing.

    def write(self, records: list[Any]) -> None:
        self._writer.write(records)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        transaction = self._writer.rotate(checkpoint_id)
        if transaction is None and not self._open:
            return None
        dead_letters, self._open = self._open, []
        return checkpoint_id, transaction, dead_letters

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, of_records, of_write = transaction
        # It may be prepared again if it fails, and then refuses the same records again.
        dead_letters: list[DeadLetter] = list(of_write)
        with self._refusals_to(dead_letters):
            handle = self._writer.prepare(of_records) if of_records is not None else None
        if not dead_letters:
            return handle
        dead_letter_handles = _staged(self._dead_letter_writer, dead_letters, checkpoint_id)
        if of_records is None:
            return {_DEAD_LETTERS: dead_letter_handles, HAS_NO_RECORDS: True}
        return {_RECORDS: handle, _DEAD_LETTERS: dead_letter_handles}

    # Committing.

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        of_records, dead_letter_handles = _divided(handles)
        self._dead_letter_writer.recover(_dead_letter_permit(permit), dead_letter_handles)
        with self._refusals_to(self._at_commit):
            self._writer.recover(permit, of_records)
        if permit is not None:
            self._commit_late(permit)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        of_records, dead_letter_handles = _divided(handles)
        self._dead_letter_writer.commit(replace(permit, committed=CheckpointId(0)), dead_letter_handles)
        with self._refusals_to(self._at_commit):
            self._writer.commit(permit, of_records)
        self._commit_late(permit)

    def _commit_late(self, permit: CommitPermit) -> None:
        if not self._at_commit:
            return
        if self._late is None:
            late = self._late_sink.writer(self._late_context)
            try:
                late.recover(None, [])
            except BaseException:
                late.close()
                raise
            self._late = late
        if not self._late_staged:
            # Once: if their commit fails, the next attempt commits the same transaction.
            self._late_staged = _staged(self._late, self._at_commit, permit.checkpoint_id)
        self._late.commit(replace(permit, committed=CheckpointId(0)), self._late_staged)
        self._late_held.forget(permit.checkpoint_id)
        self._late_staged.clear()
        self._at_commit.clear()

    # Attempts.

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        of_records, dead_letter_handles = _divided(handles)
        self._dead_letter_writer.begin_attempt(dead_letter_handles)
        self._writer.begin_attempt(of_records)

    def abort(self, handles: Sequence[JSON]) -> None:
        of_records, dead_letter_handles = _divided(handles)
        self._writer.abort(of_records)
        self._dead_letter_writer.abort(dead_letter_handles)

    def sweep(self) -> None:
        self._writer.sweep()
        self._dead_letter_writer.sweep()

    def pending_records(self, handles: Sequence[JSON]) -> Iterator[Any]:
        of_records, dead_letter_handles = _divided(handles)
        if of_records:
            yield from self._writer.pending_records(of_records)
        if dead_letter_handles:
            for one in self._dead_letter_writer.pending_records(dead_letter_handles):
                yield {"dead letter": one}

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            try:
                self._dead_letter_writer.close()
            finally:
                if self._late is not None:
                    self._late.close()


def _dead_letter_permit(permit: CommitPermit | None) -> CommitPermit | None:
    """Return the permit for letters: most transactions have none, so what is confirmed is of the records."""
    return replace(permit, committed=CheckpointId(0)) if permit is not None else None


def _staged(
    writer: SinkWriter, dead_letters: Sequence[DeadLetter], checkpoint_id: CheckpointId
) -> list[JSON]:
    """Write letters and prepare them; a record that can't be written as it is is written as its repr.

    Returns the handle; none if the writer has shown them at once and has nothing to commit.
    """
    for one in dead_letters:
        try:
            writer.write([one])
        except ConnectorError:
            writer.write([replace(one, record=repr(one.record), key=None)])
    transaction = writer.rotate(checkpoint_id)
    return [writer.prepare(transaction)] if transaction is not None else []


def dead_letters_uid(sink_uid: str) -> str:
    """Return the uid by which the second sink remembers the dead letters of sink `sink_uid`."""
    return _uid_with(sink_uid, "-dead-letters")


def is_of_dead_letters_alone(handle: JSON) -> bool:
    """Whether a transaction has dead letters and no records, of which the first sink remembers nothing."""
    return isinstance(handle, dict) and _DEAD_LETTERS in handle and _RECORDS not in handle


def _uid_with(uid: str, ending: str) -> str:
    """Return the uid of another writer of the same sink, no longer than a uid may be."""
    whole = uid + ending
    if len(whole) <= NAME_CHARACTERS_MAX:
        return whole
    digest = blake2b(uid.encode(), digest_size=6).hexdigest()
    return f"{uid[: NAME_CHARACTERS_MAX - len(ending) - len(digest) - 1]}-{digest}{ending}"


def _divided(handles: Sequence[JSON]) -> tuple[list[JSON], list[JSON]]:
    """Return the handles of the records, and those of the letters."""
    of_records: list[JSON] = []
    dead_letter_handles: list[JSON] = []
    for one in handles:
        if isinstance(one, dict) and isinstance(dead_letters := one.get(_DEAD_LETTERS), list):
            dead_letter_handles += dead_letters
            if _RECORDS in one:
                of_records.append(one[_RECORDS])
        else:
            of_records.append(one)
    return of_records, dead_letter_handles


def _joined(of_records: bytes, dead_letter_handles: bytes) -> bytes:
    return b"".join((_HEAD, len(of_records).to_bytes(_LENGTH_BYTES, "big"), of_records, dead_letter_handles))


class _ProgressAfterDeadLetters(CommitProgress):
    """The notes of the first writer, but for those that would pass letters which are not durable yet.

    A refused request counts as answered. After a crash, a writer that goes on behind it would never refuse
    its record again, so the letter would be lost.

    Args:
        unwritten: Letters of the commit, in memory, also of earlier attempts at it.
    """

    def __init__(self, progress: CommitProgress, unwritten: Sequence[DeadLetter]) -> None:
        super().__init__()
        self._progress = progress
        self._unwritten = unwritten

    def noted(self) -> JSON:
        return self._progress.noted()

    def note(self, progress: JSON) -> None:
        if not self._unwritten:
            self._progress.note(progress)


class _Share(HeldData):
    """The part of one of two writers in the data that the snapshot holds for both.

    Without letters the data is that of the first writer alone, as of a sink that has no place for letters.
    """

    def __init__(self, held: HeldData, *, is_of_dead_letters: bool) -> None:
        super().__init__()
        self._held = held
        self._is_of_dead_letters = is_of_dead_letters

    @property
    def size_bytes(self) -> int:
        return self._held.size_bytes

    def keep(self, checkpoint_id: CheckpointId, data: bytes) -> None:
        if self._is_of_dead_letters:
            self._held.keep(checkpoint_id, _joined(self._both(checkpoint_id)[0] or b"", data))
        else:
            # Prepared first, and anew: what was there is of an attempt that failed.
            self._held.keep(checkpoint_id, _joined(data, b"") if data.startswith(_HEAD) else data)

    def data(self, checkpoint_id: CheckpointId) -> bytes:
        found = self._both(checkpoint_id)[self._is_of_dead_letters]
        return super().data(checkpoint_id) if found is None else found

    def _both(self, checkpoint_id: CheckpointId) -> tuple[bytes | None, bytes | None]:
        found = dict(self._held.up_to(checkpoint_id)).get(checkpoint_id)
        if found is None:
            return None, None
        if not found.startswith(_HEAD):
            return found, None
        start = len(_HEAD) + _LENGTH_BYTES
        end = start + int.from_bytes(found[len(_HEAD) : start], "big")
        return found[start:end], found[end:]

    def up_to(self, checkpoint_id: CheckpointId) -> list[tuple[CheckpointId, bytes]]:
        return self._held.up_to(checkpoint_id)

    def forget(self, checkpoint_id: CheckpointId) -> None:
        self._held.forget(checkpoint_id)
