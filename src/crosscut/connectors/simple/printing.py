"""A sink for looking: each worker prints what has been committed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.contracts.connectors import JSON, CommitPermit, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.text import escaped


@checks_options("printing")
def printing(label: str = "") -> Sink[object]:
    """Return a sink that prints each record on a line of its own, when its checkpoint is complete.

    The workers print on their standard output: with a local Spark that is the standard error of the
    program, on a cluster the log of the executor. A record that is printed is committed, and none is left
    out; but a printed line can't be taken back or looked up, so after a failure the lines of the
    last checkpoint may come again. Until then records are held in the snapshots: for looking at a few of
    them, not for output that counts.

    Args:
        label: In front of each line, with a colon: which sink it is. Control characters in a record are
            written out, as `\\x1b`: a terminal would obey them.

    Raises:
        SettingsError: `label` is not a single line of text.

    Examples:
        >>> import crosscut as cc
        >>> flow = cc.Flow("look")
        >>> _ = flow.source(cc.items([1, 2, 3])).sink(cc.printing("numbers"))
    """
    if not isinstance(label, str) or len(label.splitlines()) > 1:
        raise SettingsError(f"printing(label={label!r}): expected a single line of text")
    return Printing(f"{label}: " if label else "")


@dataclass(frozen=True, slots=True)
class Printing(Sink[object]):
    """See `printing`."""

    prefix: str

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return _Printer(self.prefix, context)


class _Printer(SinkWriter):
    """Holds lines in the snapshot and prints them at the commit."""

    def __init__(self, prefix: str, context: SinkContext) -> None:
        self._prefix = prefix
        self._held = context.held
        self._lines: list[str] = []
        self._printed = CheckpointId(0)

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._print(handles)

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """Nothing is staged but what the snapshot holds, so attempts don't see each other."""

    def write(self, records: list[Any]) -> None:
        try:
            self._lines += [f"{self._prefix}{record}\n" for record in records]
        except Exception as error:
            raise ConnectorError(
                f"a record can't be printed: its __str__ raised {type(error).__name__}: {error}"
            ) from error

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        lines, self._lines = self._lines, []
        # The reader of these lines may have a terminal.
        return (checkpoint_id, escaped("".join(lines))) if lines else None

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, text = transaction
        self._held.keep(checkpoint_id, text.encode("utf-8", "backslashreplace"))
        return int(checkpoint_id)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._print(handles)

    def _print(self, handles: Sequence[JSON]) -> None:
        for handle in handles:
            if not isinstance(handle, int):
                raise ConnectorError(f"{handle!r:.80} is not a transaction of a printing sink")
            if handle <= self._printed:
                continue
            text = self._held.data(CheckpointId(handle)).decode()
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except OSError as error:
                raise ConnectorError(f"records could not be printed: {error}") from error
            self._printed = CheckpointId(handle)
