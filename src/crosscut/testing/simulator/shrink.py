"""Runs worlds by their seeds; makes a failure as small as it gets, and tells of it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crosscut.errors import CrosscutError, UserCodeError
from crosscut.testing.simulator.blame import error_text
from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.violation import Violation
from crosscut.testing.simulator.world import World

Make = Callable[[Options], World]
SHRINK_RUNS_MAX = 60


@dataclass(frozen=True)
class Life:
    """How one world has lived.

    Attributes:
        failure: The violation, or "".
        kept: Indices of the faults of the seed's plan that happened.
        plan_size: How many the plan of the seed has.
        repeated: (records that are missing, records that are there too often) at the end, under
            "at-least-once"; there it is no failure.
        steps: The last ones.
    """

    options: Options
    failure: str
    trace_hash: str
    step_count: int
    seen: Counter[str]
    steps: tuple[str, ...]
    kept: tuple[int, ...]
    plan_size: int
    repeated: tuple[Counter[Any], Counter[Any]] = field(default_factory=lambda: (Counter(), Counter()))

    def printable(self) -> Life:
        """Return the same with records as people see them: those of a user's own classes may not travel."""
        lacking, added = (_shown(some) for some in self.repeated)
        return replace(self, repeated=(lacking, added))

    def report(self, replay: str, flow: str = "") -> str:
        """Return the failure as text: what, where, the last steps, and how to see it again.

        Args:
            replay: The command that runs this world again.
            flow: The flow as people read it, where they have not written it.
        """
        shown_flow = f"flow:\n{_indented(flow)}\n" if flow else ""
        faults = _indented("\n".join(map(str, self.options.faults)) or "none")
        return (
            f"{self.failure}\n\nseed {self.options.seed}: {self.options}\n{shown_flow}faults:\n{faults}\n"
            f"the last steps:\n" + _indented("\n".join(self.steps)) + f"\n\nreplay: {replay}\n"
        )

    @property
    def arguments(self) -> str:
        """The options that name the seed and the faults on the command line."""
        faults = "" if len(self.kept) == self.plan_size else ",".join(map(str, self.kept)) or "none"
        return f"--seed {self.options.seed}" + (f" --faults {faults}" if faults else "")


def live(options: Options, kept: Sequence[int] | None, make: Make) -> Life:
    """Let a world live, with all faults of the plan or only those whose indices are `kept`."""
    plan = options.faults
    kept = tuple(range(len(plan)) if kept is None else kept)
    options = replace(options, faults=tuple(plan[index] for index in kept))
    failure = ""
    repeated: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    # What the last world has left is swept up while it is in the processor's cache, and little else is: the
    # default of 700 objects is a fraction of one step.
    gc.collect(0)
    gc.set_threshold(100_000, 20, 100)
    world = make(options)
    try:
        world.run()
        if options.snapshots == "at-least-once" and world.is_comparable:
            repeated = world.checkers.difference()
    except Violation as violation:
        failure = str(violation)
    except UserCodeError as error:
        failure = f"UserCodeError: {error_text(error)}"
    except CrosscutError as error:
        # A machine of the product was given something impossible, or says that it is broken.
        failure = f"{type(error).__name__}: {error}"
    life = Life(
        options,
        failure,
        world.trace_hash,
        world.step_count,
        world.seen,
        world.steps if failure else (),
        kept,
        len(plan),
        repeated,
    )
    _take_apart(world)
    return life


def _take_apart(world: World) -> None:
    """Nobody looks at `world` any more: let go of what holds on to each other.

    The garbage collector would find it as well, and take twice as long.
    """
    processes = world.processes
    runners = [runner for pool in world.pools.values() for runner in pool.runners]
    tasks = [runner.task for runner in runners]
    workers = [process.worker for process in world.workers.values() if process.worker is not None]
    drivers = [process.driver for process in world.drivers if process.driver is not None]
    for one in (*tasks, *runners, *world.pools.values(), *workers, *drivers, *processes, world):
        vars(one).clear()
    for process in processes:
        # Its loop is asked of futures that nobody has heard.
        process.is_alive = False


def with_fewer_faults(options: Options, life: Life, make: Make) -> Life:
    """Return the same failure with as few faults as a bounded search needs for it.

    It leaves out faults in halves, then quarters, at last one by one (Zeller's delta debugging).
    """
    kept = life.kept
    runs = 0
    size = max(1, len(kept) // 2)
    while runs < SHRINK_RUNS_MAX:
        for first in range(0, len(kept), size):
            fewer = (*kept[:first], *kept[first + size :])
            runs += 1
            found = live(options, fewer, make)
            if is_same(found.failure, life.failure):
                kept, life = fewer, found
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return life


class _Shown(str):
    """What `repr` has said of something."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(tokens: Counter[Any]) -> Counter[Any]:
    shown: Counter[Any] = Counter()
    for (uid, token), count in tokens.items():
        shown[uid, _Shown(repr(token))] += count
    return shown


def _indented(lines: str) -> str:
    return "\n".join(f"  {one}" for one in lines.splitlines())


def is_same(one: str, other: str) -> bool:
    """Whether both failures begin with the same word: the invariant's number, or the error's name."""
    return bool(one) and one.split()[0] == other.split()[0]
