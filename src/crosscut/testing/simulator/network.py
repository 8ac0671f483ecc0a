"""A virtual network: streams of bytes between processes; slow, cut anywhere, clogged, half-open, reset.

Written bytes are the kernel's at once, and survive the process unless they are lost with it. Each direction
of a connection is FIFO and has its own speed. Bytes that have arrived are read in one piece or, by chance, in
two.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from crosscut.testing.simulator.clock import Action, Clock
from crosscut.testing.simulator.processes import Process

Address = tuple[str, int]
FIRST_PORT = 40_000


class FaultProfile(Protocol):
    """Chance in a network."""

    def latency_us(self) -> int:
        """Return how long a piece is on its way."""

    def cut(self, size: int) -> int:
        """Return how many of `size` bytes that have arrived are read at once: at least one."""

    def coin(self) -> bool:
        """Return one or the other."""


class Tap(Protocol):
    """Sees all bytes that pass an end of a connection, in order."""

    def wrote(self, end: VirtualTransport, data: bytes) -> None:
        """`end` has written `data`."""

    def read(self, end: VirtualTransport, data: bytes) -> None:
        """`end` is about to read `data`."""


class Line:
    """The way from one host to another: whatever connections there are go along it.

    Attributes:
        is_clogged: It carries nothing for now.
    """

    def __init__(self) -> None:
        self.is_clogged = False
        self._waiting: deque[Action] = deque()

    def carry(self, action: Action) -> None:
        """Do `action`, after everything that must wait."""
        if self.is_clogged:
            self._waiting.append(action)
        else:
            action()

    def clog(self) -> None:
        """Carry nothing for now."""
        self.is_clogged = True

    def unclog(self) -> None:
        """Carry again, first the bytes that had to wait: TCP has kept them and sends them again."""
        self.is_clogged = False
        waiting, self._waiting = self._waiting, deque()
        for action in waiting:
            action()


class Stream:
    """One direction of a connection: bytes, then at most one end."""

    def __init__(self, network: Network, line: Line) -> None:
        self._clock = network.clock
        self._fault_profile = network.fault_profile
        self._line = line
        self._free_us = 0
        self._is_ended = False
        self._is_lost = self._is_cut = False
        self.target: VirtualTransport | None = None
        self.source: VirtualTransport | None = None
        self.slow_us = 0
        self.is_silent = False
        """Half-open: bytes are sent and never seen, and nobody is told."""

    def send(self, data: bytes) -> None:
        """Send, after everything that was sent before."""
        if not self._is_ended and not self.is_silent:
            received = partial(self._received, data)
            if self._line.is_clogged:
                self._line.carry(partial(self._arrive, received))
            else:
                self._arrive(received)

    def end(self, error: OSError | None, *, loses: bool) -> None:
        """Send the end, a reset if there is an `error`; `loses`: bytes on their way never arrive."""
        if self._is_ended:
            return
        self._is_ended = True
        self._is_lost = loses
        if not self.is_silent:
            self._line.carry(lambda: self._arrive(lambda: self._ended(error)))

    def break_silence(self) -> None:
        """The operating system has noticed that the other end is gone."""
        if self.is_silent:
            # Whatever has ended it meanwhile was lost as well.
            self.is_silent = self._is_ended = False
            self.end(TimeoutError("the peer acknowledges nothing"), loses=True)

    def _arrive(self, action: Action) -> None:
        now_us = self._clock.now_us
        there_us = now_us + self._fault_profile.latency_us() + self.slow_us
        if there_us > self._free_us:
            self._free_us = there_us
        self._clock.after(self._free_us - now_us, action)

    def _received(self, data: bytes) -> None:
        if self.source is not None:
            self.source.taken(len(data))
        if self.target is None or self._is_cut:
            return
        if self._is_lost:
            # It is cut within this piece, or in front of it.
            self._is_cut = True
            data = data[: self._fault_profile.cut(len(data))] if self._fault_profile.coin() else b""
        if data:
            self.target.arrived(data)

    def _ended(self, error: OSError | None) -> None:
        if self.target is not None:
            self.target.ended(error)


class VirtualTransport(asyncio.Transport):
    """One end of a connection, as asyncio's selector loop has it.

    Attributes:
        out: The line for bytes from here.
        peer: The other end.
        has_connected: It is the one that asked for the connection.
    """

    def __init__(
        self,
        network: Network,
        process: Process,
        own: Address,
        other: Address,
        out: Stream,
        *,
        has_connected: bool,
    ) -> None:
        super().__init__()
        self.has_connected = has_connected
        self.process = process
        self.out = out
        self.peer: VirtualTransport | None = None
        self.protocol: asyncio.Protocol | None = None
        self._network = network
        self._addresses = {"sockname": own, "peername": other}
        self._arrived: deque[bytes] = deque()
        self._end: tuple[OSError | None] | None = None
        self._is_closing = False
        self._is_reading = False
        self._is_paused = False
        self._unsent_bytes = 0
        self._is_writer_paused = False
        out.source = self
        process.transports[self] = None

    # asyncio.Transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._addresses.get(name, default)

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol  # type: ignore[assignment]

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol  # type: ignore[return-value]

    def is_reading(self) -> bool:
        return not self._is_paused

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._look()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not self.process.is_alive:
            return
        self.process.operate()
        data = bytes(data)
        if data:
            network = self._network
            if network.tap is not None:
                network.tap.wrote(self, data)
            self._unsent_bytes += len(data)
            self.out.send(data)
            if self._unsent_bytes > network.buffer_bytes and not self._is_writer_paused:
                self._is_writer_paused = True
                if self.protocol is not None:
                    self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._is_closing or not self.process.is_alive:
            return
        self.process.operate()
        self._is_closing = True
        if self._arrived:
            # Unread bytes are a reason for a reset, and that may be faster than bytes that were sent.
            self.out.end(ConnectionResetError("reset by peer"), loses=self._network.fault_profile.coin())
        else:
            self.out.end(None, loses=False)
        self._finish(None)

    def abort(self) -> None:
        if not self._is_closing and self.process.is_alive:
            self.process.operate()
            self._fail(None)

    # Events of the network.

    def opened(self, protocol: asyncio.Protocol) -> None:
        """It is connected; `protocol` hears of it at once, and of all bytes from now on."""
        self.protocol = protocol
        if self._is_closing:
            return
        protocol.connection_made(self)
        self._is_reading = True
        self._look()

    def arrived(self, data: bytes) -> None:
        """Take bytes that have come in; a socket that is closed answers by a reset."""
        if self._is_closing or not self.process.is_alive:
            self.out.end(ConnectionResetError("reset by peer"), loses=self._network.fault_profile.coin())
            return
        self._arrived.append(data)
        if len(self._arrived) == 1:
            self._look()

    def taken(self, size: int) -> None:
        """So many bytes have left: the writer may go on when there is room."""
        self._unsent_bytes -= size
        if self._is_writer_paused and self._unsent_bytes <= self._network.buffer_bytes // 4:
            self._is_writer_paused = False
            if self.protocol is not None and not self._is_closing and self.process.is_alive:
                self.process.loop.call_soon(self.protocol.resume_writing)

    def ended(self, error: OSError | None) -> None:
        """The peer has closed its end, or the connection is broken."""
        if self._is_closing or self._end is not None:
            return
        self._end = (error,)
        if error is not None:
            # A reset does not wait for bytes that were not read yet.
            self._arrived.clear()
        if not self._arrived:
            self._look()

    def process_died(self, *, loses: bool) -> None:
        """The operating system closes all that the process has left open."""
        self._is_closing = True
        error = ConnectionResetError("reset by peer") if loses or self._arrived else None
        self.out.end(error, loses=loses)
        self._network.ends.pop(self, None)

    def broken(self, error: OSError, *, loses: bool) -> None:
        """Somebody in between breaks the connection: both ends are reset."""
        if self.peer is not None:
            self.out.end(error, loses=loses)
            self.peer.out.end(error, loses=loses)

    def _look(self) -> None:
        if self._is_reading and not self._is_paused and (self._arrived or self._end is not None):
            self.process.loop.call_soon(self._read)

    def _read(self) -> None:
        if self._is_closing or self._is_paused or self.protocol is None:
            return
        if self._arrived:
            data = b"".join(self._arrived) if len(self._arrived) > 1 else self._arrived[0]
            self._arrived.clear()
            network = self._network
            size = network.fault_profile.cut(len(data))
            if size < len(data):
                self._arrived.append(data[size:])
                data = data[:size]
            if network.tap is not None:
                network.tap.read(self, data)
            if self._arrived or self._end is not None:
                # Before the protocol is told: an error of it must not stop the rest.
                self._look()
            self.protocol.data_received(data)
        elif self._end is not None:
            (error,) = self._end
            if error is not None:
                self._fail(error)
            elif not self.protocol.eof_received():
                self.close()

    def _fail(self, error: OSError | None) -> None:
        self._is_closing = True
        self.out.end(ConnectionResetError("reset by peer"), loses=self._network.fault_profile.coin())
        self._finish(error)

    def _finish(self, error: OSError | None) -> None:
        self._arrived.clear()
        self.process.transports.pop(self, None)
        self._network.ends.pop(self, None)
        if self.protocol is not None:
            self.process.loop.call_soon(self.protocol.connection_lost, error)


def _answer(future: asyncio.Future[bool], answer: bool) -> None:
    if not future.done():
        future.set_result(answer)


class _Socket:
    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address


class VirtualServer:
    """A listening socket, as far as anybody asks."""

    def __init__(
        self, network: Network, process: Process, accept: Callable[[], asyncio.Protocol], address: Address
    ) -> None:
        self.process = process
        self.accept = accept
        self.address = address
        self.sockets = (_Socket(address),)
        self._network = network
        process.servers[self] = None

    def close(self) -> None:
        """Listen no more."""
        self._network.servers.pop(self.address, None)
        self.process.servers.pop(self, None)

    def is_serving(self) -> bool:
        """Whether it accepts connections."""
        return self.address in self._network.servers


class Network:
    """All hosts and the lines between them.

    Attributes:
        ends: Of connections, in the order of their making; the one that has connected comes first.
        tap: Sees every byte, if there is one.
        buffer_bytes: That a connection takes before it asks its writer to pause.
    """

    def __init__(self, clock: Clock, fault_profile: FaultProfile, buffer_bytes: int = 65_536) -> None:
        self.clock = clock
        self.buffer_bytes = buffer_bytes
        self.fault_profile = fault_profile
        self.servers: dict[Address, VirtualServer] = {}
        self.lines: defaultdict[tuple[str, str], Line] = defaultdict(Line)
        self.ends: dict[VirtualTransport, None] = {}
        self.tap: Tap | None = None
        self._ports = FIRST_PORT

    def line(self, sender: str, receiver: str) -> Line:
        """Return the way from one host to another."""
        return self.lines[sender, receiver]

    def listen(
        self, process: Process, accept: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> VirtualServer:
        """Listen on an address of `process`.

        Raises:
            OSError: It is not one of its addresses, or somebody listens there.
        """
        address = host, port or self._next_port()
        if host != process.host or address in self.servers:
            raise OSError(f"{process} can't listen on {address}")
        server = self.servers[address] = VirtualServer(self, process, accept, address)
        return server

    async def connect(
        self, process: Process, make: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[VirtualTransport, asyncio.Protocol]:
        """Connect `process` to a server.

        Raises:
            ConnectionRefusedError: There is none.
        """
        out, back = Stream(self, self.line(process.host, host)), Stream(self, self.line(host, process.host))
        own, other = (process.host, self._next_port()), (host, port)
        transport = VirtualTransport(self, process, own, other, out, has_connected=True)
        back.target = transport
        answer: asyncio.Future[bool] = process.loop.create_future()

        def arrived() -> None:
            server = self.servers.get(other)
            if server is None or not server.process.is_alive:
                back._line.carry(lambda: back._arrive(lambda: answered(is_accepted=False)))
                return
            peer = VirtualTransport(self, server.process, other, own, back, has_connected=False)
            out.target, peer.peer, transport.peer = peer, transport, peer
            self.ends[transport] = self.ends[peer] = None
            server.process.loop.call_soon(lambda: peer.opened(server.accept()))
            back._line.carry(lambda: back._arrive(lambda: answered(is_accepted=True)))

        def answered(*, is_accepted: bool) -> None:
            if not answer.done() and process.is_alive:
                process.loop.call_soon(_answer, answer, is_accepted)

        out._line.carry(lambda: out._arrive(arrived))
        try:
            is_accepted = await answer
        except BaseException:
            transport.process_died(loses=True)
            process.transports.pop(transport, None)
            raise
        if not is_accepted:
            process.transports.pop(transport, None)
            raise ConnectionRefusedError(f"connection to {host}:{port} refused")
        protocol = make()
        transport.opened(protocol)
        return transport, protocol

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports
