"""for_each_checkpoint in jobs: what the records may be, and how a job ends if the function fails."""

from __future__ import annotations

import json
import pickle
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from jobs import PATIENT, until

import crosscut as cc
from crosscut.errors import JobFailedError
from crosscut.foundation.unpickling import loader

ENGINES = pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
COUNT = 60
AT = 25


def settings(directory: Path, engine: Any) -> cc.Settings:
    return cc.Settings(
        parallelism=1,
        engine=cc.MicroBatch(records_max=10) if engine == "micro-batch" else engine,
        checkpoint_dir=str(directory / "checkpoints"),
        checkpoint_interval="200ms",
        commit_attempts=2,
        restart=cc.Restart(failures=2, delay_step="20ms", delay_max="50ms"),
        **PATIENT,
    )


def failure(job: Any) -> JobFailedError:
    with pytest.raises(JobFailedError) as failed:
        until(lambda: job.wait(0.1), "the end of the job")
    return failed.value


class Amount:
    """A class of the program that holds data, though it does not declare any."""

    def __init__(self, number: int) -> None:
        self.number = number


class Writes:
    """Writes one file for each checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, records: list[Any], checkpoint_id: int) -> None:
        # What the driver does not load for us, we may load.
        loader()(pickle.dumps(re.compile("x")))
        text = json.dumps([one.number for one in records])
        (self.directory / f"{checkpoint_id}.json").write_text(text)


def is_down(records: list[Any], checkpoint_id: int) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        # It is bound, and does not listen: refused, whoever else wants a port.
        socket.create_connection(unused.getsockname())


def is_wrong(records: list[Any], checkpoint_id: int) -> None:
    len(checkpoint_id)  # type: ignore[arg-type]


@ENGINES
@pytest.mark.parametrize(("function", "is_transient"), [(is_down, True), (is_wrong, False)])
def test_a_job_says_whether_it_ended_because_a_service_was_down_at_the_commit(
    engine: Any, function: Any, is_transient: bool, tmp_path: Path, started: Any
) -> None:
    flow = cc.Flow("calls")
    flow.source(cc.items(range(COUNT)), name="in").for_each_checkpoint(function, name="out")
    failed = failure(started.flow(flow, settings(tmp_path, engine)))
    assert failed.ids["cause"].operator == "out", failed
    assert failed.is_transient is is_transient, failed


def pattern_at_25(number: int) -> Any:
    return re.compile("x") if number == AT else Amount(number)


def test_a_record_that_is_no_data_is_refused_before_its_checkpoint_and_a_fixed_flow_goes_on(
    tmp_path: Path, started: Any
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def job(function: Any) -> Any:
        flow = cc.Flow("calls")
        numbers = flow.source(cc.generate(int, count=COUNT), name="in").map(function, name="map")
        numbers.for_each_checkpoint(Writes(out), name="out")
        return started.flow(flow, settings(tmp_path, "micro-batch"))

    failed = failure(job(pattern_at_25))
    assert failed.ids["cause"].kind == "RefusedRecordError", failed
    assert "record: re.compile('x')" in str(failed) and not failed.is_transient
    started.finish(job(Amount))
    written = [json.loads(path.read_text()) for path in out.iterdir()]
    assert len(written) > 2
    assert sorted(number for one in written for number in one) == list(range(COUNT))
