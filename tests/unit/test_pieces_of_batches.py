"""Batches that are too long for one frame, one after the other on one channel (P11)."""

from __future__ import annotations

from typing import Any

import pytest

from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.net import channels
from crosscut.wire.batches import encode_batch
from crosscut.wire.frames import Frame, FrameType
from crosscut.wire.send_queues import SendQueues

CHANNEL = ChannelId(0, TaskId(VertexId("a"), 0), TaskId(VertexId("b"), 0))


def test_each_of_several_long_batches_in_a_row_arrives_as_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = [Batch([f"{number}" * 100]) for number in range(5)]
    longest = max(len(encode_batch(one)) for one in sent)
    # No two of them together are within the limit of one.
    monkeypatch.setattr(channels, "BATCH_BYTES_MAX", longest)
    received: list[Any] = []
    channel = channels.IncomingChannel(
        CHANNEL, lambda kind, payload: None, lambda _, item, size: received.append((item.records, size))
    )
    send_queues = SendQueues(piece_bytes=30)
    for batch in sent:
        send_queues.put(0, FrameType.BATCH, encode_batch(batch))
    while not send_queues.is_empty:
        piece = send_queues.take()
        channel.received(Frame(piece.kind, 1, piece.payload, piece.channel))
    assert received == [(one.records, len(encode_batch(one))) for one in sent]
