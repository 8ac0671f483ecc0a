"""A directory that is watched: files are read when they appear, each once.

The names are dealt out by hash to as many endless splits as there are tasks. Each split looks for files by
itself, and its position holds the names of those that it has begun to read: so nobody has to be asked, and
what has been read is part of each checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.files.input_files import FileSource, InputFile
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.contracts.decoding import DecodingTrial
from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.keys import stable_hash
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.type_variables import Record
from crosscut.foundation.urls import shown_repr

NAMES_MAX = 20_000
"""Of files that one split remembers; they are in each of its positions."""

_FILES_AT_ONCE = 16
"""Looked at together: some formats are opened to find out where their parts are."""

_LOOKING_MS = 5


@checks_options("files.watch")
def watch(source: Source[Record], *, every: Duration = "1s") -> Source[Record]:
    """Return an endless source of the records of all files that `source` finds, now and later.

    Each file is read once. It must be whole when it appears: write it under a hidden name, or elsewhere in
    the same file system, and rename it; objects of a store are whole anyway. It must stay, unchanged, until
    some checkpoints after its last record are complete; then it may be moved or deleted. A file is known by
    its name, one that symbolic links lead to by its own: what comes under a name that has been read is not
    read, and a link to a file that has been read is no new file.

    New files of one look are read by name; between tasks there is no order. Each task remembers 20,000 names,
    of files that are gone only while there is room: move or delete files that have been read.

    Args:
        source: `crosscut.files.read_text`, `read_jsonl`, `read_csv` or `read_parquet`. That there is no file
            yet is no error.
        every: How often to look, when there is nothing to read.

    Raises:
        SettingsError: `source` is no source of files, or `every` no duration above 0.

    Examples:
        >>> import crosscut as cc
        >>> orders = cc.files.watch(cc.files.read_jsonl("in/*.jsonl"), every="500ms")
    """
    if not isinstance(source, FileSource):
        raise SettingsError(
            f"watch({shown_repr(source):.200}): expected a source of files, such as "
            f"crosscut.files.read_jsonl('in/*.jsonl')"
        )
    every_ms = duration_ms(every, "every")
    if every_ms <= 0:
        raise SettingsError(f"watch(every={every!r}): expected a duration above 0, such as '1s'")
    return Watched(source, every_ms)


@dataclass(frozen=True, slots=True)
class Watched(Source[Record]):
    """See `watch`.

    Attributes:
        ends: A split ends when there is nothing new: what is there is all there will be.
    """

    source: FileSource[Record]
    every_ms: float
    ends: bool = False
    names_max: int = NAMES_MAX

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Make one split a task; which files there are does not matter yet."""
        return [
            Split(f"{index} of {parallelism}", {"names": [], "open": []}, {"index": index, "of": parallelism})
            for index in range(parallelism)
        ]

    def reader(self, split: Split, position: JSON) -> SplitReader[Record]:
        """Go on with what is open at `position`, then look for files that it does not name."""
        match split.detail, position:
            case {"index": int(index), "of": int(of)}, {"names": list(names), "open": list(rows)}:
                return _WatchReader(self, (index, of), names, rows)
            case _:
                pass
        raise ConnectorError(
            f"split {split.split_id!r} at position {position!r:.200} is not of a watched directory; is the "
            f"checkpoint of another source?",
            split_id=split.split_id,
        )

    def describe(self) -> str:
        """Return the pattern, absolute."""
        return f"{self.source.describe()}, watched"


class _WatchReader(SplitReader[Record]):
    def __init__(
        self, watched: Watched[Record], share: tuple[int, int], names: list[Any], rows: list[Any]
    ) -> None:
        self._watched = watched
        self._index, self._of = share
        self._names: dict[str, None] = dict.fromkeys(names)
        self._parts = deque((Split(*row[:4]), row[4]) for row in rows)
        self._reader: SplitReader[Record] | None = None
        self._trial: DecodingTrial | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="crosscut-watch")
        self._look: Future[_Look] | None = None
        self._looked_at_s = float("-inf")
        self._has_ended = False

    @property
    def position(self) -> JSON:
        parts: list[Any] = [[one.split_id, one.start, one.detail, one.weight, at] for one, at in self._parts]
        if self._reader is not None:
            parts[0][4] = self._reader.position
        return {"names": list(self._names), "open": parts}

    def read(self, limit: int) -> list[Record] | Wait | EndOfSplit:
        if not self._parts:
            return self._looking()
        if self._reader is None:
            self._reader = self._watched.source.reader(*self._parts[0])
            self._reader.try_decoding(self._trial)
        found = self._reader.read(limit)
        if not isinstance(found, EndOfSplit):
            return found
        reader, self._reader = self._reader, None
        self._parts.popleft()
        reader.close()
        return Wait(0, is_coming=True)

    def try_decoding(self, trial: DecodingTrial | None) -> None:
        self._trial = trial
        if self._reader is not None:
            self._reader.try_decoding(trial)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        self._thread.shutdown(wait=False, cancel_futures=True)
        if reader is not None:
            reader.close()

    def _looking(self) -> Wait | EndOfSplit:
        if self._has_ended:
            return EndOfSplit()
        if self._look is None:
            left_ms = self._watched.every_ms - (time.monotonic() - self._looked_at_s) * 1_000
            if left_ms > 0:
                return Wait(left_ms)
            self._look = self._thread.submit(self._looked, frozenset(self._names))
        if not self._look.done():
            return Wait(_LOOKING_MS, is_coming=True)
        look, self._look = self._look.result(), None
        for one, parts in look.new:
            self._names[one.name] = None
            self._parts.extend((part, part.start) for part in parts)
        self._forget(look.there)
        if not look.has_more:
            self._looked_at_s = time.monotonic()
        self._has_ended = self._watched.ends and not look.new
        return EndOfSplit() if self._has_ended else Wait(0, is_coming=True)

    def _looked(self, known: frozenset[str]) -> _Look:
        """Find new files. Runs in the thread."""
        source = self._watched.source
        found = source.files.found(may_be_none=True)
        new = [
            one for one in found if one.name not in known and stable_hash(one.name) % self._of == self._index
        ]
        parts = [(one, list(source.parts(one))) for one in new[:_FILES_AT_ONCE]]
        return _Look(frozenset(one.name for one in found), parts, len(new) > len(parts))

    def _forget(self, there: frozenset[str]) -> None:
        """Forget files that are gone, the oldest first, where there is no room for more."""
        surplus = len(self._names) - self._watched.names_max
        if surplus <= 0:
            return
        gone = [name for name in self._names if name not in there]
        if len(gone) < surplus:
            raise ConnectorError(
                f"{self._watched.source.describe()}: task {self._index} would have to remember "
                f"{len(self._names)} files that are there, at most {self._watched.names_max}: move or delete "
                f"those that have been read"
            )
        for name in gone[:surplus]:
            del self._names[name]


@dataclass(frozen=True, slots=True)
class _Look:
    """What there was.

    Attributes:
        there: The names of all files.
        new: Some of those that are to be read, with their parts.
        has_more: There are others.
    """

    there: frozenset[str]
    new: list[tuple[InputFile, list[Split]]]
    has_more: bool
