"""The journal of a job: its events in words, for the logging of the program that runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.effects import EndJob, JobEffect, SendMessage, StartTimer
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import AssignSplits, FailureCause

LOGGER = logging.getLogger("crosscut.job")

SHOWN_MAX = 3
SLOW_INTERVALS = 10
SLOW_LEAST_MS = 1_000
"""A checkpoint is slow if it takes so many intervals, at least this long, or half of its timeout."""


LATE_MS = 7_000
"""A step that has taken so long, and is not over, is logged: a store or worker that hangs logs nothing."""
WAITS_FOR = {
    Phase.CLAIMING: "for the job log to hold the claim of its epoch",
    Phase.GATHERING: "for workers to register",
    Phase.RESTORING: "for workers to restore their tasks from the checkpoint store and to connect",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `level` is one of the module `logging`.

    Attributes:
        code: What kind of line it is, for programs: it stays the same when the text changes.
    """

    level: int
    text: str
    code: str


def _assigned(effects: Iterable[JobEffect]) -> list[Line]:
    """Return which splits have come."""
    found: dict[str, list[str]] = {}
    for effect in effects:
        match effect:
            case SendMessage(_, AssignSplits(_, task, _, list(rows))) if rows:
                found.setdefault(task.vertex, []).extend(str(row[0]) for row in rows if isinstance(row, list))
            case _:
                pass
    lines = []
    for source, names in found.items():
        more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
        shown = ", ".join(names[:SHOWN_MAX])
        lines.append(
            Line(logging.INFO, f"source {source!r} has found splits: {shown}{more}", "source.splits_found")
        )
    return lines


CODES = (
    "job.started",
    "job.resumed",
    "job.recovered",
    "job.restarted",
    "job.failure",
    "job.waits",
    "job.warning",
    "job.finished",
    "job.stopped",
    "job.cancelled",
    "job.failed",
    "job.fenced",
    "checkpoint.failed",
    "checkpoint.slow",
    "checkpoint.late",
    "sink.behind",
    "source.splits_found",
    "store.log_refused",
)
"""Of all lines. None is ever given another meaning."""

_LOGS = "the ends of the logs of its workers"


class Journal:
    """Compares the coordinator with its state before: says each new thing, once."""

    def __init__(self, terms: CoordinatorSpec) -> None:
        self._sources = terms.sources
        checkpoints = terms.checkpoints
        at_interval_ms = max(SLOW_LEAST_MS, SLOW_INTERVALS * checkpoints.interval_ms)
        half_timeout_ms = checkpoints.timeout_ms // 2
        self._slow_ms = min(at_interval_ms, half_timeout_ms) if checkpoints.periodic else half_timeout_ms
        if not checkpoints.are_batches:
            self._slow_ms = min(self._slow_ms, LATE_MS)
        self._phase = Phase.CLAIMING
        self._has_run = False
        self._restart_count = 0
        self._failure: FailureCause | None = None
        self._failed_count = 0
        self._completed: CheckpointCompleted | None = None
        self._is_behind_logged = False
        # Twice as slow as the one before is news again.
        self._logged_ms = 0
        self._late: CheckpointId | None = None
        self._outage_ms = checkpoints.outage_ms
        self._is_log_trouble_logged = self._is_phase_logged = False

    def note(self, coordinator: Coordinator, effects: Sequence[JobEffect]) -> list[Line]:
        """Return the lines after `coordinator` has handled an event, with `effects`."""
        lines = [
            *self._failures(coordinator, effects),
            *self._checkpoints(coordinator),
            *self._behind(coordinator),
            *self._log_trouble(coordinator),
            *self._late_checkpoint(coordinator),
        ]
        if coordinator.phase is not self._phase:
            lines += self._begins(coordinator)
            self._phase, self._is_phase_logged = coordinator.phase, False
        elif coordinator.phase in WAITS_FOR and not self._is_phase_logged:
            lines += self._late_phase(coordinator)
        return [*lines, *_assigned(effects)] if effects else lines

    def ended(self, coordinator: Coordinator, end: EndJob) -> list[Line]:
        """Return the lines at the end."""
        completed, cause = coordinator.completed, end.cause
        where = f"goes on from {self._shown(completed)}" if completed else "begins from the beginning"
        if coordinator.has_unit_logs:
            where = f"goes on from {_LOGS}"
        why = f": {cause.message}" if cause else ""
        match end.outcome:
            case "finished" if coordinator.has_unit_logs and self._has_run:
                return [Line(logging.INFO, "finished: everything is processed and committed", "job.finished")]
            case "finished" if completed is None or not self._has_run:
                return [Line(logging.INFO, "it has finished before: there is nothing to do", "job.finished")]
            case "finished":
                text = f"finished: everything is processed and committed, with {self._shown(completed)}"
                return [Line(logging.INFO, text, "job.finished")]
            case "stopped" if cause:
                # It says what the next start does.
                return [Line(logging.WARNING, f"stopped{why}", "job.stopped")]
            case "stopped" | "cancelled":
                return [Line(logging.INFO, f"{end.outcome}; the next start {where}", f"job.{end.outcome}")]
            case "fenced":
                return [Line(logging.WARNING, f"another driver has taken it over{why}", "job.fenced")]
            case "failed":
                # A job that has not even claimed an epoch raises where it was started.
                text = f"failed{why}; the next start {where}"
                return [Line(logging.ERROR, text, "job.failed")] if coordinator.epoch else []
            case _:
                assert_never(end.outcome)

    def _begins(self, coordinator: Coordinator) -> list[Line]:
        if self._phase is not Phase.RESTORING or coordinator.phase not in (Phase.RUNNING, Phase.FINISHING):
            return []
        completed, epoch, workers = coordinator.completed, coordinator.epoch, len(coordinator.registry.held)
        if self._has_run:
            where = f"from {self._shown(completed)}" if completed else "from the beginning"
            if coordinator.has_unit_logs:
                where = f"from {_LOGS}"
            return [Line(logging.INFO, f"goes on {where}: epoch {epoch}", "job.recovered")]
        self._has_run = True
        if completed is None:
            return [Line(logging.INFO, f"started: epoch {epoch}, {workers} workers", "job.started")]
        text = f"resumed from {self._shown(completed)}: epoch {epoch}, {workers} workers"
        return [Line(logging.INFO, text, "job.resumed")]

    def _failures(self, coordinator: Coordinator, effects: Iterable[JobEffect]) -> list[Line]:
        newest = coordinator.failures[-1] if coordinator.failures else None
        if newest is None or newest is self._failure:
            return []
        self._failure = newest
        record = f", record: {newest.record}" if newest.record else ""
        if coordinator.restart_count == self._restart_count:
            # The job does not need it, or has ended: then that is said.
            return (
                []
                if coordinator.phase is Phase.ENDED
                else [Line(logging.WARNING, newest.message, "job.failure")]
            )
        self._restart_count = coordinator.restart_count
        timers = (one for one in effects if isinstance(one, StartTimer))
        when = next((f" in {one.delay_ms / 1_000:g} s" for one in timers if one.timer.kind == "restart"), "")
        completed = coordinator.completed
        where = f"checkpoint {completed.checkpoint_id}" if completed else "the beginning"
        if coordinator.has_unit_logs:
            where = _LOGS
        text = f"restart {self._restart_count}{when}, back to {where}: {newest.message}{record}"
        return [Line(logging.WARNING, text, "job.restarted")]

    def _checkpoints(self, coordinator: Coordinator) -> list[Line]:
        lines = []
        if coordinator.checkpoints.failed.failed_count > self._failed_count:
            self._failed_count = coordinator.checkpoints.failed.failed_count
            lines.append(
                Line(logging.WARNING, coordinator.checkpoints.failed.last_failure, "checkpoint.failed")
            )
        completed = coordinator.completed
        if completed is None or completed is self._completed:
            return lines
        self._completed = completed
        took_ms = completed.duration_ms
        if completed.epoch != coordinator.epoch or took_ms < self._slow_ms:
            self._logged_ms = 0
        elif took_ms >= 2 * self._logged_ms:
            self._logged_ms = took_ms
            text = f"checkpoint {completed.checkpoint_id} was slow: it took {took_ms / 1_000:.1f} s"
            lines.append(Line(logging.WARNING, text, "checkpoint.slow"))
        return lines

    def _log_trouble(self, coordinator: Coordinator) -> list[Line]:
        """Say once that the log can't be written, until it can."""
        trouble = coordinator.log_trouble
        if not trouble or self._is_log_trouble_logged:
            self._is_log_trouble_logged = bool(trouble)
            return []
        self._is_log_trouble_logged = True
        limit = f", for up to {self._outage_ms / 1_000:g} s" if coordinator.epoch and self._outage_ms else ""
        return [
            Line(
                logging.WARNING,
                f"the job log can't be written, and is tried again{limit}: {trouble}",
                "store.log_refused",
            )
        ]

    def _late_checkpoint(self, coordinator: Coordinator) -> list[Line]:
        """Say what a checkpoint waits for, once, while it is under way: a store that hangs says nothing."""
        late = coordinator.checkpoints.late(max(self._slow_ms, 2 * self._logged_ms))
        if late is None or late[0] == self._late:
            return []
        self._late, self._logged_ms = late
        so_far = f"{self._logged_ms / 1_000:.1f} s so far{coordinator.checkpoints.awaited(self._late)}"
        return [Line(logging.WARNING, f"checkpoint {self._late} has taken {so_far}", "checkpoint.late")]

    def _late_phase(self, coordinator: Coordinator) -> list[Line]:
        if coordinator.in_phase_ms < LATE_MS:
            return []
        self._is_phase_logged = True
        missing = coordinator.registry.missing_shown if coordinator.phase is not Phase.CLAIMING else ""
        waited = f"for {coordinator.in_phase_ms / 1_000:.0f} s"
        return [
            Line(logging.WARNING, f"has waited {waited} {WAITS_FOR[coordinator.phase]}{missing}", "job.waits")
        ]

    def _behind(self, coordinator: Coordinator) -> list[Line]:
        """Say once that a sink can't keep up, until it has caught up."""
        commits = coordinator.commits
        if not commits.waiting_count:
            self._is_behind_logged = False
        if self._is_behind_logged or not (behind := commits.shown):
            return []
        self._is_behind_logged = True
        return [
            Line(
                logging.WARNING,
                f"{behind}; no checkpoint starts and sources wait until one is",
                "sink.behind",
            )
        ]

    def _shown(self, completed: CheckpointCompleted | None) -> str:
        if completed is None:
            return "nothing"
        snapshots = completed.snapshots
        read = sum(one.snapshot.records_in for one in snapshots if one.task in self._sources)
        return f"checkpoint {completed.checkpoint_id} ({read:,} records read)"
