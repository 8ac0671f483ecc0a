"""A whole job in one process under one seed: the real workers and driver, and a virtual machine around
them: event loops, clock, threads, network, disk, Spark, and a sink. First faults happen as planned; then
they stop, and the job has to finish, with exactly the output it must have."""

from __future__ import annotations

import hashlib
import random
import traceback
from collections import Counter, deque
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from crosscut.foundation.ids import Epoch
from crosscut.graph.specs import JobGraph
from crosscut.protocol.effects import EndJob
from crosscut.protocol.job.coordinator import CoordinatorSpec
from crosscut.protocol.job.deaths import SPARK_TASK_DIED
from crosscut.protocol.log.entries import SegmentOpened
from crosscut.protocol.messages import SplitAssignment, TaskFailed
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.store.log_key import LogKey
from crosscut.testing.simulator import violation
from crosscut.testing.simulator.blame import cause_text
from crosscut.testing.simulator.checkers import Checkers
from crosscut.testing.simulator.clock import Action, Clock
from crosscut.testing.simulator.coverage import DropWatch
from crosscut.testing.simulator.driver import DriverProcess
from crosscut.testing.simulator.executor import Executor
from crosscut.testing.simulator.faults import suffer
from crosscut.testing.simulator.files import WatchedFiles
from crosscut.testing.simulator.history import LogHistory
from crosscut.testing.simulator.job import (
    assignments_of,
    credentials_of,
    plan_of,
    rewritten,
    terms_of,
    with_faults,
)
from crosscut.testing.simulator.job_process import JobProcess
from crosscut.testing.simulator.loop import Killed, run_in
from crosscut.testing.simulator.moving import keep_open_until_all_moves
from crosscut.testing.simulator.network import Network
from crosscut.testing.simulator.options import FaultKind, Moment, Options, PlannedFault
from crosscut.testing.simulator.outside import Outside
from crosscut.testing.simulator.processes import Process
from crosscut.testing.simulator.scheduler import Spark
from crosscut.testing.simulator.simulated_job import SimulatedJob
from crosscut.testing.simulator.sinks import Resource, StagingWriter, watch_calls
from crosscut.testing.simulator.thresholds import lowered
from crosscut.testing.simulator.violation import ensure, violate
from crosscut.testing.simulator.virtual_batches import VirtualBatches
from crosscut.testing.simulator.wiretap import Wiretap
from crosscut.testing.simulator.worker import WorkerProcess
from crosscut.worker.pool import TaskPool
from crosscut.worker.worker import WorkerPlan

UNTIDY: tuple[FaultKind, ...] = ("refuse a part", "refuse a delete")
"""After these there are parts that nobody can know of."""

BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
LOG_KEY = LogKey("the key of worlds with an odd seed")
LIVENESS_MS = 120_000
DRIVER_US = 50
WHOLE = 0.9
"""How often all bytes that have arrived are read at once."""
EVENTS_MAX = 400_000
STEPS_SHOWN = 60
ZOMBIES_US = 4_000_000
OUTPUT_THREADS = "crosscut-output "
"""Begins the names of threads in which the driver of batches calls sinks."""
LATE_ANSWER_US = 20_000
"""A driver may take so long to act on what a fault has answered it, also when the faults have stopped."""
SLOW_SINK_FACTOR = 100

EXPECTED_FAILURES = frozenset(
    {
        "CommitFailed",
        "ConnectionLost",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "ConnectorError",
        "SinkHungError",
        "StoreError",
        "TimeoutError",
    }
)
"""What a task may fail with, besides user code. Anything else is a bug of ours."""
BATCH_FAILURES = frozenset({"BatchTorn", "SnapshotDeclined", "SparkJobEnded", SPARK_TASK_DIED, "WorkerLost"})
"""The same of a batch, which Spark runs."""


class World:
    """Everything there is.

    Args:
        options: All of it follows from them.
        job: What runs.
    """

    def __init__(self, options: Options, job: SimulatedJob) -> None:
        self.options = options
        self.dice = random.Random(f"crosscut world {options.seed}")
        self._draw = self.dice.random
        self._step_us = options.step_us
        self.clock = Clock()
        self.seen: Counter[str] = Counter()
        self.network = Network(self.clock, self, options.buffer_bytes)
        self.running: Process | None = None
        self.credentials = credentials_of(options)
        self.tap = Wiretap(
            options.channel_bytes,
            self.seen,
            has_seals=self.credentials.seals_frames,
            is_punctual=job.judged_as.is_punctual,
        )
        if not options.is_encrypted and not options.is_logged:
            # It knows flow control by credit, which units do not have.
            self.network.tap = self.tap
        self.drops = DropWatch(self.seen)
        self._steps: deque[tuple[int, str, object]] = deque(maxlen=STEPS_SHOWN)
        self._digest = hashlib.sha256()
        self.event_count = 0
        self.step_count = 0
        self._is_comparable = job.is_comparable
        self.graph = with_faults(job.graph, self._is_fault_due)
        self._copy = job.copy
        self._graphs: dict[tuple[int, int], JobGraph] = {}
        self._may_rescale = job.may_rescale
        self.sources = job.sources
        self._history = LogHistory()
        self.files = WatchedFiles(
            self._appended,
            lambda path: self.checkers.deleted(path),
            self._permit,
            lambda: self.outside.under_way,
            self.seen,
        )
        self.checkers = Checkers(
            job,
            self.files.content.get,
            self.files.damaged,
            lambda: self.resource,
            is_exactly_once=options.snapshots != "at-least-once",
            logged=self.files.logged if options.is_logged else None,
        )
        self.resource = Resource(
            self.checkers.may_become_visible,
            self._permit,
            lambda: self.outside.under_way,
            is_together=options.commits_together,
        )
        for sink in job.sinks:
            sink.resource = self.resource
        self.outside = Outside(self)
        self.wall_clock_s = 0
        self.user_faults = 0
        self.slow_sink_until_us = 0
        self.is_calm = False
        self.is_over = False
        self._calm_from_us = 0
        self.has_finished = False
        self.workers: dict[int, WorkerProcess] = {}
        self.drivers: list[DriverProcess] = []
        self.executors: list[Executor] = []
        self._late_risers: list[DriverProcess] = []
        # Faults that wait for a process to come along, with how often it still has to.
        self.pools: dict[int, TaskPool] = {}
        # The newest one in which a process died: it could not tidy up any more.
        self._untidy_epoch = Epoch(0)
        violation.noted.clear()
        self._waiting: dict[Moment, list[tuple[PlannedFault, int]]] = {}
        for fault in options.faults:
            self.clock.after(fault.at_ms * 1_000, lambda one=fault: self._due(one))  # type: ignore[misc]
        self.new_driver()

    @property
    def processes(self) -> tuple[Process, ...]:
        """All that ever were."""
        return (*self.drivers, *self.workers.values(), *self.executors)

    @property
    def is_comparable(self) -> bool:
        """Whether the output at the end says something: it is the same in every order, and has not rotted."""
        return self._is_comparable and not self.files.damaged

    # Chance.

    def coin(self) -> bool:
        """Return one or the other."""
        return self._draw() < 0.5

    def below(self, limit: int) -> int:
        """Return a number from 0 on, less than `limit`."""
        return int(self._draw() * limit)

    def latency_us(self) -> int:
        """Return the latency of one message."""
        return 10 + int(self._draw() * self.options.latency_us)

    def turn_us(self, process: Process) -> int:
        """Return how long a process takes until it gets to what is ready."""
        kind = type(process)
        is_worker = kind is WorkerProcess or kind is Executor
        turn_us = 1 + int(self._draw() * (self._step_us if is_worker else DRIVER_US))
        if is_worker and self.slow_sink_until_us > self.clock.now_us:
            return SLOW_SINK_FACTOR * turn_us
        return turn_us

    def cut(self, size: int) -> int:
        """Return how many of `size` bytes that have arrived are read at once: at least one."""
        return size if self._draw() < WHOLE or size == 1 else 1 + self.below(size - 1)

    def _is_fault_due(self) -> bool:
        if not self.user_faults:
            return False
        self.user_faults -= 1
        return True

    # The trace.

    def note(self, text: str, detail: object = None) -> None:
        """Add a step to the trace. `detail` is shown to people; it may differ between two equal runs."""
        self._digest.update(f"{self.clock.now_us} {text}".encode())
        self.step_count += 1
        self._steps.append((self.clock.now_us, text, detail))

    @property
    def steps(self) -> tuple[str, ...]:
        """The last steps."""
        return tuple(
            f"{now_us / 1e3:10.3f} ms  {text}{'' if detail is None else f' {detail!r:.300}'}"
            for now_us, text, detail in self._steps
        )

    @property
    def trace_hash(self) -> str:
        """Return the digest of all steps so far."""
        return self._digest.hexdigest()

    # Processes.

    def graph_of_process(self, driver: int, parallelism: int = 0) -> JobGraph:
        """Return the graph for one more worker of a driver; each driver has run a program of its own.

        Args:
            parallelism: 0: that of the driver.
        """
        if self._copy is None:
            return self.graph_of(driver, parallelism)
        graph = with_faults(self._copy(), self._is_fault_due)
        return rewritten(replace(graph, parallelism=parallelism or self.parallelism_of(driver)), driver - 1)

    def graph_of(self, driver: int, parallelism: int = 0) -> JobGraph:
        """Return the graph as one driver has it; `parallelism` as in `graph_of_process`."""
        parallelism = parallelism or self.parallelism_of(driver)
        found = self._graphs.get((driver, parallelism))
        if found is None:
            graph = replace(self.graph, parallelism=parallelism)
            found = self._graphs[driver, parallelism] = rewritten(graph, driver - 1)
        return found

    def parallelism_of(self, driver: int) -> int:
        """Return how many workers the driver of this number has."""
        choices = (self.options.parallelism, *self.options.rescaled_to)
        if not self._may_rescale:
            return choices[0]
        return choices[(driver - 1) % len(choices)]

    def store_of(self, process: Process) -> CheckpointStore:
        """Return the checkpoint store as one process has it."""
        # Only a driver has the key.
        key = LOG_KEY if self.options.seed % 2 and isinstance(process, DriverProcess) else None
        return CheckpointStore(self.files, self.options.inline_bytes, key)

    def plan(self, driver: DriverProcess) -> WorkerPlan:
        """Return what the workers of `driver` know."""
        return plan_of(self.options, self.credentials, (driver.host, driver.port))

    def terms(self, driver: int) -> CoordinatorSpec:
        """Return the terms of the job, for one driver."""
        return terms_of(self.options, self.graph_of(driver), driver)

    def assignments(self, driver: int) -> tuple[SplitAssignment, ...]:
        """Return the splits of every source task, for one driver."""
        return assignments_of(replace(self.graph, parallelism=self.parallelism_of(driver)))

    def launch(self, spark: Spark, index: int) -> WorkerProcess:
        """Start a worker process."""
        attempt = len(self.workers) + 1
        worker = self.workers[attempt] = WorkerProcess(self, spark, index, attempt)
        self.note(f"{worker.name} starts for {spark.driver.name}")
        return worker

    def start_executor(self, batches: VirtualBatches) -> Executor:
        """Start a process for attempts at partitions of batches."""
        executor = Executor(self, batches, len(self.executors) + 1)
        self.executors.append(executor)
        self.note(f"{executor.name} starts for {batches.driver.name}")
        return executor

    def new_driver(self) -> None:
        """Start a driver, whoever else there is."""
        number = len(self.drivers) + 1
        self.note(f"driver {number} starts")
        if any(one.is_running for one in self.drivers):
            self.seen["two drivers at once"] += 1
        kind = DriverProcess if self.options.engine == "continuous" else JobProcess
        self.drivers.append(kind(self, number))

    def job_ended(self, driver: DriverProcess, end: EndJob, at_us: int | None = None) -> None:
        """A driver says how the job has ended; `at_us`: when that was decided, if not now."""
        self.seen[f"job {end.outcome}"] += 1
        is_owner = driver.driver is not None and driver.driver.epoch == self.checkers.epoch
        if end.outcome == "finished":
            ensure(self.checkers.is_finished, "F5: finished, says only the driver")
            self.has_finished = True
        elif end.outcome == "stopped" and end.cause is None:
            if is_owner and driver.driver is not None:
                self.checkers.check_committed(driver.driver.completed)
        elif end.outcome == "failed":
            is_refused = end.cause is not None and end.cause.kind == "HistoryError"
            ensure(
                not is_refused or self.files.has_lost_entries,
                f"I10: a job is refused because of its own output: {cause_text(end.cause)}",
            )
            if is_refused:
                self.seen["ended loudly after a broken promise"] += 1
                self.has_finished = True
            if is_owner and self.files.damaged and end.cause is not None and "damaged" in end.cause.message:
                self.seen["ended loudly after a broken promise"] += 1
                self.has_finished = True
            is_of_store = end.cause is not None and end.cause.kind in ("StoreError", "CheckpointsFailed")
            ensure(
                not (self.options.outage_ms and is_owner and is_of_store) or bool(self.files.damaged),
                f"I15: a store that is down for less than an outage ends the job: {cause_text(end.cause)}",
            )
            decided_us = self.clock.now_us if at_us is None else at_us
            is_late = decided_us < self._calm_from_us + LATE_ANSWER_US or driver in self._late_risers
            is_expected = not self.is_calm or not is_owner or self.has_finished or is_late
            ensure(is_expected, f"I10: without faults, the job fails: {cause_text(end.cause)}")
        self._driver_gone()

    def _driver_gone(self) -> None:
        """A driver is of no use any more: somebody starts another one."""

        def start() -> None:
            if not self.has_finished and not any(one.is_running for one in self.drivers):
                self.new_driver()

        self.clock.after(1_000 + self.below(100_000), start)

    def draw_bytes(self, count: int) -> bytes:
        """Return random bytes."""
        return self.dice.randbytes(count)

    # As processes see it.

    def now(self) -> datetime:
        """Return what the wall clocks say; they may jump."""
        return BEGINNING + timedelta(seconds=self.wall_clock_s, microseconds=self.clock.now_us)

    def call(self, process: Process, work: Action, name: str) -> None:
        """Do `work`, some time, in a thread of `process`."""
        is_sink = StagingWriter.__name__ in name or name.startswith(OUTPUT_THREADS)
        self.outside.call("sink" if is_sink else "store", process, work)

    def exited(self, process: Process, error: BaseException | None) -> None:
        """The main coroutine of a process has come to its end, by itself."""
        is_expected = error is None or isinstance(error, process.may_raise)
        ensure(is_expected, f"{process} ends with {type(error).__name__}: {error}")

    def gone(self, process: Process) -> None:
        """A process is not there any more."""
        self.note(f"{process} ends", process.reason)
        if self.options.hosts_crash and process.was_killed and not self.is_over:
            self.files.host_crashed(process)
        if not (self.has_finished and process.has_exited):
            self._untidy_epoch = self.checkers.epoch
        if isinstance(process, WorkerProcess):
            process.spark.exited(process)
        elif isinstance(process, Executor):
            process.batches.lost(process)
        elif isinstance(process, DriverProcess):
            if isinstance(process, JobProcess):
                process.cluster.driver_gone()
            if process.end is None:
                self._driver_gone()

    def reported(self, process: Process, message: str, error: BaseException | None) -> None:
        """The loop of a process reports something that nobody has caught."""
        if not isinstance(error, violation.Violation):
            text = "".join(traceback.format_exception(error)) if error is not None else ""
            ensure(False, f"{process}: {message}: {type(error).__name__}: {error}\n{text}")

    def task_failed(self, message: TaskFailed) -> None:
        """A worker says that a task has failed: because of a fault, or because of us?"""
        cause = message.cause
        self.seen[f"task failed: {cause.kind}"] += 1
        is_expected = bool(cause.operator) or cause.kind in EXPECTED_FAILURES
        if self.options.engine != "continuous":
            is_expected = is_expected or cause.kind in BATCH_FAILURES
        ensure(
            is_expected, f"task {message.task} fails with {cause.kind}: {cause.message}\n{cause.traceback}"
        )

    def watch_tasks(self, worker: WorkerProcess) -> None:
        """A worker has built its tasks."""
        pool = worker.worker.pool if worker.worker is not None else None
        for task in pool.tasks if pool is not None else ():
            self.drops.watch(*task.machines)
        for runner in pool.runners if pool is not None else ():
            watch_calls(runner, self.seen)
        if pool is not None:
            self.pools[id(pool)] = pool

    def _appended(self, path: str, data: bytes) -> None:
        entry = self._history.appended(path, data)
        if entry is None:
            self.seen["log: put where something was deleted"] += 1
            return
        if isinstance(entry, SegmentOpened):
            self.seen["log: segment opened"] += 1
        self.checkers.appended(entry)

    def _permit(self, operation: str, path: str) -> None:
        if self.running is not None:
            self.running.request()
            if operation == "delete" and isinstance(self.running, WorkerProcess):
                self.seen["part given up and deleted"] += 1

    # Both phases.

    def run(self) -> None:
        """Live through both phases.

        Raises:
            Violation: Something happened that must never happen.
            CrosscutError: A machine was given something impossible.
        """
        self.clock.keeps_running_loop = True
        try:
            with lowered(self.options.thresholds):
                self._run()
            self.seen["small thresholds"] += bool(self.options.thresholds)
        finally:
            self.clock.keeps_running_loop = False
            run_in(None, self.clock)
            self.drops.collect()
            self.seen["epoch"] += self.checkers.epoch
            self.seen["watermark restored"] += self.checkers.watermarks_restored
            self.close()

    def _run(self) -> None:
        self._until(self.options.safety_ms * 1_000)
        self._heal()
        keep_open_until_all_moves(self)
        self._until(self.clock.now_us + LIVENESS_MS * 1_000)
        if not self.has_finished:
            violate("I10: faults have stopped, and the job does not finish")
        output = dict(self.resource.committed)
        zombies_us = self.clock.now_us + ZOMBIES_US
        while self.clock.now_us < zombies_us and self.clock.tick():
            self._look()
        if self.seen["ended loudly after a broken promise"]:
            return
        ensure(output == self.resource.committed, "I7: the output changed after the job finished")
        self.checkers.check_end(is_tidy=self._is_tidy)
        if (
            self._is_tidy
            and self._untidy_epoch < self.checkers.epoch
            and not any(self.seen[f"fault: {one}"] for one in UNTIDY)
        ):
            self.seen["found tidy"] += 1
            self.checkers.check_tidy(self.files.parts)

    @property
    def _is_tidy(self) -> bool:
        """Whether nothing may be left over: attempts that nobody waits for any more outlive their batch."""
        return self.options.engine == "continuous"

    def close(self) -> None:
        """The world is over: the operating system closes what processes leave open."""
        self.is_over = True
        for process in self.processes:
            if isinstance(process, WorkerProcess) and process.worker is not None:
                for reason, count in process.worker.lifecycle.dropped.items():
                    self.seen[f"drop: {reason}"] += count
            process.die("the world is over")
            process.loop.unwind()
        for pool in self.pools.values():
            for task in pool.tasks:
                if task.input_gate.spilled_bytes:
                    self.seen["spilled"] += 1
                task.close()

    def go_on(self) -> None:
        """Do what is due next, in time and not too often."""
        if not self.clock.tick():
            violate("I10: nothing will ever happen again, and the job has not finished")
        if self.tap.changed or violation.noted:
            self._look()
        self.event_count += 1
        if self.event_count >= EVENTS_MAX:
            violate("I10: so much has happened, and the job has not finished")

    def _until(self, time_us: int) -> None:
        """Go on until then, or until the job has finished."""
        clock, go_on = self.clock, self.go_on
        while clock.now_us < time_us and not self.has_finished:
            go_on()

    def _look(self) -> None:
        """Something has happened: was it right?"""
        if self.tap.changed:
            self.tap.check()
        if violation.noted:
            raise violation.noted[0]

    def _heal(self) -> None:
        self.note("faults stop")
        self.is_calm = True
        self._calm_from_us = self.clock.now_us
        self._waiting.clear()
        self.files.heal()
        self.outside.heal()
        for line in self.network.lines.values():
            line.unclog()
        self.resource.commit_faults.clear()
        self.resource.prepare_faults.clear()
        self.user_faults = self.slow_sink_until_us = 0
        for source in self.sources:
            source.fail_next = 0
        # What a fault has answered them they hear only now.
        self._late_risers = [one for one in self.drivers if one.is_paused]
        for process in self.processes:
            process.dies_after = None
            if process.is_paused:
                process.resume()

    def _due(self, fault: PlannedFault) -> None:
        if fault.moment is None:
            self._suffer(fault)
        elif not self.is_calm:
            self._waiting.setdefault(fault.moment, []).append((fault, fault.nth))

    def passed(self, process: Process, moment: Moment) -> None:
        """A process passes a point where faults may be waiting for it.

        Raises:
            Killed: That was its end.
        """
        waiting = self._waiting.get(moment)
        if not waiting:
            return
        self._waiting[moment] = [(fault, count - 1) for fault, count in waiting if count > 1]
        for fault, count in waiting:
            if count == 1:
                self.seen[f"moment: {moment}"] += 1
                self._suffer(fault, process)

    def _suffer(self, fault: PlannedFault, passing: Process | None = None) -> None:
        if self.is_calm:
            return
        try:
            has_happened = suffer(self, fault, passing)
        except Killed:
            self._note_fault(fault)
            raise
        if has_happened:
            self._note_fault(fault)

    def _note_fault(self, fault: PlannedFault) -> None:
        self.note(f"fault: {fault.kind}")
        self.seen[f"fault: {fault.kind}"] += 1
