"""Shows what `crosscut simulate` does: notes, progress, failures, summary."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from crosscut.cli.target import load_flow, load_named
from crosscut.cli.view import make_console
from crosscut.errors import FlowError
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.command import FlowSimulation, Simulation, broken_promises
from crosscut.testing.simulator.options import PROTOCOLS
from crosscut.testing.simulator.shrink import Life
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget

FINE, WRONG, INTERRUPTED = 0, 1, 130


@dataclass(frozen=True, slots=True)
class Selection:
    """Which worlds: `seed_count` from `first_seed` on, or only `seed`.

    Attributes:
        faults: Of the world of `seed`, if not all.
        jobs: In so many processes at most.
    """

    first_seed: int
    seed_count: int
    seed: int | None = None
    faults: tuple[int, ...] | None = None
    jobs: int = 1


def run(
    target: str | None,
    selection: Selection,
    protocols: tuple[ProtocolKind, ...],
    sink: str | None,
) -> int:
    """Simulate a flow, check a sink, or both, and show it; return the exit code.

    Args:
        target: Names the flow; None: only the sink is checked.
        protocols: None of them: all.
        sink: Names a function that returns a SinkTarget, whose sink is checked first.
    """
    with quiet():
        console = make_console()
        is_wrong = sink is not None and not _sink_keeps_its_promises(sink, console)
        if target is None:
            return WRONG if is_wrong else FINE
        command = f"crosscut simulate {target}"
        simulation = FlowSimulation(load_flow(target), command, protocols or PROTOCOLS)
        for note in simulation.notes:
            _print_line(console, note)
        for broken in simulation.broken:
            _print_line(console, f"wrong: {broken}")
        found = show(simulation, selection, console)
        return found or (WRONG if is_wrong or simulation.broken else FINE)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the log lines of simulated jobs, which are meant for those who run a job, from being shown."""
    logger = logging.getLogger("crosscut")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def show(simulation: Simulation, selection: Selection, console: Console) -> int:
    """Run the worlds, show failures and a summary; return the exit code."""
    if selection.seed is not None:
        life = simulation.one(simulation.options(selection.seed), selection.faults)
        return show_one(simulation, life, console)
    is_interrupted = _run_all(simulation, selection, console)
    if duplicates := simulation.duplicates():
        _print_line(console, duplicates)
    _print_line(console, simulation.summary())
    if is_interrupted:
        return INTERRUPTED
    return WRONG if simulation.failed_count else FINE


def show_one(simulation: Simulation, life: Life, console: Console) -> int:
    """Show how one world has ended; return the exit code."""
    seed = life.options.seed
    _print_line(console, simulation.report(life) if life.failure else f"seed {seed}: nothing is wrong")
    return WRONG if life.failure else FINE


def _run_all(simulation: Simulation, selection: Selection, console: Console) -> bool:
    """Let all worlds live; return whether Ctrl-C came."""
    columns = (TextColumn("worlds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        shown = progress.add_task("worlds", total=selection.seed_count)
        try:
            for life in simulation.lives(selection.first_seed, selection.seed_count, selection.jobs):
                progress.advance(shown)
                if life.failure:
                    _print_line(console, simulation.report(life))
        except KeyboardInterrupt:
            return True
    return False


def _sink_keeps_its_promises(name: str, console: Console) -> bool:
    target = load_named(name)
    if not callable(target) or isinstance(target, SinkTarget):
        raise FlowError(
            f"{name} is of type {type(target).__name__}: expected a function that returns a "
            f"crosscut.testing.sinks.SinkTarget, each time with a location where nothing is yet"
        )
    broken = broken_promises(target)
    for one in broken:
        _print_line(console, f"wrong: sink {name}: {one}")
    _print_line(console, f"sink {name}: {len(SINK_CHECKS) - len(broken)} of {len(SINK_CHECKS)} checks passed")
    return not broken


def _print_line(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
