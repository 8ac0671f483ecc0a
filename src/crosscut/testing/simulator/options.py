"""Everything that a simulated world is made of, from its seed: graph, protocol, sizes, plan of faults."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from crosscut.contracts.engines import EngineName
from crosscut.protocol.snapshot.choosing import ProtocolKind

FaultKind = Literal[
    "kill a worker",
    "pause a worker",
    "freeze a worker",
    "start a second attempt",
    "speculate an attempt",
    "lose shuffle blocks",
    "start another driver",
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
    "partition two workers",
    "partition two workers one way",
    "clog some lines",
    "repeat a message",
    "repeat a word",
    "refuse a log append",
    "apply a log append without an answer",
    "lose a log append without an answer",
    "delay a log append without an answer",
    "fail a read of the log",
    "take the log away",
    "refuse a part",
    "refuse a delete",
    "flip a bit in a read",
    "misdirect a read",
    "tear a part",
    "rot a part",
    "slow store",
    "hang the store",
    "miss objects in a listing",
    "show deleted objects in a listing",
    "fail a commit",
    "apply a commit without an answer",
    "apply half a commit without an answer",
    "fail a prepare",
    "hang a sink",
    "slow sink",
    "raise in user code",
    "fail a source",
    "jump the wall clock",
]
"""What can go wrong. Each stays within the contract of the thing that it goes wrong with, but for a part that
is torn or rots: then the job may end, with an error that says so. "repeat a ..." is what no TCP connection
does, and the machines promise to bear."""

FAILURES: tuple[FaultKind, ...] = ("kill a worker", "raise in user code", "kill the driver")

Moment = Literal[
    "source.sent",
    "align.partial",
    "snapshot.logging",
    "snapshot.frozen",
    "snapshot.encoded",
    "snapshot.stored",
    "commit.told",
    "commit.before",
    "commit.after",
    "restore.begin",
    "restore.state",
    "restore.task",
    "restore.ready",
    "restore.replaying",
    "close",
    "driver.acknowledged",
    "driver.append",
    "driver.appended",
    "driver.completed",
    "driver.commit",
    "driver.delete",
    "driver.finish",
    "driver.found",
    "splits.assigned",
    "batch.planned",
    "batch.begin",
    "batch.read",
    "batch.staged",
    "batch.returned",
    "engine.stop",
    "engine.switch",
]
"""Where a fault may wait for a process to come along: most are failpoints of the real thing, too."""

Size = Literal["any", "small"]
"""Of the worlds to draw. A small one is one worker with a chain of two tasks and a handful of records, with
any protocol and at least one fault of any kind: the smallest that has everything that can be recovered."""

OF_BATCHES: tuple[FaultKind, ...] = ("speculate an attempt", "lose shuffle blocks", "start another driver")
"""Faults only of worlds whose job runs in batches."""

FAULT_KINDS: tuple[FaultKind, ...] = tuple(one for one in get_args(FaultKind) if one not in OF_BATCHES)
FINDING: tuple[Moment, ...] = ("driver.found", "splits.assigned")
"""Passed only where splits are found while a job runs."""

IN_BATCHES: tuple[Moment, ...] = (
    "batch.planned",
    "batch.begin",
    "batch.read",
    "batch.staged",
    "batch.returned",
    "engine.stop",
    "engine.switch",
)
"""Passed only where a job runs in batches."""

MOMENTS: tuple[Moment, ...] = tuple(
    one for one in get_args(Moment) if one not in FINDING and one not in IN_BATCHES
)
PROTOCOLS: tuple[ProtocolKind, ...] = get_args(ProtocolKind)
SIZES: tuple[Size, ...] = get_args(Size)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: when, what, and a number that picks the one to suffer it.

    Attributes:
        moment: Then it waits, from `at_ms` on, for a process to pass there for the `nth` time. A worker or
            driver that is to be killed or paused is the one that passes, if it is of that kind.
    """

    at_ms: int
    kind: FaultKind
    choice: int = 0
    moment: Moment | None = None
    nth: int = 1

    def __str__(self) -> str:
        waiting = f", when {self.moment} is passed, time {self.nth}" if self.moment else ""
        return f"{self.at_ms} ms: {self.kind} ({self.choice}){waiting}"


@dataclass(frozen=True, slots=True)
class Options:
    """A world. Durations in the unit that the name says, of virtual time.

    Attributes:
        theme: What the world is made for, "" if it is only made by chance.
        graph: Name of the flow, or of one of the graphs that Crosscut itself is simulated with.
        is_periodic: False: `snapshots="none"`.
        record_count: Records of each split.
        source_ms: How long it takes to read them.
        channel_bytes: Credit of a channel between workers.
        spill_bytes: Disk for blocked channels; 0: their senders wait.
        commits_together: The first task of each sink commits what all have staged.
        linger_ms: How long a partial batch waits for more.
        marker_interval_ms: How often latency markers follow the records of a source; 0: never.
        is_encrypted: All connections are inside TLS.
        is_sealed: Without TLS, all frames carry seals.
        piece_bytes: Of a batch that go at once to another worker, in front of what other channels send there.
        buffer_bytes: What a connection takes before it asks its writer to pause.
        segment_entries_max: After so many entries the job log goes on in a new segment.
        spark_attempts_max: After so many failures of one of its tasks Spark gives the job up.
        spark_start_ms: How long it takes at most until a new attempt runs.
        latency_us: Largest latency of a message when nothing is wrong.
        step_us: Largest pause of a worker between two pieces of work.
        store_us: Largest latency of the store and of a sink.
        safety_ms: How long faults happen. After that they stop, and the job has to finish.
        rescaled_to: The parallelism of the second driver, the third, and so on, from the start again; none:
            all have that of the first. Not where something is broadcast: the output depends on it.
        savepoint_after: Another job, without faults, goes before this one until it has completed so many
            checkpoints; this one begins with a savepoint of it. 0: none does.
        flow: The description of a drawn flow, as text; "": the graph is one of the zoo, or the user's.
        stays_open: Input does not end before everything that has to move has moved (I14).
        splits_every_ms: Splits come while the job runs, which looks for them so often; 0: all are there.
        hosts_crash: What kills a process takes its host down: writes that were not synced are forgotten.
        thresholds: Of `crosscut.testing.simulator.thresholds`: those that are small, and how small.
        engine: Under "auto" the job goes from one engine to the other; see `crosscut.Auto`.
        batch_parallelism: Of batches under "auto"; 0: that of the driver.
        batch_records: Of all sources together, in one batch.
        speculation: How often Spark makes a second attempt at a partition while the first one runs.
        caught_up_at: See `EngineChoice`.
        behind_at: Likewise.
        behind_for_ms: Likewise.
        look_ms: How often the driver looks how far behind the job is.
        knows_lag: Whether sources know how many records wait.
        outage_ms: How long the store may refuse before that is a failure of the job; 0: it counts attempts.
        empty_looks: For each source before it, a source finds nothing in so many looks for splits.
        is_logged: Each worker has a log, and no checkpoint is taken.
        group_interval_ms: How old a group becomes while there is more to do.
        tail_groups_max: After so many a worker takes a snapshot of its own.
    """

    seed: int
    theme: str
    graph: str
    parallelism: int
    snapshots: ProtocolKind
    is_periodic: bool
    alignment_timeout_ms: int
    splits_per_task: int
    record_count: int
    source_ms: int
    batch_rows: int
    channel_bytes: int
    spill_bytes: int
    commits_together: bool
    linger_ms: int
    is_encrypted: bool
    is_sealed: bool
    piece_bytes: int
    buffer_bytes: int
    inline_bytes: int
    retain: int
    segment_entries_max: int
    interval_ms: int
    pause_ms: int
    in_flight_max: int
    checkpoint_timeout_ms: int
    heartbeat_timeout_ms: int
    spark_attempts_max: int
    spark_start_ms: int
    latency_us: int
    step_us: int
    store_us: int
    safety_ms: int
    faults: tuple[PlannedFault, ...]
    rescaled_to: tuple[int, ...] = ()
    savepoint_after: int = 0
    flow: str = ""
    splits_every_ms: int = 0
    marker_interval_ms: int = 0
    stays_open: bool = False
    uncommitted_max: int = 4
    held_back_ms: int = 1_000
    hosts_crash: bool = False
    thresholds: tuple[tuple[str, int], ...] = ()
    engine: EngineName = "continuous"
    outage_ms: int = 0
    batch_parallelism: int = 0
    batch_records: int = 20
    speculation: float = 0.0
    caught_up_at: int = 5
    behind_at: int = 10
    behind_for_ms: int = 0
    look_ms: int = 250
    knows_lag: bool = False
    empty_looks: int = 0
    is_logged: bool = False
    group_interval_ms: int = 0
    tail_groups_max: int = 5_000

    def __str__(self) -> str:
        named = (one.name for one in fields(self) if one.name not in {"faults", "flow"})
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in named)


@dataclass(frozen=True, slots=True)
class Theme:
    """Rare things that go together, and the sizes with which they become likely.

    Attributes:
        kinds: Of its faults; one that is here twice is twice as likely.
        moments: Where all its faults wait; none: they come at any time.
        overrides: Options that are not drawn, or only from what is here.
    """

    kinds: tuple[FaultKind, ...]
    fault_count: int
    moments: tuple[Moment, ...] = ()
    overrides: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


COMMITS_FAIL: tuple[FaultKind, ...] = (
    "fail a commit",
    "fail a commit",
    "fail a commit",
    "apply a commit without an answer",
)

THEMES: dict[str, Theme] = {
    "late snapshots": Theme(
        ("slow store", "hang the store", "refuse a part", "slow channel", "kill a worker"),
        24,
        overrides={
            "snapshots": ("halting", "halting", *PROTOCOLS),
            "checkpoint_timeout_ms": (0,),
            "interval_ms": (10,),
            "inline_bytes": (0,),
            "step_us": (500,),
        },
    ),
    "repeated words": Theme(
        ("repeat a message", "repeat a word"),
        120,
        overrides={"snapshots": ("halting", "halting", "switching", "unaligned"), "safety_ms": (200,)},
    ),
    "lost at the end": Theme(
        ("kill a worker", "kill a worker", "kill the driver", "end the Spark job"),
        3,
        ("driver.finish", "driver.finish", "driver.commit", "commit.after"),
        {"record_count": (2,), "safety_ms": (800,), "store_us": (50_000,), "latency_us": (100,)},
    ),
    "channel state": Theme(
        ("kill a worker", "kill a worker", "slow channel"),
        24,
        ("snapshot.logging", "restore.replaying", "snapshot.stored", "commit.told"),
        {
            "snapshots": ("unaligned",),
            "channel_bytes": (50,),
            "parallelism": (2,),
            "record_count": (15,),
            "interval_ms": (30,),
            "step_us": (500,),
        },
    ),
    "crossing barriers": Theme(
        ("slow channel", "slow channel", "slow control link"),
        60,
        overrides={
            "graph": ("rebalance",),
            "snapshots": ("switching",),
            "alignment_timeout_ms": (100,),
            "in_flight_max": (4,),
            "checkpoint_timeout_ms": (0,),
            "pause_ms": (0,),
            "parallelism": (3,),
            "record_count": (25,),
            "batch_rows": (1,),
            "channel_bytes": (10_000,),
            "step_us": (5_000,),
            "latency_us": (1_000,),
            "store_us": (200,),
            "safety_ms": (800,),
        },
    ),
    # A batch is halfway through its task when barriers come in on several inputs, behind records.
    "barriers that wait for half a batch": Theme(
        ("slow channel", "slow sink", "kill a worker"),
        4,
        overrides={
            "graph": ("union", "rebalance"),
            "snapshots": ("unaligned",),
            "in_flight_max": (1,),
            "checkpoint_timeout_ms": (1_000,),
            "parallelism": (2, 3),
            "record_count": (25,),
            "batch_rows": (10,),
            "channel_bytes": (10_000,),
            "linger_ms": (0,),
            "interval_ms": (10,),
            "step_us": (2_000,),
            "latency_us": (100, 1_000),
            "safety_ms": (200,),
        },
    ),
    "stuck barriers": Theme(
        ("slow channel", "slow channel", "slow sink"),
        20,
        overrides={
            "graph": ("rebalance", "union", "nested loops", "diamond"),
            "snapshots": ("switching",),
            "alignment_timeout_ms": (1, 10),
            "parallelism": (2, 3),
            "record_count": (25,),
            "batch_rows": (1,),
            "channel_bytes": (50,),
            "spill_bytes": (0,),
            "interval_ms": (10,),
            "checkpoint_timeout_ms": (1_000,),
            "step_us": (500,),
            "latency_us": (1_000,),
            "safety_ms": (400,),
        },
    ),
    "swept and rotten": Theme(
        (
            "rot a part",
            "tear a part",
            "kill the driver",
            "misdirect a read",
            "show deleted objects in a listing",
        ),
        16,
        overrides={
            "graph": ("chain", "union", "rebalance"),
            "inline_bytes": (0,),
            "retain": (1,),
            "interval_ms": (10,),
        },
    ),
    "no log for long": Theme(
        ("take the log away", "kill a worker"),
        3,
        overrides={
            "safety_ms": (6_000,),
            "interval_ms": (300,),
            "record_count": (2,),
            "snapshots": ("aligned",),
        },
    ),
    "words of older epochs": Theme(
        ("kill a worker", "repeat a word", "repeat a word", "repeat a word", "repeat a message"),
        60,
        overrides={"parallelism": (2, 3), "safety_ms": (400,), "heartbeat_timeout_ms": (1_000,)},
    ),
    "sinks in trouble": Theme(
        (*(COMMITS_FAIL * 30), "hang a sink"),
        120,
        overrides={
            "interval_ms": (10,),
            "checkpoint_timeout_ms": (0, 300),
            "step_us": (50, 500),
            "safety_ms": (400,),
        },
    ),
    "killed in between": Theme(FAILURES, 4, MOMENTS, {"interval_ms": (30,)}),
}
RESCALED = 0.4
"""Of the worlds: in so many does the job go on at another parallelism whenever a driver has died."""
STAYS_OPEN = 0.15
"""Of the worlds without a theme: in so many does input not end before all has moved."""
THEME_EVERY = 3
"""Every third world has a theme, one after the other; the others are made by chance alone."""


def options_of(
    seed: int,
    graphs: tuple[str, ...],
    protocols: tuple[ProtocolKind, ...] = PROTOCOLS,
    size: Size = "any",
    kinds: tuple[FaultKind, ...] = FAULT_KINDS,
) -> Options:
    """Return the options that `seed` stands for.

    Args:
        seed: Any number from 0 on.
        graphs: Of which graphs there may be.
        protocols: Of which protocols there may be.
        size: How large they may be; "small" takes the first of `graphs`.
        kinds: Of which faults there may be; each world has some of them (swarm testing).
    """
    dice = random.Random(f"crosscut options {seed}")
    is_small = size == "small"
    is_themed = seed % THEME_EVERY == 0 and not is_small
    name = list(THEMES)[seed // THEME_EVERY % len(THEMES)] if is_themed else ""
    snapshots = dice.choice(protocols)
    drawn: dict[str, Any] = {
        "graph": graphs[0] if is_small else dice.choice(graphs),
        "parallelism": 1 if is_small else dice.choice((1, 2, 2, 3)),
        "snapshots": snapshots,
        "is_periodic": dice.random() < 0.95,
        "alignment_timeout_ms": dice.choice((1, 10, 100)),
        "splits_per_task": 1 if is_small else dice.choice((1, 1, 2)),
        "record_count": dice.choice((3, 5)) if is_small else dice.choice((2, 5, 15)),
        "batch_rows": dice.choice((1, 3, 10)),
        "channel_bytes": dice.choice((50, 200, 10_000)),
        # Drawn apart, so that all else of a seed is what it was before there was this option.
        "spill_bytes": random.Random(f"crosscut spill {seed}").choice((0, 0, 300, 1_000_000)),
        "commits_together": random.Random(f"crosscut together {seed}").random() < 0.2,
        "linger_ms": random.Random(f"crosscut linger {seed}").choice((0, 1, 20)),
        "marker_interval_ms": random.Random(f"crosscut marks {seed}").choice((0, 0, 1, 20)),
        "is_encrypted": random.Random(f"crosscut encryption {seed}").random() < 0.05,
        "is_sealed": random.Random(f"crosscut seals {seed}").random() < 0.3,
        "piece_bytes": random.Random(f"crosscut pieces {seed}").choice((30, 200, 65_536)),
        "buffer_bytes": random.Random(f"crosscut buffers {seed}").choice((100, 1_000, 65_536)),
        "uncommitted_max": random.Random(f"crosscut uncommitted {seed}").choice((1, 2, 4)),
        "held_back_ms": random.Random(f"crosscut held back {seed}").choice((0, 0, 100)),
        "inline_bytes": dice.choice((0, 100, 4_096)),
        "segment_entries_max": random.Random(f"crosscut segments {seed}").choice((1, 2, 5, 1_000)),
        "retain": dice.randint(1, 3),
        "interval_ms": dice.choice((10, 30, 100, 300)),
        "pause_ms": dice.choice((0, 0, 30)),
        "in_flight_max": dice.choice((1, 1, 2, 4)),
        "checkpoint_timeout_ms": dice.choice((10, 50, 300, 1_000)),
        "heartbeat_timeout_ms": dice.choice((200, 400, 1_000)),
        "spark_attempts_max": dice.choice((2, 4, 100)),
        "spark_start_ms": 5 if is_small else dice.choice((5, 50)),
        "latency_us": dice.choice((100, 1_000, 10_000)[: 2 if is_small else 3]),
        "step_us": dice.choice((200, 1_000) if is_small else (50, 500, 5_000)),
        "store_us": dice.choice((200, 5_000, 50_000)[: 2 if is_small else 3]),
        "safety_ms": 60 if is_small else dice.choice((100, 200, 400, 800)),
    }
    rescaling = random.Random(f"crosscut rescaling {seed}")
    if not is_small and rescaling.random() < RESCALED:
        drawn["rescaled_to"] = tuple(rescaling.choice((1, 2, 3, 4)) for _ in range(2))
    if not is_small and not is_themed:
        drawn["stays_open"] = random.Random(f"crosscut open {seed}").random() < STAYS_OPEN
    theme = THEMES.get(name)
    if theme is not None:
        drawn |= {name: dice.choice(values) for name, values in theme.overrides.items()}
        drawn["snapshots"] = drawn["snapshots"] if drawn["snapshots"] in protocols else snapshots
        drawn["graph"] = drawn["graph"] if drawn["graph"] in graphs else graphs[0]
    safety_ms = drawn["safety_ms"]
    # Some of the faults are to meet the end of the job as well.
    drawn["source_ms"] = safety_ms // dice.choice((1, 2, 5))
    drawn["interval_ms"] = max(drawn["interval_ms"], safety_ms // 20)
    # A checkpoint has to be able to complete when nothing is wrong.
    timeout_us_min = 20 * drawn["step_us"] + 8 * drawn["latency_us"] + 4 * drawn["store_us"]
    drawn["checkpoint_timeout_ms"] = max(drawn["checkpoint_timeout_ms"], 10 + timeout_us_min // 1_000)
    if drawn["snapshots"] == "halting":
        # A job that stands still for one checkpoint can't stand still for the next.
        drawn["in_flight_max"] = 1
    count_max = 5 if is_small else 3 + safety_ms // dice.choice((15, 50, 150))
    faults = _themed(dice, theme, safety_ms, kinds) if theme else _plan(dice, safety_ms, kinds, count_max)
    return Options(seed=seed, theme=name, faults=faults, **drawn)


def _plan(
    dice: random.Random, safety_ms: int, kinds: tuple[FaultKind, ...], count_max: int
) -> tuple[PlannedFault, ...]:
    """Draw a plan; one in twenty is empty."""
    some = dice.sample(kinds, min(len(kinds), dice.randint(1, 8)))
    # Much of what goes wrong shows only when something has to be recovered.
    some += [one for one in FAILURES if one in kinds and dice.random() < 0.5] * (1 + len(some) // 3)
    count = 0 if dice.random() < 0.05 else dice.randint(1, count_max)

    moments = (*MOMENTS, *[None] * (2 * len(MOMENTS)))
    return _sorted(_fault(dice, safety_ms, some, dice.choice(moments)) for _ in range(count))


def _themed(
    dice: random.Random, theme: Theme, safety_ms: int, kinds: tuple[FaultKind, ...]
) -> tuple[PlannedFault, ...]:
    some = [one for one in theme.kinds if one in kinds]
    count = theme.fault_count if some else 0
    return _sorted(
        _fault(dice, safety_ms, some, dice.choice(theme.moments) if theme.moments else None)
        for _ in range(count)
    )


def _fault(
    dice: random.Random, safety_ms: int, kinds: Sequence[FaultKind], moment: Moment | None
) -> PlannedFault:
    at_ms = dice.randrange(safety_ms // 4 if moment else safety_ms)
    nth = dice.choice((1, 1, 1, 2, 3)) if moment else 1
    return PlannedFault(at_ms, dice.choice(kinds), dice.randrange(1 << 16), moment, nth)


def _sorted(faults: Iterable[PlannedFault]) -> tuple[PlannedFault, ...]:
    return tuple(sorted(faults, key=lambda one: one.at_ms))
