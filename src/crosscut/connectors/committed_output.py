"""The memory of everything that file sinks have ever committed into a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from crosscut.connectors.ledger import Entry, ledgers
from crosscut.connectors.stage import Stage, failed
from crosscut.connectors.staged_names import NO_DRIVER, STAGE_DIRECTORY, committed_name, lineage_of, task_of
from crosscut.ids import Lineage, TaskId, VertexId
from crosscut.interfaces import CommittedOutput


def committed_output(directory: str, suffix: str) -> Sequence[CommittedOutput]:
    """Return what is known of all that file sinks have ever committed into `directory`.

    Where nothing is remembered, one of the files that are there tells that there is something.

    Raises:
        ConnectorError: The directory can't be read.
    """
    try:
        found = [one for one in _remembered(Path(directory)) if one.checkpoint_id]
        return found or list(_visible(Path(directory), suffix))
    except OSError as error:
        raise failed("look into", directory, error) from error


def _remembered(directory: Path) -> Iterator[CommittedOutput]:
    for names in _stages(directory, (STAGE_DIRECTORY,), 3):
        lineage, task = lineage_of(names[1]), task_of(names[3])
        stage = Stage.found(directory, names) if lineage is not None and task is not None else None
        if stage is None or lineage is None or task is None:
            continue
        try:
            entries = ledgers(stage)
        finally:
            stage.close()
        for one in entries:
            yield output_of(directory, lineage, names[2], task, one)


def _stages(directory: Path, names: tuple[str, ...], levels: int) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead to all directories `levels` below `names`."""
    if levels == 0:
        yield names
        return
    stage = Stage.found(directory, names)
    if stage is None:
        return
    try:
        below = stage.names()
    finally:
        stage.close()
    for name in below:
        yield from _stages(directory, (*names, name), levels - 1)


def _visible(directory: Path, suffix: str) -> Iterator[CommittedOutput]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            said = committed_name(entry.name, suffix)
            if said is not None:
                task = TaskId(VertexId("unknown"), said.index)
                yield CommittedOutput(
                    str(directory), Lineage(""), said.sink_uid, task, said.epoch, "", said.checkpoint_id
                )
                return


def output_of(directory: Path, lineage: Lineage, uid: str, task: TaskId, one: Entry) -> CommittedOutput:
    """Return what a ledger says of a task."""
    driver = "" if one.owner.driver == NO_DRIVER else one.owner.driver
    return CommittedOutput(str(directory), lineage, uid, task, one.owner.epoch, driver, one.published.through)
