"""The memory of everything that file sinks have ever committed into a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from crosscut.connectors.files.ledger import Entry, ledgers
from crosscut.connectors.files.local_paths import is_remote
from crosscut.connectors.files.object_stage import Location, Objects, ObjectStage, object_ledgers
from crosscut.connectors.files.partitions import is_partition
from crosscut.connectors.files.stage import Stage, failed
from crosscut.connectors.files.staged_names import (
    NO_DRIVER,
    STAGE_DIRECTORY,
    committed_name,
    lineage_of,
    task_of,
)
from crosscut.contracts.connectors import CommittedOutput
from crosscut.foundation.ids import Lineage, TaskId, VertexId

_STAGE_LEVELS = 4


def committed_output(directory: str, suffix: str) -> Sequence[CommittedOutput]:
    """Return what is known of all that file sinks have ever committed into `directory`.

    Where nothing is remembered, one of the files that are there tells that there is something.

    Raises:
        ConnectorError: The directory can't be read.
    """
    if is_remote(directory):
        return _of_objects(Objects(directory), suffix)
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


def visible_files(directory: str | Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a directory of a sink and in those below it that divide the output.

    Raises:
        OSError: One can't be read; if it is not there, nothing is.
    """
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if is_partition(entry.name) and entry.is_dir(follow_symlinks=False):
                yield from visible_files(entry.path)
            else:
                yield entry


def _visible(directory: Path, suffix: str) -> Iterator[CommittedOutput]:
    for entry in visible_files(directory):
        if (output := _named(directory, entry.name, suffix)) is not None:
            yield output
            return


def _named(directory: Path | Location, name: str, suffix: str) -> CommittedOutput | None:
    parsed = committed_name(name, suffix)
    if parsed is None:
        return None
    task = TaskId(VertexId("unknown"), parsed.index)
    return CommittedOutput(
        str(directory), Lineage(""), parsed.sink_uid, task, parsed.epoch, "", parsed.checkpoint_id
    )


def _of_objects(objects: Objects, suffix: str) -> Sequence[CommittedOutput]:
    found = []
    try:
        stages = {tuple(path.split("/")[:-1]) for path in objects.below(STAGE_DIRECTORY)}
        for names in sorted(names for names in stages if len(names) == _STAGE_LEVELS):
            lineage, task = lineage_of(names[1]), task_of(names[3])
            if lineage is not None and task is not None:
                entries = object_ledgers(ObjectStage(objects, names))
                found += [output_of(objects.location, lineage, names[2], task, one) for one in entries]
        remembered = [one for one in found if one.checkpoint_id]
        if remembered:
            return remembered
        visible = (_named(objects.location, name, suffix) for name in objects.names(""))
        return [one for one in visible if one is not None][:1]
    except OSError as error:
        raise failed("look into", objects.location, error) from error


def output_of(
    directory: Path | Location, lineage: Lineage, uid: str, task: TaskId, one: Entry
) -> CommittedOutput:
    """Return what a ledger says of a task."""
    driver = "" if one.owner.driver == NO_DRIVER else one.owner.driver
    return CommittedOutput(str(directory), lineage, uid, task, one.owner.epoch, driver, one.published.through)
