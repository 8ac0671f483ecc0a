"""The part of a snapshot that holds what was on its way in channels.

It is the magic `XCL2` and a series of blocks: length of the header (4 bytes, big-endian), the header
(JSON: channel, rows, who sends it again), length of the batch (8 bytes), the batch as on the wire. (In
`XCL1` a channel was called by the place of its edge in the graph, which is another one after an edit.)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from crosscut.errors import StateError
from crosscut.ids import ChannelId, TaskId, VertexId
from crosscut.task.items import LoggedBatch

MAGIC = b"XCL2"
_OLD_MAGIC = b"XCL1"
_LENGTHS = struct.Struct(">IQ")


def encoded_log(log: Iterable[LoggedBatch]) -> list[bytes]:
    """Return the part, in pieces."""
    chunks = [MAGIC]
    for one in log:
        channel = one.channel
        header = json.dumps(
            {
                "input": channel.input,
                "source": [channel.source.vertex, channel.source.index],
                "target": [channel.target.vertex, channel.target.index],
                "rows": one.rows,
                "by_sender": one.by_sender,
            }
        ).encode()
        chunks += [_LENGTHS.pack(len(header), len(one.data)), header, one.data]
    return chunks


def decoded_log(data: bytes) -> list[LoggedBatch]:
    """Return what `encoded_log` made the part from, in order.

    Raises:
        StateError: `data` is something else.
    """
    if data[: len(MAGIC)] == _OLD_MAGIC:
        raise StateError(
            "this checkpoint holds records that were on their way, written by crosscut 0.1.0 in a format "
            "that this release does not read: let that release take one more checkpoint with "
            "snapshots='aligned' and outside of loops, or let it finish the job"
        )
    if data[: len(MAGIC)] != MAGIC:
        raise StateError(f"a channel log of {len(data)} bytes starts with {data[:4]!r}: expected {MAGIC!r}")
    log = []
    at = len(MAGIC)
    try:
        while at < len(data):
            header_bytes, batch_bytes = _LENGTHS.unpack_from(data, at)
            at += _LENGTHS.size
            header = json.loads(data[at : at + header_bytes])
            at += header_bytes
            channel = ChannelId(header["input"], _task(header["source"]), _task(header["target"]))
            batch = data[at : at + batch_bytes]
            if len(batch) < batch_bytes:
                raise ValueError(f"a batch of {batch_bytes} bytes is cut off after {len(batch)}")
            log.append(LoggedBatch(channel, batch, header["rows"], header["by_sender"]))
            at += batch_bytes
    except (struct.error, ValueError, KeyError, IndexError, TypeError) as error:
        raise StateError(f"a channel log of {len(data)} bytes is not readable: {error}") from error
    return log


def _task(named: list[Any]) -> TaskId:
    return TaskId(VertexId(named[0]), named[1])
