"""The directory of a file sink where files are published, and those below it that divide its output."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crosscut.connectors.files.stage import Stage, directory_at, looked_at, opened_below

_ATTEMPTS = 64


@contextmanager
def local_target(directory: Path) -> Iterator[LocalTarget]:
    """Open the directory of a sink, wherever a link leads."""
    with directory_at(directory) as descriptor:
        target = LocalTarget(directory, descriptor)
        try:
            yield target
        finally:
            target.close()


class LocalTarget:
    """The open directory of a sink. No symbolic link below it is followed.

    Readers that take files away may remove directories below it, too, at any moment.
    """

    def __init__(self, directory: Path, descriptor: int) -> None:
        self._directory = directory
        self._descriptor = descriptor
        self._below: dict[str, int] = {}

    def visible(self, final: str) -> os.stat_result | None:
        """Return what has that path, a symbolic link itself if it is one; None if nothing has."""
        partition, _, name = final.rpartition("/")
        try:
            return looked_at(name, self._folder(partition, create=False))
        except FileNotFoundError:
            return None

    def publish(self, stage: Stage, staged: str, final: str) -> None:
        """Move a staged file to its final path: visible and not staged, in one step.

        Raises:
            FileNotFoundError: It is not staged any more.
        """
        partition, _, name = final.rpartition("/")
        for _ in range(_ATTEMPTS):
            try:
                return stage.publish(staged, self._folder(partition, create=True), name)
            except FileNotFoundError:
                if not partition or stage.look(staged) is None:
                    raise
                self._forget(partition)
        raise OSError(errno.EBUSY, "directory was removed repeatedly", partition)

    def settle(self) -> None:
        """Make durable which names are in the directories that were opened, and in those above them."""
        for partition, descriptor in sorted(self._below.items(), reverse=True):
            os.fsync(descriptor)
            above = partition.rpartition("/")[0]
            while above and above not in self._below:
                # Removed meanwhile: then what was in it is gone, too.
                with suppress(FileNotFoundError):
                    self._folder_synced(above)
                above = above.rpartition("/")[0]
        os.fsync(self._descriptor)

    def _folder_synced(self, partition: str) -> None:
        descriptor = opened_below(self._directory, partition.split("/"), create=False)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _folder(self, partition: str, *, create: bool) -> int:
        if not partition:
            return self._descriptor
        if partition not in self._below:
            names = partition.split("/")
            self._below[partition] = opened_below(self._directory, names, create=create)
        return self._below[partition]

    def _forget(self, partition: str) -> None:
        if partition in self._below:
            os.close(self._below.pop(partition))

    def close(self) -> None:
        """Close the directories below it."""
        for partition in list(self._below):
            self._forget(partition)
