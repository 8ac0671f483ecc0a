"""A flow over its history, in batches without Spark: the state that it comes to, and the job that begins with
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches
from tests.unit.endless import Goes

import crosscut as cc
from crosscut.driver.cuts import newest_values
from crosscut.driver.job_spec import assignments
from crosscut.errors import FlowError, SettingsError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import JobGraph, WatermarkHold
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot
from crosscut.savepoints.history import history_source, over_history, unread_rows, without_input
from crosscut.savepoints.manifest import opened
from crosscut.savepoints.starting import begin_with
from crosscut.savepoints.writing import write_savepoint
from crosscut.spark.data import backfill as backfill_module
from crosscut.store.checkpoint_store import open_store
from crosscut.testing.simulator.sources import ReplayedSource

Click = tuple[str, int]
STORM = FaultProfile(doubled=0.3, torn=0.2, lost=0.1)
NOT_YET, AT_50 = WatermarkHold(None), WatermarkHold(50)
HISTORY = [(f"user-{number % 7}", (number * 37) % 100) for number in range(200)]
"""In no order of time."""
LIVE = [(f"user-{number % 5}", 90 + number % 30) for number in range(60)]


class Alarm(cc.KeyedProcess[Any, Any]):
    """Says, 30 after each click, how many there were by then."""

    clicks: cc.ListState[int] = cc.ListState()

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        self.clicks.append(record[1])
        ctx.set_timer(record[1] + 30)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterable[Any]:
        yield (ctx.key, time, sum(one + 30 <= time for one in self.clicks.get()))


def clicks_by_user(
    windows: cc.Collect, alarms: cc.Collect, called: Callable[[Any], object], *, in_step: bool
) -> cc.Flow:
    """`in_step`: with what keeps step with the present."""
    flow = cc.Flow("clicks")
    clicks = flow.source(ReplayedSource({"live": LIVE})).named("clicks")
    other = flow.source(ReplayedSource({"others": [("user-9", 95)]})).named("others")
    merged = (clicks.rate_limit(1, per="1h") if in_step else clicks).union(other)
    timed = merged.assign_timestamps(lambda click: click[1], out_of_orderness="100ms", idle_after="1h")
    by_user = timed.key_by(lambda click: click[0])
    by_user.count().named("visits").for_each(called)
    by_user.window(cc.tumbling("10ms")).count().named("windows").sink(windows)
    by_user.process(Alarm()).named("alarms").sink(alarms)
    return flow


def ran(graph: JobGraph, directory: Path, seed: int, trigger: Any = "interval", **others: Any) -> None:
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=60, trigger=trigger),
        checkpoint_dir=directory,
        checkpoint_interval="10ms",
        **others,
    )
    end, _ = run_batches(graph, settings, lambda made, url: LocalJobs(made, url, Random(seed), STORM))
    assert end is not None
    assert end.outcome == ("stopped" if trigger == "available_now" else "finished"), end


def last_checkpoint(directory: Path) -> CheckpointCompleted:
    return [one for _, one in open_store(str(directory)).tail(1) if isinstance(one, CheckpointCompleted)][-1]


def windows_of(clicks: Iterable[Click], since: int = 0) -> Counter[Any]:
    found = Counter((user, at // 10 * 10) for user, at in clicks)
    return Counter({(user, start, count): 1 for (user, start), count in found.items() if start >= since})


def shown(windows: cc.Collect) -> Counter[Any]:
    return Counter((one.key, one.start, one.value) for one in windows.records())


def alarms_of(clicks: list[Click], since: int = 0) -> Counter[Any]:
    times = {(user, at + 30) for user, at in clicks if at + 30 > since}
    return Counter(
        {(user, at, sum(one == user and when + 30 <= at for one, when in clicks)): 1 for user, at in times}
    )


def saved(graph: JobGraph, directory: Path, savepoint: Path) -> None:
    store = open_store(str(directory))
    claim = claims_in([one for _, one in store.tail(1)])[-1]
    checkpoint = without_input(last_checkpoint(directory))
    write_savepoint(savepoint, checkpoint, replace(claim, flow=identity_of(graph)), store.read_part)


def show(record: Any) -> None:
    """For the live part."""


def called_for_nothing(record: Any) -> None:
    raise AssertionError(f"{record} was shown to the outside")


@pytest.mark.parametrize(("seed", "closes"), [(1, False), (2, True)])
def test_the_live_job_goes_on_from_the_history_as_if_it_had_read_it(
    tmp_path: Path, seed: int, closes: bool
) -> None:
    windows, alarms = cc.collect(tmp_path / "windows"), cc.collect(tmp_path / "alarms")
    graph = clicks_by_user(windows, alarms, called_for_nothing, in_step=True).compile(2, 128)
    thirds = Goes({f"s{split}": HISTORY[split::3] for split in range(3)})
    past = tmp_path / "past"
    ran(over_history(graph, "clicks", thirds, hold=NOT_YET), past, seed, trigger="available_now")
    visits = newest_values(open_store(str(past)), graph, "visits", "")
    assert visits == Counter(user for user, _ in HISTORY)
    if closes:
        ran(over_history(graph, "clicks", thirds, hold=AT_50), past, seed, trigger="available_now")
    assert (windows.records(), alarms.records()) == ([], [])

    saved(graph, past, tmp_path / "savepoint")
    live = clicks_by_user(windows, alarms, show, in_step=False).compile(3, 128)
    store = open_store(str(tmp_path / "live"))
    begin_with(
        opened(tmp_path / "savepoint"),
        store,
        live,
        discover=lambda found: assignments(found),
        look=lambda: (),
    )
    ran(live, tmp_path / "live", seed, parallelism=3)
    since = 50 if closes else 0
    everything = [*HISTORY, *LIVE, ("user-9", 95)]
    assert shown(windows) == windows_of(everything, since)
    assert Counter(alarms.records()) == alarms_of(everything, since)


def test_the_source_that_a_history_stands_for_is_said_by_its_name() -> None:
    two = clicks_by_user(cc.collect(), cc.collect(), show, in_step=True).compile(2, 128)
    with pytest.raises(FlowError, match=r"has 2 sources: say with source= which one.*'clicks', 'others'"):
        history_source(two, None)
    with pytest.raises(FlowError, match="has no source 'visits': expected 'clicks', 'others'"):
        history_source(two, "visits")
    flow = cc.Flow("one")
    flow.source(cc.items([1])).named("ones").sink(cc.collect())
    assert history_source(flow.compile(1, 128), None) == "ones"


def test_a_record_is_what_the_source_would_have_given_and_output_is_written_if_asked(tmp_path: Path) -> None:
    flow = cc.Flow("made")
    out = cc.collect(tmp_path / "out")
    flow.source(cc.items([1])).named("ones").map(lambda one: one + 1).named("more").sink(out)
    rows = Goes({"s": ["1", "2"]})
    graph = over_history(flow.compile(1, 128), "ones", rows, record=int, writes=True, hold=NOT_YET)
    ran(graph, tmp_path / "past", 1, trigger="available_now", parallelism=1)
    assert sorted(out.records()) == [2, 3]


def test_settings_of_any_engine_become_those_of_a_backfill() -> None:
    flow = cc.Flow("clicks")
    auto = cc.Auto(batch_parallelism=64, micro_batch=cc.MicroBatch(records_max=7))
    chosen = backfill_module._settings(flow, cc.Settings(engine=auto, parallelism=2))
    assert chosen.engine == cc.MicroBatch(records_max=7, trigger="available_now")
    assert chosen.parallelism == 64
    assert chosen.is_parallelism_given
    chosen = backfill_module._settings(flow, cc.Settings(engine="auto"))
    assert not chosen.is_parallelism_given
    with pytest.raises(SettingsError, match="trigger='once': a backfill reads all rows"):
        backfill_module._settings(flow, cc.Settings(engine=cc.MicroBatch(trigger="once")))
    with pytest.raises(SettingsError, match=r"expected crosscut.Settings\(...\)"):
        backfill_module._settings(flow, cc.MicroBatch())  # type: ignore[arg-type]


def test_rows_that_were_not_read_are_counted() -> None:
    rows: Any = [["000000", 0, {"rows": 10, "staged": "x"}, 1, 4], ["empty", 0, {"rows": 0}, 1, 0]]
    task = TaskId(VertexId("s"), 0)
    checkpoint = CheckpointCompleted(
        Epoch(1), CheckpointId(1), (TaskSnapshot(task, Snapshot(positions=rows)),)
    )
    assert unread_rows(checkpoint) == 6
    assert unread_rows(without_input(checkpoint)) == 0


def test_updates_that_nobody_keeps_are_not_made_and_those_that_somebody_keeps_are(tmp_path: Path) -> None:
    def too_much(update: Any) -> Any:
        raise AssertionError(f"{update} was made for nobody")

    flow = cc.Flow("updates")
    users = flow.source(cc.items(["x"])).named("users")
    visits = users.key_by(lambda user: user).count().named("visits")
    visits.map(too_much).sink(cc.collect(tmp_path / "out"))
    heard = users.map(str.upper).key_by(lambda user: user).count().named("heard")
    heard.key_by(lambda update: update[1]).count().named("times").map(too_much).sink(cc.collect())
    graph = flow.compile(2, 128)
    rows = Goes({"s": ["a", "b", "a"]})
    ran(over_history(graph, "users", rows, hold=NOT_YET), tmp_path / "past", 1, trigger="available_now")
    store = open_store(str(tmp_path / "past"))
    assert newest_values(store, graph, "visits", "") == {"a": 2, "b": 1}
    assert newest_values(store, graph, "heard", "") == {"A": 2, "B": 1}
    assert newest_values(store, graph, "times", "") == {1: 2, 2: 1}
