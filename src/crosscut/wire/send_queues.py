"""Turns on one connection: what several channels have to send goes a piece of each at a time.

Each channel has a send queue, whose frames keep their order. Before the first frame of a send queue at most
one piece of each other send queue is sent, however much waits there: a barrier of one channel is not held up
by the large batch of another. Pure: the connection says when it takes more.
"""

from __future__ import annotations

from collections import deque

from crosscut.foundation.frozen import dataclass
from crosscut.wire.frames import PIECE_BYTES_MAX, FrameType, Payload


@dataclass(frozen=True, slots=True)
class Piece:
    """What goes out as one frame."""

    channel: int
    kind: FrameType
    payload: Payload


class SendQueues:
    """What waits to be sent, by the number of its channel.

    Attributes:
        piece_bytes: Longest payload of one frame; what is longer goes in pieces, the last one with its type.
    """

    def __init__(self, piece_bytes: int = PIECE_BYTES_MAX) -> None:
        self.piece_bytes = piece_bytes
        self._send_queues: dict[int, deque[tuple[FrameType, Payload]]] = {}
        self._turns: deque[int] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._turns

    def waiting(self, channel: int) -> tuple[tuple[FrameType, Payload], ...]:
        """Return what waits for its turn on `channel`, in order."""
        return tuple(self._send_queues.get(channel, ()))

    def put(self, channel: int, kind: FrameType, payload: Payload) -> None:
        """Add a frame to the send queue of its channel."""
        send_queue = self._send_queues.get(channel)
        if send_queue is None:
            send_queue = self._send_queues[channel] = deque()
        if not send_queue:
            self._turns.append(channel)
        send_queue.append((kind, payload))

    def take(self) -> Piece:
        """Remove what is sent next; something waits."""
        channel = self._turns.popleft()
        send_queue = self._send_queues[channel]
        kind, payload = send_queue.popleft()
        # Only a batch is cut: receivers expect the others whole.
        if len(payload) > self.piece_bytes and kind is FrameType.BATCH:
            whole = memoryview(payload)
            send_queue.appendleft((kind, whole[self.piece_bytes :]))
            kind, payload = FrameType.PIECE, whole[: self.piece_bytes]
        if send_queue:
            self._turns.append(channel)
        return Piece(channel, kind, payload)
