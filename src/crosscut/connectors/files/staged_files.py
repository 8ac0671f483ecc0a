"""Files with a two-phase commit: the sink writer behind `write_jsonl` and `collect`.

A transaction is one file, or several where output is divided by columns or by size. Each is written under a
staged name that readers do not look at, made durable by `prepare`, and moved to its final name by `commit`,
with a rename: at every moment it has one of the two names, so a file that is still staged has never been seen
by anybody. A reader may take what is visible
away at once, and often does; the ledger of the task remembers what was published, so that neither a
restart nor a failover misses it (`ledger`). What the files are called says `staged_names`.

The ledger is also the fence: each epoch that writes as a task has one, and looks at the others' *after* it
has noted what it is about to do. Of two that write at the same time, one at least sees the other.

The file system is a POSIX one (atomic rename, fsync of directories), which all workers and the driver see
under the same path; or an object store, in which a copy takes the place of the rename (`object_stage`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosscut.connectors.files.committed_output import output_of
from crosscut.connectors.files.file_encoders import FileEncoder
from crosscut.connectors.files.ledger import Entry, joined
from crosscut.connectors.files.local_paths import is_remote
from crosscut.connectors.files.object_stage import Location
from crosscut.connectors.files.partitions import ONE_FILE, Divider, Layout, undivided
from crosscut.connectors.files.stage import failed
from crosscut.connectors.files.staged_names import (
    STAGE_DIRECTORY,
    Handle,
    HandleFile,
    Published,
    Step,
    TaskNames,
    next_step,
)
from crosscut.connectors.files.staged_transaction import OpenTransaction
from crosscut.connectors.files.storage import (
    AnyLedger,
    AnyStage,
    LocalStorage,
    ObjectStorage,
    Storage,
    Target,
)
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext, SinkWriter
from crosscut.errors import ConnectorError, HistoryError, InternalError, invariant
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.log.history import check_history

_BEGIN_ATTEMPTS = 16


@dataclass(frozen=True, slots=True)
class _Workplace:
    """Where a writer is at work, once it has recovered: nothing of it exists before."""

    stage: AnyStage
    ledger: AnyLedger
    restored: CommitPermit | None


class StagedFiles(SinkWriter):
    """Writes one task's records into files that become visible at a commit.

    `write`, `rotate` and `close` belong to one thread, `recover`, `prepare` and `commit` to another, as
    `SinkWriter` says; `close` only after those have returned.

    A handle commits from any process that sees the directory, for as long as the stage is left alone.
    `recover` removes staged files of older epochs of the same logical task, so within one lineage a
    task must be given all handles that it staged itself.

    Args:
        directory: Absolute path of the sink's directory, made by `recover`; or a URL.
        suffix: Of the committed files, without the dot.
        make_encoder: Makes what turns the records of one file into its bytes.
        context: Who is writing.
        layout: How records are spread over files.
        divide: Which of them go into which directory, where `layout` divides them.
        takes_frames: The encoders take columns.
    """

    def __init__(
        self,
        directory: str,
        suffix: str,
        make_encoder: Callable[[], FileEncoder],
        context: SinkContext,
        layout: Layout = ONE_FILE,
        divide: Divider = undivided,
        *,
        takes_frames: bool = False,
    ) -> None:
        self._storage: Storage = ObjectStorage(directory) if is_remote(directory) else LocalStorage(directory)
        self._directory = self._storage.location
        self._make_encoder = make_encoder
        self.takes_frames = takes_frames
        self._context = context
        self._names = TaskNames(context, suffix)
        self._stage_path = self._directory.joinpath(*self._names.stage)
        self._workplace: _Workplace | None = None
        # Where files are staged: that of the workplace, or of an attempt, which has no ledger of its own.
        self._stage: AnyStage | None = None
        self._layout = layout
        self._divide = divide
        self._open: OpenTransaction | None = None
        self._unprepared: dict[str, OpenTransaction] = {}
        # The newest transaction of which it is known that it is published, and all after it, in order. Shared
        # by both threads: each changes it by one operation on a list.
        self._chain: list[str] = []

    # Beginning.

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        """Take the stage over, commit `handles`, and remove what older epochs of this task have left.

        Files of other tasks, sinks and lineages, and of this or a newer epoch, are never touched.
        """
        invariant(permit is not None or not handles, "handles to recover but no permit")
        checked = self._all_checked(permit, handles) if permit is not None else []
        try:
            workplace = self._workplace = self._begun(permit, checked)
        except OSError as error:
            raise failed("begin in", self._stage_path, error) from error
        self._stage = workplace.stage
        self._publish(workplace, checked)
        self._begin_chain(checked[-1].staged if checked else workplace.ledger.published.last)
        try:
            for name in workplace.stage.names():
                epoch = self._names.epoch_of_staged(name)
                if epoch is not None and epoch < self._context.epoch:
                    workplace.stage.remove(name)
        except OSError as error:
            raise failed("look into", self._stage_path, error) from error

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """Stage in the directory of the task, beside other writers of it.

        The ledger has one writer, the one that commits; here it is only read: it says after which
        transaction this one comes.
        """
        checked = [self._names.checked(one, str(self._directory)) for one in handles]
        try:
            stage = self._stage = self._storage.stage(self._names.stage)
            self._begin_chain(checked[-1].staged if checked else joined(self._storage.ledgers(stage)).last)
        except OSError as error:
            raise failed("begin in", self._stage_path, error) from error

    def abort(self, handles: Sequence[JSON]) -> None:
        """Remove staged files. What has its final name has no staged one any more, and stays."""
        stage = self._recovered().stage
        for one in handles:
            for file in self._names.checked(one, str(self._directory)).files:
                stage.remove(file.staged)

    def sweep(self) -> None:
        """Remove the staged files of this epoch."""
        stage = self._recovered().stage
        try:
            for name in stage.names():
                if self._names.epoch_of_staged(name) == self._context.epoch:
                    stage.remove(name)
        except OSError as error:
            raise failed("look into", self._stage_path, error) from error

    def _begin_chain(self, published: str) -> None:
        self._chain = [published] if published else []

    def _begun(self, permit: CommitPermit | None, handles: list[Handle]) -> _Workplace:
        for _ in range(_BEGIN_ATTEMPTS):
            stage = self._storage.stage(self._names.stage)
            try:
                return _Workplace(stage, self._taken_over(stage, permit, handles), permit)
            except FileNotFoundError:
                # Somebody else leaves, and removes the stage that is still empty.
                stage.close()
            except BaseException:
                stage.close_and_tidy(levels=len(self._names.stage))
                raise
        raise FileNotFoundError(errno.ENOENT, "directory was removed repeatedly", str(self._stage_path))

    def _taken_over(self, stage: AnyStage, permit: CommitPermit | None, handles: list[Handle]) -> AnyLedger:
        """Make this epoch the owner of the stage, unless what is published says that it must not be."""
        before = self._others(stage)
        self._check_history(permit, before, handles)
        ledger = self._storage.ledger(stage, self._names.ledger, joined(before))
        try:
            # A writer that has not seen our ledger by now has noted in its own what it is about to publish.
            after = self._others(stage)
            self._check_history(permit, after, handles)
            known = joined(after).joined(ledger.published)
            if known != ledger.published:
                ledger.write(known)
            # Only now may what they have staged be removed: what they know is kept.
            for one in after:
                stage.remove(one.name)
        except BaseException as error:
            if isinstance(error, HistoryError):
                # The other one shall not find that it has been overtaken.
                ledger.remove()
            ledger.close()
            raise
        return ledger

    def _others(self, stage: AnyStage) -> list[Entry]:
        return [one for one in self._storage.ledgers(stage) if one.name != self._names.ledger]

    def _check_history(
        self, permit: CommitPermit | None, others: list[Entry], handles: list[Handle] | None = None
    ) -> None:
        """Refuse to go on if the others know better, or know of other transactions than `handles`."""
        context = self._context
        found = [
            output_of(self._directory, context.lineage, context.sink_uid, context.task, one) for one in others
        ]
        check_history(context, permit, found)
        known = joined(others)
        committed = permit.committed if permit is not None else CheckpointId(0)
        if handles is not None and not known.leads_to(handles, committed):
            raise HistoryError(
                f"{self._directory}: task {context.task} of sink {context.sink_uid!r} has committed "
                f"{known.last} (epoch {known.epoch}, driver {known.driver!r}, checkpoint {known.through}) "
                f"last of all, but what this job has to commit follows {handles[0].after or 'nothing'}: two "
                f"copies of one checkpoint directory have been run. Go on with the other one; nothing was "
                f"written twice",
                location=str(self._directory),
            )

    # Writing.

    def write(self, records: list[Any]) -> None:
        """Encode `records` now, so that they may be changed afterwards, and append them.

        All that can be wrong with a record is found out here: a commit only gives names to files.

        Raises:
            RefusedRecordError: One can't be written (nothing was added).
            ConnectorError: The file can't be written: the transaction is not usable any more.
        """
        if not records:
            return
        transaction = self._open or OpenTransaction(
            tuple(self._chain),
            self._storage,
            self._staging(),
            self._names.new_staged,
            self._make_encoder,
            self._divide,
            self._layout,
        )
        try:
            transaction.add(records, self.refuse)
        except OSError as error:
            raise failed("write to", self._stage_path, error) from error
        finally:
            if transaction.name and self._open is None:
                self._open = self._unprepared[transaction.name] = transaction
                self._chain.append(transaction.name)

    def rotate(self, checkpoint_id: CheckpointId) -> OpenTransaction | None:
        """Detach the open files. Costs nothing: what is buffered is flushed by `prepare`."""
        transaction = self._open
        if transaction is not None:
            transaction.checkpoint_id = checkpoint_id
            self._open = None
        return transaction

    def prepare(self, transaction: Any) -> JSON:
        """Make the files and their names durable; may be repeated if it failed for want of space.

        Raises:
            ConnectorError: Not durable; see `OpenTransaction.stored`.
        """
        invariant(
            isinstance(transaction, OpenTransaction), f"{transaction!r} is not a transaction of this sink"
        )
        self._staging()
        checkpoint_id = transaction.checkpoint_id
        invariant(checkpoint_id is not None, f"{transaction.name} was not rotated")
        parts = transaction.stored()
        self._unprepared.pop(transaction.name, None)
        *before, after = transaction.chain or ("",)
        return self._names.handle(parts, after, checkpoint_id, before)

    # Committing.

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        """Give each staged file its final name, and make that durable.

        The first to commit wins and the others find it done: a crash at any line, a repetition
        and a zombie of an older epoch all end in the same files.
        """
        checked = self._all_checked(permit, handles)
        self._publish(self._recovered(), checked)
        if checked and checked[-1].staged in self._chain:
            del self._chain[: self._chain.index(checked[-1].staged)]

    def pending_records(self, handles: Sequence[JSON]) -> Iterator[dict[str, str | int]]:
        """Yield the staged files, each a complete file of the format of the sink."""
        for one in (self._names.checked(handle, str(self._directory)) for handle in handles):
            for file in one.files:
                yield {
                    "staged": str(self._stage_path / file.staged),
                    "final": str(self._directory / file.final),
                    "records": file.record_count,
                }

    def _all_checked(self, permit: CommitPermit, handles: Sequence[JSON]) -> list[Handle]:
        invariant(permit.lineage == self._context.lineage, f"{permit} is not of {self._context.lineage}")
        checked = [self._names.checked(one, str(self._directory)) for one in handles]
        for one in checked:
            if one.checkpoint_id > permit.checkpoint_id:
                raise ConnectorError(
                    f"transaction {one.files[0].final} in {self._directory} is of checkpoint "
                    f"{one.checkpoint_id}, but only what is at or below checkpoint {permit.checkpoint_id} "
                    f"may become visible; nothing was committed. Restore the checkpoint directory from a "
                    f"backup",
                    directory=str(self._directory),
                )
        return checked

    def _publish(self, workplace: _Workplace, handles: list[Handle]) -> None:
        if not handles:
            return
        try:
            with self._storage.target() as target:
                self._publish_in(target, workplace, handles)
        except OSError as error:
            raise failed("commit in", self._directory, error) from error

    def _publish_in(self, target: Target, workplace: _Workplace, handles: list[Handle]) -> None:
        stage, ledger = workplace.stage, workplace.ledger
        failures: list[ConnectorError] = []
        steps: list[tuple[Handle, list[tuple[HandleFile, Step]]]] = []
        for one in handles:
            try:
                steps.append((one, self._steps(target, workplace, one)))
            except ConnectorError as failure:
                failures.append(failure)
        # One that has lost a file is not published at all: it may come back from a backup, as a whole.
        lost = [one for one, files in steps if any(step is Step.LOST for _, step in files)]
        known = ledger.published.with_more(
            (one for one, _ in steps if one not in lost), lost, self._context.epoch, self._context.driver
        )
        if known != ledger.published:
            # Before any of them is visible: somebody may take it away the moment it is.
            ledger.write(known)
        todo = [(file, step) for one, files in steps if one not in lost for file, step in files]
        if lost or any(step is Step.PUBLISH for _, step in todo):
            # Also what is lost was perhaps removed by somebody who has taken over: that says more.
            self._check_history(workplace.restored, self._others(stage))
        for file, step in todo:
            if step is Step.PUBLISH:
                # Gone: another attempt has published it since we looked.
                with suppress(FileNotFoundError):
                    target.publish(stage, file.staged, file.final)
        failures += map(self._lost, lost)
        # The names before the staged ones go, where there are two of a file.
        target.settle()
        for file, step in todo:
            if step is Step.TIDY:
                stage.drop(file.staged)
        if failures:
            raise failures[0]

    def _steps(self, target: Target, workplace: _Workplace, handle: Handle) -> list[tuple[HandleFile, Step]]:
        """Look at a transaction, and decide what there is to do for each of its files."""
        ours = [
            self._step(target, workplace, handle, one, workplace.ledger.published) for one in handle.files
        ]
        if Step.LOST in ours:
            # Its publisher, a zombie for instance, has noted it before: so look there again.
            known = joined(self._storage.ledgers(workplace.stage))
            ours = [self._step(target, workplace, handle, one, known) for one in handle.files]
        return list(zip(handle.files, ours, strict=True))

    def _step(
        self, target: Target, workplace: _Workplace, handle: Handle, file: HandleFile, published: Published
    ) -> Step:
        staged, final = workplace.stage.look(file.staged), target.visible(file.final)
        for found, path in ((staged, self._stage_path / file.staged), (final, self._final(file))):
            if found is not None:
                self._check_file(handle, file, path, found)
        step = next_step(
            is_staged=staged is not None,
            is_visible=final is not None,
            is_one_file=staged is not None and final is not None and os.path.samestat(staged, final),
            is_published=handle.checkpoint_id in published,
        )
        if step is Step.IN_THE_WAY:
            raise ConnectorError(
                f"can't commit {self._stage_path / file.staged}: {self._final(file)} exists and is "
                f"another file; move it away, nothing but this sink may use such names",
                path=str(self._final(file)),
            )
        return step

    def _check_file(
        self, handle: Handle, file: HandleFile, path: Path | Location, found: os.stat_result
    ) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise ConnectorError(
                f"{path} is not a regular file; move it away, nothing but this sink may use such names",
                path=str(path),
            )
        if found.st_size != file.size_bytes:
            raise ConnectorError(
                f"{path} has {found.st_size} bytes, expected {file.size_bytes} ({file.record_count} "
                f"records of checkpoint {handle.checkpoint_id}): it was damaged or changed after it was "
                f"prepared; restore it from a backup",
                path=str(path),
                checkpoint_id=handle.checkpoint_id,
            )

    def _lost(self, handle: Handle) -> ConnectorError:
        return ConnectorError(
            f"output is lost: {handle.record_count} records ({handle.size_bytes} bytes) of checkpoint "
            f"{handle.checkpoint_id} are neither staged ({self._stage_path / handle.staged}) nor committed "
            f"({self._final(handle.files[0])}), and were never made visible; restore one of the two from a "
            f"backup (nothing in {STAGE_DIRECTORY} may be removed while the job has checkpoints)",
            path=str(self._final(handle.files[0])),
            checkpoint_id=handle.checkpoint_id,
        )

    def _final(self, file: HandleFile) -> Path | Location:
        return self._directory / file.final

    # Ending.

    def close(self) -> None:
        """Close all files. What was prepared stays; what never was is in no checkpoint and goes."""
        workplace, self._workplace, self._open = self._workplace, None, None
        stage, self._stage = self._stage, None
        if stage is None:
            return
        for transaction in self._unprepared.values():
            transaction.dropped()
        self._unprepared.clear()
        if workplace is not None:
            if self._storage.tidies and not workplace.ledger.published.through:
                # Nothing was ever published: leave no trace.
                workplace.ledger.remove()
            workplace.ledger.close()
        stage.close_and_tidy(levels=len(self._names.stage))

    def _staging(self) -> AnyStage:
        if self._stage is None:
            raise InternalError(
                f"the writer in {self._stage_path} writes before it has begun, or after `close`"
            )
        return self._stage

    def _recovered(self) -> _Workplace:
        workplace = self._workplace
        if workplace is None:
            raise InternalError(f"the writer in {self._stage_path} is used before `recover` or after `close`")
        return workplace
