"""Runs drawn worlds by their seeds, makes their failures small, flows and all, and reports them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from tests.proof.flows import Description, drawn_flow, parsed, shrunk_flow
from tests.proof.worlds.drawn import world_of

from crosscut.testing.simulator import shrink
from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.shrink import Life, Make, is_same, with_fewer_faults

COMMAND = "python -m tests.proof.simulate"
SHRINK_FLOWS_MAX = 300


def live(options: Options, kept: Sequence[int] | None = None, make: Make = world_of) -> Life:
    """Let a world live, with all faults of the plan or only those whose indices are `kept`."""
    return shrink.live(options, kept, make)


def shrunk(options: Options, life: Life, make: Make = world_of) -> Life:
    """Return the failure as small as a bounded search finds it: the same rule is broken.

    First it gets fewer faults; then, if it was drawn, a smaller flow; then, with that, fewer faults still.
    """
    life = with_fewer_faults(options, life, make)
    if options.flow:
        life = _with_smaller_flow(options, life, make)
        life = with_fewer_faults(replace(options, flow=life.options.flow), life, make)
    return life


def report(life: Life, command: str = COMMAND) -> str:
    """Return the failure as text, with the flow if it was drawn.

    Args:
        command: The command up to the options that name the world.
    """
    flow = life.options.flow
    own = "" if not flow or flow == str(drawn_flow(life.options.seed)) else f" --flow {shlex.quote(flow)}"
    return life.report(f"{command} {life.arguments}{own}", parsed(flow).numbered if flow else "")


def _with_smaller_flow(options: Options, life: Life, make: Make) -> Life:
    found = life

    def fails(flow: Description) -> bool:
        nonlocal found
        smaller = live(replace(options, flow=str(flow)), life.kept, make)
        fails_alike = is_same(smaller.failure, life.failure)
        if fails_alike:
            found = smaller
        return fails_alike

    shrunk_flow(parsed(options.flow), fails, SHRINK_FLOWS_MAX)
    return found
