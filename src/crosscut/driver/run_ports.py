"""What engine runs use of their machine: clocks, threads, randomness. A virtual world brings its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from crosscut.driver.driver import CoordinatorDriver
from crosscut.host.calls import StartThread, start_thread
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints, Plan, armed
from crosscut.microbatch.host_cache import remove_host_cache
from crosscut.net.encryption import JobCertificate, make_certificate


@dataclass(frozen=True, slots=True)
class RunPorts:
    """See the module.

    Attributes:
        plan: What is armed in the workers; None: nothing.
        start_thread: Starts the threads in which the store, sources and sinks are called.
        draw_bytes: Returns the given number of random bytes, from a cryptographic source.
        new_failpoints: Makes those of one part of the driver, which counts for itself.
        new_certificate: Makes the certificate of an engine run with TLS.
        new_driver: Makes what acts for the coordinator; called as `CoordinatorDriver` is.
        remove_cache: Removes what this host keeps for a job in batches; gets the URL of the store and
            `state_dir`.
    """

    plan: Plan | None
    clock: Clock
    start_thread: StartThread
    draw_bytes: Callable[[int], bytes]
    new_failpoints: Callable[[], Failpoints] = field(default=partial(Failpoints, None, None))
    new_certificate: Callable[[], JobCertificate] = make_certificate
    new_driver: Callable[..., CoordinatorDriver] = CoordinatorDriver
    remove_cache: Callable[[str, str | None], None] = remove_host_cache


def system_ports() -> RunPorts:
    """Return those of this machine."""
    plan = armed()
    return RunPorts(plan, SystemClock(), start_thread, secrets.token_bytes, partial(Failpoints, plan, None))
