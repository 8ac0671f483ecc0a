"""Listens to the connections between workers and holds against them what flow control promises.

It decodes what passes both ends of each connection, channel by channel, and asks the worker only how much of
an input is in its memory. What is inside TLS it can't hear.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial

from crosscut.foundation.ids import ChannelId, Epoch
from crosscut.net.channels import IncomingChannel
from crosscut.net.peer_links import PeerLink
from crosscut.task.task import Task
from crosscut.testing.simulator.event_time import ChannelTime
from crosscut.testing.simulator.network import VirtualTransport
from crosscut.testing.simulator.violation import ensure, violate
from crosscut.testing.simulator.worker import WorkerProcess
from crosscut.wire.batches import decode_batch
from crosscut.wire.frames import HEADER, PEER_LIMITS, Frame, FrameDecoder, FrameType, Payload, decode_credit
from crosscut.wire.handshake import CLIENT_BYTES, SERVER_BYTES, epoch_of_hello
from crosscut.wire.sealing import SEAL_BYTES, FrameSeals
from crosscut.worker.worker import Worker

Sizes = tuple[int, int]
"""Records and bytes of a batch."""

_SEEN = {kind.value: f"frame: {kind.name}" for kind in FrameType}
CHANNELS_MAX = 1_000
"""More than there are between two workers of any world."""


class _Unchecked(FrameSeals):
    """Takes any seal: whether it is right, the worker says."""

    def __init__(self) -> None:
        super().__init__(b"")

    def is_next(self, seal: Payload, header: Payload, payload: Payload) -> bool:
        return True


class _Direction:
    """What passes in one direction: a handshake, then frames. It is decoded once, for both ends.

    Attributes:
        hello: What was written of the handshake.
    """

    def __init__(self, *, is_of_client: bool, has_seals: bool) -> None:
        self.hello = b""
        self._skip = CLIENT_BYTES if is_of_client else SERVER_BYTES
        self._seal_bytes = SEAL_BYTES if has_seals else 0
        # Frames that nobody has read yet, with the bytes up to their ends.
        self._under_way: deque[tuple[int, Frame]] = deque()
        self._decoded_bytes = self._skip
        self._read_bytes = 0
        self._decoder = FrameDecoder(PEER_LIMITS, sequenced=True)
        self._decoder.expect_channels(CHANNELS_MAX)
        if has_seals:
            self._decoder.expect_seals(_Unchecked())

    def written(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` ends."""
        if self._skip:
            self.hello += data[: self._skip]
            data, self._skip = data[self._skip :], max(0, self._skip - len(data))
        whole = self._decoder.whole(data)
        if whole is not None:
            frames = [whole]
        else:
            if data:
                self._decoder.feed(data)
            frames = list(self._decoder)
        for frame in frames:
            self._decoded_bytes += HEADER.size + len(frame.payload) + self._seal_bytes
            self._under_way.append((self._decoded_bytes, frame))
        return frames

    def read(self, size_bytes: int) -> Iterable[Frame]:
        """Yield the frames that the next `size_bytes` end: all that arrives was written, in that order."""
        self._read_bytes += size_bytes
        while self._under_way and self._under_way[0][0] <= self._read_bytes:
            yield self._under_way.popleft()[1]


@dataclass(slots=True)
class _Flow:
    """One channel, as seen from one end.

    Attributes:
        bytes: Of batches that were sent here and have no credit yet, or came in and were given none yet.
        time: Event time of what came in.
        sizes: Of the newest batches that came in.
    """

    bytes: int = 0
    time: ChannelTime = field(default_factory=ChannelTime)
    sizes: deque[Sizes] = field(default_factory=lambda: deque(maxlen=1_000))
    _pieces: list[Payload] = field(default_factory=list)

    def whole(self, frame: Frame) -> Payload:
        """Return the batch that `frame` ends; nothing, if it ends none."""
        if frame.kind in (FrameType.BATCH, FrameType.PIECE):
            self._pieces.append(frame.payload)
        if frame.kind is not FrameType.BATCH:
            return b""
        batch = b"".join(self._pieces)
        self._pieces = []
        return batch


class _End:
    """One end of a connection between two workers."""

    def __init__(self, end: VirtualTransport, out: _Direction, into: _Direction) -> None:
        self.end = end
        self.out = out
        self.into = into
        self.looked_at_turn = 0
        self._flows: dict[int, _Flow] = {}

    @cached_property
    def epoch(self) -> Epoch:
        """For which the connection was made; not known before there are frames."""
        return epoch_of_hello(self.out.hello if self.end.has_connected else self.into.hello)

    @property
    def peer_link(self) -> PeerLink | None:
        """The connection itself, while its worker believes it."""
        protocol = self.end.protocol
        return protocol if isinstance(protocol, PeerLink) and not protocol.is_over else None

    def flow(self, number: int) -> _Flow:
        found = self._flows.get(number)
        if found is None:
            found = self._flows[number] = _Flow()
        return found

    def coming(self) -> Iterable[tuple[ChannelId, _Flow, int]]:
        """Yield the channels that lead here, with the credit that was given and waits to be written."""
        peer_link = self.peer_link
        if peer_link is None:
            return
        for number, channel in enumerate(peer_link.channels):
            if isinstance(channel, IncomingChannel):
                waiting = sum(decode_credit(credit)[0] for _, credit in peer_link.waiting(number))
                yield channel.channel, self.flow(number), waiting


class Wiretap:
    """Hears all channels of one world.

    Args:
        channel_bytes: The credit of each.
        seen: Gets "frame: ...".
        has_seals: Whether frames carry seals.
        is_punctual: Whether no record is late.

    Attributes:
        changed: The connections at which there is something to check.
    """

    def __init__(
        self, channel_bytes: int, seen: Counter[str], *, has_seals: bool, is_punctual: bool = False
    ) -> None:
        self._channel_bytes = channel_bytes
        self._is_punctual = is_punctual
        self._seen = seen
        self._has_seals = has_seals
        # None: of no interest.
        self._ends: dict[VirtualTransport, _End | None] = {}
        self.changed: dict[VirtualTransport, _End] = {}

    def wrote(self, end: VirtualTransport, data: bytes) -> None:
        """`end` has written `data`."""
        known = self._ends[end] if end in self._ends else self._known(end)
        if known is None:
            return
        for frame in known.out.written(data):
            self._seen[_SEEN[frame.kind._value_]] += 1
            flow = known.flow(frame.channel)
            if frame.kind in (FrameType.BATCH, FrameType.PIECE):
                if flow.bytes >= self._channel_bytes:
                    violate(
                        f"I11: a batch is sent to {end.peer and end.peer.process} on channel {frame.channel} "
                        f"with {flow.bytes} bytes under way: the credit is {self._channel_bytes}"
                    )
                flow.bytes += len(flow.whole(frame))
            elif frame.kind is FrameType.CREDIT:
                flow.bytes -= decode_credit(frame.payload)[0]
                ensure(flow.bytes >= 0, f"I11: {end.process} gives credit for more than it has received")
                self.changed[end] = known

    def read(self, end: VirtualTransport, data: bytes) -> None:
        """`end` is about to read `data`."""
        known = self._ends[end] if end in self._ends else self._known(end)
        if known is None:
            return
        for frame in known.into.read(len(data)):
            flow = known.flow(frame.channel)
            if frame.kind is FrameType.CREDIT:
                flow.bytes -= decode_credit(frame.payload)[0]
            elif encoded := flow.whole(frame):
                batch = decode_batch(encoded)
                flow.bytes += len(encoded)
                flow.sizes.append((len(batch), len(encoded)))
                where = partial("channel {} to {}".format, frame.channel, end.process)
                flow.time.passed(batch, where, is_punctual=self._is_punctual)
                self._seen["watermark passed"] += batch.watermark is not None
                self.changed[end] = known
            if frame.kind is not FrameType.CREDIT:
                self._check_epoch(known)

    def check(self) -> None:
        """Whoever was busy is so no more: was credit given for what left the memory, and nothing else?"""
        for end, known in list(self.changed.items()):
            process = end.process
            if process.is_alive and process.turns == known.looked_at_turn:
                # It has done nothing since.
                continue
            known.looked_at_turn = process.turns
            coming = list(known.coming())
            # What waits in memory is looked at again until it has left.
            if not process.is_alive or not any(flow.bytes for _, flow, _ in coming):
                del self.changed[end]
            worker = _worker_at(end)
            pool = worker.pool if worker is not None else None
            if pool is None or pool.is_over or end.is_closing():
                continue
            for channel, flow, given_bytes in coming:
                task = pool.task_behind(channel)
                if task is None:
                    ensure(known.epoch != pool.epoch, f"I7: {known.end.process} has no task behind {channel}")
                    continue
                self._check_credit(known, flow.bytes - given_bytes, flow.sizes, task, channel)

    def _check_credit(
        self, known: _End, uncredited: int, sizes: deque[Sizes], task: Task, channel: ChannelId
    ) -> None:
        receiving = task.input_gate.ends[channel]
        queue = receiving.queue
        held = _whole_bytes(sizes, queue.newest_rows)
        if uncredited < held:
            violate(
                f"I11: {known.end.process} has {held} bytes of {channel} in memory, and credit was given "
                f"for all but {uncredited}"
            )
        if uncredited and uncredited >= receiving.bytes_max // 4 and not queue.in_memory:
            violate(
                f"I11: {known.end.process} has nothing of {channel} in memory, and keeps the credit for "
                f"{uncredited} of {receiving.bytes_max} bytes"
            )

    def _check_epoch(self, known: _End) -> None:
        worker = _worker_at(known.end)
        pool = worker.pool if worker is not None else None
        if pool is not None and known.peer_link is not None and known.epoch != pool.epoch:
            violate(
                f"I7: {known.end.process} reads a connection of epoch {known.epoch} in epoch {pool.epoch}"
            )

    def _known(self, end: VirtualTransport) -> _End | None:
        if end.peer is None:
            return None
        ends = end, end.peer
        self._ends |= dict.fromkeys(ends)
        if all(isinstance(one.process, WorkerProcess) for one in ends):
            out, into = (
                _Direction(is_of_client=one.has_connected, has_seals=self._has_seals) for one in ends
            )
            self._ends[end], self._ends[end.peer] = _End(end, out, into), _End(end.peer, into, out)
        return self._ends[end]


def _whole_bytes(sizes: deque[Sizes], rows: int) -> int:
    """Return the bytes of the newest batches of which all records are among the `rows` that wait.

    Batches say nothing: of one that came in several are made, and one of several. A watermark without records
    takes no room: it is merged with what waits.
    """
    found = 0
    for batch_rows, size_bytes in reversed(sizes):
        rows -= batch_rows
        if rows < 0:
            break
        found += size_bytes if batch_rows else 0
    return found


def _worker_at(end: VirtualTransport) -> Worker | None:
    return end.process.worker if isinstance(end.process, WorkerProcess) and end.process.is_alive else None
