"""Text files, a line for each record, as a sink with a two-phase commit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.files.file_encoders import Compression, FileEncoder, Plain
from crosscut.connectors.files.file_sink import FileSink, checked_compression, sink_directory
from crosscut.connectors.files.partitions import PARTITIONS_MAX, layout_of
from crosscut.contracts.connectors import Sink
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options


@checks_options("files.write_text")
def write_text(
    directory: str | os.PathLike[str],
    *,
    compression: Compression | None = None,
    roll_bytes: int | None = None,
) -> Sink[str]:
    r"""Return a sink that writes records, which are text, as lines of files in `directory`, exactly once.

    Files come to be as those of `crosscut.files.write_jsonl` do. They are UTF-8; a line ends with "\n".

    Args:
        directory: See `crosscut.files.write_jsonl`.
        compression: "gzip" (files are called `*.txt.gz`) or "zstd" (`*.txt.zst`; needs `crosscut[zstd]`).
        roll_bytes: See `crosscut.files.write_jsonl`.

    Raises:
        ConnectorError: An argument is not as described. Later, in the job: a record is no str, or holds
            a line end, so that it would come back as two.

    Examples:
        >>> import crosscut as cc
        >>> sink = cc.files.write_text("out", compression="gzip")
    """
    return TextFiles(
        sink_directory(directory, "text"),
        checked_compression(compression),
        layout_of((), PARTITIONS_MAX, roll_bytes),
    )


@dataclass(frozen=True, slots=True, repr=False)
class TextFiles(FileSink):
    """See `text`."""

    @property
    def format(self) -> str:
        return "txt"

    def encoder(self) -> FileEncoder:
        return Plain(self._encoded)

    def _encoded(self, records: list[Any]) -> bytes:
        for record in records:
            if not isinstance(record, str) or "\n" in record or record.endswith("\r"):
                raise ConnectorError(
                    f"record {shortened(record)} is not a line for text files in {self.describe()}: "
                    f"expected a "
                    f"str without a line end; map it to one before the sink",
                    is_permanent=True,
                )
        try:
            return ("\n".join(records) + "\n").encode()
        except UnicodeEncodeError as error:
            raise ConnectorError(
                f"text files in {self.describe()}: a record is not valid Unicode: {error}", is_permanent=True
            ) from error
