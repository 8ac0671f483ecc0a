"""One driver of a job that goes from one engine to the other: `python switched.py ARGUMENTS`, as JSON.

The flow is drawn, and has a branch beside it whose output says at any moment whether it is exact. It is
judged in test_standalone_cluster.py.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clustered import COMES_AND_GOES, COPIES_STRAGGLERS, session_on
from jobs import DEADLINE_S, PATIENT, NumberedJob, added, key_of, nothing, record
from tests.proof.flows import Description, built_flow, drawn_flow, expected_output, source_records

import crosscut as cc
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait

COUNT, SPLITS = 6_000, 3
SHARES = 20
"""All sources are released in so many steps."""


@dataclass(frozen=True)
class Released(cc.Source):
    """Gives so much of each split as a file says: nobody reaches the end before the test wants it."""

    records: Mapping[str, Sequence[Any]]
    released: Path

    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        return [cc.Split(name, 0, weight=len(self.records[name])) for name in sorted(self.records)]

    def reader(self, split: cc.Split, position: JSON) -> SplitReader:
        assert isinstance(position, int)
        return _Reader(self.records[split.split_id], position, self.released)


class _Reader(SplitReader):
    def __init__(self, records: Sequence[Any], position: int, released: Path) -> None:
        self._records = records
        self._position = position
        self._released = released

    @property
    def position(self) -> JSON:
        return self._position

    @property
    def lag(self) -> int:
        return self._end() - self._position

    def _end(self) -> int:
        return len(self._records) * int(self._released.read_text()) // SHARES

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        if self._position == len(self._records):
            return EndOfSplit()
        found = list(self._records[self._position : min(self._position + limit, self._end())])
        self._position += len(found)
        return found or Wait(10)


@dataclass(frozen=True)
class Switched:
    """The job. Its directory also holds what the test tells its drivers."""

    directory: Path
    seed: int

    @property
    def released(self) -> Path:
        return self.directory / "released"

    @property
    def description(self) -> Description:
        return drawn_flow(self.seed)

    @property
    def numbered(self) -> NumberedJob:
        """The branch beside, for its oracle."""
        return NumberedJob(self.directory, count=COUNT, parallelism=SPLITS)

    def expected(self) -> dict[Path, Counter[str]]:
        """Return what the drawn sinks have to get in the end."""
        records = expected_output(self.description, SPLITS).records
        return {self._drawn(number): Counter(map(repr, found)) for number, found in records.items()}

    def _drawn(self, number: int) -> Path:
        return self.directory / f"drawn-{number}"

    def flow(self) -> cc.Flow:
        def source(number: int, step: Any) -> cc.Source:
            splits = {f"s{number}-{split}": one for split, one in enumerate(source_records(number, step))}
            return Released(splits, self.released)

        flow = built_flow(self.description, source, lambda number: cc.collect(self._drawn(number)))
        numbers = {
            f"n{split}": [record(one) for one in range(split, COUNT, SPLITS)] for split in range(SPLITS)
        }
        sums = flow.source(Released(numbers, self.released)).named("numbers").key_by(key_of)
        sums.aggregate(nothing, added).named("sums").sink(self.numbered.sink()).named("out")
        return flow

    def settings(self, stretch: Stretch) -> cc.Settings:
        return cc.Settings(
            engine=cc.MicroBatch(records_max=300) if stretch.engine == "micro-batch" else stretch.engine,
            parallelism=stretch.parallelism,
            checkpoint_dir=str(self.numbered.checkpoint_dir),
            checkpoint_interval="100ms",
            restart=cc.Restart(failures=20, delay_step="50ms", delay_max="200ms"),
            shared=True,
            **PATIENT,
        )


@dataclass(frozen=True)
class Stretch:
    """What one engine does of it.

    Attributes:
        until: Names the file that has the driver stop the job; "" lets it come to its end.
    """

    engine: Any
    parallelism: int
    until: str


def command(job: Switched, master: str, stretches: Sequence[Stretch]) -> list[str]:
    """Return the command of a driver."""
    given = [str(job.directory), job.seed, master, [asdict(one) for one in stretches]]
    return [sys.executable, __file__, json.dumps(given)]


def main(directory: str, seed: int, master: str, stretches: Sequence[Mapping[str, Any]]) -> None:
    job = Switched(Path(directory), seed)
    conf = {"spark.ui.enabled": "false"}
    if not master.startswith("local"):
        conf |= COPIES_STRAGGLERS | COMES_AND_GOES
    with session_on(master, conf) as spark:
        for given in stretches:
            _lived(job, Stretch(**given), spark)


def _lived(job: Switched, stretch: Stretch, spark: Any) -> None:
    run = job.flow().start(job.settings(stretch), spark=spark)
    print(json.dumps({"started": asdict(stretch)}), flush=True)
    # A test that has died can't end its driver.
    ends_s = time.monotonic() + 10 * DEADLINE_S
    while not run.wait(0.02):
        assert time.monotonic() < ends_s, "nobody has ended this driver"
        if stretch.until and (job.directory / stretch.until).exists():
            assert run.stop(DEADLINE_S)
            break
    print(json.dumps({"ended": run.status, "epoch": run.report().epoch}), flush=True)


if __name__ == "__main__":
    os.umask(0o077)
    main(*json.loads(sys.argv[1]))
