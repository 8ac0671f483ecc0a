"""Options for the kernel: notice a peer that vanishes without a word (E2), keep little unsent."""

from __future__ import annotations

import asyncio
import math
import socket

PROBES = 3

UNSENT_BYTES_MAX = 128 * 1024
"""More than a link needs between two turns of the event loop, and little enough to wait behind."""

PATIENCE = 2
"""Times the heartbeat timeout. A peer that is merely held up may answer nothing for up to that timeout,
and `TCP_USER_TIMEOUT` would cut off one whose receive buffer is full, too: the heartbeats are to find it
first, since they name a worker instead of a connection."""


def notice_vanished_peer(transport: asyncio.Transport, heartbeat_timeout_ms: int) -> None:
    """Have the connection break if the peer's machine acknowledges nothing for too long.

    Without it, a channel whose peer is unreachable (no reset, every packet dropped) stays open for a
    quarter of an hour, and shows as checkpoints that time out. Options that a platform lacks are left out.
    """
    end: socket.socket | None = transport.get_extra_info("socket")
    if end is None or end.family not in (socket.AF_INET, socket.AF_INET6):
        return
    limit_s = PATIENCE * heartbeat_timeout_ms / 1_000
    step_s = max(1, math.ceil(limit_s / (PROBES + 1)))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", step_s),
        ("TCP_KEEPINTVL", step_s),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", math.ceil(limit_s * 1_000)),
    ):
        if (option := getattr(socket, name, None)) is not None:
            end.setsockopt(socket.IPPROTO_TCP, option, value)


def bound_unsent(transport: asyncio.Transport) -> None:
    """Have the kernel take little that it can't send yet.

    It may keep megabytes otherwise, in one order for all channels of the connection: whatever comes later
    would wait for them, however fair the turns are. Platforms without this option keep what they like.
    """
    end: socket.socket | None = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if end is not None and option is not None and end.family in (socket.AF_INET, socket.AF_INET6):
        end.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MAX)
