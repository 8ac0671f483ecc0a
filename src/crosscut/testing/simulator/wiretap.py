"""Listens to the channels between workers and holds against them what flow control promises.

It decodes what passes both ends of each connection, and asks the worker only how much of an input is in
its memory. What is inside TLS it can't hear.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from crosscut.batch import Batch
from crosscut.ids import Epoch
from crosscut.net.channels import IncomingChannel
from crosscut.testing.simulator.network import VirtualTransport
from crosscut.testing.simulator.violation import ensure
from crosscut.testing.simulator.worker import WorkerProcess
from crosscut.wire.batches import decode_batch
from crosscut.wire.frames import CREDIT_LIMITS, DATA_LIMITS, Frame, FrameDecoder, FrameType, decode_credit
from crosscut.wire.handshake import CLIENT_BYTES, SERVER_BYTES, epoch_of_hello
from crosscut.worker.worker import Worker


class _Direction:
    """What passes one end in one direction: a handshake, then frames."""

    def __init__(self, *, is_data: bool) -> None:
        self.hello = b""
        self._skip = CLIENT_BYTES if is_data else SERVER_BYTES
        self._decoder = FrameDecoder(DATA_LIMITS if is_data else CREDIT_LIMITS, sequenced=True)

    def frames(self, data: bytes) -> Iterable[Frame]:
        if self._skip:
            self.hello += data[: self._skip]
            data, self._skip = data[self._skip :], max(0, self._skip - len(data))
        if data:
            self._decoder.feed(data)
        return self._decoder


class _End:
    """One end of a channel.

    Attributes:
        bytes: Of batches that were sent here and have no credit yet, or came in and were given none yet.
        sizes: Records and bytes of the newest batches that came in.
    """

    def __init__(self, end: VirtualTransport) -> None:
        self.end = end
        self.wrote = _Direction(is_data=end.has_connected)
        self.read = _Direction(is_data=not end.has_connected)
        self.bytes = 0
        self.sizes: deque[tuple[int, int]] = deque(maxlen=1_000)

    @property
    def epoch(self) -> Epoch:
        """For which its connection was made."""
        return epoch_of_hello(self.wrote.hello if self.end.has_connected else self.read.hello)


class Wiretap:
    """Hears all channels of one world.

    Args:
        channel_bytes: The credit of each.
        seen: Gets "frame: ...".
    """

    def __init__(self, channel_bytes: int, seen: Counter[str]) -> None:
        self._channel_bytes = channel_bytes
        self._seen = seen
        self._ends: dict[VirtualTransport, _End] = {}
        self._changed: dict[VirtualTransport, _End] = {}

    def wrote(self, end: VirtualTransport, data: bytes) -> None:
        """`end` has written `data`."""
        known = self._known(end)
        for frame in known.wrote.frames(data) if known is not None else ():
            if known is None:
                return
            self._seen[f"frame: {frame.kind.name}"] += 1
            if frame.kind is FrameType.BATCH:
                ensure(
                    known.bytes < self._channel_bytes,
                    f"I11: a batch is sent to {end.peer and end.peer.process} with {known.bytes} bytes under "
                    f"way: the credit is {self._channel_bytes}",
                )
                known.bytes += len(frame.payload)
            elif frame.kind is FrameType.CREDIT:
                known.bytes -= decode_credit(frame.payload)
                ensure(known.bytes >= 0, f"I11: {end.process} gives credit for more than it has received")
                self._changed[end] = known

    def read(self, end: VirtualTransport, data: bytes) -> None:
        """`end` is about to read `data`."""
        known = self._known(end)
        for frame in known.read.frames(data) if known is not None else ():
            if known is None:
                return
            if frame.kind is FrameType.CREDIT:
                known.bytes -= decode_credit(frame.payload)
            elif frame.kind is FrameType.BATCH:
                known.bytes += len(frame.payload)
                known.sizes.append((len(decode_batch(frame.payload)), len(frame.payload)))
                self._changed[end] = known
            if frame.kind is not FrameType.CREDIT:
                self._check_epoch(known)

    def check(self) -> None:
        """Whoever was busy is so no more: was credit given for what left the memory, and nothing else?"""
        # What waits in memory is looked at again until it has left.
        owing = self._changed
        if not owing:
            return
        self._changed = {end: known for end, known in owing.items() if known.bytes and end.process.is_alive}
        for known in owing.values():
            worker, protocol = _worker_at(known.end), known.end.protocol
            pool = worker._pool if worker is not None else None
            if pool is None or pool.is_over or not isinstance(protocol, IncomingChannel):
                continue
            channel = protocol._channel
            if protocol._host is None or channel is None or known.end.is_closing():
                continue
            if channel not in pool._by_input:
                ensure(known.epoch != pool.epoch, f"I7: {known.end.process} has no task behind {channel}")
                continue
            queue = pool._by_input[channel].task._queues[channel]
            newest = queue._tail if queue._on_disk else queue._head
            held = _whole_bytes(known.sizes, sum(len(item) for item in newest if isinstance(item, Batch)))
            ensure(
                known.bytes >= held,
                f"I11: {known.end.process} has {held} bytes of {channel} in memory, and credit was given "
                f"for all but {known.bytes}",
            )
            ensure(
                queue.in_memory > 0 or known.bytes == 0,
                f"I11: {known.end.process} has nothing of {channel} in memory, and keeps the credit for "
                f"{known.bytes} bytes",
            )

    def _check_epoch(self, known: _End) -> None:
        worker, protocol = _worker_at(known.end), known.end.protocol
        pool = worker._pool if worker is not None else None
        is_believed = isinstance(protocol, IncomingChannel) and protocol._host is not None
        if pool is not None and is_believed:
            ensure(
                known.epoch == pool.epoch,
                f"I7: {known.end.process} reads a channel of epoch {known.epoch} in epoch {pool.epoch}",
            )

    def _known(self, end: VirtualTransport) -> _End | None:
        if not isinstance(end.process, WorkerProcess) or end.peer is None:
            return None
        if not isinstance(end.peer.process, WorkerProcess):
            return None
        known = self._ends.get(end)
        if known is None:
            known = self._ends[end] = _End(end)
        return known


def _whole_bytes(sizes: Iterable[tuple[int, int]], rows: int) -> int:
    """Return the bytes of the newest batches of which all records are among the `rows` that wait.

    Batches say nothing: of one that came in several are made, and one of several.
    """
    found = 0
    for batch_rows, size_bytes in reversed(list(sizes)):
        rows -= batch_rows
        if rows < 0:
            break
        found += size_bytes
    return found


def _worker_at(end: VirtualTransport) -> Worker | None:
    return end.process.worker if isinstance(end.process, WorkerProcess) and end.process.is_alive else None
