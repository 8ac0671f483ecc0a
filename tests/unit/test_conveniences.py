"""Fields by name, minimum, maximum and mean, settings as arguments, and advice where a name is wrong."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

import crosscut as cc
from crosscut.contracts.settings import settings_with
from crosscut.errors import FlowError, SettingsError
from crosscut.graph.identity import identity_of
from crosscut.protocol.log.identity import differences


@dataclass(frozen=True)
class Payment:
    card: str
    amount: int
    at: int


PAYMENTS = [Payment("ab"[number % 2], (number * 7) % 10, number * 400) for number in range(20)]
Row = namedtuple("Row", "card amount at")


def results(build: Any, records: list[Any], directory: Path) -> list[Any]:
    """Run a flow in micro-batches of a few records, without Spark; return its output, sorted."""
    flow, out = cc.Flow("payments"), cc.collect(directory / "out")
    build(flow.source(cc.items(records)).named("in")).sink(out)
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=7),
        checkpoint_dir=str(directory / "checkpoints"),
        checkpoint_interval="10ms",
    )
    graph = flow.compile(2, 128)
    end, _ = run_batches(graph, settings, lambda made, url: LocalJobs(made, url, Random(1), FaultProfile()))
    assert end is not None and end.outcome == "finished", str(end)
    return sorted(out.records(), key=repr)


@pytest.mark.parametrize("kind", ["dataclass", "named tuple", "dict"])
def test_a_field_of_any_record_is_chosen_by_its_name(kind: str, tmp_path: Path) -> None:
    make = {
        "dataclass": Payment,
        "named tuple": Row,
        "dict": lambda *values: dict(zip(Row._fields, values, strict=True)),
    }
    records = [make[kind](one.card, one.amount, one.at) for one in PAYMENTS]  # type: ignore[operator]
    found = results(lambda stream: stream.key_by("card").sum("amount", emit="final"), records, tmp_path)
    expected = {card: sum(one.amount for one in PAYMENTS if one.card == card) for card in "ab"}
    assert found == sorted(expected.items())


def test_a_record_without_the_field_fails_as_with_a_function(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"AttributeError.*cart"):
        results(lambda stream: stream.key_by("cart").count(), PAYMENTS, tmp_path)


def test_a_field_has_a_name() -> None:
    stream = cc.Flow("f").source(cc.items(PAYMENTS))
    with pytest.raises(FlowError, match="'' names no field"):
        stream.key_by("")


def test_updates_of_an_extreme_and_a_mean_come_with_each_record(tmp_path: Path) -> None:
    numbers = [5, 3, 4, 9]

    def one_key(stream: Any) -> Any:
        return stream.key_by(lambda _: "k")

    assert results(lambda stream: one_key(stream).min(), numbers, tmp_path / "min") == [
        ("k", 3), ("k", 3), ("k", 3), ("k", 5)
    ]  # fmt: skip
    assert results(lambda stream: one_key(stream).max(), numbers, tmp_path / "max") == [
        ("k", 5), ("k", 5), ("k", 5), ("k", 9)
    ]  # fmt: skip
    assert results(lambda stream: one_key(stream).mean(), numbers, tmp_path / "mean") == [
        ("k", 4.0), ("k", 4.0), ("k", 5.0), ("k", 5.25)
    ]  # fmt: skip


def test_updates_of_a_list_and_of_a_distinct_count_come_with_each_record(tmp_path: Path) -> None:
    words = ["a", "b", "a"]
    assert results(lambda stream: stream.key_by(len).collect_list(), words, tmp_path / "list") == [
        (1, ["a", "b", "a"]), (1, ["a", "b"]), (1, ["a"])
    ]  # fmt: skip
    assert results(lambda stream: stream.key_by(len).approx_distinct(), words, tmp_path / "distinct") == [
        (1, 1), (1, 2), (1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("window", [cc.tumbling("2s"), cc.session("500ms")], ids=["tumbling", "session"])
@pytest.mark.parametrize("name", ["min", "max", "mean", "sum", "collect_list", "approx_distinct"])
def test_windows_have_them_too(name: str, window: Any, tmp_path: Path) -> None:
    """Records of a session that come in the wrong order make sessions that are merged later."""
    records = [PAYMENTS[number] for number in Random(4).sample(range(20), 20)]

    def build(stream: Any) -> Any:
        timed = stream.assign_timestamps(lambda one: one.at, out_of_orderness="10s")
        return getattr(timed.key_by(lambda _: "all").window(window), name)("amount")

    spans: dict[int, list[int]] = {}
    for one in PAYMENTS:
        # They are 400 ms apart: all of one session.
        spans.setdefault(one.at // 2_000 if window == cc.tumbling("2s") else 0, []).append(one.amount)
    fold: Any = {
        "min": min,
        "max": max,
        "sum": sum,
        "mean": lambda n: sum(n) / len(n),
        "collect_list": sorted,
        "approx_distinct": lambda n: len(set(n)),
    }[name]
    values = [one.value for one in results(build, records, tmp_path)]
    if name == "collect_list":
        values = list(map(sorted, values))
    assert sorted(values) == sorted(fold(amounts) for amounts in spans.values())


def test_records_without_a_timestamp_go_to_the_dead_letters_and_windows_close_without_them(
    tmp_path: Path,
) -> None:
    records: list[Any] = [{"at": number * 500} for number in range(8)]
    records[3:3] = [{"at": "noon"}, {}]

    def build(stream: Any) -> Any:
        timed = stream.assign_timestamps(lambda one: one["at"], on_error="dead letters").named("times")
        letters = timed.side_output("dead letters").map(lambda letter: (letter.operator, letter.error))
        letters.sink(cc.files.write_jsonl(tmp_path / "letters"))
        return timed.key_by(lambda _: "all").window(cc.tumbling("1s")).count()

    found = results(build, records, tmp_path)
    assert [(one.start, one.value) for one in found] == [(0, 2), (1_000, 2), (2_000, 2), (3_000, 2)]
    written = "".join(path.read_text() for path in (tmp_path / "letters").glob("*.jsonl"))
    assert sorted(written.splitlines())[0].startswith('["times","KeyError')
    assert "noon" in sorted(written.splitlines())[1]
    assert len(written.splitlines()) == 2


def test_settings_are_arguments_of_start_too() -> None:
    given = cc.Settings(parallelism=2)
    assert settings_with(None, {}) == cc.Settings()
    assert settings_with(None, {"parallelism": 3}) == cc.Settings(parallelism=3)
    assert settings_with(given, {}) is given
    assert settings_with(given, {"checkpoint_interval": "3s"}) == replace(given, checkpoint_interval="3s")
    flow = cc.Flow("f")
    flow.source(cc.items([1])).sink(cc.collect("never-made"))
    with pytest.raises(SettingsError, match="no setting 'paralelism'; did you mean 'parallelism'"):
        flow.start(paralelism=2)


def test_settings_that_there_are_not_are_refused_with_what_may_be_meant() -> None:
    with pytest.raises(
        SettingsError,
        match=r"^there is no setting 'checkpoint_intervall'; did you mean 'checkpoint_interval'\?$",
    ):
        cc.Settings(checkpoint_intervall="1s")  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"^there is no setting 'x'$"):
        cc.Settings(x=1)  # type: ignore[call-arg]
    settings = cc.Settings(parallelism=2)
    assert pickle.loads(pickle.dumps(settings)) == copy.deepcopy(settings) == settings


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("groupBy", "; what Spark calls groupBy is .key_by(function) here"),
        ("withWatermark", "; what Spark calls withWatermark is .assign_timestamps("),
        ("foreachBatch", "; what Spark calls foreachBatch is .for_each_checkpoint(function) here"),
        ("flatMap", "; did you mean 'flat_map'?"),
        ("fliter", "; did you mean 'filter'?"),
        ("frobnicate", ""),
    ],
)
def test_a_method_that_there_is_not_is_refused_with_what_may_be_meant(name: str, advice: str) -> None:
    stream = cc.Flow("f").source(cc.items([1]))
    with pytest.raises(AttributeError) as refused:
        getattr(stream, name)
    assert str(refused.value).startswith(f"a Stream has no {name!r}{advice}")


def keyed_stream() -> Any:
    return cc.Flow("f").source(cc.items([1])).assign_timestamps(lambda one: one).key_by(lambda one: one)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("agg", "; what Spark calls agg is .aggregate(initial, add, result) here"),
        ("avg", "; what Spark calls avg is .mean(function) here"),
        ("reduceByKey", "; what Spark calls reduceByKey is .reduce(function) here"),
        ("approx_count_distinct", "; what Spark calls approx_count_distinct is .approx_distinct(function)"),
        ("flatMapGroupsWithState", "; what Spark calls flatMapGroupsWithState is .process(function) here"),
        ("writeStream", "; what Spark calls writeStream is .sink(sink) here: say first what the records"),
        ("collectList", "; did you mean 'collect_list'?"),
        ("frobnicate", ""),
    ],
)
def test_a_windowed_stream_suggests_methods_too(name: str, advice: str) -> None:
    stream = keyed_stream().window(cc.tumbling("1s"))
    with pytest.raises(AttributeError) as refused:
        getattr(stream, name)
    assert str(refused.value).startswith(f"a WindowedStream has no {name!r}{advice}")
    assert not hasattr(stream, "_nothing")


def test_a_stream_with_keys_is_not_told_to_get_some() -> None:
    for name, ours in (("agg", "aggregate(initial, add, result)"), ("avg", "mean(function)")):
        with pytest.raises(AttributeError) as refused:
            getattr(keyed_stream(), name)
        assert str(refused.value) == f"a KeyedStream has no {name!r}; what Spark calls {name} is .{ours} here"


@pytest.mark.parametrize("name", ["map", "sink", "key_by", "interval_join"])
def test_what_comes_after_a_window_or_a_connected_process_is_said_to_come_after_it(name: str) -> None:
    with pytest.raises(FlowError, match=rf"say first what the records.*and then {name}\(\.\.\.\)"):
        getattr(keyed_stream().window(cc.tumbling("1s")), name)
    keyed = keyed_stream()
    with pytest.raises(FlowError, match=rf"\.process\(ConnectedProcess\(\)\), and then {name}"):
        getattr(keyed.connect(keyed), name)


def test_windowed_and_connected_streams_can_be_copied() -> None:
    for stream in (keyed_stream().window(cc.tumbling("1s")), keyed_stream()):
        assert type(copy.copy(stream)) is type(stream)


def test_names_of_the_package_are_suggested() -> None:
    with pytest.raises(AttributeError, match="no attribute 'KeyedProces'; did you mean 'KeyedProcess'"):
        _ = cc.KeyedProces  # type: ignore[attr-defined]


FOLDS = ("min", "max", "mean", "collect_list", "approx_distinct")


def folded(kind: str, *, windows: bool) -> Any:
    flow = cc.Flow("payments")
    keyed = flow.source(cc.items(PAYMENTS)).assign_timestamps(lambda one: one.at).key_by("card")
    stream: Any = keyed.window(cc.tumbling("1s")) if windows else keyed
    getattr(stream, kind)("amount").named("fold").sink(cc.collect())
    return flow.compile(2, 128)


@pytest.mark.parametrize("windows", [False, True], ids=["keys", "windows"])
def test_another_fold_under_the_same_name_is_another_flow(windows: bool) -> None:
    """Its accumulators differ: a mean's, read as a minimum, would be the count of the records."""
    found = {kind: identity_of(folded(kind, windows=windows)).operators for kind in FOLDS}
    for before, then in found.items():
        for after, now in found.items():
            said = list(differences(then, now))
            assert bool(said) == (before != after)
            assert all("changed: 'fold'" in one and before in one and after in one for one in said)
