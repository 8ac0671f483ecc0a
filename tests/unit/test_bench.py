"""What the benchmarks compute and build, as far as it measures nothing."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from bench import contention, operators, plot, throughput
from bench.__main__ import NAMES
from bench.coordinating import VERTICES, LargeJob
from bench.page import interval
from bench.protocols import PROTOCOLS, Run, by_length, compare, plan
from bench.reports import Noted, shares
from bench.scale import SHUFFLES, barrier_costs_us

import crosscut as cc
from crosscut.protocol.checkpoint import retention
from crosscut.protocol.snapshots import Snapshot
from crosscut.state.keyed import KeyedState
from crosscut.worker.backends import OnDisk


def run(snapshots: str, seconds: float, *, number: int = 0, records: int = 1_000, interval: int = 200) -> Run:
    interval_ms = 0 if snapshots == "none" else interval
    return Run(number, snapshots, interval_ms, records, seconds, 2 * seconds, 5, 30.0)


def ratios(*runs: Run) -> dict[tuple[str, int], tuple[float, float, float]]:
    return {
        (one.snapshots, one.interval_ms): (one.clock, one.clock_least, one.clock_most)
        for one in compare(runs)
    }


# Ratios.


def test_a_run_is_compared_with_the_runs_of_none_just_before_and_just_after_it() -> None:
    found = ratios(
        run("none", 100),
        run("none", 10),
        run("aligned", 12),
        run("halting", 15),
        run("none", 20),
        run("none", 100),
    )
    assert found == {("aligned", 200): (0.8, 0.8, 0.8), ("halting", 200): (1.0, 1.0, 1.0)}


def test_a_run_is_never_compared_with_one_of_another_round_or_another_length() -> None:
    found = ratios(
        run("none", 99, number=0),
        run("none", 99, number=1, records=7),
        run("aligned", 11, number=1),
        run("none", 10, number=1),
    )
    assert found == {("aligned", 200): (1.1, 1.1, 1.1)}


def test_of_several_rounds_the_median_counts_and_the_extremes_are_shown() -> None:
    runs = [
        one
        for at, s in enumerate((11, 30, 12))
        for one in (run("none", 10, number=at), run("aligned", s, number=at))
    ]
    assert ratios(*runs) == {("aligned", 200): (1.2, 1.1, 3.0)}


def test_without_a_run_to_compare_with_there_is_no_ratio() -> None:
    with pytest.raises(ValueError, match="no run of none in round 0 with 1000 records"):
        compare([run("none", 1, records=5), run("aligned", 1)])


# The plan.


def test_every_round_has_every_protocol_at_every_interval_once_between_runs_of_none() -> None:
    planned = plan(7, {3.0: [100, 200], 11.0: [10_000]})
    measured = [(protocol, interval) for _, protocol, interval in planned if protocol != "none"]
    assert sorted(measured) == sorted((one, ms) for one in PROTOCOLS for ms in (100, 200, 10_000))
    for seconds in (3.0, 11.0):
        names = [protocol for length, protocol, _ in planned if length == seconds]
        assert names[0] == names[-1] == "none"
    assert plan(7, {3.0: [100]}) == plan(7, {3.0: [100]}) != plan(8, {3.0: [100]})


def test_a_job_lives_longer_than_its_interval() -> None:
    assert by_length([100, 1_000, 5_000, 10_000], 3.5) == {3.5: [100, 1_000], 11.0: [5_000, 10_000]}
    assert by_length([100], 3.5) == {3.5: [100]}


# The coordinator at scale.


def test_a_checkpoint_of_a_large_job_is_whole_and_every_message_of_it_is_counted() -> None:
    parallelism = 5
    job = LargeJob(parallelism)
    found = [job.checkpoint() for _ in range(3)]
    # A trigger and a commit to each worker, an acknowledgement of each task, an answer of each sink.
    assert {one.messages for one in found} == {parallelism * (1 + len(VERTICES) + 1 + 1)}
    # The second one is written as a change of the first.
    assert found[0].entry_bytes > found[-1].entry_bytes > 0
    assert SHUFFLES == 3


def test_a_large_job_goes_on_after_the_loss_of_a_worker() -> None:
    job = LargeJob(4)
    job.checkpoint()
    # Deployed and started: one message each.
    assert job.deployed.messages_out == 4 * 2
    # Halted, but the one that is lost; deployed and started.
    work = job.failover()
    assert work.messages_out == 3 + 4 * 2
    # One registers, and all are ready.
    assert work.messages_in == 1 + 4
    assert job.checkpoint().messages == 4 * 7
    assert job.failover().messages_out == work.messages_out
    assert job.heartbeats().messages_in == 4


# Plots.


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="only `make bench` installs it")
    monkeypatch.setattr(plot, "PLOTS", tmp_path)
    panel = plot.Panel(
        "Title", "x", "y", {"line": [(1.0, 2.0), (10.0, 3.0)]}, x_ticks={1.0: "one", 10.0: "ten"}
    )
    first = plot.write_plot("one", [panel]).read_bytes()
    assert plot.write_plot("one", [panel]).read_bytes() == first
    assert b"Title" in first


def test_the_coordinators_work_for_a_checkpoint_grows_with_the_tasks_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It once went through everything that was kept, or in use, for each acknowledgement."""
    plain, looked_at = retention.paths_of, 0

    def counted(snapshot: Snapshot) -> tuple[str, ...]:
        nonlocal looked_at
        looked_at += 1
        return plain(snapshot)

    def per_task(parallelism: int) -> float:
        nonlocal looked_at
        job = LargeJob(parallelism)
        job.checkpoint()
        looked_at = 0
        job.checkpoint()
        return looked_at / (parallelism * len(VERTICES))

    monkeypatch.setattr(retention, "paths_of", counted)
    assert per_task(40) <= 2 * per_task(5)


def test_what_a_barrier_costs_is_measured_on_a_real_task() -> None:
    handled_us, sent_us = barrier_costs_us(2)
    assert handled_us > 0
    assert sent_us > 0


# What it says of its data is true of them.


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("word", "extra"), [("pyarrow", "parquet"), ('"rocksdb"', "rocksdb"), ('ask("metrics")', "metrics")]
)
def test_make_bench_installs_what_its_benchmarks_use(word: str, extra: str) -> None:
    """Else it ends in the middle, in an environment that has nothing more."""
    assert [name for name in NAMES if word in (ROOT / "bench" / f"{name}.py").read_text(encoding="utf-8")]
    installed = re.search(r"-e '\.\[(.*bench)\]'", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert installed and extra in installed[1].split(",")


def test_the_table_of_keys_holds_as_many_as_the_benchmark_says() -> None:
    keys = throughput.zipf_keys(throughput.TABLE_ROWS)
    assert len(keys) == throughput.TABLE_ROWS
    counted = Counter(keys)
    assert len(counted) == throughput.KEYS == 100_000
    most = [count for _, count in counted.most_common(2)]
    assert 0.1 < most[0] / len(keys) < 0.2, "the most frequent key has its share by Zipf's law"
    assert len(set(keys[:1_000])) < 1_000 and len(set(keys[-1_000:])) < 1_000, "they are in no order"


def test_the_flow_of_a_user_aggregates_what_its_source_makes() -> None:
    reader = throughput.Payments().reader(cc.Split("0", start=0), 0)
    records = reader.read(10)
    assert isinstance(records, list) and (len(records), reader.position) == (10, 10)
    assert throughput.add((1, 2.0), throughput.in_euros(records[3])) == (2, 2.03)
    assert {node.uid for vertex in throughput.flow_of("user").compile(2, 8).vertices for node in vertex.chain}


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_operators_are_measured_over_state_that_holds_every_key_and_is_taken_over(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "CHECKPOINT_ROWS", 2_000)
    disk = OnDisk(str(tmp_path), operators.GROUPS)
    new = KeyedState if backend == "memory" else disk.new_state(operators.TASK)
    for kind in operators.SPECS:
        found = operators.measure(kind, backend, new, 2_000, 1)
        assert (found["operator"], found["keys"]) == (kind, 2_000)
    half, whole = operators.restores(backend, new, 400)
    assert 0 < half["restored_rows"] < whole["restored_rows"] == whole["stored_rows"] < 400
    disk.close()


def test_where_a_median_lies_is_said_without_a_word_about_how_values_are_spread() -> None:
    assert interval([float(one) for one in range(30, 0, -1)]) == (15.5, 10.0, 21.0)
    # Of so few, not even the outermost two say as much.
    assert interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)


def test_what_a_worker_spends_to_be_seen_is_what_it_has_noted_between_two_moments() -> None:
    before = Noted(0, 1_000, 5, 100, 0, 2, 10, 7, 500)
    after = Noted(900, 11_000, 7, 300, 0, 4, 30, 27, 500)
    found = shares(before, after, 40.0)
    assert found == {
        "reports": pytest.approx((200 + 2 * 40) / 10_000),
        "marks": pytest.approx(20 / 10_000),
        "shares_of_time": pytest.approx(20 * 0.5 / 10_000),
        "all": pytest.approx(310 / 10_000),
    }


@pytest.mark.parametrize("kind", contention.KINDS)
def test_background_work_is_measured_beside_each_rival(kind: str) -> None:
    lines = contention.measured(kind, rounds=2, rounds_us=[20], interval_us=50)
    assert [line["beside"] for line in lines] == ["thread", "loop, rounds of 20 us"]
    assert all(line["kind"] == kind and line["alone_ms"] > 0 and line["ms"] > 0 for line in lines)


@pytest.mark.proof
@pytest.mark.parametrize("kind", contention.SERVICES)
def test_work_that_needs_a_server_is_measured_beside_each_rival(kind: str) -> None:
    for module in ("confluent_kafka", "httpx", "nats", "psycopg"):
        pytest.importorskip(module)
    lines = contention.measured(kind, rounds=1, rounds_us=[20], interval_us=50)
    assert [line["beside"] for line in lines] == ["thread", "loop, rounds of 20 us"]
    assert all(line["kind"] == kind and line["alone_ms"] > 0 and line["ms"] > 0 for line in lines)
