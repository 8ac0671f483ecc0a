"""Simulate Crosscut itself on generated flows: `python -m tests.proof.simulate --seeds 10000`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, get_args

import click
from tests.proof.flows import parsed
from tests.proof.worlds import shrinking
from tests.proof.worlds.batches import batch_options
from tests.proof.worlds.drawn import drawn_options, world_of

from crosscut.cli.commands import fault_indices
from crosscut.cli.simulate import Selection, quiet, show, show_one
from crosscut.cli.view import make_console
from crosscut.contracts.engines import EngineName
from crosscut.errors import CrosscutError, FlowError
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.command import Simulation
from crosscut.testing.simulator.options import PROTOCOLS, SIZES, Options, Size, options_of
from crosscut.testing.simulator.sharing import cores
from crosscut.testing.simulator.shrink import Life

SMALL_GRAPH = "chain"


class DrawnSimulation(Simulation):
    """Worlds with flows that are drawn.

    Args:
        size: "small": worlds with a chain of two tasks.
        engine: Another one than "continuous": worlds whose job runs in batches, at least at first.
    """

    def __init__(
        self,
        command: str = shrinking.COMMAND,
        protocols: tuple[ProtocolKind, ...] = PROTOCOLS,
        size: Size = "any",
        engine: EngineName = "continuous",
    ) -> None:
        profile = f" --size {size}" if size != "any" else ""
        profile += f" --engine {engine}" if engine != "continuous" else ""
        super().__init__(command + profile, protocols, world_of)
        self._size = size
        self._engine = engine

    def options(self, seed: int) -> Options:
        if self._engine != "continuous":
            return batch_options(seed, (self._engine,))
        if self._size == "small":
            return options_of(seed, (SMALL_GRAPH,), self._protocols, self._size)
        return drawn_options(seed, self._protocols)

    def with_flow(self, seed: int, flow: str) -> Options:
        """Return the world of `seed` with a flow that is described instead of the one drawn for it.

        Raises:
            FlowError: `flow` describes none, or this world has none that is drawn.
        """
        options = self.options(seed)
        if not options.flow:
            raise FlowError("a flow can be given only where flows are drawn: leave out --size")
        return replace(options, flow=str(parsed(flow)))

    def shrunk(self, options: Options, life: Life) -> Life:
        return shrinking.shrunk(options, life)

    def report(self, life: Life) -> str:
        return shrinking.report(life, self._command)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many worlds.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="The first one.")
@click.option("--seed", type=click.IntRange(0), help="Only this world, with its last steps shown.")
@click.option(
    "--faults", metavar="LIST", help="With --seed: only these faults of its plan, as in 0,3,5, or none."
)
@click.option(
    "--flow",
    metavar="STEPS",
    default="",
    help="With --seed: this flow instead of the drawn one, as a failure shows it.",
)
@click.option(
    "--snapshots",
    "protocols",
    type=click.Choice(PROTOCOLS),
    multiple=True,
    help="Only worlds with this protocol (switching: aligned, then unaligned); may be repeated.",
)
@click.option("--size", type=click.Choice(SIZES), default="any", help="small: a chain of two tasks.")
@click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    default="continuous",
    show_default=True,
    help="The engine of the job; auto: both, one after the other.",
)
@click.option("--jobs", type=click.IntRange(1), help="In so many processes. [default: one for each core]")
def main(
    seeds: int,
    first_seed: int,
    seed: int | None,
    faults: str | None,
    flow: str,
    protocols: tuple[Any, ...],
    size: Any,
    engine: Any,
    jobs: int | None,
) -> None:
    """Run generated flows in simulated worlds full of faults, and check that their output stays exact.

    Every operator, loops, states, timers, windows and joins anywhere, in jobs that go on at another
    parallelism. A failure is printed with the command that replays it. Ctrl-C ends with what was found until
    then.

    Exit codes: 0: nothing is wrong; 1: something is; 2: the arguments are wrong; 130: interrupted.
    """
    if engine != "continuous" and (protocols or size != "any"):
        raise click.UsageError("--engine has worlds of its own: leave out --snapshots and --size")
    if flow and seed is None:
        raise click.UsageError("--flow needs --seed: the world that it is to run in")
    simulation = DrawnSimulation(protocols=protocols or PROTOCOLS, size=size, engine=engine)
    console = make_console()
    kept = fault_indices(faults)
    with quiet():
        try:
            if seed is not None and flow:
                code = show_one(simulation, simulation.one(simulation.with_flow(seed, flow), kept), console)
            else:
                code = show(simulation, Selection(first_seed, seeds, seed, kept, jobs or cores()), console)
        except CrosscutError as error:
            raise click.UsageError(str(error)) from error
    sys.exit(code)


if __name__ == "__main__":
    main(prog_name=shrinking.COMMAND)
