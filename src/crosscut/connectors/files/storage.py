"""Where a file sink is at work: a directory of a file system, or of an object store.

`StagedFiles` decides what is done and in which order; a storage says how.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, Protocol

from crosscut.connectors.files.ledger import Entry, Ledger, ledgers
from crosscut.connectors.files.object_stage import (
    Location,
    ObjectLedger,
    Objects,
    ObjectStage,
    looked_at,
    object_ledgers,
)
from crosscut.connectors.files.stage import Stage
from crosscut.connectors.files.staged_names import FINAL_BYTES_MAX, Published
from crosscut.connectors.files.targets import local_target

_BUFFER_BYTES = 256 * 1024
_PATH_BYTES_MAX = 4_095
_KEY_BYTES_MAX = 1_024
"""Of S3 and of Google's store."""


class StagedFile(Protocol):
    """A file while it is written."""

    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class AnyStage(Protocol):
    """The stage of a task: see `Stage`."""

    path: Any

    def names(self) -> list[str]: ...

    def look(self, name: str) -> os.stat_result | None: ...

    def drop(self, name: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def close(self) -> None: ...

    def close_and_tidy(self, *, levels: int) -> None: ...


class Target(Protocol):
    """Where files are published; their paths may lead through directories that are made for them."""

    def visible(self, final: str) -> os.stat_result | None:
        """Return what has that path."""

    def publish(self, stage: Any, staged: str, final: str) -> None:
        """Give a staged file its final path.

        Raises:
            FileNotFoundError: It is not staged any more.
        """

    def settle(self) -> None:
        """Make durable which paths are visible of those that were looked at or published."""


class AnyLedger(Protocol):
    """The ledger of a writer: see `Ledger`."""

    published: Published

    def write(self, published: Published) -> None: ...

    def remove(self) -> None: ...

    def close(self) -> None: ...


class Storage(ABC):
    """See the module. All errors are OSError.

    Attributes:
        location: For messages.
        stores_again: What could not be made durable can be tried again: nothing is lost by the failure.
        tidies: What a writer leaves is removed at once, and not by its successor: that takes no time.
        partition_bytes_max: Of the path of a directory below the sink's own.

    """

    location: Any
    stores_again: bool
    tidies: bool
    partition_bytes_max: int

    @abstractmethod
    def stage(self, names: Sequence[str]) -> Any:
        """Make and open the stage of a task."""

    @abstractmethod
    def ledger(self, stage: Any, name: str, published: Published) -> AnyLedger:
        """Open the ledger of a writer."""

    @abstractmethod
    def ledgers(self, stage: Any) -> list[Entry]:
        """Return all ledgers in a stage."""

    @abstractmethod
    def file(self, stage: Any, name: str) -> StagedFile:
        """Open a new file in a stage."""

    @abstractmethod
    def store(self, stage: Any, file: Any) -> int:
        """Make a file that is written durable, under its staged name; return its size."""

    @abstractmethod
    def target(self) -> AbstractContextManager[Target]:
        """Open the directory where files are published."""


class LocalStorage(Storage):
    """A directory of a POSIX file system that driver and workers share."""

    stores_again = False  # the kernel may have dropped the data, and would call the next fsync a success
    tidies = True

    def __init__(self, directory: str) -> None:
        self.location = self._directory = Path(directory)
        # Readers open files by their whole paths.
        self.partition_bytes_max = _PATH_BYTES_MAX - len(os.fsencode(directory)) - FINAL_BYTES_MAX

        self._is_above_durable = False

    def stage(self, names: Sequence[str]) -> Stage:
        return Stage.made(self._directory, names)

    def ledger(self, stage: Stage, name: str, published: Published) -> AnyLedger:
        return Ledger(stage, name, published)

    def ledgers(self, stage: Stage) -> list[Entry]:
        return ledgers(stage)

    def file(self, stage: Stage, name: str) -> StagedFile:
        return BufferedWriter(stage.created(name), _BUFFER_BYTES)

    def store(self, stage: Stage, file: BufferedWriter[FileIO]) -> int:
        size = stage.store(file)
        if not self._is_above_durable:
            stage.sync_above()
            self._is_above_durable = True
        return size

    def target(self) -> AbstractContextManager[Target]:
        return local_target(self._directory)


class ObjectStorage(Storage):
    """A prefix of an object store."""

    stores_again = True
    tidies = False

    def __init__(self, url: str) -> None:
        self._objects = Objects(url)
        self.location: Location = self._objects.location
        self.partition_bytes_max = _KEY_BYTES_MAX - len(url.encode()) - FINAL_BYTES_MAX

    def stage(self, names: Sequence[str]) -> ObjectStage:
        return ObjectStage(self._objects, names)

    def ledger(self, stage: ObjectStage, name: str, published: Published) -> AnyLedger:
        return ObjectLedger(stage, name, published)

    def ledgers(self, stage: ObjectStage) -> list[Entry]:
        return object_ledgers(stage)

    def file(self, stage: ObjectStage, name: str) -> StagedFile:
        return stage.created(name)

    def store(self, stage: ObjectStage, file: Any) -> int:
        return int(file.store())

    @contextmanager
    def target(self) -> Iterator[Target]:
        yield _ObjectTarget(self._objects)


class _ObjectTarget(Target):
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def visible(self, final: str) -> os.stat_result | None:
        return looked_at(self._objects, final)

    def publish(self, stage: ObjectStage, staged: str, final: str) -> None:
        stage.publish(staged, self._objects, final)

    def settle(self) -> None:
        """What is visible is durable."""
