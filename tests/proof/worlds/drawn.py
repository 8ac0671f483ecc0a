"""Drawn flows in simulated worlds: from the seed of a world follows its flow, too."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from tests.proof.flows import (
    Description,
    built_flow,
    drawn_flow,
    expected_output,
    parsed,
    source_records,
)
from tests.proof.flows.building import step_uid
from tests.proof.flows.steps import (
    Aggregate,
    Broadcast,
    Count,
    Process,
    Rules,
    Sink,
    Source,
    Sum,
    Tally,
    Timed,
)
from tests.proof.flows.ways import resolved
from tests.proof.worlds.continued import ContinuedWorld
from tests.proof.worlds.graphs import built

from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.kept import LeftBehind
from crosscut.testing.simulator.options import (
    FAULT_KINDS,
    FINDING,
    PROTOCOLS,
    FaultKind,
    Options,
    PlannedFault,
    options_of,
)
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM, Judgement, SimulatedJob
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource, source_double
from crosscut.testing.simulator.thresholds import drawn_thresholds
from crosscut.testing.simulator.world import World

DRAWN = "drawn"
"""What such a graph is called where others have a name."""

STEPS_AS_USUAL = 5
CONTINUED = 0.1
"""Of the worlds: in so many does the job begin with a savepoint."""

GROWING = 0.2
"""Of the worlds: in so many do splits come while the job runs."""

BACK_TO_BACK = 0.15
"""Of the worlds without a theme: in so many the next checkpoint is due when the one before completes."""

CHECKPOINTS_MAX = 100
"""So many of them are due until the faults stop."""

RARELY = 0.1
"""Of the worlds without a theme: in so many a checkpoint comes only when the job needs one."""

LONG_MS = (1_000, 5_000)

HOSTS_CRASH = 0.5
"""Of the worlds: in so many a process that is killed takes its host down."""

DYING = 0.5
"""Of the worlds that go on at another parallelism: in so many drivers die again and again."""

AT_A_SPLIT = 0.3
"""Of the faults of such a world: so many wait until a split is found, or given to a task."""


def drawn_options(
    seed: int, protocols: tuple[ProtocolKind, ...] = PROTOCOLS, kinds: tuple[FaultKind, ...] = FAULT_KINDS
) -> Options:
    """Return the options that `seed` stands for, with a flow that is drawn as well."""
    options = with_flow(options_of(seed, (DRAWN,), protocols, kinds=kinds), drawn_flow(seed))
    options = replace(
        options,
        hosts_crash=random.Random(f"crosscut hosts {seed}").random() < HOSTS_CRASH,
        thresholds=drawn_thresholds(seed),
    )
    if not options.theme:
        options = _at_another_pace(options, random.Random(f"crosscut frequency {seed}"))
    options = _growing(options, random.Random(f"crosscut splits {seed}"))
    if options.rescaled_to and "kill the driver" in kinds:
        options = _dying(options, random.Random(f"crosscut drivers {seed}"))
    dice = random.Random(f"crosscut savepoint {seed}")
    # Savepoints are Parquet, which an installation need not have.
    if options.is_periodic and dice.random() < CONTINUED and find_spec("pyarrow") is not None:
        return replace(options, savepoint_after=dice.choice((1, 1, 2, 4)))
    return options


def _growing(options: Options, dice: random.Random) -> Options:
    """Perhaps let splits come while the job runs, and faults meet them."""
    if dice.random() >= GROWING:
        return options

    def met(fault: PlannedFault) -> PlannedFault:
        if dice.random() >= AT_A_SPLIT:
            return fault
        return replace(fault, at_ms=fault.at_ms // 4, moment=dice.choice(FINDING), nth=dice.randint(1, 3))

    faults = tuple(met(one) for one in options.faults)
    return replace(options, splits_every_ms=dice.choice((3, 10, 40)), faults=faults)


def _at_another_pace(options: Options, dice: random.Random) -> Options:
    """Perhaps let checkpoints follow one another at once, or hardly ever come."""
    share = dice.random()
    if share < BACK_TO_BACK:
        return replace(options, interval_ms=back_to_back_ms(options), pause_ms=0)
    return replace(options, interval_ms=dice.choice(LONG_MS)) if share < BACK_TO_BACK + RARELY else options


def back_to_back_ms(options: Options) -> int:
    """Return an interval at which the next checkpoint is due when the one before completes."""
    return max(1, options.safety_ms // CHECKPOINTS_MAX)


def _dying(options: Options, dice: random.Random) -> Options:
    """Perhaps let drivers die between checkpoints: their successors have another parallelism."""
    if dice.random() >= DYING:
        return options
    crowd: dict[str, Any] = {"interval_ms": max(options.safety_ms // 20, 5), "pause_ms": 0}
    if dice.random() < 0.5:
        # Much is on its way then.
        crowd |= {"channel_bytes": 50, "step_us": 2_000, "latency_us": 100, "store_us": 200}
    gap_ms = max(options.safety_ms // 5, 40)
    deaths = (
        PlannedFault(at_ms, "kill the driver", dice.randrange(1 << 16))
        for at_ms in range(gap_ms, options.safety_ms, gap_ms)
    )
    # At the end, so that the faults of the plan keep their indices.
    return replace(options, faults=(*options.faults, *deaths), **crowd)


def with_flow(options: Options, description: Description) -> Options:
    """Return the same world with this flow."""
    # A barrier has a long way through many operators, and all of a worker take turns.
    slower = max(1.0, len(description.steps) / STEPS_AS_USUAL)
    timeout_ms = math.ceil(options.checkpoint_timeout_ms * slower)
    return replace(options, graph=DRAWN, flow=str(description), checkpoint_timeout_ms=timeout_ms)


def world_of(options: Options) -> World:
    """Return the world that `options` stand for, with their drawn flow, or a graph of the zoo."""
    if options.savepoint_after:
        return ContinuedWorld(options, drawn_job(options), drawn_job(options))
    return World(options, drawn_job(options) if options.flow else built(options))


def drawn_job(options: Options) -> SimulatedJob:
    """Return the job of a world whose options hold a drawn flow."""
    description = parsed(options.flow)
    sources: list[ReplayedSource] = []
    sinks: list[SimulatedSink] = []

    def source(number: int, step: Source) -> ReplayedSource:
        splits = {f"s{number}-{split}": one for split, one in enumerate(source_records(number, step))}
        # One ends long before the other.
        duration_ms = options.source_ms // (1 + 4 * len(sources))
        sources.append(
            source_double(
                splits,
                duration_ms,
                options.splits_every_ms,
                stays_open=options.stays_open,
                empty_looks=len(sources) * options.empty_looks,
            )
        )
        sources[-1].knows_lag = options.knows_lag
        return sources[-1]

    def sink(number: int) -> SimulatedSink:
        sinks.append(SimulatedSink())
        return sinks[-1]

    expected = expected_output(description, options.parallelism)

    def named(found: Mapping[int, Any]) -> dict[str, Any]:
        return {step_uid(description, number): one for number, one in found.items()}

    called: dict[int, list[Any]] = {number: [] for number in expected.called}
    flow = built_flow(description, source, sink, calls=called.get)
    is_told = any(isinstance(step, Rules) and step.said == "told" for step in description.steps)
    return SimulatedJob(
        flow.compile(options.parallelism, MAX_PARALLELISM),
        tuple(sources),
        tuple(sinks),
        _judged_as(description),
        expected=named(expected.records),
        is_same_anywhere=not is_told and not any(isinstance(step, Broadcast) for step in description.steps),
        ignores_tasks=not is_told,
        left_behind=LeftBehind(named(expected.kept), named(expected.called), named(called)),
    )


def _judged_as(description: Description) -> Judgement:
    """Return how the output is compared: as it is, since a drawn flow leaves nothing to the order."""
    rising = {
        step_uid(description, number)
        for number, step in enumerate(description.steps)
        if isinstance(step, Sink) and _is_rising(description, step.stream)
    }

    def lane(sink_uid: str, record: Any) -> tuple[Any, Any] | None:
        return record if sink_uid in rising else None

    # What is said only at the end is said of all records: one that counts twice makes it another record.
    has_totals = any(
        isinstance(step, Timed) or getattr(step, "emit", "") == "final" for step in description.steps
    )
    return Judgement(lane=lane, survives_duplicates=not has_totals)


def _is_rising(description: Description, number: int) -> bool:
    """Whether what the step sends are (key, value) with values that rise, for each key."""
    match description.steps[resolved(description.steps, number)]:
        case Count(_, "updates") | Sum(_, "weight", "updates") | Process():
            return True
        case Tally(_, state):
            return state != "stateful"
        case Aggregate(_, "length" | "cell" | "pair", "updates"):
            return True
        case _:
            return False
