"""A whole job in one process under one seed: the real tasks, coordinator and checkpoint store, and a
virtual network, Spark, clock and sink around them. First faults happen as planned; then they stop, and
the job has to finish, with exactly the output it must have."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict, deque
from dataclasses import replace
from typing import Any

from crosscut.graph.specs import FilterSpec, FlatMapSpec, JobGraph, KeyBySpec, MapSpec
from crosscut.ids import Lineage, TaskId, VertexId
from crosscut.protocol.checkpoints import CheckpointRules
from crosscut.protocol.effects import EndJob
from crosscut.protocol.job import JobRules
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.recovery import JobIdentity, RestartPolicy
from crosscut.runtime.splits import split_as_json
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.store.entries import decode_entry
from crosscut.testing.simulator.blame import told_cause
from crosscut.testing.simulator.checkers import Checkers
from crosscut.testing.simulator.coverage import DropWatch
from crosscut.testing.simulator.driver import VirtualDriver
from crosscut.testing.simulator.faults import suffer
from crosscut.testing.simulator.files import WatchedFiles
from crosscut.testing.simulator.graphs import SimulatedJob, built
from crosscut.testing.simulator.network import Clock, Killed, Line, Process
from crosscut.testing.simulator.options import Moment, Options, PlannedFault
from crosscut.testing.simulator.outside import Outside
from crosscut.testing.simulator.sinks import Resource
from crosscut.testing.simulator.violation import ensure
from crosscut.testing.simulator.worker import VirtualWorker

LIVENESS_MS = 120_000
EVENTS_MAX = 400_000
STEPS_SHOWN = 60
ZOMBIES_US = 4_000_000
SLOW_SINK_FACTOR = 100


class World:
    """Everything there is.

    Args:
        options: All of it follows from them.
        job: What runs; default: the graph of the zoo that the options name.
    """

    def __init__(self, options: Options, job: SimulatedJob | None = None) -> None:
        self.options = options
        self.dice = random.Random(f"crosscut world {options.seed}")
        self.clock = Clock()
        self.seen: Counter[str] = Counter()
        self.drops = DropWatch(self.seen)
        self._steps: deque[tuple[int, str, object]] = deque(maxlen=STEPS_SHOWN)
        self._digest = hashlib.sha256()
        self.event_count = 0
        self.step_count = 0
        job = job or built(options)
        self._is_comparable = job.is_comparable
        self.graph = self._with_faults(job.graph)
        self._copy = job.copy
        self.sources = job.sources
        self.files = WatchedFiles(
            lambda index, data: self.checkers.appended(index, decode_entry(data, index))
        )
        self.store = CheckpointStore(self.files, options.inline_bytes)
        self.checkers = Checkers(
            job,
            self.files.content.get,
            self.files.damaged,
            lambda: self.resource,
            is_exactly_once=options.snapshots != "at-least-once",
        )
        self.resource = Resource(self.checkers.may_become_visible)
        for sink in job.sinks:
            sink.resource = self.resource
        self.outside = Outside(self)
        self.lines: defaultdict[tuple[str, str], Line] = defaultdict(Line)
        self.wall_clock_s = 0
        self.user_faults = 0
        self.slow_sink_until_us = 0
        self.is_calm = False
        self.has_finished = False
        self.workers: dict[int, VirtualWorker] = {}
        self.drivers: list[VirtualDriver] = []
        self._late_risers: list[VirtualDriver] = []
        # Faults that wait for a process to come along, with how often it still has to.
        self._waiting: dict[Moment, list[tuple[PlannedFault, int]]] = {}
        for fault in options.faults:
            self.clock.after(fault.at_ms * 1_000, lambda one=fault: self._due(one))  # type: ignore[misc]
        self.new_driver()

    @property
    def is_comparable(self) -> bool:
        """Whether the output at the end says something: it is the same in every order, and has not rotted."""
        return self._is_comparable and not self.files.damaged

    # Chance.

    def coin(self) -> bool:
        """Return one or the other."""
        return self.dice.random() < 0.5

    def below(self, limit: int) -> int:
        """Return a number from 0 on, less than `limit`."""
        return int(self.dice.random() * limit)

    def latency_us(self) -> int:
        """Return the latency of one message."""
        return 10 + self.below(self.options.latency_us)

    def step_us(self) -> int:
        """Return how long something takes inside a worker."""
        slow = SLOW_SINK_FACTOR if self.slow_sink_until_us > self.clock.now_us else 1
        return slow * (1 + self.below(self.options.step_us))

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

    def graph_of_process(self) -> JobGraph:
        """Return the graph for one more worker."""
        return self._with_faults(self._copy()) if self._copy is not None else self.graph

    def line(self, sender: Process, receiver: Process) -> Line:
        """Return the way from one process to another."""
        return self.lines[sender.name, receiver.name]

    def launch(self, driver: VirtualDriver, index: int) -> VirtualWorker:
        """Start a worker process."""
        attempt = len(self.workers) + 1
        worker = self.workers[attempt] = VirtualWorker(self, driver, index, attempt)
        self.note(f"{worker.name} starts for {driver.name}")
        return worker

    def new_driver(self) -> None:
        """Start a driver, whoever else there is."""
        number = len(self.drivers) + 1
        self.note(f"driver {number} starts")
        if any(one.is_running for one in self.drivers):
            self.seen["two drivers at once"] += 1
        self.drivers.append(VirtualDriver(self, number))

    def driver_ended(self, driver: VirtualDriver, end: EndJob) -> None:
        """A driver says how the job has ended."""
        self.seen[f"job {end.outcome}"] += 1
        if end.outcome == "finished":
            ensure(self.checkers.is_finished, "F5: finished, says only the driver")
            self.has_finished = True
        elif end.outcome == "stopped" and end.cause is None:
            if driver.coordinator.epoch == self.checkers.epoch:
                self.checkers.check_committed(driver.coordinator.completed)
        elif end.outcome == "failed":
            is_owner = driver.coordinator.epoch == self.checkers.epoch
            if is_owner and self.files.damaged and end.cause is not None and "damaged" in end.cause.message:
                self.seen["ended loudly after a broken promise"] += 1
                self.has_finished = True
            is_expected = not self.is_calm or not is_owner or self.has_finished or driver in self._late_risers
            ensure(is_expected, f"I10: without faults, the job fails: {told_cause(end.cause)}")
        self.driver_gone(driver)

    def driver_gone(self, driver: VirtualDriver) -> None:
        """A driver is of no use any more: somebody starts another one."""

        def start() -> None:
            if not self.has_finished and not any(one.is_running for one in self.drivers):
                self.new_driver()

        self.clock.after(1_000 + self.below(100_000), start)

    # Both phases.

    def run(self) -> None:
        """Live through both phases.

        Raises:
            Violation: Something happened that must never happen.
            CrosscutError: A machine was given something impossible.
        """
        try:
            self._run()
        finally:
            self.drops.collect()
            self.seen["epoch"] += self.checkers.epoch
            for worker in self.workers.values():
                worker.close_files()

    def _run(self) -> None:
        while self.clock.now_us < self.options.safety_ms * 1_000 and not self.has_finished:
            self._tick()
        self._heal()
        deadline_us = self.clock.now_us + LIVENESS_MS * 1_000
        while not self.has_finished:
            ensure(self.clock.now_us < deadline_us, "I10: faults have stopped, and the job does not finish")
            self._tick()
        output = dict(self.resource.committed)
        zombies_us = self.clock.now_us + ZOMBIES_US
        while self.clock.now_us < zombies_us and self.clock.tick():
            pass
        if self.seen["ended loudly after a broken promise"]:
            return
        ensure(output == self.resource.committed, "I7: the output changed after the job finished")
        self.checkers.check_end()

    def _tick(self) -> None:
        ensure(self.clock.tick(), "I10: nothing will ever happen again, and the job has not finished")
        self.event_count += 1
        ensure(self.event_count < EVENTS_MAX, "I10: so much has happened, and the job has not finished")

    def _heal(self) -> None:
        self.note("faults stop")
        self.is_calm = True
        self._waiting.clear()
        self.files.heal()
        self.outside.heal()
        for line in self.lines.values():
            line.unclog()
        self.resource.commit_faults.clear()
        self.resource.prepare_faults.clear()
        self.user_faults = self.slow_sink_until_us = 0
        for source in self.sources:
            source.fail_next = 0
        # What a fault has answered them they hear only now.
        self._late_risers = [one for one in self.drivers if one.is_paused]
        for process in (*self.drivers, *self.workers.values()):
            if process.is_paused:
                process.resume()
        for driver in self.drivers:
            driver.dies_after = None

    def _due(self, fault: PlannedFault) -> None:
        if fault.moment is None:
            self._suffer(fault)
        elif not self.is_calm:
            self._waiting.setdefault(fault.moment, []).append((fault, fault.nth))

    def passed(self, process: Process, moment: Moment) -> None:
        """A process passes a place where faults may be waiting for it.

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

    # What the job is.

    def rules(self, driver: int) -> JobRules:
        """Return the rules of the job, for one driver."""
        options, graph = self.options, self.graph

        def tasks(kind: str) -> frozenset[TaskId]:
            return frozenset(
                TaskId(VertexId(vertex.vertex_id), index)
                for vertex in graph.vertices
                if kind == "all" or getattr(vertex, kind) is not None
                for index in range(graph.parallelism)
            )

        return JobRules(
            identity=JobIdentity(
                f"driver {driver}",
                Lineage(f"lineage {driver}"),
                graph.fingerprint,
                graph.parallelism,
                graph.max_parallelism,
            ),
            tasks=tasks("all"),
            sources=tasks("source"),
            sinks=tasks("sink"),
            checkpoints=CheckpointRules(
                periodic=options.is_periodic,
                interval_ms=options.interval_ms,
                timeout_ms=options.checkpoint_timeout_ms,
                failures_max=10_000,
                pause_ms=options.pause_ms,
                in_flight_max=options.in_flight_max,
            ),
            restart=RestartPolicy(10_000, 60_000, 0 if options.seed % 2 else 20, 20, 200, 3),
            retain=options.retain,
            heartbeat_timeout_ms=options.heartbeat_timeout_ms,
            start_timeout_ms=5_000,
            has_loops=any(edge.back_edge for edge in graph.edges),
        )

    def assignments(self) -> tuple[SplitAssignment, ...]:
        """Return the splits of every source task."""
        found = []
        for vertex in self.graph.vertices:
            if vertex.source is not None:
                splits = vertex.source.source.splits(self.graph.parallelism)
                for index in range(self.graph.parallelism):
                    mine = [split_as_json(one) for one in splits[index :: self.graph.parallelism]]
                    found.append(SplitAssignment(TaskId(VertexId(vertex.vertex_id), index), mine))
        return tuple(found)

    def _with_faults(self, graph: JobGraph) -> JobGraph:
        """Return `graph` with functions that raise when the plan says so."""

        def node_with_faults(node: Any) -> Any:
            if not isinstance(node.spec, MapSpec | FilterSpec | FlatMapSpec | KeyBySpec):
                return node
            function = node.spec.function

            def may_raise(record: Any) -> Any:
                if self.user_faults:
                    self.user_faults -= 1
                    raise ZeroDivisionError("planted by the simulator")
                return function(record)

            return replace(node, spec=replace(node.spec, function=may_raise))

        vertices = (
            replace(vertex, chain=tuple(map(node_with_faults, vertex.chain))) for vertex in graph.vertices
        )
        return replace(graph, vertices=tuple(vertices))
