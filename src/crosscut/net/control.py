"""The control link between a worker and the coordinator: data-only messages, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from crosscut.errors import WireError
from crosscut.ids import AttemptId, Epoch, WorkerIndex
from crosscut.net.causes import failure_cause
from crosscut.net.connections import AcceptingSide, ConnectingSide, Credentials, connect
from crosscut.net.listener import Listener
from crosscut.protocol.messages import CoordinatorMessage, WorkerFailed, WorkerMessage
from crosscut.wire.control import COORDINATOR_MESSAGES, WORKER_MESSAGES, decode_control, encode_control
from crosscut.wire.frames import CONTROL_LIMITS, Frame, FrameDecoder, FrameType
from crosscut.wire.handshake import Proven, Role, Verdict, proven_worker, worker_detail

HEARTBEATS_PER_TIMEOUT = 4
HEARTBEAT_S = 0.1
"""Heartbeats carry the counters that progress is made of: people look at it more often than at liveness."""
HEARTBEATS_PER_S_MAX = 2_000
"""Of all workers together: the coordinator takes some 70 microseconds for one, and has other things to do."""
HEARTBEATS_SHARE_MAX = 0.005
"""Of the time of a worker. One with many tasks counts less often, so that it has its time for records."""


def heartbeat_interval_s(timeout_s: float, parallelism: int, cost_s: float = 0.0) -> float:
    """Return how often each of `parallelism` workers sends a heartbeat that takes it so long to make."""
    rarely_s = max(HEARTBEAT_S, parallelism / HEARTBEATS_PER_S_MAX, cost_s / HEARTBEATS_SHARE_MAX)
    return min(timeout_s / HEARTBEATS_PER_TIMEOUT, rarely_s)


class WorkerLink(ConnectingSide):
    """The worker's end."""

    def __init__(
        self,
        credentials: Credentials,
        worker: WorkerIndex,
        attempt: AttemptId,
        on_open: Callable[[], None],
        on_message: Callable[[CoordinatorMessage], None],
        on_lost: Callable[[str], None],
    ) -> None:
        super().__init__(
            credentials,
            Role.WORKER_TO_COORDINATOR,
            Epoch(0),
            worker_detail(worker, attempt),
            FrameDecoder(CONTROL_LIMITS, sequenced=False),
        )
        self._on_open = on_open
        self._on_message = on_message
        self._on_lost = on_lost

    def say(self, message: WorkerMessage) -> None:
        """Send a message, after those said before."""
        self.send(FrameType.CONTROL, encode_control(message))

    def opened(self) -> None:
        self._on_open()

    def received(self, frame: Frame) -> None:
        self._on_message(decode_control(frame.payload, COORDINATOR_MESSAGES))

    def lost(self, reason: str) -> None:
        self._on_lost(reason)


async def report_failed_start(
    credentials: Credentials,
    worker: WorkerIndex,
    attempt: AttemptId,
    error: BaseException,
    address: tuple[str, int],
    timeout_s: float,
) -> None:
    """Tell the coordinator at `address` why this worker can't even register; best effort.

    Without it, Spark would start attempt after attempt until the job gives up for want of workers.
    """
    over = asyncio.Event()

    def opened() -> None:
        link.say(WorkerFailed(worker, attempt, failure_cause(error)))
        link.close_gently("the worker could not start")

    link = WorkerLink(credentials, worker, attempt, opened, lambda _: None, lambda _: over.set())
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            await connect(link, *address)
            await over.wait()


class LinkHost(Protocol):
    """The owner of the coordinator's ends."""

    def link_opened(self, link: CoordinatorLink, worker: WorkerIndex, attempt: AttemptId) -> int:
        """A worker has proven who it is; return the number of its link."""

    def link_message(self, link: CoordinatorLink, message: WorkerMessage) -> None:
        """A worker said something."""

    def link_lost(self, link: CoordinatorLink, reason: str) -> None:
        """A link that was open is over."""


class CoordinatorLink(AcceptingSide):
    """The coordinator's end; nobody hears of it before the peer is proven."""

    def __init__(self, host: LinkHost, listener: Listener, credentials: Credentials) -> None:
        decoder = FrameDecoder(CONTROL_LIMITS, sequenced=False)
        super().__init__(listener, credentials, Role.WORKER_TO_COORDINATOR, decoder)
        self.number = 0
        self._host = host
        self._peer = WorkerIndex(0), AttemptId(0)

    def say(self, message: CoordinatorMessage) -> None:
        """Send a message, after those said before."""
        self.send(FrameType.CONTROL, encode_control(message))

    def decide(self, proven: Proven) -> Verdict | None:
        self._peer = proven_worker(proven.detail)
        # Whether there is a place for this worker, the coordinator decides when it registers.
        return Verdict.ACCEPTED

    def opened(self) -> None:
        self.number = self._host.link_opened(self, *self._peer)

    def received(self, frame: Frame) -> None:
        try:
            message = decode_control(frame.payload, WORKER_MESSAGES)
        except WireError as error:
            raise WireError(f"control link {self.number}: {error}") from error
        self._host.link_message(self, message)

    def lost(self, reason: str) -> None:
        if self.number:
            self._host.link_lost(self, reason)
