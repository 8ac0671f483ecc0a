"""What a job with `snapshots="logged"` refuses when it is built, and the settings of its logs."""

from __future__ import annotations

from typing import Any

import pytest

import crosscut as cc
from crosscut.driver.job_spec import coordinator_spec, job_spec, task_settings
from crosscut.errors import FlowError, SettingsError
from crosscut.graph.logged import check_logged
from crosscut.protocol.unit_log.spec import UnitLogSpec


def numbers(flow: cc.Flow) -> Any:
    return flow.source(cc.generate(lambda number: number, count=3))


def plain() -> cc.Flow:
    flow = cc.Flow("plain")
    numbers(flow).key_by(lambda number: number % 2).count().sink(cc.collect())
    return flow


def looped() -> cc.Flow:
    flow = cc.Flow("looped")

    def step(loop: Any) -> tuple[Any, Any]:
        return loop.map(abs), loop.filter(bool)

    numbers(flow).rebalance().iterate(step).sink(cc.collect())
    return flow


class Growing(cc.DynamicSource):
    def discover(self, known: cc.JSON) -> cc.Discovered:
        raise NotImplementedError

    def reader(self, split: cc.Split, position: cc.JSON) -> cc.SplitReader[Any]:
        raise NotImplementedError


def growing() -> cc.Flow:
    flow = cc.Flow("growing")
    flow.source(Growing()).sink(cc.collect())
    return flow


class Whole(cc.Sink[Any]):
    has_one_task = True

    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        raise NotImplementedError


class Together(Whole):
    has_one_task = False
    commits_together = True


class Eager(Whole):
    has_one_task = False
    guarantee = "at least once"


def shown_at_once() -> cc.Flow:
    flow = cc.Flow("shown")
    numbers(flow).sink(Eager())
    return flow


def whole() -> cc.Flow:
    flow = cc.Flow("whole")
    numbers(flow).sink(Whole())
    return flow


def together() -> cc.Flow:
    flow = cc.Flow("together")
    numbers(flow).sink(Together())
    return flow


@pytest.mark.parametrize(
    ("flow", "why"),
    [
        (looped, "is the head of a loop"),
        (shown_at_once, "shows records before a log holds them"),
        (growing, "finds splits while the job runs"),
        (whole, "commits for all tasks at a checkpoint"),
        (together, "commits for all tasks at a checkpoint"),
    ],
)
def test_what_no_log_can_hold_is_refused_by_name(flow: Any, why: str) -> None:
    with pytest.raises(FlowError, match=why) as caught:
        check_logged(flow().compile(2, 8))
    assert "snapshots='aligned'" in str(caught.value)


def test_explain_says_what_logs_do_with_a_flow(capsys: pytest.CaptureFixture[str]) -> None:
    plain().explain(snapshots="aligned")
    assert "logs:" not in capsys.readouterr().out
    plain().explain(3, snapshots="logged")
    said = capsys.readouterr().out
    assert "logs: 3, one for each worker, which has a task of each of the 2 vertices" in said
    assert "files that grow, if Spark is in local mode" in said
    assert "ends: after 20 ms, or when there is no more" in said
    (edge,) = (one for one in plain().compile(2, 8).edges if one.partitioning == "hash")
    assert f"on their way to other workers: {edge}" in said
    plain().explain(snapshots=cc.Logged(log="objects", interval="50ms"))
    said = capsys.readouterr().out
    assert "kept as: an object for each entry" in said and "ends: after 50 ms" in said
    plain().explain(snapshots=cc.Logged(log="files"))
    assert "kept as: files that grow, in checkpoint_dir" in capsys.readouterr().out


def test_explain_says_all_that_logs_can_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    flow = looped()
    numbers(flow).named("more").sink(Eager()).named("eager")
    flow.explain(snapshots="logged")
    said = capsys.readouterr().out
    assert "can't run it yet; use snapshots='aligned' for this flow" in said
    assert "is the head of a loop" in said and "eager: shows records before a log holds them" in said


def test_the_rest_is_not() -> None:
    check_logged(plain().compile(2, 8))


def spec_of(settings: cc.Settings, flow: cc.Flow | None = None, invariants: Any = ()) -> Any:
    made = flow or plain()
    return job_spec(
        made.name,
        settings,
        lambda parallelism: made.compile(parallelism, settings.max_parallelism),
        store_url="memory://nowhere",
        invariants=invariants,
        slots=None,
        at_once=None,
        discover_timeout_ms=0,
        exceptions=None,  # type: ignore[arg-type]
    )


def test_a_job_with_what_is_refused_is_not_built() -> None:
    with pytest.raises(FlowError, match="is the head of a loop"):
        spec_of(cc.Settings(snapshots="logged"), looped())


def test_invariants_are_refused() -> None:
    flow = plain()
    flow.invariant("none lost", lambda cut: True)
    with pytest.raises(FlowError, match="'none lost' is judged on checkpoints"):
        spec_of(cc.Settings(snapshots="logged"), flow, flow.invariants)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"engine": "micro-batch"}, "a batch is committed as a whole"),
        ({"engine": "auto"}, "engine='auto'"),
        ({"restore_from": "somewhere"}, "restore_from"),
    ],
)
def test_settings_that_do_not_go_with_logs_are_refused(given: dict[str, Any], why: str) -> None:
    for snapshots in ("logged", cc.Logged()):
        with pytest.raises(SettingsError, match=why):
            cc.Settings(snapshots=snapshots, **given)


def test_rocksdb_does_not_go_with_logs() -> None:
    pytest.importorskip("rocksdict")
    with pytest.raises(SettingsError, match="restored into memory alone"):
        cc.Settings(snapshots="logged", state_backend="rocksdb")


def test_the_interval_of_groups_is_a_setting() -> None:
    assert task_settings(cc.Settings(snapshots="logged")).unit_log == UnitLogSpec("objects", 20)
    own = cc.Settings(snapshots=cc.Logged(interval="50ms"))
    assert task_settings(own).unit_log == UnitLogSpec("objects", 50)
    assert own.logged == cc.Logged(interval="50ms")
    assert task_settings(cc.Settings()).unit_log is None
    with pytest.raises(SettingsError, match="interval"):
        cc.Logged(interval="soon")
    for wrong in ("0.5ms", "11s"):
        with pytest.raises(SettingsError, match="1 ms to 10 s"):
            cc.Logged(interval=wrong)
    assert cc.Logged(interval=0).interval_ms == 0
    with pytest.raises(SettingsError, match=r"snapshots=crosscut.Logged\(interval=...\)"):
        cc.Settings(interval="50ms")  # type: ignore[call-arg]


def test_the_coordinator_knows_of_the_logs() -> None:
    graph = plain().compile(2, 8)
    terms = coordinator_spec(graph, cc.Settings(snapshots="logged"), None, awaits_verdict=False)
    assert terms.identity.unit_log == "objects" and not terms.checkpoints.periodic
    terms = coordinator_spec(graph, cc.Settings(), None, awaits_verdict=False)
    assert terms.identity.unit_log == "" and terms.checkpoints.periodic
