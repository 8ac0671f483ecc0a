"""Lines of text files as a source."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass

from crosscut.connectors.files.input_files import (
    FileSource,
    InputFile,
    InputFiles,
    input_pattern,
    unreadable,
)
from crosscut.connectors.files.malformed import TEXT_MAX
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.suggestions import checks_options

_CHUNK_BYTES = 256 * 1024
_SPLIT_BYTES = 64 * 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
_ENDLESS = 1 << 62
_REMOTE_WAIT_MS = 2


@checks_options("files.read_text")
def read_text(
    pattern: str | os.PathLike[str],
    errors: str = "strict",
    encoding: str = "utf-8",
    *,
    line_bytes_max: int = LINE_BYTES_MAX,
) -> Source[str]:
    r"""Return a source of the lines of all files that match `pattern`, without their line endings.

    A line ends with "\n" or "\r\n" and with nothing else; a last line needs no ending. Files are found
    when the job starts with no checkpoint; hidden ones are not looked at. They must not change while
    they are read: what is appended later is not read. Each file is a split; one above 64 MiB is
    several, so order is kept within a file only below that size.

    Args:
        pattern: A path, or file:///path, with `*`, `?`, `[...]`, and `**` for any number of
            directories; relative to the working directory of this process. A file that several links lead
            to is read once. All workers must see the files under the same path. Or a URL of a file system
            that fsspec knows, such as s3://. Files called *.gz, *.bz2, *.xz or *.zst are unpacked; each is
            one split, and going on in the middle of one means unpacking it up to there.
        errors: What to do with bytes that `encoding` does not allow: "strict" (the job fails),
            "replace", "ignore", or any other error handler of Python's codecs.
        encoding: One in which a newline is the byte 10: UTF-8 ("utf-8-sig" drops a byte order mark),
            ASCII, Latin-1, Shift JIS, GB 18030 and most others, but not UTF-16 or UTF-32.
        line_bytes_max: A longer line fails the job; it bounds the memory of a reader.

    Raises:
        SettingsError: `errors`, `encoding` or `line_bytes_max` can't be used.
        ConnectorError: `pattern` is not a path or is on a remote file system.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.files.read_text("corpus/**/*.txt", errors="replace")
    """
    checked_bytes_max(line_bytes_max, "read_text(line_bytes_max=")
    try:
        codecs.lookup_error(errors)
    except (LookupError, TypeError) as error:
        raise SettingsError(
            f"read_text(errors={errors!r}): expected 'strict', 'replace', 'ignore' or another error handler "
            f"of Python's codecs"
        ) from error
    checked_encoding(encoding, "lines")
    return Lines(
        input_pattern(pattern, "pattern of the lines source"), os.getcwd(), errors, encoding, line_bytes_max
    )


def checked_bytes_max(found: object, what: str) -> None:
    """Raise SettingsError unless `found` is a number of bytes; `what` is how the error begins."""
    if type(found) is not int or found < 1:
        raise SettingsError(f"{what}{found!r}): expected a number of bytes, at least 1")


def checked_encoding(encoding: str, what: str) -> None:
    """Raise SettingsError unless `encoding` is one in which a newline is the byte 10."""
    try:
        newline = b"\n".decode(encoding)
    except (LookupError, UnicodeError, TypeError) as error:
        raise SettingsError(
            f"{what}(encoding={encoding!r}): expected an encoding that Python knows and in which a newline "
            f"is one byte, such as 'utf-8'"
        ) from error
    if newline != "\n":
        raise SettingsError(
            f"{what}(encoding={encoding!r}): its newline is not the byte 10; convert the files"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Lines(FileSource[str]):
    """See `read_text`. A position is a byte offset in the file; the source starts looking in `directory`."""

    pattern: str
    directory: str
    errors: str = "strict"
    encoding: str = "utf-8"
    line_bytes_max: int = LINE_BYTES_MAX
    split_bytes: int = _SPLIT_BYTES
    chunk_bytes: int = _CHUNK_BYTES

    @property
    def files(self) -> InputFiles:
        """Where they are."""
        return InputFiles(self.pattern, self.directory)

    def reader(self, split: Split, position: JSON) -> LinesReader:
        """Open the file at byte `position`.

        Raises:
            ConnectorError: It can't be opened, or is shorter than `position`.
        """
        match split.detail, position:
            case {"path": str(path), "end": int() | None as end}, int(offset) if offset >= 0:
                return LinesReader(self, path, offset, end)
        raise ConnectorError(
            f"split {split} at position {position!r} is not of a lines source; is the checkpoint of another "
            f"source?",
            split_id=split.split_id,
        )

    def parts(self, one: InputFile) -> Iterator[Split]:
        """Yield byte ranges of about `split_bytes`.

        A line belongs to the range that its first byte is in, and is read whole.
        """
        size = one.size_bytes
        if one.is_packed:
            yield Split(one.name, 0, {"path": one.path, "end": None}, weight=max(1, size))
            return
        count = max(1, -(-size // self.split_bytes))
        for index in range(count):
            start, end = index * size // count, (index + 1) * size // count
            split_id = one.name if count == 1 else f"{one.name}@{start}"
            yield Split(split_id, start, {"path": one.path, "end": end}, weight=max(1, end - start))


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line that is longer than allowed.

    Attributes:
        text: How it begins.
    """

    text: str
    error: ConnectorError


class LinesReader(SplitReader[str]):
    """Reads blocks, hands out the whole lines of one block (a chunk) at a time.

    The decoded lines and the bytes they come from are both kept, so that a position in the middle of a
    chunk costs nothing until somebody asks for it.
    """

    def __init__(self, source: Lines, path: str, position: int, end: int | None) -> None:
        self._source = source
        self._path = path
        self._is_end_known = end is not None
        self._end = end if end is not None else _ENDLESS
        self._block_bytes = min(source.chunk_bytes, source.line_bytes_max)
        self._is_sig = codecs.lookup(source.encoding).name == "utf-8-sig"
        self._chunk = b""
        self._chunk_start = position
        self._lines: list[str] = []
        self._next = 0
        self._rest = b""
        self._rest_next = 0
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._pushed_back = b""
        self._long: LongLine | None = None
        # The first line starts after the first newline at or after the byte before `position`. After
        # every position that was reported this is `position` itself, so ranges need no rule of their own.
        self._aligned = position == 0
        self._offset = max(0, position - 1)
        self._file = source.files.opened(path)
        try:
            size = self._file.size()
            if size is not None and size < position:
                raise self._shrank(size, position)
            self._file.seek(self._offset)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise unreadable(path, error) from error
            raise

    @property
    def path(self) -> str:
        """Of the file."""
        return self._path

    @property
    def position(self) -> JSON:
        """Where the next line starts, found by splitting off what was read since somebody last asked."""
        return self._chunk_start + self._chunk_bytes_read()

    def _chunk_bytes_read(self) -> int:
        if self._next == len(self._lines):
            return len(self._chunk)
        rest = self._rest.split(b"\n", self._next - self._rest_next)[-1]
        self._rest, self._rest_next = rest, self._next
        return len(self._chunk) - len(rest)

    def start_of_last(self, count: int) -> int:
        """Return where the last `count` lines that were read start; all of them are of one `read`."""
        end = self._chunk_bytes_read()
        for _ in range(count):
            end = self._chunk.rfind(b"\n", 0, max(0, end - 1)) + 1
        return self._chunk_start + end

    def read(self, limit: int) -> list[str] | Wait | EndOfSplit:
        found = self.read_on(limit, skips=False)
        assert not isinstance(found, LongLine)
        return found

    def read_on(self, limit: int, *, skips: bool) -> list[str] | Wait | EndOfSplit | LongLine:
        """Do as `read`; return a line that is too long, once it has ended, if it `skips` such lines."""
        if self._next == len(self._lines):
            outcome = self._fill(skips=skips) if self._long is None else self._fill_behind(self._long)
            if outcome is not None:
                return outcome
        batch = self._lines[self._next : self._next + limit]
        self._next += len(batch)
        return batch

    def close(self) -> None:
        self._file.close()

    def _fill_behind(self, line: LongLine) -> Wait | LongLine:
        """Read one block of a line that is left out; return it if it ends there."""
        block = self._file.read(self._block_bytes)
        if block is None:
            return Wait(_REMOTE_WAIT_MS, is_coming=True)
        cut = block.find(b"\n") + 1
        self._offset += len(block)
        if block and not cut:
            return Wait(0, is_coming=True)
        return self._left_out(line, block[cut:])

    def _left_out(self, line: LongLine, rest: bytes) -> LongLine:
        self._pushed_back = rest
        self._offset -= len(rest)
        self._lines, self._next, self._rest_next = [], 0, 0
        self._chunk = self._rest = b""
        self._chunk_start = self._offset
        self._tail, self._tail_bytes, self._long = [], 0, None
        return line

    def _fill(self, *, skips: bool) -> Wait | EndOfSplit | LongLine | None:
        """Read one block and make its whole lines the chunk; None if there are any.

        Nothing changes for `position` if it raises.
        """
        line_start = self._chunk_start + len(self._chunk)
        if self._aligned and line_start >= self._end:
            return EndOfSplit()
        block = self._pushed_back or self._file.read(self._block_bytes)
        if block is None:
            return Wait(_REMOTE_WAIT_MS, is_coming=True)
        self._pushed_back = b""
        block_start = self._offset
        self._offset += len(block)
        if not block:
            if self._is_end_known and self._offset < self._end:
                raise self._shrank(self._offset, self._end)
            if not self._aligned or not (self._tail_bytes or self._is_end_known):
                return EndOfSplit()
            self._hand_out(b"".join(self._tail), line_start)
            return None
        if not self._aligned:
            newline = block.find(b"\n")
            if newline < 0:
                return Wait(0, is_coming=True)
            block = block[newline + 1 :]
            block_start += newline + 1
            line_start = self._chunk_start = block_start
            self._aligned = True
            if line_start >= self._end:
                return EndOfSplit()
        cut = block.rfind(b"\n") + 1
        if self._offset >= self._end:
            # The last line of this range is the one that is open at its last byte.
            cut = block.find(b"\n", max(0, self._end - 1 - block_start)) + 1 or cut
        head_bytes = block.find(b"\n") if cut else len(block)
        if self._tail_bytes + head_bytes > self._source.line_bytes_max:
            error = ConnectorError(
                f"{self._path}: the line at byte {line_start} is longer than "
                f"{self._source.line_bytes_max} bytes; if it is a text file, raise line_bytes_max",
                path=self._path,
                offset=line_start,
                is_permanent=True,
            )
            if not skips:
                raise error
            head = b"".join((*self._tail[:1], block[:TEXT_MAX]))[:TEXT_MAX]
            line = LongLine(head.decode(self._source.encoding, "replace"), error)
            if cut:
                return self._left_out(line, block[head_bytes + 1 :])
            self._tail, self._tail_bytes, self._long = [], 0, line
            return Wait(0, is_coming=True)
        if not cut:
            self._tail.append(block)
            self._tail_bytes += len(block)
            return Wait(0, is_coming=True)
        self._hand_out(b"".join((*self._tail, block[:cut])), line_start, block[cut:])
        return None

    def _hand_out(self, chunk: bytes, start: int, tail: bytes = b"") -> None:
        self._lines = self._decoded(chunk, start)
        self._next = self._rest_next = 0
        self._chunk = self._rest = chunk
        self._chunk_start = start
        self._tail = [tail] if tail else []
        self._tail_bytes = len(tail)

    def _decoded(self, chunk: bytes, start: int) -> list[str]:
        """Return the lines of `chunk`, which are whole. Not str.splitlines: it knows more line ends."""
        # A byte order mark is one at the start of the file only; elsewhere it is text.
        encoding = "utf-8" if self._is_sig and start > 0 else self._source.encoding
        errors = self._source.errors
        try:
            text = chunk.decode(encoding, errors)
            if "\r" in text:
                text = text.replace("\r\n", "\n")
            found = text.split("\n")
            if len(found) != chunk.count(b"\n") + 1:
                # An error handler, or a code for a newline, changed the number of lines.
                found = [line.removesuffix(b"\r").decode(encoding, errors) for line in chunk.split(b"\n")]
        except UnicodeDecodeError as error:
            offset = start + len(chunk) - len(error.object) + error.start
            raise ConnectorError(
                f"{self._path}: byte {offset} (0x{error.object[error.start]:02x}) is not {encoding}: "
                f"{error.reason}; give read_text() the right encoding=, or errors='replace' or 'ignore'",
                path=self._path,
                offset=offset,
                is_permanent=True,
            ) from error
        if chunk.endswith(b"\n"):
            found.pop()
        return found

    def _shrank(self, size: int, expected: int) -> ConnectorError:
        return ConnectorError(
            f"{self._path} has {size} bytes, expected at least {expected}: it was cut or replaced while the "
            f"job was reading it; restore the file",
            path=self._path,
            offset=expected,
        )
