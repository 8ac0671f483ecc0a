"""Micro-batches on Spark: killed processes and drivers, and jobs that go from one engine to the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver
from jobs import DEADLINE_S, Armed, NumberedJob, Once, Record, until
from watching import Watcher

import crosscut as cc

IN_BATCHES = {"engine": cc.MicroBatch(records_max=4_000), "checkpoint_interval": "50ms"}


@dataclass(frozen=True)
class Dies:
    """Kills its process at one record."""

    once: Once
    number: int

    def __call__(self, one: Record) -> None:
        if one[1] == self.number and self.once():
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("trap", ["batch.read:kill:1", "batch.staged:kill:1:1"])
def test_processes_killed_in_each_stage_of_a_batch_are_replaced_by_spark_and_output_is_exact(
    tmp_path: Path, started: Any, arm: Callable[..., Armed], trap: str
) -> None:
    """A1, A3: one where the source is read, and one where keys are counted."""
    armed = arm(trap)
    keyed = Dies(Once(tmp_path / "died"), 9_000)
    numbered = NumberedJob(tmp_path, count=12_000, rate=1e9, keyed_hook=keyed, settings=IN_BATCHES)
    watcher = Watcher(numbered)
    job = started(numbered)
    told: list[Any] = []
    job.on_event(told.append)
    started.finish(job, watcher.look)
    until(lambda: bool(told) and isinstance(told[-1], cc.events.Ended), "the word of the end")
    progress = [one.progress for one in told if isinstance(one, cc.events.Progressed)]
    assert sum(one["numInputRows"] for one in progress) == 12_000
    assert progress == job.recent_progress
    assert armed.fired == {trap}
    assert (tmp_path / "died").exists()
    assert watcher.looks
    assert job.status == "finished"
    assert job.last_progress["name"] == "numbered"
    assert job.last_progress["batchId"] == job.checkpoints()[-1].checkpoint_id
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()
    # What Spark's own page says of its jobs.
    listed = started.spark._jsc.sc().statusStore().jobsList(None)
    said = [listed.apply(number).description() for number in range(listed.size())]
    stages = "numbers-0 > sums"
    assert f"numbered: batch 1 ({stages})" in [one.get() for one in said if one.isDefined()]


@pytest.mark.parametrize(
    "trap",
    [
        "batch.returned:kill:2",  # nobody has been told
        "driver.appended:kill:2",  # the entry is durable, and nothing is visible
    ],
)
def test_a_driver_killed_at_any_step_of_a_batch_is_followed_by_one_of_the_other_engine(
    tmp_path: Path, drive: Callable[..., Driver], started: Any, trap: str
) -> None:
    """B1, B2, B3: what the log holds is committed, whichever engine wrote it, and at another parallelism."""
    numbered = NumberedJob(tmp_path, count=12_000, rate=1e9, settings=IN_BATCHES)
    armed = Armed(tmp_path / "failpoints", (trap,))
    driver = drive(numbered, armed.environment, **IN_BATCHES)
    assert driver.wait() == -signal.SIGKILL, driver.errors
    assert armed.fired == {trap}
    watcher = Watcher(numbered)
    watcher.judge()
    driver.family_is_gone()
    after = NumberedJob(tmp_path, count=12_000, rate=1e9, parallelism=2)
    job = started(after)
    started.finish(job, watcher.look)
    assert job.status == "finished"
    after.check_output_is_exact()


def test_listeners_are_told_of_the_end_of_a_job_whose_next_engine_could_not_even_begin(
    tmp_path: Path, started: Any, arm: Callable[..., Armed]
) -> None:
    armed = arm("engine.switch:raise:1")
    flow = cc.Flow("never-over")
    flow.source(cc.generate(lambda i: i, count=10**9, rate=200)).sink(cc.collect(tmp_path / "out"))
    settings = cc.Settings(engine=cc.Auto(batch_parallelism=1), parallelism=1, checkpoint_interval="50ms")
    job = started.flow(flow, replace(settings, checkpoint_dir=str(tmp_path / "checkpoints")))
    told: list[Any] = []
    job.on_event(told.append)
    with pytest.raises(cc.errors.CrosscutError, match=r"engine\.switch"):
        job.wait(DEADLINE_S)
    assert armed.all_fired()
    until(lambda: bool(told) and isinstance(told[-1], cc.events.Ended), "the word of the end")
    begun = next(one for one in told if isinstance(one, cc.events.Started))
    ended = [one for one in told if isinstance(one, cc.events.Ended)]
    assert [(one.outcome, one.query_id) for one in ended] == [("failed", begun.query_id)]
    assert told[-1] is ended[0]
    assert "engine.switch" in ended[0].cause


def test_a_driver_that_slept_between_its_engines_leaves_the_job_to_the_driver_that_has_it_now(
    tmp_path: Path, drive: Callable[..., Driver], started: Any
) -> None:
    """B5, P11: nothing of its own is on its way then, so the claim of its next engine would be the newest."""
    either = {"engine": cc.Auto(batch_parallelism=2), "checkpoint_interval": "50ms"}
    numbered = NumberedJob(tmp_path, count=12_000, held=1, settings=either)
    armed = Armed(tmp_path / "failpoints", ("engine.switch:stop:1",))
    driver = drive(numbered, armed.environment, **either)
    until(armed.all_fired, "the moment between the engines")
    newer = NumberedJob(tmp_path, count=12_000, held=1)
    job = started(newer)
    until(lambda: job.status == "running", "the newer driver to run")
    os.kill(driver.pid, signal.SIGCONT)
    assert driver.wait() == 0, driver.errors
    assert driver.reports[-1]["status"] == "fenced", driver.reports[-1]
    assert job.status == "running"
    newer.open_gate()
    started.finish(job)
    newer.check_output_is_exact()


def test_a_paced_source_is_read_at_its_rate_however_long_batches_take(tmp_path: Path, started: Any) -> None:
    flow = cc.Flow("paced")
    flow.source(cc.generate(int, count=1_000, rate=500)).sink(cc.collect(tmp_path / "out"))
    settings = cc.Settings(engine="micro-batch", parallelism=1, checkpoint_interval="50ms")
    job = started.flow(flow, replace(settings, checkpoint_dir=str(tmp_path / "checkpoints")))
    started.finish(job)
    # One record a batch would make a thousand of them.
    assert job.checkpoints()[-1].checkpoint_id < 500
