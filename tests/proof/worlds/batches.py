"""Worlds whose job runs in batches, or under both engines: from the seed follow the flow and all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import get_args

from tests.proof.flows import Description, drawn_flow, expected_output, parsed
from tests.proof.flows.oracle import TooMuchError
from tests.proof.flows.steps import (
    AggregateName,
    Broadcast,
    CallName,
    KeyName,
    Loop,
    OrderName,
    RateLimit,
    Rules,
    Source,
)
from tests.proof.worlds.drawn import DRAWN, with_flow

from crosscut.contracts.engines import EngineName
from crosscut.errors import FlowError
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.options import (
    IN_BATCHES,
    OF_BATCHES,
    THEME_EVERY,
    FaultKind,
    Moment,
    Options,
    PlannedFault,
    options_of,
)
from crosscut.testing.simulator.thresholds import drawn_thresholds

PARALLELISM_MAX = 5
WORK_MAX = 4_000
FOLDED_SHARE = 0.5
"""Of the flows, so many are a final fold behind edges of all kinds."""

PROTOCOLS: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching", "halting")
ENGINES: tuple[EngineName, ...] = ("micro-batch", "auto")
AROUND_COMMITS: tuple[Moment, ...] = ("driver.append", "driver.appended", "commit.before", "commit.after")
IN_BATCHES_SHARE = 0.5
"""Of the faults: so many wait at a step of a batch, or where one engine follows the other."""

KINDS: tuple[FaultKind, ...] = (
    *OF_BATCHES,
    "kill a worker",
    "pause a worker",
    "freeze a worker",
    "end the Spark job",
    "kill the driver",
    "pause the driver and start another",
    "stop the job",
    "ask for a checkpoint",
    "refuse a log append",
    "apply a log append without an answer",
    "lose a log append without an answer",
    "delay a log append without an answer",
    "fail a read of the log",
    "take the log away",
    "refuse a part",
    "refuse a delete",
    "slow store",
    "hang the store",
    "miss objects in a listing",
    "show deleted objects in a listing",
    "fail a commit",
    "apply a commit without an answer",
    "apply half a commit without an answer",
    "fail a prepare",
    "hang a sink",
    "raise in user code",
    "fail a source",
    "jump the wall clock",
)


def batch_options(
    seed: int, engines: Sequence[EngineName] = ENGINES, kinds: tuple[FaultKind, ...] = KINDS
) -> Options:
    """Return the options that `seed` stands for, of a world whose job runs in batches at least at first."""
    dice = Random(f"crosscut engines {seed}")
    # Themes are made for one engine.
    options = options_of(THEME_EVERY * seed + 1, (DRAWN,), PROTOCOLS, kinds=kinds)
    description = drawn_description(seed)
    options = with_flow(replace(options, seed=seed), description)
    sources = [one for one in description.steps if isinstance(one, Source)]
    longest = max(count for one in sources for count in one.splits)
    # Of one source task; the longest split takes so many batches.
    batch_records = max(1, longest // dice.choice((1, 2, 4, 8)))
    caught_up_at = dice.choice((0, 3, 20))
    knows_lag = dice.random() < 0.8
    return replace(
        options,
        engine=dice.choice(engines),
        is_periodic=True,
        is_encrypted=False,
        batch_parallelism=dice.choice((0, 1, 2, 3)),
        batch_records=batch_records * len(sources) * options.parallelism,
        speculation=dice.choice((0.0, 0.0, 0.1, 0.4)),
        caught_up_at=caught_up_at,
        behind_at=caught_up_at + dice.choice((0, 3, 20)),
        behind_for_ms=dice.choice((0, 10)),
        look_ms=dice.choice((5, 50)),
        knows_lag=knows_lag,
        stays_open=options.stays_open and knows_lag,
        hosts_crash=dice.random() < 0.5,
        splits_every_ms=dice.choice((0, 0, 0, 10, 40)),
        empty_looks=dice.choice((0, 3)),
        thresholds=drawn_thresholds(seed),
        faults=tuple(_met(dice, one) for one in options.faults),
    )


def _met(dice: Random, fault: PlannedFault) -> PlannedFault:
    """Perhaps let a fault wait where batches come along."""
    if dice.random() >= IN_BATCHES_SHARE:
        return fault
    moment = dice.choice((*IN_BATCHES, *AROUND_COMMITS))
    return replace(fault, at_ms=fault.at_ms // 4, moment=moment, nth=dice.choice((1, 1, 2, 3)))


def drawn_description(seed: int) -> Description:
    """Return the flow of `seed`: one that batches can run, at any parallelism with the same output."""
    attempt = 0
    while True:
        dice = Random(f"crosscut batches {seed} {attempt}")
        attempt += 1
        try:
            flow = _folded(dice) if dice.random() < FOLDED_SHARE else drawn_flow(dice.randrange(100_000))
        except FlowError:
            continue
        steps = tuple(
            replace(one, splits=_uneven(dice, len(one.splits))) if isinstance(one, Source) else one
            for one in flow.steps
        )
        if any(isinstance(one, Loop | RateLimit | Broadcast | Rules) for one in steps):
            # Batches have no loops; copies are as many as there are tasks.
            continue
        try:
            expected_output(Description(steps), PARALLELISM_MAX, WORK_MAX)
        except (FlowError, TooMuchError):
            continue
        return Description(steps)


def _uneven(dice: Random, at_least: int) -> tuple[int, ...]:
    count = max(at_least, dice.randint(1, 6))
    return tuple(dice.choice((0, 1, 2, 5, 20, 50)) for _ in range(count))


def _folded(dice: Random) -> Description:
    """A final fold, which batches begin before the shuffle, behind what leaves records with their task."""
    steps = [f"source 1 {dice.choice((0, 2))}" for _ in range(dice.randint(1, 3))]
    stream = 0
    if len(steps) > 1:
        steps.append("union " + ",".join(map(str, range(len(steps)))))
        stream = len(steps) - 1
    for _ in range(dice.randint(0, 2)):
        match dice.choice(("map", "map_async", "filter", "count")):
            case "map":
                steps.append(f"map {stream} same 1")
            case "map_async":
                call, order = dice.choice(get_args(CallName)), dice.choice(get_args(OrderName))
                steps.append(f"map_async {stream} {call} {dice.choice((1, 2, 5))} {order}")
                # Of the records for which all calls fail.
                steps.append(f"side_output {len(steps) - 1} 0")
                steps.append(f"union {len(steps) - 2},{len(steps) - 1}")
            case "filter":
                steps.append(f"filter {stream} multiples 0")
            case _:
                # A fold of folds.
                steps.append(f"key_by {stream} {dice.choice(get_args(KeyName))} {dice.choice((2, 3, 7))}")
                steps.append(f"count {len(steps) - 1} final")
        stream = len(steps) - 1
    steps.append(f"key_by {stream} {dice.choice(get_args(KeyName))} {dice.choice((1, 3, 7, 40))}")
    keyed = len(steps) - 1
    fold = dice.choice(("count", "sum", "aggregate"))
    if fold == "count":
        steps.append(f"count {keyed} final")
    elif fold == "sum":
        steps.append(f"sum {keyed} weight final")
    else:
        steps.append(f"aggregate {keyed} {dice.choice(get_args(AggregateName))} final")
    steps.append(f"sink {keyed + 1}")
    return parsed("; ".join(steps))
