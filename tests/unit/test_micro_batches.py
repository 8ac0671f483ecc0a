"""Flows as micro-batches, without Spark: the real driver, tasks, store and sinks, and a scheduler that does
to attempts what Spark may do."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches
from tests.proof.flows import Description, built_flow, drawn_flow, expected_output, source_records
from tests.proof.flows.steps import Loop, RateLimit

import crosscut as cc
from crosscut.connectors.files.staged_files import StagedFiles
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.contracts.settings import BackendName
from crosscut.driver.job_spec import BATCH_ROWS_MIN
from crosscut.errors import FlowError, SettingsError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.graph.specs import JobGraph
from crosscut.graph.stages import check_batches, stages_of
from crosscut.microbatch import shuffle
from crosscut.microbatch.driver_workers import BatchWorkers
from crosscut.microbatch.newest import NewestBatch
from crosscut.microbatch.output import Output, OutputError
from crosscut.monitoring.query_progress import BatchTimes, QueryIds, progress_of
from crosscut.protocol.checkpoint import retention
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.microbatch import batches
from crosscut.protocol.microbatch import effects as do
from crosscut.protocol.snapshots import Snapshot
from crosscut.store.checkpoint_store import open_store
from crosscut.testing.simulator.sources import ReplayedSource

STORM = FaultProfile(doubled=0.3, torn=0.3, lost=0.1)
CALM = FaultProfile()


def made(
    seed: int, fault_profile: FaultProfile, state_backend: BackendName = "memory"
) -> Callable[[JobGraph, str], LocalJobs]:
    return lambda graph, url: LocalJobs(graph, url, Random(seed), fault_profile, state_backend)


def settings(tmp_path: Path, records_max: int = 40, trigger: Any = "interval", **others: Any) -> cc.Settings:
    given = {"parallelism": 2, "checkpoint_interval": "10ms"} | others
    engine = cc.MicroBatch(records_max=records_max, trigger=trigger)
    return cc.Settings(engine=engine, checkpoint_dir=tmp_path / "checkpoints", **given)


def can_run(description: Description) -> bool:
    return not any(isinstance(one, Loop | RateLimit) for one in description.steps)


def drawn(count: int) -> list[int]:
    return [seed for seed in range(10 * count) if can_run(drawn_flow(seed))][:count]


@pytest.mark.parametrize("seed", drawn(6))
def test_a_drawn_flow_has_its_output_exactly_once_whatever_becomes_of_attempts(
    tmp_path: Path, seed: int
) -> None:
    description = drawn_flow(seed)
    sinks: dict[int, cc.Collect] = {}

    def source(number: int, step: Any) -> ReplayedSource:
        return ReplayedSource(
            {f"s{number}-{split}": one for split, one in enumerate(source_records(number, step))}
        )

    def sink(number: int) -> cc.Collect:
        sinks[number] = cc.collect(tmp_path / f"sink-{number}")
        return sinks[number]

    flow = built_flow(description, source, sink)
    graph = flow.compile(2, 128)
    end, _ = run_batches(graph, settings(tmp_path), made(seed, STORM))
    assert end is not None
    assert end.outcome == "finished", end
    expected = expected_output(description, 2)
    for number, one in sinks.items():
        found = Counter(map(repr, one.records()))
        assert found == Counter(map(repr, expected.records[number])), f"sink {number} of {description}"


def tagged(number: int) -> tuple[int, float]:
    """Code that gives something else at each attempt."""
    return number, RANDOM.random()


RANDOM = Random()


def routed_at_random(out: cc.Collect, counts: cc.Collect, records: int = 300) -> cc.Flow:
    """Records whose key is another one at each attempt: each has to arrive once all the same."""
    flow = cc.Flow("random")
    thirds = {f"s{split}": list(range(split, records, 3)) for split in range(3)}
    keyed = flow.source(ReplayedSource(thirds)).map(tagged).key_by(lambda one: int(one[1] * 1_000))
    keyed.reduce(lambda before, one: one).sink(out)
    keyed.aggregate(list, lambda so_far, one: [*so_far, one[0]], emit="final").sink(counts)
    return flow


@pytest.mark.parametrize(
    ("seed", "state_backend"),
    [(0, "memory"), pytest.param(1, "memory", marks=pytest.mark.proof), (2, "rocksdb")],
)
def test_records_that_are_routed_at_random_arrive_once_whatever_becomes_of_attempts(
    tmp_path: Path, seed: int, state_backend: BackendName
) -> None:
    out, counts = cc.collect(tmp_path / "out"), cc.collect(tmp_path / "counts")
    graph = routed_at_random(out, counts).compile(3, 128)
    given = settings(tmp_path, parallelism=3, state_backend=state_backend)
    end, jobs = run_batches(graph, given, made(seed, STORM, state_backend))
    assert end is not None
    assert end.outcome == "finished", end
    assert jobs.seen["doubled"]
    numbers = [one[0] for _, one in out.records()]
    assert sorted(numbers) == list(range(300))
    # State and output are of the same attempts.
    assert sorted(number for _, held in counts.records() for number in held) == list(range(300))


@pytest.mark.parametrize("seed", range(2))
def test_a_driver_that_dies_at_any_moment_is_followed_by_one_of_another_parallelism(
    tmp_path: Path, seed: int
) -> None:
    out, counts = cc.collect(tmp_path / "out"), cc.collect(tmp_path / "counts")
    flow = routed_at_random(out, counts)
    random = Random(seed)
    for parallelism in (1, 3, 2):
        left = random.randrange(1, 40)

        def is_dead(driver: Any) -> bool:
            nonlocal left
            left -= driver.status().phase == "running"
            return left < 0

        graph = flow.compile(parallelism, 128)
        run_batches(graph, settings(tmp_path, parallelism=parallelism), made(seed, STORM), is_dead)
    end, _ = run_batches(flow.compile(2, 128), settings(tmp_path), made(seed, CALM))
    assert end is not None
    assert end.outcome == "finished", end
    assert sorted(one[0] for _, one in out.records()) == list(range(300))
    assert sorted(number for _, held in counts.records() for number in held) == list(range(300))


def test_nothing_staged_is_left_over_once_a_job_has_finished(tmp_path: Path) -> None:
    out, counts = cc.collect(tmp_path / "out"), cc.collect(tmp_path / "counts")
    graph = routed_at_random(out, counts).compile(2, 128)
    end, jobs = run_batches(graph, settings(tmp_path), made(1, FaultProfile(doubled=0.5)))
    assert end is not None
    assert end.outcome == "finished"
    assert jobs.seen["doubled"]
    assert not list((tmp_path / "out").rglob("*.staged"))


def test_files_of_attempts_that_were_not_taken_are_deleted_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of doubled attempts nobody may have heard: those are found by the sweep of every second batch."""
    monkeypatch.setattr(batches, "SWEEP_EVERY", 2)
    out, counts = cc.collect(tmp_path / "out"), cc.collect(tmp_path / "counts")
    graph, given = routed_at_random(out, counts).compile(2, 128), settings(tmp_path, records_max=20)
    end, jobs = run_batches(graph, given, made(1, FaultProfile(doubled=0.7)))
    assert end is not None
    assert end.outcome == "finished", end
    assert jobs.seen["doubled"] > 10
    store = open_store(given.store_of(graph.name))
    completed = [one for _, one in store.tail(given.retain) if isinstance(one, CheckpointCompleted)]
    last = completed[-1].checkpoint_id
    assert last > 8
    left = set(store.list_parts()) - retention.referenced(completed)
    assert {path for path in left if int(path.split("/")[1]) < last - 2} == set()


def test_a_sweep_that_takes_its_time_removes_nothing_of_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = StagedFiles.sweep

    def slow(writer: StagedFiles) -> None:
        time.sleep(0.02)
        sweep(writer)

    monkeypatch.setattr(batches, "SWEEP_EVERY", 1)
    monkeypatch.setattr(StagedFiles, "sweep", slow)
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("swept")
    flow.source(ReplayedSource({"s": list(range(100))})).sink(out)
    given = settings(tmp_path, parallelism=1, records_max=20, restart=cc.Restart(failures=0))
    run_batches(flow.compile(1, 128), given, made(1, CALM))
    assert out.records() == list(range(100))


def test_a_commit_of_an_older_epoch_that_comes_late_does_not_have_a_batch_begin_with_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, commit = BatchWorkers._report_committed, BatchWorkers._commit_soon
    first: list[do.CommitBatch] = []

    def noted(workers: BatchWorkers, effect: do.CommitBatch) -> None:
        first.append(replace(effect, epoch=Epoch(effect.epoch - 1)))
        commit(workers, effect)

    def late(workers: BatchWorkers, epoch: Epoch, n: CheckpointId) -> None:
        report(workers, epoch, n)
        if n == 3:
            # As its timer does, when it was to be tried again.
            commit(workers, first[0])

    monkeypatch.setattr(BatchWorkers, "_commit_soon", noted)
    monkeypatch.setattr(BatchWorkers, "_report_committed", late)
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("late")
    flow.source(ReplayedSource({"s": list(range(120))})).sink(out)
    given = settings(tmp_path, parallelism=1, records_max=20)
    end, _ = run_batches(flow.compile(1, 128), given, made(1, CALM))
    assert end is not None
    assert end.outcome == "finished", end
    assert out.records() == list(range(120))


def test_a_commit_that_is_tried_again_counts_the_records_of_its_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Output.commit
    failed: list[CheckpointId] = []

    async def flaky(output: Output, n: CheckpointId, taken: Any) -> None:
        if n not in failed:
            failed.append(n)
            raise OutputError(output.tasks[0], "out") from OSError("it is away")
        await commit(output, n, taken)

    monkeypatch.setattr(Output, "commit", flaky)
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("again")
    flow.source(ReplayedSource({"s": list(range(60))})).sink(out)
    told: list[dict[str, Any]] = []

    def look(driver: Any) -> bool:
        told[:] = driver.progress()
        return len(out.records()) == 60 and sum(one["numInputRows"] for one in told) == 60

    run_batches(
        flow.compile(1, 128),
        settings(tmp_path, parallelism=1, records_max=20),
        made(1, CALM),
        look,
    )
    assert failed
    assert [one["numInputRows"] for one in told][:3] == [20, 20, 20]


def test_a_failure_of_user_code_names_operator_and_record(tmp_path: Path) -> None:
    flow = cc.Flow("broken")
    flow.source(ReplayedSource({"s": [1, 0]})).map(lambda one: 1 // one).named("halves").sink(
        cc.collect(tmp_path / "out")
    )
    end, _ = run_batches(flow.compile(2, 128), settings(tmp_path), made(1, CALM))
    assert end is not None
    assert end.outcome == "failed"
    assert end.cause is not None
    assert (end.cause.operator, end.cause.record) == ("halves", "0")


def test_a_failure_after_the_first_shuffle_block_names_operator_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks before it are not sent, so its number follows a gap."""

    def one_divided_by(number: int) -> int:
        return 1 // number

    monkeypatch.setattr(shuffle, "SHUFFLE_BLOCK_BYTES", 1)
    flow = cc.Flow("broken")
    records = [*range(3 * BATCH_ROWS_MIN, 0, -1), 0]
    divided = flow.source(ReplayedSource({"s": records})).map(one_divided_by).named("divided")
    divided.key_by(abs).count().sink(cc.collect(tmp_path / "out"))
    given = settings(tmp_path, records_max=len(records), parallelism=1, restart=cc.Restart(failures=0))
    end, _ = run_batches(flow.compile(1, 128), given, made(1, CALM))
    assert end is not None
    assert end.outcome == "failed"
    assert end.cause is not None
    assert (end.cause.kind, end.cause.operator, end.cause.record) == ("ZeroDivisionError", "divided", "0")


def test_a_batch_has_no_more_records_than_the_setting_says(tmp_path: Path) -> None:
    flow = cc.Flow("bounded")
    out = cc.collect(tmp_path / "out")
    flow.source(ReplayedSource({"a": list(range(50)), "b": list(range(50))})).sink(out)
    given = settings(tmp_path, records_max=20)
    end, jobs = run_batches(flow.compile(2, 128), given, made(1, CALM))
    assert end is not None
    assert end.outcome == "finished"
    assert sorted(out.records()) == sorted([*range(50)] * 2)
    assert jobs.seen["runs"] >= 5


def test_rows_that_the_snapshot_holds_are_in_a_table_once_whatever_becomes_of_attempts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table numbers (number integer, tag real)")
    flow = cc.Flow("table")
    thirds = {f"s{split}": list(range(split, 120, 3)) for split in range(3)}
    flow.source(ReplayedSource(thirds)).map(tagged).key_by(lambda one: int(one[1] * 1_000)).reduce(
        lambda before, one: one
    ).map(lambda found: found[1]).sink(cc.sqlite.sink(path, "numbers", ["number", "tag"]))
    end, jobs = run_batches(flow.compile(2, 128), settings(tmp_path), made(5, STORM))
    assert end is not None
    assert end.outcome == "finished", end
    assert jobs.seen["doubled"]
    with closing(sqlite3.connect(path)) as database:
        numbers = [number for (number,) in database.execute("select number from numbers")]
    assert sorted(numbers) == list(range(120))


def test_a_process_that_had_another_partition_reads_only_what_has_changed(tmp_path: Path) -> None:
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("kept")
    # Each batch changes a tenth of what there is.
    records = [f"key-{number}" for number in range(1_000)]
    records += [f"key-{number % 1_000}" for number in range(1_000)]
    flow.source(ReplayedSource({"s": records})).key_by(str).count().sink(out)
    given = settings(tmp_path, records_max=200)
    end, jobs = run_batches(flow.compile(2, 128), given, made(3, CALM))
    assert end is not None
    assert end.outcome == "finished"
    assert jobs.advanced_count
    assert Counter(out.records()) == Counter((f"key-{n}", count) for n in range(1_000) for count in (1, 2))


class Endless(ReplayedSource):
    """Gives what it has, and waits."""

    def reader(self, split: cc.Split, position: JSON) -> SplitReader:
        return EndlessReader(super().reader(split, position))


class EndlessReader(SplitReader):
    def __init__(self, reader: SplitReader) -> None:
        self._reader = reader

    @property
    def position(self) -> JSON:
        return self._reader.position

    @property
    def lag(self) -> int:
        return 0

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        found = self._reader.read(limit)
        return Wait(1.0) if isinstance(found, EndOfSplit) else found


class Slow(Endless):
    """Comes by its first records some time after it was opened; the others are there at once."""

    def reader(self, split: cc.Split, position: JSON) -> SplitReader:
        reader = EndlessReader(ReplayedSource.reader(self, split, position))
        return SlowReader(reader) if split.split_id == "slow" else reader


class SlowReader(SplitReader):
    READS = 20

    def __init__(self, reader: SplitReader) -> None:
        self._reader = reader
        self._reads = 0

    @property
    def position(self) -> JSON:
        return self._reader.position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        self._reads += 1
        return Wait(1.0) if self._reads <= self.READS else self._reader.read(limit)


def test_a_batch_does_not_end_before_each_split_has_had_its_say(tmp_path: Path) -> None:
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("slow")
    flow.source(Slow({"fast": [1, 2], "slow": [3, 4]})).sink(out)
    given = settings(tmp_path, parallelism=1, trigger="once")
    end, _ = run_batches(flow.compile(1, 128), given, made(1, CALM))
    assert end is not None
    assert end.outcome == "stopped", end
    assert 3 in out.records()


class Trickling(ReplayedSource):
    """Always has a record, and no more."""

    def reader(self, split: cc.Split, position: JSON) -> SplitReader:
        return TricklingReader(super().reader(split, position))


class TricklingReader(EndlessReader):
    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        time.sleep(0.002)
        return super().read(1)


def test_a_batch_ends_in_time_though_there_is_always_more(tmp_path: Path) -> None:
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("trickle")
    flow.source(Trickling({"s": list(range(100_000))})).sink(out)
    given = settings(tmp_path, parallelism=1, records_max=100_000, trigger="once", checkpoint_timeout="1s")
    end, jobs = run_batches(flow.compile(1, 128), given, made(1, CALM))
    assert end is not None
    assert end.outcome == "stopped", end
    assert jobs.seen["runs"] == 1
    assert 0 < len(out.records()) < 1_000


@pytest.mark.parametrize(("trigger", "count"), [("available_now", 100), ("once", 40)])
def test_a_trigger_says_when_batches_end(tmp_path: Path, trigger: str, count: int) -> None:
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("triggered")
    flow.source(Endless({"a": list(range(50)), "b": list(range(50, 100))})).sink(out)
    end, _ = run_batches(flow.compile(2, 128), settings(tmp_path, trigger=trigger), made(1, CALM))
    assert end is not None
    assert end.outcome == "stopped", end
    assert len(out.records()) == count


def test_a_trigger_without_batches_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"say engine=crosscut.MicroBatch\(trigger=...\)"):
        cc.Settings(trigger="once")  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"expected engine=crosscut.MicroBatch"):
        cc.Auto(micro_batch=cc.MicroBatch(trigger="once"))


def test_progress_has_the_shape_of_structured_streamings() -> None:
    flow = cc.Flow("shown")
    flow.source(cc.generate(int, count=9)).named("numbers").key_by(str).count().named("counted").sink(
        cc.collect()
    ).named("out")
    graph = flow.compile(1, 128)
    source, counted = (TaskId(VertexId(one.vertex_id), 0) for one in graph.vertices)
    before = {source: Snapshot(positions=[["s0", 0, None, 1, 4]], records_in=4), counted: Snapshot()}
    after = {
        source: Snapshot(positions=[["s0", 0, None, 1, 9]], records_in=9),
        counted: Snapshot(records_in=9, records_out=5, state_keys=3),
    }
    seconds = 10**9
    times = BatchTimes(2 * seconds, 2 * seconds, 3 * seconds, 3 * seconds, 4 * seconds)
    found = progress_of(
        graph, QueryIds("q", "r"), CheckpointId(7), before, after, times, "2026-01-01T00:00:00"
    )
    assert found["batchId"] == 7
    assert found["numInputRows"] == 5
    assert (found["inputRowsPerSecond"], found["processedRowsPerSecond"]) == (2.5, 2.5)
    assert found["durationMs"] == {
        "addBatch": 1_000,
        "commitBatch": 0,
        "commitOutput": 1_000,
        "triggerExecution": 2_000,
    }
    assert [(one["startOffset"], one["endOffset"]) for one in found["sources"]] == [({"s0": 4}, {"s0": 9})]
    assert [one["numRowsTotal"] for one in found["stateOperators"]] == [3]
    assert found["sink"]["numOutputRows"] == 5


def test_vertices_that_shuffle_nothing_share_a_stage() -> None:
    flow = cc.Flow("stages")
    numbers = flow.source(cc.generate(int, count=1)).named("numbers")
    left = numbers.key_by(lambda one: one).count().named("counted")
    left.key_by(lambda one: one[0]).count().named("again").sink(cc.collect())
    numbers.map(lambda one: one).named("aside").sink(cc.collect())
    stages = stages_of(flow.compile(2, 128))
    assert [len(one) for one in stages][1:] == [1, 1]


def test_a_loop_is_refused_by_name() -> None:
    flow = cc.Flow("loop")

    def step(loop: Any) -> tuple[Any, Any]:
        less = loop.map(lambda one: one - 1)
        return less.filter(lambda one: one > 0), less.filter(lambda one: one <= 0)

    flow.source(cc.generate(int, count=3)).iterate(step).sink(cc.collect())
    graph = flow.compile(2, 128)
    with pytest.raises(FlowError, match=r"is the head of a loop.*engine='continuous'"):
        check_batches(graph)


def test_what_goes_wrong_between_two_batches_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10, I12: nobody but the event loop would know, and the coordinator waits for the word of a commit."""

    def committed(*_: object) -> Any:
        raise ValueError("no such offset")

    monkeypatch.setattr(NewestBatch, "committed", committed)
    flow = cc.Flow("numbers")
    flow.source(cc.items(range(10))).sink(cc.collect(tmp_path / "out"))
    ends_s = time.monotonic() + 100
    end, _ = run_batches(
        flow.compile(2, 128), settings(tmp_path), made(1, CALM), lambda driver: time.monotonic() > ends_s
    )
    assert end is not None and end.cause is not None
    assert (end.outcome, end.cause.message) == ("failed", "no such offset")


def test_a_function_may_run_an_event_loop_of_its_own(tmp_path: Path) -> None:
    async def doubled(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("loops")
    flow.source(ReplayedSource({"s": [1, 2, 3]})).map(lambda number: asyncio.run(doubled(number))).sink(out)
    end, _ = run_batches(flow.compile(1, 128), settings(tmp_path, parallelism=1), made(1, CALM))
    assert end is not None
    assert end.outcome == "finished", end
    assert sorted(out.records()) == [2, 4, 6]
