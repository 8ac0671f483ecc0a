"""A conversation with a coordinator that is watched as the driver does it, for tests of what people see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulation.conversation import K0, K1, S0, S1, Talk, snapshot

import crosscut as cc
from crosscut import events
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, WorkerIndex
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.specs import JobGraph
from crosscut.monitoring.metrics import JobMetrics, build_metrics, shown_settings
from crosscut.monitoring.observer import Watching
from crosscut.monitoring.status import Observations, build_status, checkpoint_status
from crosscut.protocol.effects import EndJob, JobEffect
from crosscut.protocol.events import EntryAppended, JobEvent, MessageReceived
from crosscut.protocol.messages import SnapshotAcknowledged, TaskStatistics, WorkerHeartbeat
from crosscut.protocol.telemetry import SnapshotTimes

MS = 1_000_000
E1 = Epoch(1)
WALL_MS = 1_700_000_000_000


class Watched(Talk):
    """A conversation that is watched as the driver does it; the clock goes when a test says so."""

    def __init__(self, **terms: Any) -> None:
        super().__init__(**terms)
        self.now_ns = 0
        self.told: list[events.JobEvent] = []
        self.seen = Observations()
        for worker, tasks in ((0, (S0, K0)), (1, (S1, K1))):
            self.seen.workers[WorkerIndex(worker)] = (E1, tuple(map(TaskStatistics, tasks)))
        self.watching = Watching("a job", 2, lambda: WALL_MS + self.now_ns // MS, self.told.append)

    def hear(self, *heard: JobEvent) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for event in heard:
            before = self.coordinator.completed
            effects = super().hear(event)
            completed = self.coordinator.completed
            if isinstance(event, EntryAppended) and completed is not None and completed is not before:
                shown = checkpoint_status(completed)
                self.watching.completed(
                    self.now_ns, self.coordinator, completed, shown.state_bytes, shown.new_bytes
                )
            self.watching.handled(self.now_ns, self.coordinator, effects)
            if isinstance(event, MessageReceived):
                if isinstance(event.message, WorkerHeartbeat):
                    tasks = event.message.tasks
                    self.seen.workers[WorkerIndex(tasks[0].task.index)] = (event.message.epoch, tasks)
                self.watching.note_message(self.now_ns, self.coordinator.epoch, event.message)
            for effect in effects:
                if isinstance(effect, EndJob):
                    self.watching.ended(self.coordinator, effect)
        return effects

    def at(self, ms: int) -> Watched:
        self.now_ns = ms * MS
        return self

    def metrics(self, settings: cc.Settings | None = None) -> JobMetrics:
        status = build_status("a job", self.coordinator, self.seen, frozenset((S0, S1)))
        completed, shown = self.coordinator.completed, shown_settings(settings or cc.Settings())
        return build_metrics(graph(), status, status.phase, self.watching.seen(), completed, shown, WALL_MS)


def graph() -> JobGraph:
    flow = cc.Flow("a-job")
    numbers = flow.source(cc.items([1, 2, 3])).named("numbers")
    numbers.rebalance().map(str).named("out").sink(cc.collect("out")).named("sink")
    return flow.compile(2, 8)


def acknowledge(talk: Watched, n: CheckpointId, task: TaskId, times: SnapshotTimes) -> None:
    talk.message(
        task.index, SnapshotAcknowledged(E1, n, task, replace(snapshot(task, n), freeze_us=400), times)
    )


def heartbeat(talk: Watched, second: int, blocked: float, busy: float) -> None:
    talk.at(1_000 * second)
    for index, (source, out) in enumerate(((S0, K0), (S1, K1))):
        of_source = TaskStatistics(
            source,
            records_in=50 * second,
            records_out=50 * second,
            sent=(50 * second,),
            lag=40,
            running_us=1_000_000 * second,
            blocked_us=int(blocked * 1_000_000 * second),
            watermark=WALL_MS - 2_000 - index,
        )
        of_out = TaskStatistics(
            out,
            records_in=50 * second,
            running_us=1_000_000 * second,
            busy_us=int(busy * 1_000_000 * second),
            watermark=END_OF_TIME,
        )
        talk.message(index, WorkerHeartbeat(E1, (of_source, of_out)))
