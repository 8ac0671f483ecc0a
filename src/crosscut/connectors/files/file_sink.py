"""What all sinks have in common that write files into a directory of a shared file system."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.files.committed_output import committed_output
from crosscut.connectors.files.file_encoders import SUFFIXES, Compression, FileEncoder, Packed
from crosscut.connectors.files.local_paths import is_remote, local_path
from crosscut.connectors.files.object_stage import check_objects, object_url
from crosscut.connectors.files.partitions import ONE_FILE, Divider, Layout, undivided
from crosscut.connectors.files.stage import check_directory
from crosscut.connectors.files.staged_files import StagedFiles
from crosscut.connectors.files.zstd import compressor
from crosscut.contracts.connectors import CommittedOutput, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.urls import shown_url


@dataclass(frozen=True, slots=True)
class FileSink(Sink):
    """One file a task and checkpoint, or as many as `layout` says.

    Attributes:
        directory: Absolute: workers have working directories of their own. Or a URL of an object store.
    """

    directory: str
    compression: Compression | None = None
    layout: Layout = ONE_FILE

    # In all kinds of it, too: the repr of a dataclass would show the credentials of a URL.
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()!r})"

    @property
    @abstractmethod
    def format(self) -> str:
        """What the names of files end with, without the dot and what compression adds."""

    @abstractmethod
    def encoder(self) -> FileEncoder:
        """Make the encoder of one file."""

    def divider(self) -> Divider:
        """Return what divides records by the columns that the layout names."""
        return undivided

    @property
    def encodes_frames(self) -> bool:
        """Whether the encoder takes `FrameRows`."""
        return False

    @property
    def suffix(self) -> str:
        """What the names of files end with, without the dot."""
        return f"{self.format}.{SUFFIXES[self.compression]}" if self.compression else self.format

    def _encoder(self) -> FileEncoder:
        return Packed(self.encoder(), self.compression) if self.compression else self.encoder()

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return StagedFiles(
            self.directory,
            self.suffix,
            self._encoder,
            context,
            self.layout,
            self.divider(),
            takes_frames=self.encodes_frames,
        )

    def check(self) -> None:
        """Raise ConnectorError if `directory` can't be made or written."""
        if is_remote(self.directory):
            check_objects(self.directory)
        else:
            check_directory(self.directory)

    def describe(self) -> str:
        """Return the directory, absolute, without secrets."""
        return shown_url(self.directory)

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what is known of all that was ever committed into `directory`."""
        return committed_output(self.directory, self.suffix)


def sink_directory(directory: str | os.PathLike[str], what: str) -> str:
    """Return the directory of a sink, absolute.

    Raises:
        ConnectorError: It is neither a path nor the URL of an object store.
    """
    if is_remote(directory):
        return object_url(str(directory), what)
    return os.path.abspath(local_path(directory, f"directory of the {what} sink"))


def checked_compression(compression: Any) -> Compression | None:
    """Return `compression` if it is one.

    Raises:
        ConnectorError: It is none, or the library for it is missing.
    """
    match compression:
        case None | "gzip":
            return compression
        case "zstd":
            compressor()
            return "zstd"
        case _:
            raise ConnectorError(f"compression={compression!r}: expected 'gzip', 'zstd' or None")
