"""The control link between a worker and the coordinator: data-only messages, both ways."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from crosscut.errors import WireError
from crosscut.foundation.ids import AttemptId, Epoch, WorkerIndex
from crosscut.net.causes import failure_cause
from crosscut.net.connections import AcceptingSide, ConnectingSide, Credentials, connect
from crosscut.net.listener import Listener
from crosscut.protocol.messages import CoordinatorMessage, ShutDown, WorkerFailed, WorkerMessage
from crosscut.wire.control import COORDINATOR_MESSAGES, WORKER_MESSAGES, decode_control, encode_control
from crosscut.wire.frames import CONTROL_LIMITS, Frame, FrameDecoder, FrameType
from crosscut.wire.handshake import Proven, Role, Verdict, proven_worker, worker_detail

HEARTBEATS_PER_TIMEOUT = 4
HEARTBEAT_S = 0.1
"""Heartbeats carry the counters that progress is made of: people look at it more often than at liveness."""
HEARTBEATS_PER_S_MAX = 2_000
"""Of all workers together: the coordinator takes some 70 microseconds for one, and has other things to do."""
HEARTBEATS_SHARE_MAX = 0.005
"""Of the processor time of a worker: one with many tasks counts less often, and has its time for records."""
LOAD_LEAST = 0.25
"""A worker that uses less than this share of a processor has nothing to lose."""
COSTS_KEPT = 8


def heartbeat_interval_s(timeout_s: float, parallelism: int, least_s: float = HEARTBEAT_S) -> float:
    """Return how often each of `parallelism` workers sends a heartbeat, if not more often than `least_s`."""
    return min(
        timeout_s / HEARTBEATS_PER_TIMEOUT, max(HEARTBEAT_S, parallelism / HEARTBEATS_PER_S_MAX, least_s)
    )


class HeartbeatSchedule:
    """When one worker sends its next heartbeat, by what they cost it."""

    def __init__(self, timeout_s: float, parallelism: int) -> None:
        self._timeout_s = timeout_s
        self._parallelism = parallelism
        self._costs_ns: deque[int] = deque(maxlen=COSTS_KEPT)
        self._before: tuple[int, int] | None = None

    def next_s(self, now_ns: int, began_ns: int, ended_ns: int) -> float:
        """Return in how long to send another one.

        Args:
            now_ns: By the clock.
            began_ns: The processor time of the worker when it began to make this one.
            ended_ns: And when it had.
        """
        load = 1.0
        if self._before is not None and now_ns > self._before[0]:
            load = (began_ns - self._before[1]) / (now_ns - self._before[0])
        self._before = now_ns, began_ns
        self._costs_ns.append(ended_ns - began_ns)
        # Not the mean of the last few: other threads of the worker count as well, and may be busy for long.
        cost_s = sorted(self._costs_ns)[(len(self._costs_ns) - 1) // 2] / 1e9
        least_s = cost_s / HEARTBEATS_SHARE_MAX / min(1.0, max(LOAD_LEAST, load))
        return heartbeat_interval_s(self._timeout_s, self._parallelism, least_s)


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

    def send_message(self, message: WorkerMessage) -> None:
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

    Without it, Spark would start attempt after attempt until the job gives up for want of workers. Return
    when Spark may start the next one: after the delay that the coordinator names, or when the job is over.

    Args:
        timeout_s: To connect, and for an answer: none comes if the job needs no worker in that place.
    """
    is_open = False
    answered, over = asyncio.Event(), asyncio.Event()
    delay_s = 0.0

    def opened() -> None:
        nonlocal is_open
        is_open = True
        link.send_message(WorkerFailed(worker, attempt, failure_cause(error)))

    def received(message: CoordinatorMessage) -> None:
        nonlocal delay_s
        if isinstance(message, ShutDown):
            delay_s = message.after_ms / 1_000
            answered.set()

    def lost(reason: str) -> None:
        over.set()
        answered.set()

    link = WorkerLink(credentials, worker, attempt, opened, received, lost)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            await connect(link, *address)
            await answered.wait()
    if not is_open:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await over.wait()
    if not over.is_set():
        link.close_gently("the worker could not start")


class LinkHost(Protocol):
    """The owner of the coordinator's ends."""

    def link_opened(self, link: CoordinatorLink, worker: WorkerIndex, attempt: AttemptId) -> int:
        """A worker has proven who it is; return the number of its link."""

    def link_message(self, link: CoordinatorLink, message: WorkerMessage) -> None:
        """A worker said something."""

    def link_lost(self, link: CoordinatorLink, reason: str) -> None:
        """A link that was open is over."""


class CoordinatorLink(AcceptingSide):
    """The coordinator's end; it is not reported before the peer is proven."""

    def __init__(self, host: LinkHost, listener: Listener, credentials: Credentials) -> None:
        decoder = FrameDecoder(CONTROL_LIMITS, sequenced=False)
        super().__init__(listener, credentials, Role.WORKER_TO_COORDINATOR, decoder)
        self.number = 0
        self._host = host
        self._peer = WorkerIndex(0), AttemptId(0)

    def send_message(self, message: CoordinatorMessage) -> None:
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
