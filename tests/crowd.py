"""What is seen of a large job, second by second, without one: for tests and measurements of its page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulation.conversation import LINKS, completed
from tests.unit.watched import E1, MS, WALL_MS, Watched

import crosscut as cc
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId, WorkerIndex
from crosscut.monitoring.metrics import JobMetrics, build_metrics, shown_settings
from crosscut.monitoring.observer import SeenDeadLetter, SeenError
from crosscut.monitoring.status import build_status
from crosscut.monitoring.worker_logs import KEPT_MAX, WorkerLine
from crosscut.protocol.effects import SendMessage
from crosscut.protocol.messages import FailureCause, TaskStatistics, TriggerCheckpoint
from crosscut.protocol.snapshots import Snapshot
from crosscut.protocol.telemetry import MetricSample, ShownDeadLetter, SnapshotTimes
from crosscut.web.series import Series, point_of

FULL = 100
"""Checkpoints that a page shows: so many there are from the beginning, and one more is under way."""
CHECKPOINT_EVERY = 10
FAILOVER_EVERY = 30
TRACEBACK = "".join(f'  File "payments.py", line {n}, in step_{n}\n    step({n})\n' for n in range(60))


class Crowd(Watched):
    """What is seen of a job of four vertices in the midst of a checkpoint, with a hundred others before it.

    Args:
        parallelism: Of each vertex.
    """

    def __init__(self, parallelism: int = 100) -> None:
        super().__init__()
        self.running()
        flow = cc.Flow("crowd")
        read = flow.source(cc.items([1])).named("numbers").rebalance().map(str).named("text")
        counted = read.key_by(len).count().named("counts")
        counted.rebalance().sink(cc.collect("out")).named("out")
        self.graph = flow.compile(parallelism, 128)
        self.vertices = [one.vertex_id for one in self.graph.vertices]
        assert len(self.vertices) == 4
        self.tasks = [TaskId(VertexId(one), index) for one in self.vertices for index in range(parallelism)]
        self.settings = shown_settings(cc.Settings(parallelism=parallelism))
        self.series = Series()
        self.second = 0
        for n in range(1, FULL + 2):
            self.begin_checkpoint(n)
            # Of the last one half of the tasks have none yet.
            self.acknowledge_checkpoint(n, self.tasks if n <= FULL else self.tasks[: 2 * parallelism])
            if n <= FULL:
                self.finish_checkpoint(n)

    def begin_checkpoint(self, n: int) -> None:
        """Checkpoint `n` begins."""
        trigger = SendMessage(LINKS[0], TriggerCheckpoint(E1, CheckpointId(n)))
        self.watching.checkpoints.performed(n, lambda: WALL_MS, [trigger])

    def acknowledge_checkpoint(self, n: int, tasks: list[TaskId]) -> None:
        """These tasks have their snapshots of it."""
        for task in tasks:
            times = SnapshotTimes(alignment_us=500 * task.index, store_us=2_000)
            self.watching.checkpoints.acknowledged(n + 50 * MS, CheckpointId(n), task, Snapshot(), times)

    def finish_checkpoint(self, n: int) -> None:
        """It is complete."""
        entry = replace(completed(1), checkpoint_id=CheckpointId(n))
        self.watching.checkpoints.completed(n + 60 * MS, entry, 10, 1)

    @property
    def under_way(self) -> int:
        """The checkpoint that is not complete."""
        return FULL + 1

    def statistics(self, task: TaskId, place: int) -> TaskStatistics:
        """Return what is heard of a task now; `place`: of all tasks."""
        share = place / len(self.tasks)
        n = self.under_way
        return TaskStatistics(
            task,
            records_in=1_000 * self.second,
            records_out=900 * self.second,
            sent=(900 * self.second,),
            running_us=1_000_000 * self.second,
            busy_us=400_000 * self.second,
            barrier=CheckpointId(n if share < 0.75 else n - 1),
            captured=CheckpointId(n if share < 0.625 else n - 1),
        )

    def look(self, logs: tuple[WorkerLine, ...] = ()) -> JobMetrics:
        """Return the job one second later."""
        self.second += 1
        reports = tuple(self.statistics(task, place) for place, task in enumerate(self.tasks))
        self.watching.meter.note(1_000 * MS * self.second, E1, reports)
        self.watching.latencies.note(1_000 * MS * self.second, E1, reports)
        status = replace(build_status("crowd", self.coordinator, self.seen, frozenset()), tasks=reports)
        now_ms = self.at_ms(self.second)
        seen = self.watching.seen()
        return build_metrics(self.graph, status, "running", seen, None, self.settings, now_ms, logs)

    def at_ms(self, second: int) -> int:
        """Return the time of day then, in milliseconds since 1970."""
        return WALL_MS + 1_000 * second

    def document(self) -> dict[str, Any]:
        """Return what the page shows, one second later."""
        metrics = self.look()
        self.series.note(point_of(metrics))
        return {"job": metrics.as_dict(), "series": self.series.as_dict()}


class Eventful(Crowd):
    """The same, and much happens: all that a page keeps a bounded number of is full within the hour.

    A checkpoint each ten seconds, a failover with a long traceback each half minute, a dead letter and a line
    that is logged each ten seconds, and metrics of the flow's own code in each task.
    """

    def __init__(self, parallelism: int) -> None:
        super().__init__(parallelism)
        self._lines: list[WorkerLine] = []

    @property
    def under_way(self) -> int:
        return FULL + 1 + self.second // CHECKPOINT_EVERY

    def statistics(self, task: TaskId, place: int) -> TaskStatistics:
        latency = MetricSample("numbers", "latency", "histogram", 1.0, (0.1, 1.0), (self.second, 1, 0))
        counter = MetricSample("counts", "payments", "counter", float(self.second))
        return replace(super().statistics(task, place), latencies=(latency,), readings=(counter,))

    def look(self, logs: tuple[WorkerLine, ...] = ()) -> JobMetrics:
        n, at_ms = self.under_way, self.at_ms(self.second)
        if self.second % FAILOVER_EVERY == 0:
            self._fail_over(n, at_ms)
        if self.second % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            self.acknowledge_checkpoint(n, self.tasks)
            self.finish_checkpoint(n)
            self.begin_checkpoint(n + 1)
            self._complain(n, at_ms)
        return super().look(tuple(self._lines))

    def _fail_over(self, n: int, at_ms: int) -> None:
        cause = FailureCause("ValueError", f"failure {at_ms}", "text", f"record {at_ms}", TRACEBACK)
        self.watching.errors.append(SeenError(at_ms, E1, cause))
        self.watching.failovers.begun(n, at_ms, E1, cause)
        self.watching.failovers.flowing(n + MS)

    def _complain(self, n: int, at_ms: int) -> None:
        task = self.tasks[n % len(self.tasks)]
        letter = ShownDeadLetter("text", f"record {n}", f"ValueError: {n}")
        self.watching.dead_letters.append(SeenDeadLetter(at_ms, E1, task, letter))
        of = CheckpointId(n)
        line = WorkerLine(at_ms, WorkerIndex(0), "WARNING", "payments", f"line {n}", task, E1, of)
        self._lines = [*self._lines, line][-KEPT_MAX:]
