"""What engine runs use of their machine: clocks, threads, randomness. A virtual world brings its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from crosscut.host.calls import StartThread, start_thread
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Plan, armed


@dataclass(frozen=True, slots=True)
class RunPorts:
    """See the module.

    Attributes:
        failpoints: What is armed, here and in the workers; None: nothing.
        start_thread: Starts the threads in which the store, sources and sinks are called.
        draw_bytes: Returns the given number of random bytes, from a cryptographic source.
    """

    failpoints: Plan | None
    clock: Clock
    start_thread: StartThread
    draw_bytes: Callable[[int], bytes]


def system_ports() -> RunPorts:
    """Return those of this machine."""
    return RunPorts(armed(), SystemClock(), start_thread, secrets.token_bytes)
