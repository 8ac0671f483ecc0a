"""Frames: how payloads are cut out of a byte stream, once the handshake has proven the peer.

A frame is a header of 20 bytes (magic, version, type, payload length, channel, sequence number) and the
payload. The header is judged alone: nothing of the payload is gathered before its type and length are
known to be allowed (rule S5), so a lying length costs its sender the connection and us no memory.

Sans-I/O: `FrameDecoder` gets bytes from the owner of the socket, `encode_frame` returns bytes.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from typing import NoReturn, Self

from crosscut.errors import WireError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId
from crosscut.wire.sealing import SEAL_BYTES, FrameSeals

MAGIC = b"XC"
VERSION = 3
HEADER = struct.Struct(">2sBBIIQ")
"""Magic, version, type, payload length, channel, sequence number."""

_BARRIER = struct.Struct(">Q")
_CREDIT = struct.Struct(">QQQ")
_POSITION = struct.Struct(">QQ")
NUMBERS = struct.Struct(">cQQ")
"""What is in front of a batch whose records have numbers, see `crosscut.wire.batches`."""
_MEBIBYTE = 1 << 20

Payload = bytes | memoryview


class FrameType(IntEnum):
    """What a frame carries."""

    BATCH = 1
    """Records, see `crosscut.wire.batches`: a whole batch, or the rest of one that began in pieces."""
    PIECE = 6
    """The beginning of a batch that is too long for one frame, or more of it."""
    BARRIER = 2
    """Everything before it in the channel belongs to the checkpoint it names."""
    END_OF_INPUT = 3
    """The channel will never carry another record. It has a number if records have, else no payload."""
    CREDIT = 5
    """Against the direction of the records: so many bytes have been processed, send as many more."""
    RESUME = 7
    """Against the direction of the records: go on after this record and this news."""
    RESUME_REFUSED = 8
    """What follows this record and this news is kept, and no more."""
    ACKNOWLEDGED = 9
    """Against the direction of the records: up to this record and this news all is in the receiver's log."""
    CONTROL = 4
    """A message between worker and coordinator, see `crosscut.wire.control`."""


BATCH_BYTES_MAX = 256 * _MEBIBYTE
"""Longest batch, in however many pieces."""

PIECE_BYTES_MAX = 64 * 1024
"""Longest payload on a connection that several channels share: so much of one goes in front of another."""

DATA_LIMITS: Mapping[FrameType, int] = {
    FrameType.BATCH: PIECE_BYTES_MAX,
    FrameType.PIECE: PIECE_BYTES_MAX,
    FrameType.BARRIER: _BARRIER.size,
    FrameType.END_OF_INPUT: NUMBERS.size,
    FrameType.RESUME_REFUSED: _POSITION.size,
}
"""Longest payload in bytes of each type that a data channel may carry."""

CREDIT_LIMITS: Mapping[FrameType, int] = {
    FrameType.CREDIT: _CREDIT.size,
    FrameType.RESUME: _POSITION.size,
    FrameType.ACKNOWLEDGED: _POSITION.size,
}
"""The same for the other direction of a data channel."""

PEER_LIMITS: Mapping[FrameType, int] = {**DATA_LIMITS, **CREDIT_LIMITS}
"""The same for a connection between two workers, which carries channels of both directions."""

CONTROL_LIMITS: Mapping[FrameType, int] = {FrameType.CONTROL: 64 * _MEBIBYTE}
"""The same for a control link: no type in common, so neither can pose as the other."""

DEFAULT_LIMITS: Mapping[FrameType, int] = {**PEER_LIMITS, **CONTROL_LIMITS}


@dataclass(frozen=True, slots=True)
class Frame:
    """One complete frame.

    Attributes:
        kind: What it carries.
        sequence: Number of the frame in its channel, from 1; 0 on control links.
        payload: Usually a view into the bytes that were fed, which stay alive as long as it does.
        channel: Number of the channel that it belongs to, from 0; 0 on control links.
    """

    kind: FrameType
    sequence: int
    payload: Payload
    channel: int = 0


def encode_frame(
    kind: FrameType, sequence: int, payload: Payload = b"", channel: int = 0
) -> tuple[bytes, Payload]:
    """Return (header, payload) of a frame, apart, so that a transport need not join them.

    Args:
        kind: What it carries.
        sequence: Number of the frame in its channel, from 1; 0 on control links.
        payload: At most `DEFAULT_LIMITS[kind]` bytes.
        channel: Number of the channel; 0 on control links.

    Raises:
        WireError: The payload is longer than the receiver would accept.
    """
    limit = DEFAULT_LIMITS[kind]
    if len(payload) > limit:
        raise WireError(
            f"{kind.name} frame of {len(payload)} bytes can't be sent: its limit is {limit} bytes; send "
            f"less in one piece (fewer splits, or positions that say less)",
            size_bytes=len(payload),
            limit_bytes=limit,
        )
    return HEADER.pack(MAGIC, VERSION, kind, len(payload), channel, sequence), payload


def encode_barrier(checkpoint_id: CheckpointId) -> bytes:
    """Return the payload of a BARRIER frame."""
    return _BARRIER.pack(checkpoint_id)


def decode_barrier(payload: Payload) -> CheckpointId:
    """Return the checkpoint that a BARRIER frame belongs to; 0: it is a replay marker, which ends
    older channel records.

    Raises:
        WireError: The payload is not a checkpoint id.
    """
    if len(payload) != _BARRIER.size:
        raise WireError(f"BARRIER frame of {len(payload)} bytes: expected {_BARRIER.size}")
    (checkpoint_id,) = _BARRIER.unpack(payload)
    return CheckpointId(checkpoint_id)


def encode_credit(size_bytes: int, rows: int, rows_max: int) -> bytes:
    """Return the payload of a CREDIT frame."""
    return _CREDIT.pack(size_bytes, rows, rows_max)


def decode_credit(payload: Payload) -> tuple[int, int, int]:
    """Return the bytes and records that a CREDIT frame gives back, and the records that may be under way.

    Raises:
        WireError: The payload is something else.
    """
    if len(payload) != _CREDIT.size:
        raise WireError(f"CREDIT frame of {len(payload)} bytes: expected {_CREDIT.size}")
    size_bytes, rows, rows_max = _CREDIT.unpack(payload)
    return size_bytes, rows, rows_max


def encode_position(record: int, news: int) -> bytes:
    """Return the payload of a RESUME, RESUME_REFUSED or ACKNOWLEDGED frame."""
    return _POSITION.pack(record, news)


def decode_position(payload: Payload) -> tuple[int, int]:
    """Return the numbers of a record and of news that such a frame carries.

    Raises:
        WireError: The payload is something else.
    """
    if len(payload) != _POSITION.size:
        raise WireError(f"a position of {len(payload)} bytes: expected {_POSITION.size}")
    record, news = _POSITION.unpack(payload)
    return record, news


# Calling the enumeration would take as long as all the rest of reading a header.
_KINDS = {kind.value: kind for kind in FrameType}


class FrameDecoder:
    """Cuts a byte stream into frames: `feed` what was read, then iterate.

    Iteration stops when no complete frame is left, and goes on after the next `feed`. It may be left in
    the middle (a barrier blocked the channel): later frames stay here, undecoded. `held_bytes`
    grows by what is fed and shrinks by what is iterated: the reader of the socket bounds it by not
    reading on while it is too large.

    A payload that lies within one fed piece is handed out as a view of it, a longer one is joined once:
    at most one copy of each byte. After a WireError every further iteration raises it again, since
    nothing tells where the next frame starts; close the connection.

    Args:
        limits: Longest payload of each type; a type that is not in it is refused.
        sequenced: Whether the frames of a channel carry 1, 2, 3, ... or always 0 (control links).
    """

    def __init__(self, limits: Mapping[FrameType, int], *, sequenced: bool) -> None:
        self._limits = limits
        self._sequence_step = 1 if sequenced else 0
        self._sequences = [0]
        self._chunks: deque[bytes] = deque()
        self._offset = 0
        self._held_bytes = 0
        self._header: tuple[FrameType, int, int, Payload] | None = None
        self._seals: FrameSeals | None = None
        self._error: WireError | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that were fed and not iterated yet."""
        return self._held_bytes

    def expect_seals(self, seals: FrameSeals) -> None:
        """Take no frame from now on without its seal after it; before the first `feed`."""
        self._seals = seals

    def expect_channels(self, count: int) -> None:
        """Take frames of channels 0 to `count` - 1 from now on; before the first `feed`."""
        self._sequences = [0] * count

    def feed(self, data: bytes) -> None:
        """Add what was read. Only kept, never copied here: it must not change, hence `bytes`."""
        if self._error is not None:
            return
        self._chunks.append(data)
        self._held_bytes += len(data)
        if len(self._chunks) > 1024 + self._held_bytes // 1024:
            # A peer that sends a byte at a time would otherwise cost an object for each of them.
            self._chunks = deque([b"".join(self._chunks)])

    def whole(self, data: bytes) -> Frame | None:
        """Return the frame that `data` is, if it is just one and nothing is held: nearly all that is read is.

        If it returns None nothing has happened: `feed` it.

        Raises:
            WireError: It is not allowed here.
        """
        if self._held_bytes or self._header is not None or self._error is not None:
            return None
        size = len(data)
        if size < HEADER.size:
            return None
        end = HEADER.size + HEADER.unpack_from(data)[3]
        if size != end + (SEAL_BYTES if self._seals else 0):
            return None
        view = memoryview(data)
        kind, length, channel, header = self._checked_header(view[: HEADER.size])
        payload = view[HEADER.size : end] if length else b""
        if self._seals is not None:
            self._check_seal(self._seals, view[end:], kind, header, payload)
        return Frame(kind, self._sequences[channel], payload, channel)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame:
        """Return the next complete frame.

        Raises:
            StopIteration: There is none yet.
            WireError: The bytes are not a frame that is allowed here.
        """
        if self._error is not None:
            raise self._error
        if self._header is None:
            if self._held_bytes < HEADER.size:
                raise StopIteration
            self._header = self._checked_header(self._take(HEADER.size))
        kind, length, channel, header = self._header
        if self._held_bytes < length + (SEAL_BYTES if self._seals else 0):
            raise StopIteration
        self._header = None
        payload = self._take(length)
        if self._seals is not None:
            self._check_seal(self._seals, self._take(SEAL_BYTES), kind, header, payload)
        return Frame(kind, self._sequences[channel], payload, channel)

    def _check_seal(
        self, seals: FrameSeals, seal: Payload, kind: FrameType, header: Payload, payload: Payload
    ) -> None:
        if not seals.is_next(seal, header, payload):
            self._refuse(
                f"{kind.name} frame of {len(payload)} bytes has another seal: it was changed on the way"
            )

    def _checked_header(self, header: Payload) -> tuple[FrameType, int, int, Payload]:
        magic, version, kind, length, channel, sequence = HEADER.unpack(header)
        if magic != MAGIC or version != VERSION:
            self._refuse(
                f"frame starts with {bytes(magic)!r}, version {version}: expected {MAGIC!r}, {VERSION}"
            )
        limit = self._limits.get(kind)
        if limit is None:
            allowed = ", ".join(f"{known.name}={known}" for known in self._limits)
            self._refuse(f"frame of type {kind}: expected one of {allowed}")
        if length > limit:
            self._refuse(f"{FrameType(kind).name} frame of {length} bytes: its limit is {limit}")
        if channel >= len(self._sequences):
            self._refuse(
                f"{FrameType(kind).name} frame of channel {channel}: there are {len(self._sequences)}"
            )
        expected = self._sequences[channel] + self._sequence_step
        if sequence != expected:
            self._refuse(
                f"{FrameType(kind).name} frame has sequence number {sequence}: expected {expected}; frames "
                f"were lost, repeated or reordered"
            )
        self._sequences[channel] = sequence
        return _KINDS[kind], length, channel, header

    def _refuse(self, message: str) -> NoReturn:
        self._chunks.clear()
        self._held_bytes = 0
        self._error = WireError(f"{message}; the connection can't be used any more")
        raise self._error

    def _take(self, size: int) -> Payload:
        """Remove the first `size` bytes; there are that many."""
        if not size:
            return b""
        self._held_bytes -= size
        begin, chunk = self._offset, self._chunks[0]
        end = begin + size
        if end < len(chunk):
            self._offset = end
            return memoryview(chunk)[begin:end]
        if end == len(chunk):
            self._chunks.popleft()
            self._offset = 0
            return memoryview(chunk)[begin:]
        pieces = []
        while size:
            chunk = self._chunks[0]
            piece = memoryview(chunk)[self._offset : self._offset + size]
            pieces.append(piece)
            size -= len(piece)
            self._offset += len(piece)
            if self._offset == len(chunk):
                self._chunks.popleft()
                self._offset = 0
        return b"".join(pieces)
