"""Everything that a simulated world is made of, from its seed: graph, protocol, sizes, plan of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Literal, get_args

from crosscut.protocol.choosing import ProtocolKind

FaultKind = Literal[
    "kill a worker",
    "pause a worker",
    "start a second attempt",
    "end the Spark job",
    "kill the driver",
    "pause the driver and start another",
    "stop the job",
    "cancel the job",
    "ask for a checkpoint",
    "break a channel",
    "half-open channel",
    "slow channel",
    "break a control link",
    "half-open control link",
    "slow control link",
    "repeat a message",
    "refuse a log append",
    "apply a log append without an answer",
    "lose a log append without an answer",
    "delay a log append without an answer",
    "fail a read of the log",
    "refuse a part",
    "flip a bit in a read",
    "tear a part",
    "slow store",
    "fail a commit",
    "apply a commit without an answer",
    "apply half a commit without an answer",
    "fail a prepare",
    "raise in user code",
    "fail a source",
    "slow sink",
]
"""What can go wrong. Each stays within the contract of the thing that it goes wrong with, but for "tear a
part", a broken promise of the disk: after it the job may also end with an error that says so."""

FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
PROTOCOLS: tuple[ProtocolKind, ...] = get_args(ProtocolKind)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: when, what, and a number that picks the one to suffer it."""

    at_ms: int
    kind: FaultKind
    choice: int

    def __str__(self) -> str:
        return f"{self.at_ms} ms: {self.kind} ({self.choice})"


@dataclass(frozen=True, slots=True)
class Options:
    """A world. Durations in the unit that the name says, of virtual time.

    Attributes:
        graph: Name of a graph of `crosscut.testing.simulator.graphs`, or of the user's flow.
        is_periodic: False: `snapshots="none"`.
        record_count: Records of each split.
        channel_bytes: Credit of a channel between workers.
        spill_bytes: Disk for blocked channels; 0: their senders wait.
        latency_us: Largest latency of a message when nothing is wrong.
        step_us: Largest pause of a worker between two pieces of work.
        store_us: Largest latency of the store and of a sink.
        safety_ms: How long faults happen. After that they stop, and the job has to finish.
    """

    seed: int
    graph: str
    parallelism: int
    snapshots: ProtocolKind
    is_periodic: bool
    alignment_timeout_ms: int
    splits_per_task: int
    record_count: int
    batch_rows: int
    channel_bytes: int
    spill_bytes: int
    inline_bytes: int
    retain: int
    interval_ms: int
    pause_ms: int
    in_flight_max: int
    checkpoint_timeout_ms: int
    heartbeat_timeout_ms: int
    latency_us: int
    step_us: int
    store_us: int
    safety_ms: int
    faults: tuple[PlannedFault, ...]

    def __str__(self) -> str:
        named = (one.name for one in fields(self) if one.name != "faults")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in named)


def options_of(
    seed: int, graphs: tuple[str, ...], protocols: tuple[ProtocolKind, ...] = PROTOCOLS
) -> Options:
    """Return the options that `seed` stands for.

    Args:
        seed: Any number from 0 on.
        graphs: Of which graphs there may be.
        protocols: Of which protocols there may be.
    """
    dice = random.Random(f"crosscut options {seed}")
    graph = dice.choice(graphs)
    snapshots = dice.choice(protocols)
    safety_ms = dice.choice((300, 1_000, 2_000, 4_000))
    kinds = dice.sample(FAULT_KINDS, dice.randint(1, 8))
    fault_count = 0 if dice.random() < 0.05 else dice.randint(1, 1 + safety_ms // dice.choice((50, 200, 500)))
    return Options(
        seed=seed,
        graph=graph,
        parallelism=dice.choice((1, 2, 2, 3)),
        snapshots=snapshots,
        is_periodic=dice.random() < 0.95,
        alignment_timeout_ms=dice.choice((1, 10, 100)),
        splits_per_task=dice.choice((1, 1, 2)),
        record_count=dice.choice((3, 10, 25)),
        batch_rows=dice.choice((1, 3, 10)),
        channel_bytes=dice.choice((50, 200, 10_000)),
        inline_bytes=dice.choice((0, 100, 4_096)),
        retain=dice.randint(1, 3),
        interval_ms=dice.choice((20, 50, 100, 300)),
        pause_ms=dice.choice((0, 0, 50)),
        # A job that stands still for one checkpoint can't stand still for the next.
        in_flight_max=1 if snapshots == "halting" else dice.choice((1, 1, 2, 4)),
        checkpoint_timeout_ms=dice.choice((300, 1_000, 5_000)),
        heartbeat_timeout_ms=dice.choice((400, 1_000)),
        latency_us=dice.choice((100, 1_000, 10_000)),
        step_us=dice.choice((50, 500, 5_000)),
        store_us=dice.choice((200, 5_000, 50_000)),
        safety_ms=safety_ms,
        faults=tuple(
            sorted(
                (
                    PlannedFault(dice.randrange(safety_ms), dice.choice(kinds), dice.randrange(1 << 16))
                    for _ in range(fault_count)
                ),
                key=lambda fault: fault.at_ms,
            )
        ),
        spill_bytes=dice.choice((0, 0, 300, 1_000_000)),
    )
