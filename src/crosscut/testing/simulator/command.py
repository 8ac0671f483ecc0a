"""What `crosscut simulate` does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from crosscut.flow.flow import Flow
from crosscut.testing.simulator.graphs import GRAPHS
from crosscut.testing.simulator.options import Options, options_of
from crosscut.testing.simulator.shrink import Life, live, shrunk
from crosscut.testing.simulator.user_flow import rehearsal
from crosscut.testing.simulator.world import World

RECORDS_MAX = 200
TRIALS = 3


class Simulation:
    """Worlds of the zoo, or of one flow.

    Args:
        flow: The user's; None: the graphs of the zoo.
        command: How it was called, for the line that replays a failure.
    """

    def __init__(self, flow: Flow | None, command: str) -> None:
        self._flow = flow
        self._command = command
        self._make: Callable[[Options], World] = World
        self.notes: list[str] = []
        self.seen: Counter[str] = Counter()
        if flow is not None:
            found = rehearsal(flow, RECORDS_MAX, [self.options(seed) for seed in range(TRIALS)])
            self._make = found.world
            records = sum(len(one) for splits in found.samples.values() for one in splits.values())
            self.notes.append(f"{flow.name}: {records} records sampled from {len(found.samples)} sources")
            if not found.is_comparable:
                self.notes.append(
                    "without any fault, the output already differs from run to run: it depends on the "
                    "order in which records meet, or on something else than the records. It is exactly-once "
                    "all the same, but cannot be compared; what is checked is that cuts are whole, that "
                    "nothing shows too early, and that the job ends"
                )

    def options(self, seed: int) -> Options:
        """Return the world of `seed`."""
        if self._flow is None:
            return options_of(seed, tuple(GRAPHS))
        return replace(options_of(seed, (self._flow.name,)), splits_per_task=1)

    def lives(self, first_seed: int, seed_count: int) -> Iterator[Life]:
        """Let the worlds live, one after the other; yield those that failed, made small."""
        for seed in range(first_seed, first_seed + seed_count):
            options = self.options(seed)
            life = live(options, make=self._make)
            self.seen += life.seen
            if life.failure:
                yield shrunk(options, life, self._make)

    def one(self, seed: int, faults: tuple[int, ...] | None) -> Life:
        """Let one world live, with all faults of its plan or some."""
        life = live(self.options(seed), faults, self._make)
        self.seen += life.seen
        return life

    def report(self, life: Life) -> str:
        """Return a failure as text."""
        return life.report(self._command)

    def summary(self, seed_count: int, started: float) -> str:
        """Return what has happened, in a line or two."""
        faults = sum(count for name, count in self.seen.items() if name.startswith("fault: "))
        kinds = sum(1 for name in self.seen if name.startswith("fault: "))
        elapsed_s = time.monotonic() - started
        return (
            f"{seed_count} worlds in {elapsed_s:.1f} s: {faults} faults of {kinds} kinds, "
            f"{self.seen['job finished']} jobs finished"
        )
