"""A TCP proxy that cuts connections at any byte: what a network does to a job and the servers it talks to.

with TcpProxy("127.0.0.1", server_port) as proxy:
    connect(proxy.host, proxy.port)
    proxy.cut_after(1_000)                   # wherever that is
    proxy.cut_when(lambda way, data, connection: 0 if b"COMMIT" in data else None)
    proxy.cut_when(Storm(seed=1), again=True)    # every fourth connection, anywhere
    proxy.refuse()                           # nobody gets through, until `allow`
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

Way = Literal["to server", "to client"]

Judge = Callable[[Way, bytes, int], int | None]
"""Gets each piece of data before it is passed on, and the number of its client's connection. Returns how many
bytes are passed on before the cut; None: all of them, and there is none."""

_PIECE_BYTES = 65_536
_START_TIMEOUT_S = 30.0

_STALL_S = 0.05
"""Between two bytes of a server that is slow: well within any time-out of a single read."""


class Storm:
    """Says that connections are cut again and again, each at a random byte, if it lives for so long.

    Args:
        share: Of the connections.
        bytes_max: Before the cut. A request of S3 has some 800 bytes before its content, an answer 300.
    """

    def __init__(self, seed: int, share: float = 0.25, bytes_max: int = 1_200) -> None:
        self._choices = random.Random(seed)
        self._share = share
        self._bytes_max = bytes_max
        self._cuts: dict[int, tuple[Way, int] | None] = {}
        self._passed: Counter[int] = Counter()

    def __call__(self, way: Way, data: bytes, connection: int) -> int | None:
        """Judge a piece of data, as a `Judge` does."""
        if connection not in self._cuts:
            choices = self._choices
            ways: tuple[Way, Way] = ("to server", "to client")
            place = choices.choice(ways), choices.randrange(self._bytes_max)
            self._cuts[connection] = place if choices.random() < self._share else None
        match self._cuts[connection]:
            case (cut_way, at) if cut_way == way:
                left = at - self._passed[connection]
                self._passed[connection] += len(data)
                return left if left < len(data) else None
            case _:
                return None


class TcpProxy:
    """Passes bytes on between clients and one server, on loopback, in a thread of its own.

    A cut resets both connections of a client: what had not been passed on is lost, and neither side is told
    how much the other one has got. New connections are taken as before.

    Args:
        server_host: Where the server is; it need not run yet.
        server_port: Likewise.
        port: Where to listen; 0: anywhere.

    Attributes:
        cuts: How many connections have been cut.
    """

    host = "127.0.0.1"

    def __init__(self, server_host: str, server_port: int, port: int = 0) -> None:
        self._server = (server_host, server_port)
        self._asked_port = port
        self.port = port
        self.cuts = 0
        self._count = 0
        self._refuses = False
        self._stalls = ""
        self._judge: Judge | None = None
        self._cuts_again = False
        self._pairs: set[_Pair] = set()
        self._loop = asyncio.new_event_loop()
        self._is_listening = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="crosscut-proxy", daemon=True)

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        if not self._is_listening.wait(_START_TIMEOUT_S):
            raise TimeoutError("the proxy does not listen")
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(_START_TIMEOUT_S)

    @property
    def address(self) -> str:
        """Where clients connect to, as "host:port"."""
        return f"{self.host}:{self.port}"

    def cut(self) -> None:
        """Cut all connections, now."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def cut_after(self, count: int, way: Way | None = None) -> None:
        """Cut once, when so many more bytes have been passed on: one way, or both ways together."""
        left = count

        def judge(found: Way, data: bytes, connection: int) -> int | None:
            nonlocal left
            if way is not None and found != way:
                return None
            passed, left = left, left - len(data)
            return max(passed, 0) if left < 0 else None

        self.cut_when(judge)

    def cut_when(self, judge: Judge, *, again: bool = False) -> None:
        """Cut once, in the first piece of data of which `judge` says so; it replaces the one before.

        It is called in the proxy's thread, and gets pieces as the network has made them: most messages of a
        protocol that waits for answers begin with a piece.

        Args:
            again: Not once but each time that it says so.
        """
        self._judge, self._cuts_again = judge, again

    @property
    def is_armed(self) -> bool:
        """Whether a cut was asked for that has not happened."""
        return self._judge is not None

    def refuse(self) -> None:
        """Cut all connections, and let nobody through until `allow`."""
        self._refuses = True
        self.cut()

    def allow(self) -> None:
        """Let connections through again."""
        self._refuses = False

    def stall(self, *, slow: bool) -> None:
        """Let nothing of the server through, or, if `slow`, a byte now and then, until `flow`.

        Connections stay, and new ones are taken: nobody is told that anything is wrong.
        """
        self._stalls = "slow" if slow else "silent"

    def flow(self) -> None:
        """Let everything through again, what was held back first."""
        self._stalls = ""

    # In the thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(
                asyncio.start_server(self._connected, self.host, self._asked_port, limit=_PIECE_BYTES)
            )
        except OSError as error:
            self._error = error
            self._is_listening.set()
            self._loop.close()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._is_listening.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            self._cut_all()
            waiting = asyncio.all_tasks(self._loop)
            for task in waiting:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
            self._loop.close()

    def _stop(self) -> None:
        self._loop.stop()

    def _cut_all(self) -> None:
        for pair in tuple(self._pairs):
            self._cut(pair)

    def _cut(self, pair: _Pair) -> None:
        if pair in self._pairs:
            self._pairs.discard(pair)
            self.cuts += 1
            pair.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_connection(*self._server, limit=_PIECE_BYTES)
        except OSError:
            writer.transport.abort()
            return
        self._count += 1
        pair = _Pair(self._count, writer, to_server)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pass_on(pair, "to server", reader, to_server),
                self._pass_on(pair, "to client", from_server, writer),
            )
        except (OSError, asyncio.CancelledError):
            # One side has gone, and so does the other; or the proxy ends, which asyncio would log.
            pass
        finally:
            self._pairs.discard(pair)
            pair.abort()

    async def _pass_on(
        self, pair: _Pair, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(_PIECE_BYTES):
            if self._stalls and way == "to client":
                data = await self._held_back(data, writer)
            passed = self._judge(way, data, pair.number) if self._judge is not None else None
            if passed is not None:
                if not self._cuts_again:
                    self._judge = None
                writer.write(data[:passed])
                with suppress(OSError):
                    await writer.drain()
                self._cut(pair)
                return
            writer.write(data)
            await writer.drain()
        # The end of what one side says is passed on, too.
        with suppress(OSError):
            writer.write_eof()

    async def _held_back(self, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """Wait while the server is to be silent, or slow; return what is left to be passed on."""
        while self._stalls:
            await asyncio.sleep(_STALL_S)
            if self._stalls == "slow" and len(data) > 1:
                writer.write(data[:1])
                data = data[1:]
        return data


class _Pair:
    """The two connections of one client."""

    def __init__(self, number: int, *writers: asyncio.StreamWriter) -> None:
        self.number = number
        self._writers = writers

    def abort(self) -> None:
        for one in self._writers:
            one.transport.abort()
