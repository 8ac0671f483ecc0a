"""State as a table, of a savepoint or a checkpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crosscut.errors import StateError, StoreError
from crosscut.protocol.job.entries import CheckpointCompleted
from crosscut.protocol.job.restoring import forms_of
from crosscut.protocol.job.segments import claims_in
from crosscut.savepoints.manifest import STATE_COLUMNS, checked, is_savepoint, rows_of
from crosscut.savepoints.values import from_text
from crosscut.savepoints.writing import write_savepoint
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.log_key import log_key


def read_state(path: str | os.PathLike[str], uid: str, state: str = "") -> Any:
    """Return the state of an operator as a Polars DataFrame, one row for each key (and name).

    Its columns are `key_group`, `key`, `value`, and `name` where rows have one: entries of a MapState,
    windows, timers. Keys and values are what the flow had, where Polars has a type for all of them; else
    they are of type Object.

    Args:
        path: Of a savepoint, or a checkpoint_dir, of which it takes the newest checkpoint; with `@7` at the
            end checkpoint 7, if it is retained.
        uid: Of the operator: its name.
        state: Of a process: which of its states.

    Raises:
        StoreError: There is nothing at `path`, it is damaged, or Polars or pyarrow is not installed.
        StateError: It has no such state, or a class in it can't be imported here.

    Examples:
        >>> import crosscut as cc
        >>> frame = cc.read_state("savepoints/monday", "counts")  # doctest: +SKIP
    """
    rows = list(state_rows(path, uid, state))
    try:
        import polars
    except ImportError as error:
        raise StoreError(
            f"read_state returns a Polars DataFrame, and polars can't be imported ({error}): install it with "
            f"pip install 'crosscut[polars]'; or read the files with anything that reads Parquet"
        ) from error
    columns: dict[str, list[Any]] = {"key_group": [row[0] for row in rows], "key": [row[1] for row in rows]}
    if any(row[2] is not None for row in rows):
        columns["name"] = [None if row[2] is None else from_text(row[2]) for row in rows]
    columns["value"] = [row[3] for row in rows]
    series = []
    for name, values in columns.items():
        try:
            series.append(polars.Series(name, values, strict=True))
        except (TypeError, ValueError, OverflowError, polars.exceptions.PolarsError):
            series.append(polars.Series(name, values, dtype=polars.Object))
    return polars.DataFrame(series)


def state_rows(
    path: str | os.PathLike[str], uid: str, state: str = ""
) -> Iterator[tuple[int, Any, str | None, Any]]:
    """Yield (key group, key, name as text, value) of one state; see `read_state`."""
    with tempfile.TemporaryDirectory(prefix="crosscut-read-") as scratch:
        directory = as_savepoint(path, Path(scratch) / "savepoint")
        manifest = checked(directory)
        known: set[tuple[str, str]] = set()
        for file in manifest.files:
            if not file.path.startswith("state/"):
                continue
            for row in rows_of(directory, file.path, STATE_COLUMNS):
                known.add((row["operator"], row["state"]))
                if (row["operator"], row["state"]) == (uid, state):
                    yield row["key_group"], from_text(row["key"]), row["name"], from_text(row["value"])
        if (uid, state) in known:
            return
        states = {one.uid: one.states for one in manifest.flow.operators}
        if uid not in states:
            named = ", ".join(map(repr, states))
            raise StateError(f"{path} is of a flow without an operator {uid!r}; it has {named}")
        declared = forms_of(states[uid])
        if declared and state not in declared:
            named = ", ".join(map(repr, declared))
            raise StateError(f"{path}: operator {uid!r} has no state {state!r}; it has {named}")


def as_savepoint(path: str | os.PathLike[str], scratch: Path) -> Path:
    """Return where there is a savepoint: `path`, or `scratch`, into which a checkpoint of `path` is written.

    Raises:
        StoreError: There is neither a savepoint nor a checkpoint.
    """
    text = os.fspath(path)
    if is_savepoint(text):
        return Path(text)
    where, _, number = text.partition("@")
    store = open_store(where, create=False, key=log_key())
    checkpoint = newest_checkpoint(store, int(number) if number.isdecimal() else None, text)
    claim = claims_in([entry for _, entry in store.tail(1)])[-1]
    write_savepoint(str(scratch), checkpoint, claim, store.read_part, is_committed=False)
    return scratch


def newest_checkpoint(store: CheckpointStore, number: int | None, where: str) -> CheckpointCompleted:
    """Return checkpoint `number`, or the newest.

    Raises:
        StoreError: There is no such checkpoint.
    """
    entries = store.tail(1) if number is None else list(store.entries())
    found = [
        entry
        for _, entry in entries
        if isinstance(entry, CheckpointCompleted) and number in (None, entry.checkpoint_id)
    ]
    if not found:
        what = "no complete checkpoint" if number is None else f"no checkpoint {number}"
        raise StoreError(f"{where} is neither a savepoint nor a checkpoint_dir with one: {what} is there")
    return found[-1]
