"""Input that a job has staged in its own checkpoint store, and reads from there.

Its files are parts like those of snapshots, of checkpoint 0, which is none. A split that is read from one
names it; so a checkpoint needs the files of all splits that it has not read to their end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from crosscut.contracts.connectors import JSON
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.messages import SplitAssignment

BEFORE_ALL = CheckpointId(0)
"""What staged files are written under: no checkpoint has this id."""

FILE = "staged"
"""In `Split.detail`: the path of the file that the split is read from."""

STAGED_PATH = re.compile(rf"parts/{BEFORE_ALL}/[^/]+-(\d+)-[0-9a-f]+")


def staged_files(positions: JSON) -> Iterator[str]:
    """Yield the staged files that unfinished splits are read from, in the form of `SplitQueue.positions`."""
    if not isinstance(positions, list):
        return
    # There may be many thousands of splits, at every checkpoint: hence no `match`.
    for row in positions:
        detail = row[2] if isinstance(row, list) and len(row) > 2 else None
        path = detail.get(FILE) if isinstance(detail, dict) else None
        if isinstance(path, str) and STAGED_PATH.fullmatch(path):
            yield path


def staged_splits(positions: JSON) -> Iterator[dict[str, JSON]]:
    """Yield the details of unfinished splits that are read from staged files."""
    for row in positions if isinstance(positions, list) else []:
        if any(staged_files([row])):
            match row:
                case [_, _, dict(detail), *_]:
                    yield detail
                case _:
                    pass


def with_files_at(positions: JSON, paths: Mapping[str, str]) -> JSON:
    """Return `positions` with the staged files at other paths: for a job with another checkpoint store."""
    if not isinstance(positions, list):
        return positions
    moved: list[JSON] = []
    for row in positions:
        match row:
            case [split_id, at, dict(detail), *others] if any(staged_files([row])):
                path = str(detail[FILE])
                moved.append([split_id, at, detail | {FILE: paths[path]}, *others])
            case _:
                moved.append(row)
    return moved


def staged_for(assignments: Iterable[SplitAssignment]) -> frozenset[str]:
    """Return the staged files of splits that are dealt out."""
    return frozenset(path for one in assignments for path in staged_files(one.splits))
