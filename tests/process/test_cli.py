"""`crosscut run` with real workers: Ctrl-C, resuming, finishing, failing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import DEADLINE_S, is_gone, until

from crosscut import errors

PROGRAM = [sys.executable, "-c", "from crosscut.cli.commands import main; main()"]
EXAMPLES = Path(__file__).parents[2] / "examples"

ENDLESS = """
import threading
import time

import crosscut as cc
from numbers_of_mine import digit

flow = cc.Flow("endless")
(
    flow.source(cc.generate(digit, rate=5_000))
    .named("numbers")
    .key_by(lambda number: number)
    .count()
    .named("counts")
    .sink(cc.files.write_jsonl("out"))
    .named("out")
)

if __name__ == "__main__":
    job = flow.start(cc.Settings(checkpoint_interval="1h"))

    def tell():
        while not job.report().records_read:
            time.sleep(0.1)
        print("records flow", *(worker.pid for worker in job.workers()), flush=True)

    # In a thread: whoever reads that line interrupts at once, and `wait` has to be there by then.
    threading.Thread(target=tell, daemon=True).start()
    job.wait()
"""

NUMBERS = """
def digit(index):
    return index % 10
"""

FAILING = """
import crosscut as cc

flow = cc.Flow("failing")
flow.source(cc.generate(lambda i: i, count=10)).map(lambda i: 1 // (i - 5)).sink(cc.files.write_jsonl("out"))
"""


def environment() -> dict[str, str]:
    # An absolute path, since the programs run in other directories.
    return os.environ | {"PYTHONPATH": str(Path(errors.__file__).parents[1])}


@contextmanager
def started(
    command: list[str], directory: Path, *, in_group: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Start a command, in a process group of its own if `in_group`."""
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0 if in_group else None,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, env=environment(), capture_output=True, text=True, timeout=2 * DEADLINE_S
    )


def line_with(process: subprocess.Popen[str], pattern: str) -> str:
    """Wait for a line of output that matches."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if re.search(pattern, line):
            return line
    raise AssertionError(f"no {pattern!r} in {seen}")


def endless(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "endless.py").write_text(ENDLESS)
    (tmp_path / "app" / "numbers_of_mine.py").write_text(NUMBERS)
    return tmp_path / "app" / "endless.py"


def committed(directory: Path) -> dict[int, list[int]]:
    """Return the committed updates of each key, in order."""
    found: dict[int, list[int]] = defaultdict(list)
    for path in sorted(directory.glob("part-*.jsonl")):
        for line in path.read_text().splitlines():
            key, count = json.loads(line)
            found[key].append(count)
    return found


def assert_exact(counts: dict[int, list[int]]) -> int:
    """Check that the numbers of each digit were counted one by one; return how many in all."""
    assert sorted(counts) == list(range(10))
    for updates in counts.values():
        assert updates == list(range(1, len(updates) + 1))
    return sum(map(len, counts.values()))


def assert_gone(pids: list[int]) -> None:
    """Wait until no such process runs; one that nobody has reaped yet does not run."""
    until(lambda: all(map(is_gone, pids)), f"processes {pids} to end")


def run_until_interrupted(app: Path, tmp_path: Path) -> tuple[str, str]:
    """Run the endless flow, press Ctrl-C after some checkpoints; return a line of progress and the end."""
    options = ("--checkpoint-interval", "100ms", "--heartbeat-timeout", "60s")
    command = [*PROGRAM, "run", f"{app}:flow", *options]
    with started(command, tmp_path) as process:
        line = line_with(process, r"running .* checkpoints ([3-9]|\d\d)  workers \d+ \d+$")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    pids = [int(pid) for pid in line.rpartition("workers ")[2].split()]
    assert_gone(pids)
    return line, output


def test_ctrl_c_takes_a_last_checkpoint_and_the_next_start_goes_on_exactly(tmp_path: Path) -> None:
    app = endless(tmp_path)
    line, output = run_until_interrupted(app, tmp_path)
    assert "epoch 1 " in line
    assert re.search(r"stopped: the next start .* resumes from checkpoint \d+", output)
    first = assert_exact(committed(tmp_path / "out"))
    line, _ = run_until_interrupted(app, tmp_path)
    assert "epoch 2 " in line
    assert assert_exact(committed(tmp_path / "out")) > first


@pytest.mark.proof
def test_ctrl_c_in_a_script_that_waits_takes_a_last_checkpoint_too(tmp_path: Path) -> None:
    """With an hour between two checkpoints, all that is ever committed is from the last one.

    In `make test` a script of test_bad_input.py is interrupted while it waits.
    """
    app = endless(tmp_path)
    with started([sys.executable, str(app)], tmp_path) as process:
        line = line_with(process, "records flow")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert "KeyboardInterrupt" in errors
    assert_exact(committed(tmp_path / "out"))
    assert_gone([int(pid) for pid in line.split()[2:]])


def test_sigterm_to_the_whole_group_takes_a_last_checkpoint_of_a_script_that_waits(tmp_path: Path) -> None:
    """With an hour between two checkpoints, all that is ever committed is from the last one."""
    app = endless(tmp_path)
    with started([sys.executable, str(app)], tmp_path, in_group=True) as process:
        line = line_with(process, "records flow")
        os.killpg(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "RuntimeWarning" not in errors
    assert assert_exact(committed(tmp_path / "out")) > 0
    assert_gone([int(pid) for pid in line.split()[2:]])


def test_a_kept_job_is_started_again_after_a_kill_and_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    app = endless(tmp_path)
    options = ("--keep", "--web", "--web-port", "0", "--checkpoint-interval", "100ms")
    with started([*PROGRAM, "run", f"{app}:flow", *options], tmp_path, in_group=True) as keeper:
        try:
            line_with(keeper, r"running .* checkpoints [3-9]")
            (driver,) = children_of(keeper.pid)
            os.kill(driver, signal.SIGKILL)
            page = line_with(keeper, "its page: ").partition("its page: ")[2].split()[0]
            line_with(keeper, r"running +epoch [2-9] .* checkpoints ([4-9]|\d\d)")
            for probe in ("readyz", "healthz"):
                with urllib.request.urlopen(f"{page}{probe}", timeout=DEADLINE_S) as answer:
                    assert answer.read() == b"running\n"
            keeper.send_signal(signal.SIGTERM)
            output, errors = keeper.communicate(timeout=DEADLINE_S)
        finally:
            for one in children_of(keeper.pid):
                os.kill(one, signal.SIGKILL)
    assert keeper.returncode == 0, errors
    assert "the job has ended with signal 9; it is started again in 1 s" in errors
    assert "stopped: the next start" in output
    assert_exact(committed(tmp_path / "out"))


def children_of(pid: int) -> list[int]:
    """Return the processes that `pid` has started, and that run."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in path.read_text().split()] if path.exists() else []


def test_a_flow_that_ends_exits_with_0_and_has_nothing_to_do_afterwards(tmp_path: Path) -> None:
    command = [*PROGRAM, "run", f"{EXAMPLES / 'orders.py'}:flow", "--checkpoint-interval", "100ms"]
    ran = finished(command, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "finished: everything is processed and committed" in ran.stdout
    totals = dict(
        json.loads(line)
        for path in (tmp_path / "order-totals").glob("*.jsonl")
        for line in path.read_text().splitlines()
    )
    # Half of the 100,000 orders are copies.
    assert len(totals) == 100
    assert {total["orders"] for total in totals.values()} == {500}
    assert sum(total["cents"] for total in totals.values()) == sum(100 + n % 900 for n in range(50_000))
    again = finished(command, tmp_path)
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stdout


def test_a_flow_that_would_fail_again_exits_with_5_and_shows_record_and_traceback(
    tmp_path: Path,
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    command = [*PROGRAM, "run", "failing.py", "--restart-failures", "0"]
    ran = finished(command, tmp_path)
    assert ran.returncode == 5
    assert "ZeroDivisionError" in ran.stderr
    assert "record: 5" in ran.stderr
    assert "failing.py" in ran.stderr
    assert "crosscut/cli/commands.py" not in ran.stderr
