"""`python -m crosscut.testing.explorer --graph loop --records 2 --crashes 1`: explore one world."""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from crosscut.protocol.choosing import ProtocolKind
from crosscut.testing.explorer.bounds import Bounds, Faults
from crosscut.testing.explorer.conversation import conversation
from crosscut.testing.explorer.graphs import GRAPHS, graph
from crosscut.testing.explorer.search import explore
from crosscut.testing.explorer.world import World


def main() -> int:
    """Explore, print what was found, return 1 if something broke."""
    parser = argparse.ArgumentParser(prog="crosscut.testing.explorer", description=__doc__)
    parser.add_argument("--graph", choices=GRAPHS, default="chain")
    parser.add_argument("--protocol", choices=get_args(ProtocolKind), default="aligned")
    parser.add_argument("--records", type=int, default=1, help="per source")
    parser.add_argument("--checkpoints", type=int, default=1, help="periodic ones")
    parser.add_argument("--in-flight", type=int, default=1, help="checkpoints under way at once")
    parser.add_argument("--states-max", type=int, default=10_000_000)
    parser.add_argument("--slow-control", action="store_true", help="messages to the coordinator take time")
    parser.add_argument("--every-order", action="store_true", help="no reduction")
    for name in Faults._fields:
        parser.add_argument(f"--{name}", type=int, default=0)
    asked = parser.parse_args()
    faults = Faults(**{name: getattr(asked, name) for name in Faults._fields})
    bounds = Bounds(asked.checkpoints, faults, in_flight=asked.in_flight, slow_control=asked.slow_control)
    world = World(graph(asked.graph, asked.records), asked.protocol, bounds, is_reduced=not asked.every_order)
    found = explore(world, asked.states_max)
    whole = "all" if found.is_complete else "the first"
    sys.stdout.write(
        f"{whole} {found.states:,} states, {found.transitions:,} transitions, depth {found.depth}, "
        f"{found.finished:,} ends, {found.seconds:.1f} s, {found.transitions_per_second:,.0f} transitions/s\n"
    )
    if found.violation:
        sys.stdout.write(conversation(world, found) + "\n")
    return 1 if found.violation else 0


if __name__ == "__main__":
    sys.exit(main())
