"""Loops on real workers that are killed: nothing that goes round is lost, doubled or left behind.

Each flow with one kind of snapshots; with the others in simulated worlds, and in `make prove`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jobs import PATIENT, Held, example, hold, lose, until
from proving import proven

import crosscut as cc
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store

ALIGNED, UNALIGNED, SWITCHING = "aligned", "unaligned", "aligned, unaligned after 5ms"


@dataclass(frozen=True)
class LoopJob:
    """A flow on `directory`; `out` is where its records go.

    `held`: its sources give so many records a second per split, and don't end, until `open_gate`.
    """

    directory: Path
    flow: cc.Flow
    out: Any
    snapshots: str = ALIGNED
    settings: dict[str, Any] = field(default_factory=dict)
    held: float | None = None

    def open_gate(self) -> None:
        (self.directory / "gate").touch()

    def start(self, spark: Any) -> Any:
        if self.held is not None:
            hold(self.flow, self.directory / "gate", self.held)
        chosen: dict[str, Any] = {
            "parallelism": 2,
            "checkpoint_dir": str(self.directory / "checkpoints"),
            "checkpoint_interval": "100ms",
            "snapshots": self.snapshots,
            **PATIENT,
            "restart": cc.Restart(delay_step="50ms", delay_max="200ms"),
        }
        return self.flow.start(cc.Settings(**(chosen | self.settings)), spark=spark)

    def completed(self) -> list[CheckpointCompleted]:
        entries = open_store(str(self.directory / "checkpoints"), create=False).entries()
        return [entry for _, entry in entries if isinstance(entry, CheckpointCompleted)]


def kill_after(job: Any, started: Any, checkpoints: int, worker: int) -> None:
    """SIGKILL a worker once so many more checkpoints are complete and the job runs."""
    wanted = job.report().checkpoints_completed + checkpoints

    def is_time() -> bool:
        assert not job.wait(0), "the job has ended before it was killed"
        return bool(job.report().checkpoints_completed >= wanted)

    until(is_time, f"{checkpoints} more checkpoints of {job!r}")
    lose(job, started, worker)


def run_with_kills(loop_job: LoopJob, started: Any, kills: int = 2) -> Any:
    loop_job = replace(loop_job, held=1_000)
    job = started(loop_job)
    for kill in range(kills):
        kill_after(job, started, 2, kill % 2)
    loop_job.open_gate()
    started.finish(job)
    assert job.status == "finished"
    assert job.report().restarts >= kills
    assert job.report().termination == "final"
    return job


def invariants_of(job: Any) -> dict[str, Any]:
    return {one.name: one for one in job.report().invariants}


# The examples.


@pytest.mark.parametrize("snapshots", [ALIGNED, proven(UNALIGNED), proven(SWITCHING)])
def test_collatz_lengths_are_exact_although_workers_are_killed(
    tmp_path: Path, started: Any, snapshots: str
) -> None:
    """G1, G2, G4, I1, I2, I4: numbers on the back edge come back once; the end comes when all are out."""

    def length(number: int) -> int:
        steps = 0
        while number != 1:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            steps += 1
        return steps

    count, out = 6_000, cc.collect()
    flow = example("collatz").lengths(count, out)
    loop_job = LoopJob(tmp_path, flow, out, snapshots)
    run_with_kills(loop_job, started)
    assert Counter(out.records()) == Counter((number, length(number)) for number in range(2, count + 2))
    last = loop_job.completed()[-1]
    assert last.is_final and all(one.snapshot.in_flight == 0 for one in last.snapshots)


def random_edges(seed: int, vertices: int, edges: int) -> list[tuple[int, int]]:
    choices = random.Random(seed)
    return [(choices.randrange(vertices), choices.randrange(vertices)) for _ in range(edges)]


def smallest_of_component(edges: list[tuple[int, int]]) -> dict[int, int]:
    """Union-find, as the oracle."""
    parent: dict[int, int] = {}

    def root(vertex: int) -> int:
        while parent.setdefault(vertex, vertex) != vertex:
            vertex = parent[vertex]
        return vertex

    for one, other in edges:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return {vertex: root(vertex) for vertex in parent}


@pytest.mark.parametrize("snapshots", [proven(ALIGNED), UNALIGNED])
def test_connected_components_of_an_edge_list_are_right_although_workers_are_killed(
    tmp_path: Path, started: Any, snapshots: str
) -> None:
    """G1, G2, G4, I1: news that goes round while edges still come in; a lost one leaves a wrong label."""
    edges = random_edges(7, vertices=8_000, edges=7_200)
    (tmp_path / "edges").mkdir()
    for part in range(4):
        text = "".join(f"{one} {other}\n" for one, other in edges[part::4])
        (tmp_path / "edges" / f"{part}.txt").write_text(text)
    out = cc.collect()
    flow = example("components").components(str(tmp_path / "edges" / "*.txt"), out)
    # Small batches, so that there are checkpoints before the graph is whole. Not a shorter interval: a busy
    # machine would do nothing but checkpoints.
    settings = {"batch_rows": 10}
    loop_job = LoopJob(tmp_path, flow, out, snapshots, settings, held=1_000)
    job = started(loop_job)
    kill_after(job, started, 2, 0)
    loop_job.open_gate()
    started.finish(job)
    assert job.report().restarts >= 1
    smallest: dict[int, int] = {}
    for vertex, label in out.records():
        smallest[vertex] = min(label, smallest.get(vertex, label))
    assert smallest == smallest_of_component(edges)


@pytest.mark.parametrize("snapshots", [proven(ALIGNED), SWITCHING])
def test_tokens_go_round_the_ring_exactly_as_often_as_they_should(
    tmp_path: Path, started: Any, snapshots: str
) -> None:
    """G1, G2, G4, I1, I2: a token is in one place on every cut, and every hop is counted once."""
    tokens, hops, out = 3_000, 40, cc.collect()
    ring = example("token_ring")
    job = run_with_kills(LoopJob(tmp_path, ring.token_ring(tokens, hops, out), out, snapshots), started)
    wanted = [(number, (number + hops) % ring.MEMBERS, 0) for number in range(tokens)]
    assert sorted(out.records()) == wanted
    for one in invariants_of(job).values():
        assert one.evaluated >= 2 and one.broken == 0, one


@pytest.mark.parametrize("snapshots", [proven(ALIGNED), UNALIGNED, proven(SWITCHING)])
def test_no_money_is_made_or_lost_on_any_cut_although_workers_are_killed(
    tmp_path: Path, started: Any, snapshots: str
) -> None:
    """G1, G2, G4, I1, I2: balances and the deposits on their way add up on every cut, and at the end."""
    transfers, accounts, out = 8_000, 40, cc.collect()
    bank = example("bank")
    job = run_with_kills(LoopJob(tmp_path, bank.bank(transfers, accounts, out), out, snapshots), started)
    assert sorted(receipt[1] for receipt in out.records()) == list(range(transfers))
    held = invariants_of(job)["money is conserved"]
    assert held.broken == 0
    assert held.evaluated + held.skipped == job.report().checkpoints_completed
    assert held.evaluated >= 2


# Invariants that break.


def a_cent_disappears(cut: cc.Cut) -> bool:
    return bool(example("bank").money_is_conserved(cut)) and cut.checkpoint_id < 3


def test_a_broken_invariant_is_reported_with_its_cut_and_the_job_goes_on(
    tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    out = cc.collect()
    flow = example("bank").bank(3_000, 40, out)
    flow.invariant("a cent", a_cent_disappears)
    flow.invariant("no such operator", lambda cut: cut.values("acounts"))
    loop_job = LoopJob(tmp_path, flow, out, held=1_000)
    job = started(loop_job)
    until(lambda: invariants_of(job)["a cent"].broken > 1, "cuts on which it is broken")
    loop_job.open_gate()
    started.finish(job)
    assert job.status == "finished"
    found = invariants_of(job)
    assert found["money is conserved"].broken == 0
    assert found["a cent"].broken_at >= 3
    assert found["a cent"].broken > 1
    assert "the flow has no operator 'acounts'; it has" in found["no such operator"].message
    assert "invariant 'a cent' is broken on the cut of checkpoint" in caplog.text


def test_a_broken_invariant_ends_the_job_if_it_was_asked_to(tmp_path: Path, started: Any) -> None:
    out = cc.collect()
    flow = example("bank").bank(1_000_000, 40, out, rate=3_000)
    flow.invariant("a cent", a_cent_disappears, on_broken="stop")
    job = started(LoopJob(tmp_path, flow, out))
    with pytest.raises(
        cc.errors.JobFailedError, match="'a cent' is broken on the cut of checkpoint"
    ) as failed:
        started.finish(job)
    assert job.status == "failed"
    assert failed.value.ids["cause"].kind == "InvariantBroken"
    assert f"checkpoint {invariants_of(job)['a cent'].broken_at}:" in str(failed.value)


def test_an_invariant_that_breaks_on_the_final_cut_keeps_the_job_from_having_finished(
    tmp_path: Path, started: Any
) -> None:
    """The verdict on the last cut is awaited; here a key of the ring waits for what will never come."""
    out = cc.collect()
    ring = example("token_ring")
    flow = ring.token_ring(50, 20, out)
    flow.invariant(
        "nobody waits", cc.no_deadlock("members", waiting=lambda member: member[0] < 10**6), on_broken="stop"
    )
    job = started(LoopJob(tmp_path, flow, out))
    with pytest.raises(cc.errors.JobFailedError, match="'nobody waits' is broken"):
        started.finish(job)
    assert invariants_of(job)["nobody waits"].broken_at is not None


# Several loops.


def counted_down(stream: cc.Stream, name: str, field_index: int) -> cc.Stream:
    """Send records round until their field is 0, over a shuffle."""

    def one_less(record: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(value - 1 if position == field_index else value for position, value in enumerate(record))

    def once_round(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        less = (
            loop.named(f"{name}-loop")
            .key_by(lambda record: record[0] % 8)
            .reduce(lambda _, record: record)
            .named(f"{name}-keys")
            .map(lambda update: one_less(update[1]))
        )
        return (
            less.filter(lambda record: record[field_index] > 0).named(f"{name}-again"),
            less.filter(lambda record: record[field_index] == 0).named(f"{name}-out"),
        )

    return stream.iterate(once_round)


def two_loops(count: int, out: Any) -> cc.Flow:
    flow = cc.Flow("two-loops")
    source = flow.source(cc.generate(lambda i: (i, 5 + i % 7, 3 + i % 5), count=count))
    counted_down(counted_down(source, "first", 1), "second", 2).sink(out)
    return flow


def nested_loops(count: int, out: Any) -> cc.Flow:
    """The inner loop counts field 2 down from 4; the outer one field 1, and sets field 2 again."""

    def outer(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        through = counted_down(loop.map(lambda record: (record[0], record[1] - 1, 4)), "inner", 2)
        return through.filter(lambda record: record[1] > 0), through.filter(lambda record: record[1] == 0)

    flow = cc.Flow("nested-loops")
    flow.source(cc.generate(lambda i: (i, 1 + i % 6, 0), count=count)).iterate(outer).sink(out)
    return flow


@pytest.mark.parametrize(
    ("flow_of", "snapshots"),
    [
        proven(two_loops, ALIGNED),
        (two_loops, UNALIGNED),
        proven(nested_loops, ALIGNED),
        (nested_loops, SWITCHING),
    ],
)
def test_two_loops_in_a_row_and_one_in_another_let_everything_out_once(
    tmp_path: Path, started: Any, flow_of: Callable[[int, Any], cc.Flow], snapshots: str
) -> None:
    """G1, G2, G4, I1, I2: the end comes when both are empty."""
    count, out = 3_000, cc.collect()
    run_with_kills(LoopJob(tmp_path, flow_of(count, out), out, snapshots), started, kills=1)
    assert sorted(out.records()) == [(number, 0, 0) for number in range(count)]


def last_heard(state: str, record: tuple[int, ...]) -> str:
    return "asks" if len(record) == 1 else f"gets {record[1]}"


def test_final_results_between_loops_are_said_and_who_waits_for_them_is_in_no_deadlock(
    tmp_path: Path, started: Any
) -> None:
    """G4, F5: a loop is closed when what feeds it has said all, and not when nothing is on its way."""
    keys, count, out = 7, 700, cc.collect()
    flow = cc.Flow("totals")
    source = flow.source(cc.generate(lambda i: (i % keys, 1 + i % 5), count=count))
    first = counted_down(source, "first", 1).key_by(lambda record: record[0]).count(emit="final")
    second = counted_down(first.map(lambda total: (*total, 1 + total[0] % 3)), "second", 2)
    totals = second.key_by(lambda record: record[:2]).count(emit="final").map(lambda total: total[0])
    asking = flow.source(cc.generate(lambda i: (i,), count=keys))
    last = asking.union(totals).key_by(lambda record: record[0]).aggregate("", last_heard).named("last")
    last.sink(out)
    flow.invariant("nobody waits", cc.no_deadlock("last", lambda state: state == "asks"), on_broken="stop")
    job = started(LoopJob(tmp_path, flow, out, UNALIGNED))
    started.finish(job)
    assert job.status == "finished"
    assert sorted(out.records()) == sorted(
        (key, said) for key in range(keys) for said in ("asks", f"gets {count // keys}")
    )
    assert invariants_of(job)["nobody waits"].evaluated > 0


def test_a_loop_with_far_more_in_it_than_fits_into_its_channels_does_not_stop(
    tmp_path: Path, started: Any
) -> None:
    """G3: each turn doubles the records, so that every buffer of the cycle is full at once."""

    def doubled(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        both = (
            loop.key_by(lambda record: record[1] % 64)
            .reduce(lambda _, record: record)
            .flat_map(lambda update: [(update[1][0] - 1, update[1][1] * 2 + side) for side in (0, 1)])
        )
        return both.filter(lambda record: record[0] > 0), both.filter(lambda record: record[0] == 0)

    out = cc.collect()
    flow = cc.Flow("doubling")
    flow.source(cc.generate(lambda i: (12, i), count=32)).iterate(doubled).sink(out)
    settings = {"engine": cc.Continuous(channel_bytes=65_536), "batch_rows": 50}
    job = started(LoopJob(tmp_path, flow, out, ALIGNED, settings))
    started.finish(job)
    assert sorted(number for _, number in out.records()) == list(range(32 * 2**12))


# At least once.


@dataclass(frozen=True)
class SlowBefore:
    """Takes its time with each record until the gate is open, so that a queue stands in front of it."""

    gate: Path

    def __call__(self, record: tuple[str, int]) -> tuple[str, int]:
        if not self.gate.exists():
            sum(range(5_000))
        return record


def numbered(name: str, number: int) -> tuple[str, int]:
    return name, number


def copies_after_a_kill(tmp_path: Path, started: Any, *rates: float | None) -> Counter[int]:
    """Run numbered records through slow tasks, with a kill; return how many came once, twice, ...

    Args:
        rates: Records a second before the kill, of each source; None: as fast as they are taken.
    """
    gate, count, out = tmp_path / "gate", 40_000, cc.collect()
    flow = cc.Flow("at-least-once")
    streams = [
        flow.source(Held(cc.generate(partial(numbered, name), count=count), gate, rate)).named(name)
        for name, rate in zip("ab", rates, strict=False)
    ]
    merged = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    merged.map(SlowBefore(gate)).key_by(lambda record: record).count(emit="final").sink(out)
    # With one worker, a task has as many inputs as its operator.
    settings = {"parallelism": 1, "checkpoint_interval": "50ms"}
    loop_job = LoopJob(tmp_path, flow, out, "at-least-once", settings)
    job = started(loop_job)
    kill_after(job, started, 2, 0)
    loop_job.open_gate()
    started.finish(job)
    assert job.report().restarts >= 1
    found = dict(out.records())
    assert found.keys() == {
        (name, number) for name, _ in zip("ab", rates, strict=False) for number in range(count)
    }
    return Counter(found.values())


def test_at_least_once_counts_records_twice_where_a_task_has_two_inputs_of_unlike_speed(
    tmp_path: Path, started: Any
) -> None:
    """One input has a queue in front of its barrier; the other one goes on behind its own meanwhile."""
    copies = copies_after_a_kill(tmp_path, started, None, 300)
    assert min(copies) == 1
    assert max(copies) > 1


def test_at_least_once_is_exactly_once_where_every_task_has_one_input(tmp_path: Path, started: Any) -> None:
    assert set(copies_after_a_kill(tmp_path, started, None)) == {1}
