"""Channels between workers, with credit: the two ends of one, whatever connection carries it.

A sender may have so many bytes and records under way that the receiver has not processed; the receiver gives
credit back as it does. So memory is bounded at both ends, a blocked channel stops its sender without
stopping the connection, and a barrier, which needs no credit, always gets through: the records that it
overtakes wait in user space, at one end or the other (docs/decisions, credit).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from crosscut.errors import WireError
from crosscut.foundation.batch import Batch, NumberedBatch
from crosscut.foundation.ids import ChannelId
from crosscut.task.flow_control import Credit
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.wire.frames import (
    BATCH_BYTES_MAX,
    NUMBERS,
    Frame,
    FrameType,
    Payload,
    decode_barrier,
    decode_credit,
    encode_barrier,
    encode_credit,
)

SendFrame = Callable[[FrameType, Payload], None]
"""Sends a frame of one channel, after those sent before."""


class Pieces:
    """The pieces of a batch that have come so far on a channel."""

    channel: ChannelId

    def __init__(self) -> None:
        self._pieces: list[Payload] = []
        self._pieces_bytes = 0

    def _joined(self, kind: FrameType, payload: Payload) -> Payload:
        """Return the batch whose last piece is `payload`."""
        if kind is not FrameType.BATCH:
            raise WireError(f"channel {self.channel}: {kind.name} frame in the middle of a batch")
        self._keep(payload)
        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0
        return b"".join(pieces)

    def _keep(self, piece: Payload) -> None:
        """Keep a piece of a batch, unless it is more than a batch may be."""
        self._pieces_bytes += len(piece)
        if self._pieces_bytes > BATCH_BYTES_MAX + NUMBERS.size:
            raise WireError(
                f"channel {self.channel}: a batch of more than {BATCH_BYTES_MAX} bytes, in pieces"
            )
        self._pieces.append(piece)


class OutgoingChannel:
    """The sending end.

    Args:
        credited: Gets the credit that the receiver gives back; raises WireError if it is too much.
    """

    def __init__(
        self, channel: ChannelId, send: SendFrame, credited: Callable[[ChannelId, Credit], None]
    ) -> None:
        self.channel = channel
        self._send = send
        self._credited = credited

    def send_item(self, item: Item) -> int:
        """Send a batch, a barrier, or the end of input.

        Returns:
            The bytes that it needs credit for.

        Raises:
            WireError: A record can't be sent; the message names it.
        """
        match item:
            case Batch():
                payload = encode_batch(item, is_kept=False)
                self._send(FrameType.BATCH, payload)
                return len(payload)
            case Barrier(checkpoint_id):
                self._send(FrameType.BARRIER, encode_barrier(checkpoint_id))
            case EndOfInput():
                self._send(FrameType.END_OF_INPUT, b"")
            case _:
                assert_never(item)
        return 0

    def received(self, frame: Frame) -> None:
        """Take credit.

        Raises:
            WireError: It is none, or for more than is under way.
        """
        if frame.kind is not FrameType.CREDIT:
            raise WireError(f"channel {self.channel}: {frame.kind.name} frame from its receiving end")
        self._credited(self.channel, Credit(*decode_credit(frame.payload)))


class IncomingChannel(Pieces):
    """The receiving end.

    Args:
        deliver: Gets each item, and how many bytes it had on the way.
    """

    def __init__(
        self, channel: ChannelId, send: SendFrame, deliver: Callable[[ChannelId, Item, int], None]
    ) -> None:
        super().__init__()
        self.channel = channel
        self._send = send
        self._deliver = deliver

    def give_credit(self, credit: Credit) -> None:
        """Tell the sender what has been processed."""
        payload = encode_credit(credit.size_bytes, credit.rows, credit.rows_max)
        self._send(FrameType.CREDIT, payload)

    def received(self, frame: Frame) -> None:
        """Take a frame from the sender.

        Raises:
            WireError: It may not come on a channel, or not now.
        """
        kind, payload = frame.kind, frame.payload
        if kind is FrameType.PIECE:
            self._keep(payload)
            return
        if self._pieces:
            payload = self._joined(kind, payload)
        match kind:
            case FrameType.BATCH:
                item: Item = decode_batch(payload)
                if isinstance(item, NumberedBatch):
                    raise WireError(f"channel {self.channel}: a batch has numbers where there are none")
            case FrameType.BARRIER:
                item = Barrier(decode_barrier(payload))
            case FrameType.END_OF_INPUT if not payload:
                item = EndOfInput()
            case _:
                raise WireError(f"channel {self.channel}: unexpected {kind.name} frame")
        self._deliver(self.channel, item, len(payload))
