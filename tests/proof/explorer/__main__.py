"""Explore one small world: `python -m tests.proof.explorer --graph diamond --records 2 --crashes 1`."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import get_args

from tests.proof.explorer.bounds import Bounds, Faults
from tests.proof.explorer.conversation import conversation
from tests.proof.explorer.graphs import GRAPHS, TIMED, graph
from tests.proof.explorer.search import Found, explore
from tests.proof.explorer.world import World

from crosscut.protocol.snapshot.choosing import ProtocolKind

PROGRESS_SECONDS = 2
EPILOG = """
Exit code: 0, every state within the bounds was visited and nothing broke; 1, something broke, and the
shortest way to it is printed; 3, the search was cut off by --states-max or --memory-max; 130, by Ctrl-C.
"""

FAULT_HELP = {
    "crashes": "a worker dies",
    "zombies": "a worker or driver that is believed dead goes on; takes a crash or driver as well",
    "drivers": "the driver dies and another one starts",
    "unknown": "an append to the job log has an unknown outcome: applied, not applied, or applied later",
    "timeouts": "a checkpoint takes too long and is aborted",
    "failures": "a snapshot can't be stored, the answer to a commit is lost, or the log refuses an entry",
    "savepoints": "somebody asks for a savepoint, at any time; 1 at most",
    "repeats": "a message to the coordinator comes once more, at any later time",
}


def memory_bytes() -> int:
    """Return the most memory that this process has had so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Progress:
    """Says on stderr how far a search has come, and ends it when it must.

    Args:
        memory_max: The search ends when the process has more bytes than this.
    """

    def __init__(self, memory_max: int) -> None:
        self._memory_max = memory_max
        self._next = time.monotonic() + PROGRESS_SECONDS
        self.is_interrupted = False

    def interrupt(self, *_: object) -> None:
        """End the search soon."""
        self.is_interrupted = True

    def __call__(self, found: Found) -> bool:
        memory = memory_bytes()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_SECONDS
            sys.stderr.write(
                f"{found.states:,} states, {found.transitions:,} transitions, frontier {found.frontier:,}, "
                f"depth {found.depth}, {found.transitions_per_second:,.0f} transitions/s, "
                f"{memory / 1e9:.1f} GB\n"
            )
        return not self.is_interrupted and memory <= self._memory_max


def parser() -> argparse.ArgumentParser:
    """Return what is asked on the command line."""
    made = argparse.ArgumentParser(prog="python -m tests.proof.explorer", description=__doc__, epilog=EPILOG)
    made.add_argument("--graph", choices=(*GRAPHS, *TIMED), default="chain", help="default: chain")
    made.add_argument(
        "--protocol", choices=get_args(ProtocolKind), default="aligned", help="default: aligned"
    )
    made.add_argument("--records", type=int, default=1, metavar="N", help="per source (default: 1)")
    made.add_argument(
        "--checkpoints",
        type=int,
        default=1,
        metavar="N",
        help="periodic ones; those that end the job come on top (default: 1)",
    )
    made.add_argument("--in-flight", type=int, default=1, metavar="N", help="checkpoints under way at once")
    made.add_argument(
        "--retain", type=int, default=1, metavar="N", help="completed checkpoints that are kept"
    )
    made.add_argument("--slow-control", action="store_true", help="messages to the coordinator take time")
    faults = made.add_argument_group("what may go wrong, how often each (default: 0)")
    for name in Faults._fields:
        faults.add_argument(f"--{name}", type=int, default=0, metavar="N", help=FAULT_HELP[name])
    search = made.add_argument_group("the search")
    search.add_argument(
        "--every-order", action="store_true", help="explore commuting steps in every order too"
    )
    search.add_argument(
        "--states-max", type=int, default=100_000_000, metavar="N", help="default: 100 million"
    )
    search.add_argument("--memory-max", type=float, default=8.0, metavar="GB", help="default: 8")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore, print what was found, return the exit code.

    Args:
        arguments: Those of the command line, unless given.
    """
    asked = parser().parse_args(arguments)
    faults = Faults(**{name: getattr(asked, name) for name in Faults._fields})
    bounds = Bounds(
        asked.checkpoints,
        faults,
        in_flight=asked.in_flight,
        retain=max(asked.retain, asked.in_flight),
        slow_control=asked.slow_control,
    )
    made = graph(asked.graph, asked.records)
    world = World(made, asked.protocol, bounds, is_reduced=not asked.every_order)
    progress = Progress(int(asked.memory_max * 1e9))
    before = signal.signal(signal.SIGINT, progress.interrupt)
    try:
        found = explore(world, asked.states_max, progress=progress)
    finally:
        signal.signal(signal.SIGINT, before)
    whole = "all" if found.is_complete else "the first"
    sys.stdout.write(
        f"{whole} {found.states:,} states{', reduced' * found.is_reduced}, "
        f"{found.transitions:,} transitions, "
        f"depth {found.depth}, {found.finished:,} ends; {found.seconds:.1f} s of one core, "
        f"{found.transitions_per_second:,.0f} transitions/s, {memory_bytes() / 1e9:.1f} GB\n"
    )
    if found.violation:
        sys.stdout.write(conversation(world, found) + "\n")
        return 1
    if progress.is_interrupted:
        return 130
    return 0 if found.is_complete else 3


if __name__ == "__main__":
    sys.exit(main())
