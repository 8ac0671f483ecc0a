"""Drawn flows in batches, at changing parallelism: `python -m tests.proof.drawn_batches`.

Their drivers die at any moment, and each successor has another parallelism. Splits are of uneven lengths, so
that some tasks of a source end long before others. Folds follow unions, calls and other edges that leave
records with their task.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tests.proof.batches import FaultProfile, LocalJobs, LostError, run_batches
from tests.proof.flows import built_flow, expected_output, source_records
from tests.proof.flows.steps import Source
from tests.proof.worlds.batches import PARALLELISM_MAX, drawn_description

import crosscut as cc
from crosscut.driver.driver import CoordinatorDriver
from crosscut.graph.specs import JobGraph
from crosscut.microbatch.stage import StageOrder
from crosscut.testing.simulator.sources import ReplayedSource


class MortalJobs(LocalJobs):
    """Their driver dies when it runs another batch after so many; None: it lives on."""

    def __init__(
        self,
        graph: JobGraph,
        store_url: str,
        random: Random,
        fault_profile: FaultProfile,
        runs_max: int | None,
    ) -> None:
        super().__init__(graph, store_url, random, fault_profile)
        self._runs_max = runs_max
        self._is_over = False

    def made(self, graph: JobGraph, store_url: str) -> LocalJobs:
        """Return these jobs, for `run_batches`."""
        return self

    def are_over(self, driver: CoordinatorDriver) -> bool:
        """Whether the driver is to be left."""
        return self._is_over

    def run(self, name: str, orders: Sequence[Sequence[StageOrder]], description: str) -> Iterator[bytes]:
        """Run the stages one after the other."""
        if self.seen["runs"] == self._runs_max:
            self._is_over = True
            raise LostError(f"the driver died before {description}")
        return super().run(name, orders, description)


def run_rescaled(seed: int, directory: Path) -> str:
    """Run the flow of `seed` to its end; return what is wrong with its output, "" if nothing is.

    Args:
        directory: Empty; for checkpoints and output.
    """
    description = drawn_description(seed)
    dice = Random(f"crosscut starts {seed}")
    sinks: dict[int, cc.Collect] = {}

    def source(number: int, step: Source) -> ReplayedSource:
        return ReplayedSource(
            {f"s{number}-{split}": one for split, one in enumerate(source_records(number, step))}
        )

    def sink(number: int) -> cc.Collect:
        sinks[number] = cc.collect(directory / f"sink-{number}")
        return sinks[number]

    flow = built_flow(description, source, sink)
    fault_profile = FaultProfile(doubled=0.1, torn=0.1, lost=0.05) if dice.random() < 0.3 else FaultProfile()
    records_max = dice.choice((5, 20, 50))
    starts = [dice.randint(1, PARALLELISM_MAX) for _ in range(dice.choice((2, 2, 3)))]
    for turn, parallelism in enumerate(starts):
        is_last = turn == len(starts) - 1
        settings = cc.Settings(
            engine=cc.MicroBatch(records_max=1_000 if is_last else records_max),
            checkpoint_dir=directory / "checkpoints",
            parallelism=parallelism,
            checkpoint_interval="10ms",
        )
        graph = flow.compile(parallelism, 128)
        runs_max = None if is_last else dice.choice((1, 1, 2, 3))
        jobs = MortalJobs(
            graph, settings.store_of(graph.name), Random(dice.random()), fault_profile, runs_max
        )
        end, _ = run_batches(graph, settings, jobs.made, jobs.are_over)
        if end is not None:
            if end.outcome != "finished":
                return f"{description}\nat {starts}: {end}"
            break
    expected = expected_output(description, starts[-1])
    for number, one in sinks.items():
        found = Counter(map(repr, one.records()))
        wanted = Counter(map(repr, expected.records[number]))
        if found != wanted:
            missing, repeated = (sorted(one.elements())[:5] for one in (wanted - found, found - wanted))
            return (
                f"{description}\nat {starts}, {records_max} records a batch: sink {number} misses {missing}, "
                f"and has {repeated} too often"
            )
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as many jobs as the command line says; return the exit code: 1 if an output was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.drawn_batches", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first (default: %(default)s)")
    asked = parser.parse_args(arguments)
    wrong = 0
    for seed in range(asked.first, asked.first + asked.jobs):
        with tempfile.TemporaryDirectory() as directory:
            found = run_rescaled(seed, Path(directory))
        if found:
            wrong += 1
            sys.stdout.write(f"seed {seed}: {found}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{asked.jobs} jobs, seeds {asked.first} on: {wrong} wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
