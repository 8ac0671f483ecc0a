"""State as a table, of a savepoint or a checkpoint."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from crosscut.errors import StateError, StoreError
from crosscut.foundation.ids import TaskId
from crosscut.foundation.unpickling import RefusedPickleError
from crosscut.foundation.urls import local_path, path_text, shown_url
from crosscut.protocol.job.pending_output import restored
from crosscut.protocol.log.entries import Ancestor, CheckpointCompleted
from crosscut.protocol.log.identity import OperatorIdentity
from crosscut.protocol.log.restoring import forms_of
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.snapshots import Part
from crosscut.savepoints.folder import folder_of
from crosscut.savepoints.manifest import Origin, Savepoint, copied, found_at, opened, verified
from crosscut.savepoints.rows import STATE_COLUMNS, RowFile, decoded_rows
from crosscut.savepoints.writing import WriteFiles, state_rows, write_savepoint
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.files import LocalFiles
from crosscut.store.log_key import LogKey, log_key
from crosscut.store.owners import foreign_write

NUMBERED = re.compile(r"(.+)@(\d+)", re.DOTALL)
"""A checkpoint of a directory; in a URL there may be another `@`, after a user's name."""


def warn_of_foreign_write(path: str | os.PathLike[str]) -> None:
    """Warn if others can write to a local savepoint or checkpoint directory that is to be unpickled."""
    numbered = NUMBERED.fullmatch(os.fspath(path))
    if reason := foreign_write(os.fspath(path)) or (numbered and foreign_write(numbered[1])):
        warnings.warn(
            f"{reason}: state is pickled, so anyone who can write there can run code in this program",
            RuntimeWarning,
            stacklevel=3,
        )


class StateRow(NamedTuple):
    """One row of state, as text; see `crosscut.savepoints.values`."""

    key_group: int
    state: str
    key: str
    name: str | None
    value: str


@dataclass(frozen=True, slots=True)
class FileOfTask:
    """The state of one task in a savepoint. Can be read in any process that sees it."""

    url: str
    file: RowFile

    def rows(self) -> Iterator[StateRow]:
        """Yield the rows of all states.

        Raises:
            StoreError: The file is not as it was written, or can't be read.
        """
        folder = folder_of(self.url)
        data = verified(folder, self.file, folder.root)
        for row in decoded_rows(data, STATE_COLUMNS, f"{self.file.path} in {folder.root}"):
            yield StateRow(row["key_group"], row["state"], row["key"], row["name"], row["value"])


@dataclass(frozen=True, slots=True)
class PartsOfTask:
    """The state of one task in a checkpoint. Can be read in any process that sees it."""

    url: str
    task: TaskId
    parts: tuple[Part, ...]
    max_parallelism: int

    def rows(self) -> Iterator[StateRow]:
        """Yield the rows of all states.

        Raises:
            StoreError: A part is missing or damaged.
            StateError: A class in it can't be imported here.
        """
        # Without the key of the job log: the parts are pinned by their digests.
        store = open_store(self.url, create=False)
        for row in state_rows(self.task, self.parts, store.read_part, self.max_parallelism):
            key_group, _, state, key, name, value = row
            yield StateRow(key_group, state, key, name, value)


@dataclass(frozen=True, slots=True)
class StoredState:
    """State of an operator in a savepoint or a checkpoint.

    Attributes:
        name: What messages call it.
        operator: Whose.
        state: Which; None: all.
        tasks: Where that of each task is.
    """

    name: str
    operator: OperatorIdentity
    state: str | None
    tasks: tuple[FileOfTask | PartsOfTask, ...]

    def rows(self) -> Iterator[StateRow]:
        """Yield its rows, of one task after the other.

        Raises:
            StoreError: It is damaged.
            StateError: There is no such state; or a class can't be imported here.
        """
        known: set[str] = set()
        for task in self.tasks:
            for row in task.rows():
                known.add(row.state)
                if self.state is None or row.state == self.state:
                    yield row
        declared = forms_of(self.operator.states)
        if known and self.state is not None and self.state not in {*known, *declared}:
            raise self.without(known)

    def without(self, known: Iterable[str]) -> StateError:
        """Return the error that says which states there are."""
        named = ", ".join(map(repr, sorted(known)))
        return StateError(
            f"{self.name}: operator {self.operator.uid!r} has no state {self.state!r}; it has {named}"
        )


def state_at(
    path: str | os.PathLike[str], uid: str, state: str | None, key: LogKey | None = None
) -> StoredState:
    """Find the state of operator `uid`; see `read_state`.

    Args:
        key: Verifies the job log, or savepoint; None: that of the environment does, if there is one.

    Raises:
        StoreError: There is nothing at `path`, or it is damaged.
        StateError: It has no such operator, or that declares no such state.
    """
    text = path_text(path, "path")
    tasks: list[FileOfTask | PartsOfTask] = []
    savepoint = found_at(text, key)
    if savepoint is not None:
        name, flow = savepoint.name, savepoint.manifest.flow
        tasks += [FileOfTask(_absolute(text), file) for file in savepoint.manifest.state_files(uid)]
    else:
        where, store, checkpoint = opened_checkpoint(text, key)
        claim = claims_in([entry for _, entry in store.tail(1)])[-1]
        name, flow = shown_url(text), claim.flow
        tasks += [
            PartsOfTask(_absolute(where), one.task, one.snapshot.parts, claim.max_parallelism)
            for one in checkpoint.snapshots
            if one.task.vertex == uid and one.snapshot.parts
        ]
    operators = {one.uid: one for one in flow.operators}
    if uid not in operators:
        named = ", ".join(map(repr, operators))
        raise StateError(f"{name} is of a flow without an operator {uid!r}; it has {named}")
    found = StoredState(name, operators[uid], state, tuple(tasks))
    declared = forms_of(operators[uid].states)
    if declared and state is not None and state not in declared:
        raise found.without(declared)
    return found


def _absolute(url: str) -> str:
    path = local_path(url)
    return url if path is None else os.path.abspath(path)


def as_savepoint(
    path: str | os.PathLike[str],
    scratch: Path,
    write_elsewhere: Callable[[str, str], WriteFiles] | None = None,
) -> Savepoint:
    """Return the savepoint at `path`, or one that a checkpoint of `path` is written as.

    Args:
        scratch: A directory that is not there yet: for what is not a local savepoint.
        write_elsewhere: Given the paths of a savepoint and of a checkpoint_dir, returns what writes the files
            if the checkpoint holds more than this process may load.

    Raises:
        StoreError: There is neither a savepoint nor a checkpoint.
        RefusedPickleError: The checkpoint holds more than this process may load.
    """
    found = found_at(path)
    if found is not None:
        return found if isinstance(found.folder, LocalFiles) else copied(found, scratch)
    where, store, checkpoint = opened_checkpoint(path)
    claim = claims_in([entry for _, entry in store.tail(1)])[-1]
    try:
        write_savepoint(scratch, checkpoint, claim, store.read_part, is_committed=False)
    except RefusedPickleError:
        if write_elsewhere is None:
            raise
        files = write_elsewhere(os.fspath(scratch), _absolute(where))
        write_savepoint(scratch, checkpoint, claim, store.read_part, is_committed=False, write_files=files)
    return replace(opened(scratch), name=shown_url(os.fspath(path)), digest="")


def origin_of(path: str | os.PathLike[str]) -> Origin:
    """Return which savepoint or checkpoint `path` is, without reading any of its state.

    Raises:
        StoreError: There is neither.
    """
    found = found_at(path)
    if found is not None:
        return Origin(found.name, found.manifest.ancestors, found.digest)
    _, store, checkpoint = opened_checkpoint(path)
    claim = claims_in([entry for _, entry in store.tail(1)])[-1]
    ancestors = (*claim.ancestors, Ancestor(claim.lineage, checkpoint.checkpoint_id))
    return Origin(shown_url(os.fspath(path)), ancestors)


def opened_checkpoint(
    path: str | os.PathLike[str], key: LogKey | None = None
) -> tuple[str, CheckpointStore, CheckpointCompleted]:
    """Return the checkpoint that `path` names: a checkpoint_dir, with `@7` at its end for checkpoint 7.

    Before it come the checkpoint_dir, and its store.

    Raises:
        StoreError: There is no such checkpoint.
    """
    text = path_text(path, "path")
    numbered = NUMBERED.fullmatch(text)
    where, number = (numbered[1], int(numbered[2])) if numbered else (text, None)
    store = open_store(where, create=False, key=key or log_key())
    return where, store, newest_checkpoint(store, number, shown_url(text))


def newest_checkpoint(store: CheckpointStore, number: int | None, where: str) -> CheckpointCompleted:
    """Return checkpoint `number` as it was completed, or the newest as a job would restore it.

    Raises:
        StoreError: There is no such checkpoint.
    """
    entries = store.tail(1) if number is None else list(store.entries())
    found = [
        entry
        for _, entry in entries
        if isinstance(entry, CheckpointCompleted) and number in (None, entry.checkpoint_id)
    ]
    if number is None and (newest := restored(entries)) is not None:
        return newest
    if not found:
        what = "no complete checkpoint" if number is None else f"no checkpoint {number}"
        raise StoreError(f"{where} is neither a savepoint nor a checkpoint_dir with one: {what} is there")
    return found[-1]
