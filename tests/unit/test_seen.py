"""A job in the terminal: its vertices, the bottleneck, and what somebody else's record can't do there."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.simulation.conversation import K0, K1
from tests.unit.watched import E1, WALL_MS, Watched, heartbeat

from crosscut.cli.commands import program
from crosscut.cli.numbers import overview, vertex_line
from crosscut.cli.view import LineView
from crosscut.monitoring.status import WorkerStatus
from crosscut.protocol.messages import TaskStatistics, WorkerHeartbeat
from crosscut.protocol.telemetry import MetricSample
from crosscut.web.record import NAME, write_record


def watched() -> Watched:
    talk = Watched()
    talk.running()
    for second in range(1, 8):
        heartbeat(talk, second, blocked=0.7, busy=0.95)
    return talk


def shown(job: Any, age_s: float = 0.0) -> str:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(overview(job, age_s))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_line_for_each_vertex_and_the_bottleneck_is_marked() -> None:
    text = shown(watched().metrics().as_dict())
    lines = text.splitlines()
    assert lines[0].strip() == "a job: running, epoch 1"
    numbers = next(line for line in lines if line.startswith("numbers"))
    out = next(line for line in lines if line.startswith("out"))
    assert numbers.split() == ["numbers", "100", "100", "0%", "70%", "0", "0", "80", "2.0", "s"]
    assert "latency from" not in text, "no mark has come by"
    assert out.split()[:5] == ["out", "(bottleneck)", "100", "0", "95%"]


def marked() -> Watched:
    """The same, and marks have come by: at one task of `out` within 100 ms, at the other one within 2 s."""
    talk = watched()
    buckets = (0.1, 2.0)
    for task, counts in ((K0, (100, 0, 0)), (K1, (0, 100, 0))):
        latency = MetricSample("numbers", "latency", "histogram", 1.0, buckets, counts)
        statistics = TaskStatistics(task, latencies=(latency,))
        talk.message(task.index, WorkerHeartbeat(E1, (statistics,)))
    return talk


def test_the_terminal_shows_how_long_records_take_to_each_vertex_and_to_the_sinks() -> None:
    job = marked().metrics().as_dict()
    lines = shown(job).splitlines()
    assert "latency from source to sink: 99 % within 2.0 s" in map(str.strip, lines)
    titles = next(line for line in lines if line.startswith("vertex"))
    out = next(line for line in lines if line.startswith("out"))
    assert (titles.split()[-1], out.split()[-2:]) == ("latency", ["2.0", "s"])
    assert vertex_line(job["vertices"]).endswith("latency 2.0 s (99 %)")
    for before in job["vertices"]:
        del before["latencies"]
    assert "latency from" not in shown(job), "an earlier release says nothing of it"


def test_a_job_that_was_not_seen_for_a_while_says_so() -> None:
    assert "no news for 60 s (driver gone?)" in shown(watched().metrics().as_dict(), 60.0)


def test_lines_of_a_run_have_a_word_for_what_matters() -> None:
    metrics = watched().metrics()
    said = vertex_line(asdict(one) for one in metrics.vertices)
    assert said == "numbers blocked 70%  lag 80 at numbers  bottleneck out (busy 95%)"
    console = Console(file=io.StringIO(), width=300, color_system=None)
    with LineView(console) as view:
        view.show(metrics.summary, lambda: metrics)
    assert said in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_end_of_a_job_is_said_once_however_long_it_takes_spark_to_stop() -> None:
    clock_s = iter(range(0, 1_000, 10))
    metrics = watched().metrics()
    console = Console(file=io.StringIO(), width=300, color_system=None)
    with LineView(console, clock_s=lambda: next(clock_s)) as view:
        for phase in ("running", "running", "ended", "ended", "ended"):
            view.show(replace(metrics.summary, phase=phase), lambda: metrics)
    said = [line.split()[2] for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert said == ["running", "running", "ended"]


def test_a_process_that_stands_for_several_workers_is_shown_once() -> None:
    metrics = watched().metrics()
    workers = tuple(WorkerStatus(index, "driver", 41, 1) for index in range(16))
    console = Console(file=io.StringIO(), width=300, color_system=None)
    with LineView(console) as view:
        view.show(replace(metrics.summary, workers=workers), lambda: metrics)
    assert console.file.getvalue().rstrip().endswith("workers 41")  # type: ignore[attr-defined]


def test_top_shows_a_record_and_the_shell_gets_no_orders_from_it(tmp_path: Path) -> None:
    job = json.loads(json.dumps(watched().metrics().as_dict()))
    job["status"], job["at_ms"] = "stopped", WALL_MS
    job["name"] = "evil\x1b]0;title\x07\x9b31m[red]name"
    write_record(str(tmp_path), {"job": job, "series": {}})
    result = CliRunner().invoke(program, ["top", str(tmp_path)])
    assert result.exit_code == 0
    assert "evil?]0;title??31m[red]name: stopped" in result.output
    assert not set("\x1b\x07\x9b") & set(result.output)


@pytest.mark.parametrize("job", [{}, [], None, {"at_ms": 1}, {"at_ms": "x", "status": "y"}])
def test_a_record_that_is_none_is_refused_in_words(tmp_path: Path, job: Any) -> None:
    write_record(str(tmp_path), {"job": job})
    result = CliRunner().invoke(program, ["top", str(tmp_path)])
    assert result.exit_code == 2
    assert "the status file of the job is from another release" in result.output


def test_a_directory_without_a_job_is_refused_in_words(tmp_path: Path) -> None:
    for command in ("top", "history"):
        result = CliRunner().invoke(program, [command, str(tmp_path)])
        assert result.exit_code == 2
        assert f"holds no {NAME}" in result.output
