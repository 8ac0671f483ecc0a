"""What it costs a worker to be seen: the processor time of exactly the work that it does for that.

The page and the metrics ask the driver; a worker does the same whether anybody looks or not. It reports its
counters some times a second, lets a mark through its tasks once a second, and reads the clock for the shares
of time whenever a task runs. The first two are measured each time, by the clock of the thread, in a worker
that counts as fast as it can; the third in a loop within the same worker, times how often it is done. So what
else the machine does meets what is measured and what it is compared with alike.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import crosscut as cc
from bench.notes import Notes, NotingSource
from bench.page import interval
from bench.rates import warm_up
from bench.throughput import TABLE_ROWS, Discard, ZipfRecords, first

if TYPE_CHECKING:
    from crosscut.worker.pool import TaskPool

LOOPS = 20_000
SENDS = 5_000
TURNS_BEFORE = 500
"""Until then a worker has other things to do."""


class Noted(NamedTuple):
    """What a worker has done so far; times in nanoseconds of processor time."""

    records: int
    all_ns: int
    reports: int
    reports_ns: int
    report_bytes: int
    marks: int
    marks_ns: int
    turns: int
    """How often it was looked whether a task can run."""
    turn_ps: int
    """What the shares of time cost each of these, in picoseconds."""


class _Doing:
    """What this process has done: there is one worker in it."""

    def __init__(self) -> None:
        self.is_planted = False
        self.reports = self.reports_ns = self.report_bytes = self.marks = self.marks_ns = 0
        self.turns = self.turn_ps = 0


_doing = _Doing()


def _plant() -> None:
    """Have the code of this process note what it spends."""
    from crosscut.net import control
    from crosscut.protocol.messages import WorkerHeartbeat
    from crosscut.task.latency_markers import LatencyMarkers
    from crosscut.task.output_buffers import OutputBuffers
    from crosscut.worker.latencies import Latencies
    from crosscut.worker.pool import TaskPool
    from crosscut.worker.worker import Worker

    if _doing.is_planted:
        return
    _doing.is_planted = True
    changed: Any = control
    encode, turn = changed.encode_control, TaskPool._round

    def encoded(message: Any) -> bytes:
        data: bytes = encode(message)
        if isinstance(message, WorkerHeartbeat):
            _doing.report_bytes += len(data)
        return data

    def turned(pool: TaskPool) -> None:
        if not _doing.turn_ps and _doing.turns > TURNS_BEFORE:
            _doing.turn_ps = _turn_ps(pool)
        _doing.turns += len(pool.runners)
        turn(pool)

    def reported(began_ns: int) -> None:
        _doing.reports += 1
        _doing.reports_ns += time.thread_time_ns() - began_ns

    def marked(began_ns: int) -> None:
        _doing.marks += 1
        _doing.marks_ns += time.thread_time_ns() - began_ns

    changed.encode_control = encoded
    changed = TaskPool
    changed._round = turned
    _time(Worker, "_report", reported)
    for owner, name in ((LatencyMarkers, "ask"), (OutputBuffers, "add_marker"), (Latencies, "note")):
        _time(owner, name, marked)


def _time(owner: Any, name: str, note: Callable[[int], None]) -> None:
    called = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began_ns = time.thread_time_ns()
        try:
            return called(*args, **kwargs)
        finally:
            note(began_ns)

    setattr(owner, name, timed)


def _turn_ps(pool: TaskPool) -> int:
    """Return what it costs to note what a task does with its time, and to look for marks; 0: there is one."""
    runner, now_ns = pool.runners[0], pool.now_ns()
    spent_ns, marks, task_effects = runner._spent_ns, runner.task.markers, runner.task.task_effects
    if marks.is_awaited or marks._under_way is not None or task_effects.markers:
        return 0
    began_ns = time.thread_time_ns()
    for _ in range(LOOPS):
        runner.look(now_ns)
        runner._note_freed(now_ns)
        is_due = runner._marker_due_ns <= now_ns
        marks.source_read()
        marks.let_on(is_over=False)
        if (is_due and not marks.is_awaited) or task_effects.markers:
            continue
        runner._spent_ns += runner._now_ns() - now_ns
    ended_ns = time.thread_time_ns()
    runner._spent_ns = spent_ns
    return (ended_ns - began_ns) * 1_000 // LOOPS


def noted(count: int) -> Noted:
    """Return what this worker has done; have its code note that, from the first time on."""
    _plant()
    one = _doing
    return Noted(
        count,
        time.process_time_ns(),
        one.reports,
        one.reports_ns,
        one.report_bytes,
        one.marks,
        one.marks_ns,
        one.turns,
        one.turn_ps,
    )


# In the program.


def send_ns(size_bytes: int) -> float:
    """Return what it takes to send so many bytes over loopback: a worker's event loop does so later."""
    data, spent_ns = bytes(size_bytes), 0
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        for _ in range(SENDS):
            began_ns = time.thread_time_ns()
            sender.sendall(data)
            spent_ns += time.thread_time_ns() - began_ns
            receiver.recv(size_bytes, socket.MSG_WAITALL)
    return spent_ns / SENDS


def shares(before: Noted, after: Noted, sent_ns: float) -> dict[str, float]:
    """Return what was spent on what, as shares of all processor time of the worker between the two."""
    all_ns = after.all_ns - before.all_ns
    spent_ns = {
        "reports": after.reports_ns - before.reports_ns + sent_ns * (after.reports - before.reports),
        "marks": after.marks_ns - before.marks_ns,
        "shares_of_time": (after.turns - before.turns) * after.turn_ps / 1e3,
    }
    found = {name: one / all_ns for name, one in spent_ns.items()}
    return {**found, "all": sum(found.values())}


def measured(windows: int, seconds: float, shuffles: int) -> list[Noted]:
    """Run a job; return what its worker had noted at the ends of as many windows, and before the first."""
    with tempfile.TemporaryDirectory(prefix="crosscut-bench-") as directory:
        notes = Notes(Path(directory) / "notes", len(Noted._fields))
        flow = cc.Flow("reports")
        source = NotingSource(cc.generate(ZipfRecords(TABLE_ROWS)), os.path.join(directory, "notes"), noted)
        stream: Any = flow.source(source)
        for _ in range(shuffles):
            stream = stream.key_by(first).count()
        stream.sink(Discard())
        settings = cc.Settings(
            parallelism=1,
            checkpoint_dir=os.path.join(directory, "checkpoints"),
            checkpoint_interval="1s",
            heartbeat_timeout="30s",
            start_timeout="120s",
            web=True,
            web_port=0,
        )
        job = flow.start(settings)
        try:
            warm_up(job)
            found = [Noted(*notes.read())]
            for _ in range(windows):
                job.wait(seconds)
                found.append(Noted(*notes.read()))
            return found
        finally:
            job.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each window")
    parser.add_argument("--shuffles", type=int, default=1, help="counts in a row: a task more in each worker")
    options = parser.parse_args()
    noted = measured(options.windows, options.seconds, options.shuffles)
    begun, ended = noted[0], noted[-1]
    reports = ended.reports - begun.reports
    size_bytes = (ended.report_bytes - begun.report_bytes) // reports
    sent_ns = send_ns(size_bytes)
    by_window = [shares(before, after, sent_ns) for before, after in pairwise(noted)]
    all_s = (ended.all_ns - begun.all_ns) / 1e9
    result: dict[str, Any] = {
        "benchmark": "reports",
        "tasks": options.shuffles + 1,
        "windows": len(by_window),
        "records_per_cpu_s": round((ended.records - begun.records) / all_s),
        "reports_per_cpu_s": round(reports / all_s, 1),
        "report_us": round((ended.reports_ns - begun.reports_ns) / reports / 1e3, 1),
        "report_bytes": size_bytes,
        "sent_us": round(sent_ns / 1e3, 1),
        "turn_ns": round(ended.turn_ps / 1e3, 1),
    }
    for name in by_window[0]:
        median, low, high = (round(each, 3) for each in interval([100 * one[name] for one in by_window]))
        result[f"{name}_percent"] = {"median": median, "from": low, "to": high}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
