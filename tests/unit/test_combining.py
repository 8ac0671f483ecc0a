"""Folds that begin before their shuffle: which do, and that nobody can tell by what comes out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from operator import add
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches
from tests.unit.endless import Goes

import crosscut as cc
from crosscut.driver.job_spec import assignments
from crosscut.errors import FlowError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.graph import combining as rule
from crosscut.graph.combining import combined
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import AggregateSpec, CombineSpec, CountSpec
from crosscut.microbatch import driver_workers as workers
from crosscut.microbatch import stage
from crosscut.operators import combining
from crosscut.operators.combining import CombinedAggregate, CombinedCount, CombinedSum
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.microbatch.combining import may_combine
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.savepoints.history import without_input
from crosscut.savepoints.manifest import opened
from crosscut.savepoints.starting import begin_with
from crosscut.savepoints.writing import write_savepoint
from crosscut.store.checkpoint_store import open_store
from crosscut.task.channel_log import encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.wire.batches import encode_batch

STORM = FaultProfile(doubled=0.4, torn=0.2, lost=0.1)
CALM = FaultProfile()
RECORDS = [(f"key-{number * 7 % 13}", number) for number in range(400)]
THIRDS = {f"s{split}": RECORDS[split::3] for split in range(3)}


def key_of(record: tuple[str, int]) -> str:
    return record[0]


def value_of(record: tuple[str, int]) -> int:
    return record[1]


def longer(so_far: list[int], record: tuple[str, int]) -> list[int]:
    """Changes its accumulator in place."""
    so_far.append(record[1])
    return so_far


Folded = Callable[[Any], cc.Stream[Any]]
FOLDS: dict[str, tuple[Folded, Callable[[list[int]], Any]]] = {
    "count": (lambda keyed: keyed.count(emit="final"), len),
    "sum": (lambda keyed: keyed.sum(value_of, emit="final"), sum),
    "sum of halves": (lambda keyed: keyed.sum(lambda one: one[1] / 2, emit="final"), lambda n: sum(n) / 2),
    "min": (lambda keyed: keyed.min(value_of, emit="final"), min),
    "max": (lambda keyed: keyed.max(value_of, emit="final"), max),
    "mean": (lambda keyed: keyed.mean(value_of, emit="final"), lambda n: sum(n) / len(n)),
    "approx_distinct": (lambda keyed: keyed.approx_distinct(value_of, emit="final"), lambda n: len(set(n))),
    "aggregate": (
        lambda keyed: keyed.aggregate(list, longer, sorted, emit="final", merge=add),
        sorted,
    ),
}


def folding(fold: str, out: cc.Collect, source: cc.Source[Any] | None = None) -> cc.Flow:
    flow = cc.Flow("folding")
    keyed = flow.source(source or ReplayedSource(THIRDS)).named("in").key_by(key_of)
    FOLDS[fold][0](keyed).named("fold").sink(out)
    return flow


def expected(fold: str, records: list[tuple[str, int]] = RECORDS) -> Counter[str]:
    numbers: dict[str, list[int]] = {}
    for key, number in records:
        numbers.setdefault(key, []).append(number)
    return Counter(repr((key, FOLDS[fold][1](found))) for key, found in numbers.items())


def shown(out: cc.Collect) -> Counter[str]:
    return Counter(map(repr, out.records()))


def ran(
    flow: cc.Flow,
    directory: Path,
    fault_profile: FaultProfile = STORM,
    parallelism: int = 2,
    trigger: Any = "interval",
    **others: Any,
) -> Any:
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=60, trigger=trigger),
        parallelism=parallelism,
        checkpoint_dir=directory / "checkpoints",
        checkpoint_interval="10ms",
        restart=cc.Restart(failures=3 if fault_profile == STORM else 0),
        **others,
    )
    graph = flow.compile(parallelism, 128)
    end, _ = run_batches(graph, settings, lambda made, url: LocalJobs(made, url, Random(3), fault_profile))
    assert end is not None
    return end


# The rule.


def specs_of(flow: cc.Flow) -> list[str]:
    graph = combined(flow.compile(2, 128))
    return [type(node.spec).__name__ for vertex in graph.vertices for node in vertex.chain]


def keyed_in(flow: cc.Flow) -> Any:
    return flow.source(cc.items(RECORDS)).key_by(key_of)


@pytest.mark.parametrize("fold", FOLDS)
def test_folds_that_say_how_they_merge_and_speak_at_the_end_begin_before_the_shuffle(fold: str) -> None:
    found = specs_of(folding(fold, cc.collect()))
    assert found == ["SourceSpec", "KeyBySpec", "CombineSpec", "AggregateSpec", "SinkSpec"]


@pytest.mark.parametrize(
    "others",
    [
        lambda keyed: keyed.count(),
        lambda keyed: keyed.sum(value_of),
        lambda keyed: keyed.reduce(lambda one, other: max(one, other), emit="final"),
        lambda keyed: keyed.aggregate(list, longer, emit="final"),
        lambda keyed: keyed.aggregate(list, longer, merge=add),
        lambda keyed: keyed.window(cc.count_window(3)).count(),
        lambda keyed: keyed.deduplicate(),
    ],
)
def test_other_folds_do_not(others: Any) -> None:
    flow = cc.Flow("others")
    others(keyed_in(flow)).sink(cc.collect())
    assert "CombineSpec" not in specs_of(flow)


def test_records_that_may_be_set_aside_and_keys_that_others_read_too_are_sent_as_they_are() -> None:
    flow = cc.Flow("aside")
    sums = keyed_in(flow).sum(value_of, emit="final", on_error="dead letters")
    sums.sink(cc.collect())
    sums.side_output("dead letters").sink(cc.collect())
    assert "CombineSpec" not in specs_of(flow)

    flow = cc.Flow("two")
    keyed = keyed_in(flow)
    keyed.count(emit="final").sink(cc.collect())
    keyed.sum(value_of).sink(cc.collect())
    assert "CombineSpec" not in specs_of(flow)


def test_a_combined_graph_has_the_vertices_edges_and_fingerprint_that_it_had() -> None:
    graph = folding("count", cc.collect()).compile(2, 128)
    found = combined(graph)
    assert [one.vertex_id for one in found.vertices] == [one.vertex_id for one in graph.vertices]
    assert replace(found, vertices=()) == replace(graph, vertices=())
    assert found.vertices[0].chain[-1].spec == CombineSpec(CountSpec("final"))
    assert found.vertices[1].chain[0].spec == AggregateSpec(int, add, None, "final")


# Through the engine.


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("combines", [True, False])
def test_a_fold_comes_to_the_same_combined_or_not_whatever_becomes_of_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold: str, combines: bool
) -> None:
    begun: list[str] = []
    make = combining.combining

    def noted(uid: str, *others: Any) -> Any:
        begun.append(uid)
        return make(uid, *others)

    monkeypatch.setattr(combining, "combining", noted)
    if not combines:
        monkeypatch.setattr(stage, "combined", lambda graph: graph)
    out = cc.collect(tmp_path / "out")
    assert ran(folding(fold, out), tmp_path).outcome == "finished"
    assert shown(out) == expected(fold)
    assert set(begun) == ({"fold"} if combines else set())


def test_accumulators_of_one_batch_may_be_sent_before_its_end_and_at_the_end_of_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = combining.combining

    def with_little_room(*others: Any) -> Any:
        operator = make(*others)
        operator._records_max = 7
        return operator

    monkeypatch.setattr(combining, "combining", with_little_room)
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("timed")
    timed = flow.source(ReplayedSource(THIRDS)).assign_timestamps(value_of)
    FOLDS["aggregate"][0](timed.key_by(key_of)).sink(out)
    assert ran(flow, tmp_path).outcome == "finished"
    assert shown(out) == expected("aggregate")


def test_fractions_are_added_up_in_the_order_in_which_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In any other order the first one swallows others: 2 ** 53 + 1.0 is 2 ** 53.
    numbers = [2**53, 1.0, 1.0, -(2.0**53), 1, 1, 0.5]

    def summed(directory: Path) -> Counter[str]:
        out = cc.collect(directory / "out")
        flow = cc.Flow("fractions")
        flow.source(ReplayedSource({"s": numbers})).key_by(lambda one: "all").sum(emit="final").sink(out)
        assert ran(flow, directory, CALM, parallelism=1).outcome == "finished"
        return shown(out)

    found = summed(tmp_path / "combined")
    monkeypatch.setattr(stage, "combined", lambda graph: graph)
    assert found == summed(tmp_path / "not")


def test_combined_results_are_combined_again_after_the_next_shuffle(tmp_path: Path) -> None:
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("twice")
    counts = flow.source(ReplayedSource(THIRDS)).key_by(key_of).count(emit="final")
    counts.key_by(lambda found: found[1]).count(emit="final").sink(out)
    assert specs_of(flow).count("CombineSpec") == 2
    assert ran(flow, tmp_path).outcome == "finished"
    times = Counter(Counter(map(key_of, RECORDS)).values())
    assert Counter(out.records()) == Counter(times.items())


def begun_with_a_record_under_way(fold: str, directory: Path) -> tuple[cc.Flow, cc.Collect]:
    """Return a flow whose job begins with the state of all records, and one more on its way."""
    past = folding(fold, cc.collect(directory / "past-out"), Goes(THIRDS))
    assert ran(past, directory / "past", CALM, trigger="available_now").outcome == "stopped"
    store = open_store(str(directory / "past" / "checkpoints"))
    entries = [one for _, one in store.tail(1)]
    newest = [one for one in entries if isinstance(one, CheckpointCompleted)][-1]
    graph = past.compile(2, 128)
    target = TaskId(VertexId("fold"), KeyRouter(128, 2)["key-1"])
    channel = ChannelId(0, TaskId(VertexId("in"), 0), target)
    under_way = Batch(["key-1"], ["key-1"]) if fold == "count" else Batch([("key-1", 1_000)], ["key-1"])
    logged = LoggedBatch(channel, encode_batch(under_way), 1, by_sender=False)
    part = store.write_part(newest.checkpoint_id, target, newest.epoch, encoded_log([logged]))
    found = without_input(newest)
    tasks = tuple(
        replace(one, snapshot=replace(one.snapshot, log=(part,))) if one.task == target else one
        for one in found.snapshots
    )
    claim = replace(claims_in(entries)[-1], flow=identity_of(graph))
    write_savepoint(directory / "savepoint", replace(found, snapshots=tasks), claim, store.read_part)

    out = cc.collect(directory / "out")
    live = folding(fold, out, ReplayedSource({"none": []}))
    begin_with(
        opened(directory / "savepoint"),
        open_store(str(directory / "live" / "checkpoints")),
        live.compile(2, 128),
        discover=lambda graph: assignments(graph),
        look=lambda: (),
    )
    return live, out


@pytest.mark.parametrize("fold", ["count", "sum", "aggregate"])
def test_a_record_that_was_under_way_in_the_other_engine_is_taken_for_a_record(
    tmp_path: Path, fold: str
) -> None:
    live, out = begun_with_a_record_under_way(fold, tmp_path)
    assert ran(live, tmp_path / "live").outcome == "finished"
    assert shown(out) == expected(fold, [*RECORDS, ("key-1", 1_000)])


def test_a_batch_is_combined_unless_it_begins_with_records_under_way() -> None:
    task = TaskId(VertexId("fold"), 0)
    assert may_combine([])
    assert may_combine([TaskSnapshot(task, Snapshot())])
    under_way = Snapshot(log=(Part("parts/1/log", 3, ""),))
    assert not may_combine([TaskSnapshot(task, Snapshot()), TaskSnapshot(task, under_way)])


# What goes wrong.


def failure(flow: cc.Flow, directory: Path) -> tuple[str, str, str]:
    end = ran(flow, directory, CALM)
    assert end.outcome == "failed"
    assert end.cause is not None
    return end.cause.operator, end.cause.record, end.cause.message


def test_a_function_that_raises_before_the_shuffle_is_that_of_the_fold(tmp_path: Path) -> None:
    flow = cc.Flow("broken")
    source = ReplayedSource({"s": [("a", 1), ("a", 0)]})
    flow.source(source).key_by(key_of).sum(lambda one: 1 // one[1], emit="final").named("sums").sink(
        cc.collect(tmp_path / "out")
    )
    operator, record, message = failure(flow, tmp_path)
    assert (operator, record) == ("sums", "('a', 0)")
    assert "ZeroDivisionError" in message


@pytest.mark.parametrize("key", [["list"], 1.5])
@pytest.mark.parametrize("fold", FOLDS)
def test_what_is_no_key_is_said_of_the_operator_that_made_it(tmp_path: Path, fold: str, key: Any) -> None:
    flow = cc.Flow("keyless")
    keyed = flow.source(ReplayedSource({"s": [("a", 1)]})).named("in").key_by(lambda one: key).named("keys")
    FOLDS[fold][0](keyed).sink(cc.collect(tmp_path / "out"))
    operator, record, message = failure(flow, tmp_path)
    # Where nothing can be combined, the record is what goes on of it.
    assert (operator, record) == ("keys", "0.5" if fold == "sum of halves" else repr(key))
    assert "can't be a key" in message


# One operator.


def words(count: int, distinct: int) -> Batch:
    keys = [f"w{number % distinct}" for number in range(count)]
    return Batch(keys, keys)


def said(*batches: Batch) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for batch in batches:
        for key, value in zip(batch.keys or [], batch.records, strict=True):
            found[key] += value
    return found


def test_all_is_sent_when_it_holds_too_many_keys_and_held_again_where_that_is_worthwhile() -> None:
    operator = CombinedCount("counts", "keys", keys_max=10)
    assert len(operator.process(words(100, 9))) == 0
    full = operator.process(words(100, 10))
    assert len(full) == 10
    assert len(operator.process(words(100, 9))) == 0
    rest = operator.take_held()
    assert said(full, rest) == said_by(words(100, 9), words(100, 10), words(100, 9))
    assert len(operator.take_held()) == 0


def test_where_hardly_a_key_comes_twice_nothing_is_held() -> None:
    operator = CombinedCount("counts", "keys", keys_max=10)
    sent = [operator.process(words(12, 12)), operator.process(words(4, 2)), operator.process(words(3, 3))]
    assert [len(one) for one in sent] == [12, 2, 3]
    assert len(operator.take_held()) == 0
    assert said(*sent) == said_by(words(12, 12), words(4, 2), words(3, 3))


def test_accumulators_that_grow_with_their_records_are_sent_before_they_are_too_long_for_a_frame() -> None:
    def with_one_more(so_far: list[int], record: int) -> list[int]:
        return [*so_far, record]

    operator = CombinedAggregate("lists", "keys", list, with_one_more, keys_max=10, records_max=4)
    sent = [operator.process(Batch([number], ["a"])) for number in range(9)]
    assert [one.records for one in sent if len(one)] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert operator.take_held().records == [[8]]
    # Keys that come once are no reason to give it up for: these are few records.
    sent = [operator.process(Batch([number], [number % 3])) for number in range(8)]
    assert [one.keys for one in sent if len(one)] == [[0, 1, 2], [1, 2, 0]]


def said_by(*batches: Batch) -> Counter[Any]:
    return Counter(key for batch in batches for key in batch.records)


def test_a_sum_is_combined_as_long_as_it_is_of_integers() -> None:
    operator = CombinedSum("sums", "keys", lambda record: record)
    assert len(operator.process(Batch([1, 2, 3], ["a", "b", "a"]))) == 0
    mixed = operator.process(Batch([5, 0.5], ["a", "a"]))
    assert (mixed.keys, mixed.records) == (["a", "b", "a", "a"], [4, 2, 5, 0.5])
    later = operator.process(Batch([7], ["a"]))
    assert (later.keys, later.records) == (["a"], [7])
    assert len(operator.take_held()) == 0


def test_a_slice_that_ends_early_leaves_the_rest_for_the_next_one() -> None:
    calls = 0

    def stopping(so_far: int, record: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            operator.time_budget.stop()
        return so_far + record

    operator = CombinedAggregate("sums", "keys", int, stopping)
    batch = Batch([1, 2, 3], ["a", "b", "a"])
    operator.process(batch)
    rest = operator.time_budget.rest
    assert rest is not None
    assert (batch.records, rest.records, rest.keys) == ([1, 2], [3], ["a"])
    operator.time_budget.leave()
    operator.process(rest)
    assert said(operator.take_held()) == {"a": 4, "b": 2}


def test_what_is_held_at_the_end_of_input_is_said_then_and_once() -> None:
    operator = CombinedCount("counts", "keys")
    operator.process(words(6, 2))
    assert [said(batch) for batch, _ in operator.end("")] == [{"w0": 3, "w1": 3}]
    assert list(operator.end("")) == []
    assert len(operator.take_held()) == 0


# Planted bugs.


def is_exact(fold: str, directory: Path) -> bool:
    out = cc.collect(directory / "out")
    return ran(folding(fold, out), directory).outcome == "finished" and shown(out) == expected(fold)


def test_accumulators_that_are_sent_again_by_the_next_attempt_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}
    make = combining.combining

    def remembered(uid: str, *others: Any) -> Any:
        # As if a process kept what it holds, as it keeps states.
        return kept.setdefault(uid, make(uid, *others))

    monkeypatch.setattr(combining, "combining", remembered)
    monkeypatch.setattr(
        CombinedCount, "take_held", lambda one: Batch(list(one._counts.values()), list(one._counts))
    )
    assert not is_exact("count", tmp_path)


def test_accumulators_that_stay_behind_when_a_batch_ends_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CombinedCount, "take_held", lambda one: None)
    assert not is_exact("count", tmp_path)


def test_combining_where_each_update_counts_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def updates(directory: Path) -> Counter[str]:
        out = cc.collect(directory / "out")
        flow = cc.Flow("updates")
        flow.source(ReplayedSource(THIRDS)).key_by(key_of).count().sink(out)
        assert ran(flow, directory).outcome == "finished"
        return shown(out)

    found = updates(tmp_path / "as-it-is")
    assert sum(found.values()) == len(RECORDS)
    monkeypatch.setattr(
        rule, "_combinable", lambda spec: CountSpec("final") if isinstance(spec, CountSpec) else None
    )
    assert updates(tmp_path / "planted") != found


def test_combining_beside_records_under_way_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "may_combine", lambda begins_with: True)
    live, out = begun_with_a_record_under_way("count", tmp_path)
    outcome = ran(live, tmp_path / "live").outcome
    assert outcome == "failed" or shown(out) != expected("count", [*RECORDS, ("key-1", 1_000)])


class Sum:
    """Compared by identity."""

    def __init__(self) -> None:
        self.total = 0


def joined(one: Sum, other: Sum) -> Sum:
    one.total += other.total
    return one


NEUTRAL: list[tuple[Any, Callable[[Any, Any], Any]]] = [
    (0, int.__add__),
    (list, list.__add__),
    (float("-inf"), max),
    (lambda: float("nan"), lambda one, other: other),
    (lambda: {"count": 0, "names": set()}, lambda one, other: one | other),
    (Sum, joined),
]


@pytest.mark.parametrize(("initial", "merge"), NEUTRAL)
def test_accumulators_of_no_records_merge_to_one_of_no_records(
    initial: Any, merge: Callable[[Any, Any], Any]
) -> None:
    keyed = cc.Flow("f").source(cc.items([1])).key_by(str)
    keyed.aggregate(initial, lambda one, record: one, emit="final", merge=merge)


@pytest.mark.parametrize(
    ("initial", "merge", "said"),
    [
        (
            100,
            int.__add__,
            "merge(initial, initial) is 200 of type int, expected 100 of type int: records are folded",
        ),
        (lambda: [1], list.__add__, "merge(initial, initial) is [1, 1] of type list, expected [1]"),
        (None, int.__add__, "merge(initial, initial) raised TypeError"),
    ],
)
def test_an_initial_value_that_counts_in_each_part_is_refused(
    initial: Any, merge: Callable[[Any, Any], Any], said: str
) -> None:
    keyed = cc.Flow("f").source(cc.items([1])).key_by(str)
    with pytest.raises(FlowError, match=re.escape(said)):
        keyed.aggregate(initial, lambda one, record: one, merge=merge)
    windows = cc.Flow("f").source(cc.items([1])).assign_timestamps(int).key_by(str).window(cc.session("1s"))
    with pytest.raises(FlowError, match=re.escape(said)):
        windows.aggregate(initial, lambda one, record: one, merge=merge)
