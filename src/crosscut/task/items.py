"""The items that travel in a channel."""

from __future__ import annotations

from crosscut.foundation.batch import Batch
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import ChannelId, CheckpointId


@dataclass(frozen=True, slots=True)
class Barrier:
    """Barrier n, in a channel."""

    checkpoint_id: CheckpointId


REPLAYED = Barrier(CheckpointId(0))
"""The marker after channel records of another parallelism: after a section of the task's own, or after a
generation of those that come from a sender. See `crosscut.protocol.replay_order`."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """No record will follow in this channel; barriers may.

    Attributes:
        news_number: Of this news, where the channel has numbers; 0: it has none.
    """

    news_number: int = 0


Item = Batch | Barrier | EndOfInput


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch that was on its way in `channel` when the snapshot was taken.

    It is encoded at once: user code may change its records as soon as they are processed.

    Attributes:
        by_sender: The barrier overtook it in the sender's output queue, so the sender's snapshot holds
            it and the sender sends it again; else the receiver's does.
    """

    channel: ChannelId
    data: bytes
    rows: int
    by_sender: bool
