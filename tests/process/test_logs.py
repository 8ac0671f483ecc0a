"""What user code logs in the workers: found on the driver, and in the error of a worker that is lost."""

from __future__ import annotations

import json
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs import PATIENT, Once, until

import crosscut as cc
from crosscut.cli.commands import program

USER = logging.getLogger("prices")


def priced(n: int) -> int:
    if n == 3:
        USER.warning("no price for %d", n)
    return n


@dataclass(frozen=True)
class Counted:
    """Logs in a keyed task; dies after that, once, when the driver is known to have heard of it."""

    die: Once
    heard: Path

    def __call__(self, counted: tuple[int, int]) -> int:
        _, n = counted
        if n == 5:
            USER.warning("five is my end")
        if n > 5 and self.heard.exists() and self.die():
            os.kill(os.getpid(), signal.SIGKILL)
        return n


def test_what_workers_log_is_on_the_driver_and_in_the_error_of_one_that_is_lost(
    tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    heard = tmp_path / "heard"
    flow = cc.Flow("prices")
    numbers = flow.source(cc.generate(lambda n: n, rate=500)).map(priced).named("numbers")
    numbers.key_by(lambda n: 0).count().map(Counted(Once(tmp_path / "dead"), heard)).named("counts").sink(
        cc.collect(tmp_path / "out")
    )
    directory = tmp_path / "checkpoints"
    job = started.flow(
        flow, cc.Settings(parallelism=2, checkpoint_dir=directory, checkpoint_interval="100ms", **PATIENT)
    )

    def said(text: str) -> list[Any]:
        return [one for one in job.logs() if one.text == text]

    until(lambda: said("no price for 3") and said("five is my end"), "lines of the workers")
    until(lambda: job.checkpoints(), "a checkpoint")
    (first, *_), (last, *_) = said("no price for 3"), said("five is my end")
    assert (first.level, first.logger, first.epoch) == ("WARNING", "prices", 1)
    assert first.task.vertex != last.task.vertex
    assert first.worker == first.task.index
    started.watch(job)
    heard.touch()
    until(lambda: job.metrics().failovers, "the failover")
    lost = [
        one.cause.message for one in job.metrics().errors if "the last that it logged:" in one.cause.message
    ]
    assert any("prices: five is my end" in one for one in lost), job.metrics().errors
    job.cancel()

    records = [one for one in caplog.records if one.name == "crosscut.worker"]
    about = next(vars(one) for one in records if "no price for 3" in one.getMessage())
    assert (about["job"], about["task"], about["epoch"]) == ("prices", str(first.task), 1)

    shown = CliRunner().invoke(program, ["logs", str(directory), "--json"])
    assert shown.exit_code == 0, shown.output
    lines = [json.loads(one) for one in shown.output.splitlines()]
    assert ("no price for 3", str(first.task)) in [(one["message"], one["task"]) for one in lines]
    other = 1 - first.worker
    of_other = CliRunner().invoke(program, ["logs", str(directory), "--worker", str(other)]).output
    assert f"task={first.task}" not in of_other
