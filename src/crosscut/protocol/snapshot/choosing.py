"""Which snapshot protocol is which: from the setting to the machine."""

from __future__ import annotations

from typing import Literal

from crosscut.foundation.ids import ChannelId
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.at_least_once import AtLeastOnceBarriers
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshot.stop_the_world import StopTheWorldBarriers
from crosscut.protocol.snapshot.switching import AlignedThenUnaligned
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers

ProtocolKind = Literal["aligned", "unaligned", "switching", "at-least-once", "halting"]


def snapshot_protocol(
    kind: ProtocolKind, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId]
) -> SnapshotProtocol:
    """Return the machine of one task."""
    match kind:
        case "aligned":
            return AlignedBarriers(inputs, back_edges)
        case "unaligned":
            return UnalignedBarriers(inputs, back_edges)
        case "switching":
            return AlignedThenUnaligned(inputs, back_edges)
        case "at-least-once":
            return AtLeastOnceBarriers(inputs, back_edges)
        case "halting":
            return StopTheWorldBarriers(inputs, back_edges)
