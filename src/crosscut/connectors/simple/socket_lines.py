"""Lines that come over a connection or from a terminal, and can't be read again: for trying things out."""

from __future__ import annotations

import asyncio
import socket as sockets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from crosscut.connectors.ahead import ReaderAhead
from crosscut.contracts.connectors import JSON, Source, Split, SplitReader
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.urls import shown_repr

LINE_BYTES_MAX = 1024 * 1024
PATIENCE_S = 30.0
"""For somebody to listen at the address."""

_RETRY_S = 0.1


@checks_options("socket")
def socket(address: str) -> Source[str]:
    """Return a source of the lines that somebody sends who listens at an address, such as `nc -lk 9999`.

    For trying things out: what was sent is gone. After a failure the source connects again and reads on, and
    lines since the last checkpoint are lost; `flow.explain()` says so. It ends when the sender closes the
    connection. One task connects.

    Args:
        address: "host:port".

    Raises:
        ConnectorError: It is none. Later: the connection is refused, or a line is longer than 1 MiB.

    Examples:
        >>> import crosscut as cc
        >>> lines = cc.socket("localhost:9999")
    """
    host, separator, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not separator or "@" in host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConnectorError(f"address={shown_repr(address)}: expected 'host:port', such as 'localhost:9999'")
    return SocketLines(address)


@checks_options("stdin")
def stdin() -> Source[str]:
    """Return a source of the lines of the program's standard input.

    For trying things out, with a local Spark only: workers read from the program, which must go on living.
    After a failure lines since the last checkpoint are lost; `flow.explain()` says so. It ends with the
    input. A job can't be resumed with it.

    Examples:
        >>> import crosscut as cc
        >>> lines = cc.stdin()
    """
    return StandardInput()


class _Lines(Source[str]):
    """Lines of one connection. A position is how many have been read, and is good for nothing but looking."""

    @property
    def is_replayable(self) -> bool:
        """No: see `socket`."""
        return False

    def reader(self, split: Split, position: JSON) -> SplitReader[str]:
        """Connect; lines that were sent before are gone."""
        match split.detail, position:
            case str(address), int(count):
                return _LineReader(address, count)
            case _:
                raise ConnectorError(
                    f"split {split.split_id!r} is not of a connection; is the checkpoint of another source?",
                    split_id=split.split_id,
                )


@dataclass(frozen=True)
class SocketLines(_Lines):
    """See `socket`."""

    address: str

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Return the only split, without a connection."""
        return [Split(self.address, 0, self.address)]

    def describe(self) -> str:
        """Return the address."""
        return f"lines from {self.address}"


class StandardInput(_Lines):
    """See `stdin`."""

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Listen for the worker, in a directory that other users may not enter."""
        path = Path(tempfile.mkdtemp(prefix="crosscut-stdin-")) / "lines"
        listening = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        listening.bind(str(path))
        listening.listen(1)
        # It may wait in readline for ever; so it must not keep the program from its end.
        Thread(target=_hand_on, args=(listening, path), name="crosscut-stdin", daemon=True).start()
        return [Split("stdin", 0, f"unix:{path}")]

    def describe(self) -> str:
        """Say what it is."""
        return "lines from the standard input"


def _hand_on(listening: sockets.socket, path: Path) -> None:
    """Send lines to one client after another, until the input ends."""
    lines = sys.stdin.buffer
    try:
        while True:
            connection, _ = listening.accept()
            with connection:
                try:
                    for line in lines:
                        connection.sendall(line)
                except OSError:
                    # The worker is gone; another one will connect.
                    continue
                break
    finally:
        listening.close()
        path.unlink(missing_ok=True)
        path.parent.rmdir()


class _LineReader(ReaderAhead[str]):
    def __init__(self, address: str, count: int) -> None:
        super().__init__(count)
        self._address = address
        self._count = count

    async def fill(self) -> None:
        reader, writer = await self._connected()
        try:
            while line := await self._line(reader):
                self._count += 1
                text = line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
                await self.put(text, self._count, len(line))
        finally:
            writer.close()

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readline()
        except ValueError:
            raise ConnectorError(
                f"{self._address}: a line is longer than {LINE_BYTES_MAX} bytes: is the data line-oriented?"
            ) from None
        except OSError as error:
            raise ConnectorError(f"{self._address}: the connection was lost: {error}") from error

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._address.startswith("unix:"):
                    path = self._address.removeprefix("unix:")
                    return await asyncio.open_unix_connection(path, limit=LINE_BYTES_MAX)
                host, _, port = self._address.rpartition(":")
                return await asyncio.open_connection(host.strip("[]"), int(port), limit=LINE_BYTES_MAX)
            except OSError as error:
                if time.monotonic() > deadline_s:
                    raise ConnectorError(
                        f"{self._address}: no connection within {PATIENCE_S:g} s: {error}"
                    ) from error
                await asyncio.sleep(_RETRY_S)
