"""Savepoints, and checkpoints as if they were some, for people: contents, wholeness, differences."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.text import Text

from crosscut.cli.checkpoints import plain_table
from crosscut.errors import StoreError
from crosscut.protocol.snapshots import Part, TaskSnapshot
from crosscut.savepoints.manifest import Savepoint, differences, found_at
from crosscut.savepoints.rows import STATE_COLUMNS
from crosscut.savepoints.tables import as_savepoint, opened_checkpoint

_EXAMPLES = 3
_KINDS = ("only first", "only second", "changed", "same")
_Row = tuple[str, str, str, str]


def savepoint_details(savepoint: Savepoint) -> RenderableType:
    """Return all there is to say of a savepoint."""
    manifest = savepoint.manifest
    head = Text(
        f"savepoint of flow {manifest.flow.name}, checkpoint {manifest.checkpoint_id} of lineage "
        f"{manifest.lineage}, written {manifest.written}; parallelism {manifest.parallelism}, "
        f"{manifest.max_parallelism} key groups"
    )
    table = plain_table("file", "rows", "size", numbers=(1, 2))
    for file in manifest.files:
        table.add_row(Text(file.path), str(file.rows), decimal(file.size_bytes))
    return Group(head, "", table)


def savepoint_line(savepoint: Savepoint) -> str:
    """Return all there is to say of a savepoint as a line of JSON."""
    manifest = savepoint.manifest
    files = [{"path": file.path, "rows": file.rows, "size_bytes": file.size_bytes} for file in manifest.files]
    return json.dumps(
        {
            "flow": manifest.flow.name,
            "checkpoint": manifest.checkpoint_id,
            "lineage": manifest.lineage,
            "written": manifest.written,
            "parallelism": manifest.parallelism,
            "max_parallelism": manifest.max_parallelism,
            "files": files,
        }
    )


def verified(path: str) -> str:
    """Read everything of a savepoint, or of a checkpoint, and return that it is whole.

    Raises:
        StoreError: It is not; the message says what is wrong.
    """
    if (savepoint := found_at(path)) is not None:
        if wrong := differences(savepoint):
            raise StoreError(f"{savepoint.name} was changed after it was written: {'; '.join(wrong)}")
        files = savepoint.manifest.files
        return f"whole: {len(files)} files, {sum(file.rows for file in files)} rows"
    _, store, checkpoint = opened_checkpoint(path)
    count = size_bytes = 0
    for part in _parts(checkpoint.snapshots):
        size_bytes += len(store.read_part(part))
        count += 1
    return f"whole: checkpoint {checkpoint.checkpoint_id}, {count} parts, {decimal(size_bytes)}"


def _parts(snapshots: Iterable[TaskSnapshot]) -> Iterator[Part]:
    for one in snapshots:
        yield from (*one.snapshot.parts, *one.snapshot.log)
        yield from (pending.held for pending in one.snapshot.pending if pending.held is not None)


@dataclass(frozen=True, slots=True)
class StateDifference:
    """How two savepoints differ in one state.

    Attributes:
        counts: Rows that are "only first", "only second", "changed" or "same".
        examples: Some rows that are not the same.
    """

    operator: str
    state: str
    counts: Counter[str]
    examples: list[str]


def state_differences(path: str, other: str) -> list[StateDifference]:
    """Compare the states of two savepoints or checkpoints."""
    with tempfile.TemporaryDirectory(prefix="crosscut-diff-") as scratch:
        before = _rows(as_savepoint(path, Path(scratch) / "a"))
        after = _rows(as_savepoint(other, Path(scratch) / "b"))
    found: dict[tuple[str, str], StateDifference] = {}
    for row in sorted(before.keys() | after.keys()):
        then, now = before.get(row), after.get(row)
        kind = _kind(then, now)
        uid, state, *key = row
        one = found.setdefault((uid, state), StateDifference(uid, state, Counter(), []))
        one.counts[kind] += 1
        if kind != "same" and len(one.examples) < _EXAMPLES:
            one.examples.append(f"{' '.join(filter(None, key))}: {_short(then)} -> {_short(now)}")
    return list(found.values())


def compared(found: list[StateDifference]) -> RenderableType:
    """Return the differences of states as a table, with some examples."""
    if not found:
        return Text("neither has any state")
    table = plain_table("operator", "state", *_KINDS, "such as", numbers=(2, 3, 4, 5))
    for one in found:
        numbers = (str(one.counts[kind]) for kind in _KINDS)
        table.add_row(Text(one.operator), Text(one.state), *numbers, Text("\n".join(one.examples)))
    return table


def difference_lines(found: list[StateDifference]) -> Iterator[str]:
    """Yield the differences of states as lines of JSON."""
    for one in found:
        counts = {kind.replace(" ", "_"): one.counts[kind] for kind in _KINDS}
        yield json.dumps({"operator": one.operator, "state": one.state, **counts, "examples": one.examples})


def _rows(savepoint: Savepoint) -> dict[_Row, str]:
    return {
        (row["operator"], row["state"], row["key"], row["name"] or ""): row["value"]
        for file in savepoint.manifest.state_files()
        for row in savepoint.rows_of(file, STATE_COLUMNS)
    }


def _kind(then: str | None, now: str | None) -> str:
    if now is None:
        return "only first"
    if then is None:
        return "only second"
    return "same" if then == now else "changed"


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= 40 else f"{text[:37]}..."
