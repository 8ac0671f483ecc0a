"""Micro-batches and what goes wrong around them: drivers that die at every step, zombies, a store that has
lost a part, and data sources that misbehave. Without Spark; what runs is what ships."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

import crosscut as cc
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.graph.specs import JobGraph
from crosscut.host.failpoints import Failpoints, parsed
from crosscut.microbatch.host_cache import remove_host_cache
from crosscut.microbatch.ports import Routed
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.effects import EndJob
from crosscut.spark.data.planned_source import PlannedSource
from crosscut.testing.simulator.sources import ReplayedSource

CALM = FaultProfile()
RECORDS = 120
NUMBER = StructType([StructField("number", IntegerType())])
CHANCE = Random()


def settings(directory: Path, trigger: Any = "interval", **others: Any) -> cc.Settings:
    given: dict[str, Any] = {
        "parallelism": 2,
        "checkpoint_interval": "10ms",
        "restart": cc.Restart(failures=0),
    }
    engine = cc.MicroBatch(records_max=20, trigger=trigger)
    return cc.Settings(engine=engine, checkpoint_dir=directory / "checkpoints", **(given | others))


def jobs_of(graph: JobGraph, url: str) -> LocalJobs:
    return LocalJobs(graph, url, Random(1), CALM)


class Counted:
    """Records that have another key at each attempt, and how many of each key there were."""

    def __init__(self, directory: Path, key_length: int = 1) -> None:
        self.directory = directory
        self._key_length = key_length
        self.out = cc.collect(directory / "out")
        self.held = cc.collect(directory / "held")

    def graph(self) -> JobGraph:
        flow = cc.Flow("counted")
        splits = {f"s{split}": list(range(split, RECORDS, 3)) for split in range(3)}
        keyed = flow.source(ReplayedSource(splits)).key_by(at_random(self._key_length))
        keyed.reduce(newer).sink(self.out)
        keyed.aggregate(list, appended, emit="final").sink(self.held)
        return flow.compile(2, 128)

    def check(self) -> None:
        """Each record is in the output once, and in the state."""
        assert sorted(one for _, one in self.out.records()) == list(range(RECORDS))
        assert sorted(one for _, held in self.held.records() for one in held) == list(range(RECORDS))
        # One ledger for each task.
        left = [path for path in self.directory.glob("*/*/**/*") if path.is_file()]
        outs = {"out", "held"}
        left = [path for path in left if path.relative_to(self.directory).parts[0] in outs]
        assert [path for path in left if path.suffix != ".ledger"] == []


def at_random(length: int) -> Callable[[int], str]:
    """Return a key function that gives another key of this length, or more, whenever it is called."""
    return lambda number: f"{CHANCE.randrange(1_000):0{length}}"


def newer(before: int, one: int) -> int:
    return one


def appended(so_far: list[int], one: int) -> list[int]:
    return [*so_far, one]


# Drivers.


def killed_at(directory: Path, trap: str) -> None:
    """Run in a process of its own: driver and attempts."""
    run_batches(
        Counted(directory).graph(),
        settings(directory),
        jobs_of,
        failpoints=parsed(f"{directory / 'failpoints'};{trap}"),
    )


@pytest.fixture(scope="module")
def server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@pytest.mark.parametrize(
    "trap",
    [
        "batch.planned:kill:3",  # the attempts of a batch have their orders
        "batch.begin:kill:1:1",  # one of them begins
        "batch.read:kill:1:1",  # it has read all that there is
        "batch.staged:kill:1:0",  # it has staged, and nobody knows
        "batch.returned:kill:3",  # all have returned, and nobody has been told
        "driver.append:kill:3",  # the entry is about to be appended
        "driver.appended:kill:3",  # it is durable, and nobody has been told
        "commit.before:kill:3",  # its output is about to become visible
        "commit.after:kill:3",  # it is visible, and nobody has been told
    ],
)
def test_a_driver_killed_at_any_step_of_a_batch_leaves_it_whole_or_undone(
    tmp_path: Path, server: Any, trap: str
) -> None:
    """B1, B2, B3: between plan, run, append and commit."""
    (tmp_path / "failpoints").mkdir()
    process = server.Process(target=killed_at, args=(tmp_path, trap))
    process.start()
    process.join(180)
    assert process.exitcode == -signal.SIGKILL
    seen = len(Counted(tmp_path).out.records())
    assert seen < RECORDS
    again = Counted(tmp_path)
    end, _ = run_batches(again.graph(), settings(tmp_path), jobs_of)
    assert end is not None
    assert end.outcome == "finished", end
    again.check()


# What happens to a batch after its barrier.


@dataclass(frozen=True)
class Growing(cc.Source):
    """As many records as a file has bytes, up to `RECORDS`; it knows how many wait."""

    path: Path

    def grow(self) -> None:
        with self.path.open("ab") as file:
            file.write(bytes(10))

    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        return [cc.Split("s", 0)]

    def reader(self, split: cc.Split, position: JSON) -> SplitReader:
        return GrowingReader(self.path, int(str(position)))


class GrowingReader(SplitReader):
    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._position = position

    @property
    def position(self) -> JSON:
        return self._position

    @property
    def lag(self) -> int:
        return self._end() - self._position

    def _end(self) -> int:
        return min(self._path.stat().st_size, RECORDS)

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        if self._position == RECORDS:
            return EndOfSplit()
        found = list(range(self._position, min(self._position + limit, self._end())))
        self._position += len(found)
        return found or Wait(1)


class Late(cc.KeyedProcess[int, int]):
    """Says each record a moment later."""

    held = cc.ListState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[int]:
        self.held.append(record)
        ctx.set_processing_timer(ctx.now() + DUE_MS)
        yield from ()

    def on_processing_timer(self, time: int, ctx: cc.Context) -> Iterator[int]:
        found = list(self.held)
        self.held.clear()
        yield from found


DUE_MS = 5


def itself(number: int) -> int:
    return number


def test_what_comes_or_falls_due_after_the_barrier_of_a_batch_waits_for_the_next_one(tmp_path: Path) -> None:
    """Its snapshot would not know of it, and the next batch would do it again."""

    class Slow(Failpoints):
        def __call__(self, name: str) -> None:
            if name == "snapshot.frozen":
                source.grow()
                # Until all is due that could be: the clock goes on, whatever a snapshot takes.
                threading.Event().wait(2 * DUE_MS / 1_000)

    source = Growing(tmp_path / "grown")
    source.grow()
    out, late = cc.collect(tmp_path / "out"), cc.collect(tmp_path / "late")
    flow = cc.Flow("late")
    numbers = flow.source(source).key_by(itself)
    numbers.reduce(newer).sink(out)
    numbers.process(Late()).key_by(itself).reduce(newer).sink(late)

    def jobs(graph: JobGraph, url: str) -> LocalJobs:
        return LocalJobs(graph, url, Random(1), CALM, failpoints=Slow)

    end, _ = run_batches(flow.compile(1, 128), settings(tmp_path, parallelism=1), jobs)
    assert end is not None
    assert end.outcome == "finished", end
    assert [number for _, number in out.records()] == list(range(RECORDS))
    assert sorted(number for _, number in late.records()) == list(range(RECORDS))


# Zombies.


class Haunted(LocalJobs):
    """Before each run attempts of the one before are at it again: they stage when that is over."""

    def __init__(self, graph: JobGraph, url: str) -> None:
        super().__init__(graph, url, Random(1), CALM, processes=1)
        self._older: list[tuple[StageOrder, list[Any]]] = []
        self.haunted = 0

    def run(self, name: str, orders: Sequence[Sequence[StageOrder]], description: str) -> Iterator[bytes]:
        older, self._older = self._older, []
        for order, shuffle_blocks in older:
            self.haunted += 1
            # Nobody hears of it: the run that it belongs to is over.
            super()._attempt(order, shuffle_blocks)
        yield from super().run(name, orders, description)

    def _attempt(self, order: StageOrder, shuffle_blocks: list[Any]) -> list[Routed]:
        if order.is_last:
            self._older.append((order, shuffle_blocks))
        return super()._attempt(order, shuffle_blocks)


def test_a_zombie_that_stages_after_its_batch_is_complete_changes_nothing(tmp_path: Path) -> None:
    """C2: it has the process, the state and the stage of the attempts that run now."""
    counted, made = Counted(tmp_path), []

    def haunted(graph: JobGraph, url: str) -> LocalJobs:
        made.append(Haunted(graph, url))
        return made[-1]

    end, _ = run_batches(counted.graph(), settings(tmp_path), haunted)
    assert end is not None
    assert end.outcome == "finished", end
    assert made[0].haunted > 4
    counted.check()


# The store.


class Losing(LocalJobs):
    """Before its fourth run all parts are taken away, those on the disk of the host as well."""

    def __init__(self, graph: JobGraph, url: str) -> None:
        super().__init__(graph, url, Random(1), CALM)
        self._url = url
        self._parts = Path(url) / "parts"

    def run(self, name: str, orders: Sequence[Sequence[StageOrder]], description: str) -> Iterator[bytes]:
        if self.seen["runs"] == 3:
            self._parts.rename(self._parts.with_name("lost"))
            remove_host_cache(self._url, None)
        yield from super().run(name, orders, description)


def test_a_part_that_the_store_has_lost_ends_the_job_by_its_name_and_nothing_is_left_out(
    tmp_path: Path,
) -> None:
    """D2: a process that has an older state, or none, has to read it."""
    counted = Counted(tmp_path, key_length=1_000)
    end, _ = run_batches(counted.graph(), settings(tmp_path), Losing)
    assert end is not None
    assert end.outcome == "failed"
    assert "parts/" in message(end)
    assert len(counted.out.records()) < RECORDS
    # Somebody has found them.
    lost, parts = tmp_path / "checkpoints" / "lost", tmp_path / "checkpoints" / "parts"
    for path in [one for one in lost.rglob("*") if one.is_file()]:
        target = parts / path.relative_to(lost)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    end, _ = run_batches(counted.graph(), settings(tmp_path), jobs_of)
    assert end is not None
    assert end.outcome == "finished", end
    counted.check()


# Data sources of PySpark.


class Unruly(DataSource):
    """Misbehaves where its options say."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        at = self.options["at"]

        class Reader(DataSourceStreamReader):
            def initialOffset(self) -> dict[str, int]:
                return {"n": 0}

            def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
                if at == "latestOffset":
                    raise OSError("the service is down")
                goes_back = at == "goes back" and start["n"] >= 3
                return {"n": 1 if goes_back else start["n"] + 3}

            def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
                if at == "partitions":
                    return [InputPartition(threading.Lock())]
                return [InputPartition(n) for n in range(start["n"], end["n"])]

            def read(self, partition: InputPartition) -> Iterator[Any]:
                if at == "read":
                    raise OSError("the service is down")
                yield (partition.value,)

            def commit(self, end: dict[str, int]) -> None:
                if at == "commit":
                    raise OSError("the service is down")

        return Reader()


def message(end: EndJob) -> str:
    return end.cause.message if end.cause is not None else ""


def run_unruly(directory: Path, at: str, *, parallel: bool, **others: Any) -> tuple[EndJob, list[Any]]:
    flow, out = cc.Flow("unruly"), cc.collect(directory / "out")
    flow.source(cc.spark.source(Unruly, {"at": at}, NUMBER, parallel=parallel)).sink(out)
    end, _ = run_batches(flow.compile(2, 128), settings(directory, **others), jobs_of)
    assert end is not None
    return end, [row.number for row in out.records()]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("latestOffset", "data source Unruly: latestOffset() raised OSError: the service is down"),
        ("read", "data source Unruly: read() raised OSError: the service is down"),
        ("goes back", 'latestOffset() returned the offset {"n": 1}, which lies before {"n": 3}'),
    ],
)
def test_a_data_source_that_misbehaves_ends_a_job_in_batches_by_its_name(
    tmp_path: Path, at: str, said: str, parallel: bool
) -> None:
    end, found = run_unruly(tmp_path, at, parallel=parallel)
    assert end.outcome == "failed"
    assert said in message(end)
    assert sorted(found) == list(range(len(found)))


def test_a_partition_that_cannot_be_pickled_ends_a_job_in_batches_by_its_name(tmp_path: Path) -> None:
    end, found = run_unruly(tmp_path, "partitions", parallel=True)
    assert end.outcome == "failed"
    assert "data source Unruly: partition 0, InputPartition(value=<unlo" in message(end)
    assert found == []


def test_a_data_source_that_raises_in_commit_is_told_of_and_the_job_in_batches_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Any] = []
    for _ in range(3):
        end, found = run_unruly(tmp_path, "commit", parallel=False, trigger="once")
        assert end.outcome == "stopped", end
    assert sorted(found) == list(range(len(found)))
    assert len(found) >= 3, "each run has gone on"
    assert "Unruly: commit() raised OSError: the service is down" in caplog.text


def test_a_data_source_that_raises_in_commit_on_the_driver_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = cc.spark.source(Unruly, {"at": "commit"}, NUMBER, parallel=True)
    assert isinstance(source, PlannedSource)
    found = source.discover(None)
    source.completed(found.known, [])
    assert "Unruly: commit() raised OSError: the service is down" in caplog.text
    assert source.discover(found.known).splits, "it goes on"


class Slow(DataSource):
    """Takes its time for each of its five rows; then nothing else comes."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        class Reader(DataSourceStreamReader):
            def initialOffset(self) -> dict[str, int]:
                return {"n": 0}

            def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
                return {"n": 5}

            def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
                return [InputPartition(n) for n in range(start["n"], end["n"])]

            def read(self, partition: InputPartition) -> Iterator[Any]:
                time.sleep(0.01)
                yield (partition.value,)

        return Reader()

    def reader(self, schema: Any) -> DataSourceReader:
        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return [InputPartition(n) for n in range(5)]

            def read(self, partition: InputPartition) -> Iterator[Any]:
                time.sleep(0.01)
                yield (partition.value,)

        return Reader()


@pytest.mark.parametrize(("read", "parallel"), [("stream", False), ("stream", True), ("batch", False)])
def test_all_that_a_slow_data_source_has_is_read_before_the_job_stops(
    tmp_path: Path, read: Any, parallel: bool
) -> None:
    flow, out = cc.Flow("slow"), cc.collect(tmp_path / "out")
    flow.source(cc.spark.source(Slow, None, NUMBER, read=read, parallel=parallel)).sink(out)
    end, _ = run_batches(flow.compile(2, 128), settings(tmp_path, trigger="available_now"), jobs_of)
    assert end is not None
    assert end.outcome in ("stopped", "finished"), end
    assert sorted(row.number for row in out.records()) == list(range(5))
