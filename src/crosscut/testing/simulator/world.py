"""A whole job in one process under one seed: the real tasks, coordinator and checkpoint store, and a
virtual network, Spark, clock and sink around them. First faults happen as planned; then they stop, and
the job has to finish, with exactly the output it must have."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crosscut.errors import CrosscutError
from crosscut.graph.specs import FilterSpec, FlatMapSpec, JobGraph, KeyBySpec, MapSpec
from crosscut.ids import Lineage, TaskId, VertexId
from crosscut.protocol.checkpoints import CheckpointRules
from crosscut.protocol.effects import EndJob
from crosscut.protocol.job import JobRules
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.recovery import JobIdentity, RestartPolicy
from crosscut.runtime.splits import split_as_json
from crosscut.runtime.task import Task
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.store.entries import decode_entry
from crosscut.store.files import Put
from crosscut.testing.simulator.checkers import Checkers
from crosscut.testing.simulator.driver import VirtualDriver
from crosscut.testing.simulator.faults import suffer
from crosscut.testing.simulator.graphs import SimulatedJob, built
from crosscut.testing.simulator.network import Clock, Process
from crosscut.testing.simulator.options import Options, PlannedFault
from crosscut.testing.simulator.sinks import Resource
from crosscut.testing.simulator.violation import Violation, ensure
from crosscut.testing.simulator.worker import VirtualWorker
from crosscut.testing.stores import MemoryFiles

LIVENESS_MS = 120_000
EVENTS_MAX = 400_000
STEPS_SHOWN = 60
ZOMBIES_US = 4_000_000


class WatchedFiles(MemoryFiles):
    """Files in memory; tells the checkers of every entry of the job log that comes into being."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._entry_count = 0

    def put_if_absent(self, path: str, data: bytes) -> Put:
        try:
            return super().put_if_absent(path, data)
        finally:
            self._note_entries()

    def arrive(self) -> None:
        super().arrive()
        self._note_entries()

    def write_new(self, path: str, chunks: Any) -> None:
        data = b"".join(chunks)
        super().write_new(path, [data])
        if self.content[path] != data:
            self._world.checkers.damaged.add(path)

    def read(self, path: str) -> bytes:
        data = super().read(path)
        if path.startswith("parts/") and self._world.flip_next_part:
            self._world.flip_next_part = False
            return bytes((data[0] ^ 1,)) + data[1:] if data else data
        return data

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self._faults.clear()
        self.arrive()

    def _note_entries(self) -> None:
        while (data := self.content.get(f"log/{self._entry_count + 1:020}.json")) is not None:
            self._entry_count += 1
            self._world.checkers.appended(self._entry_count, decode_entry(data, self._entry_count))


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
        self.steps: deque[str] = deque(maxlen=STEPS_SHOWN)
        self._digest = hashlib.sha256()
        self.event_count = 0
        self.step_count = 0
        job = job or built(options)
        self.graph = self._with_faults(job.graph)
        self.sources = job.sources
        self.files = WatchedFiles(self)
        self.store = CheckpointStore(self.files, options.inline_bytes)
        self.checkers = Checkers(
            job,
            self.files.content.get,
            lambda: self.resource,
            is_exactly_once=options.snapshots != "at-least-once",
        )
        self.resource = Resource(self.checkers.may_become_visible)
        for sink in job.sinks:
            sink.resource = self.resource
        self.flip_next_part = False
        self.user_faults = 0
        self.slow_store_us = 0
        self.slow_sink_until_us = 0
        self.is_calm = False
        self.has_finished = False
        self.workers: dict[int, VirtualWorker] = {}
        self.drivers: list[VirtualDriver] = []
        for fault in options.faults:
            self.clock.after(fault.at_ms * 1_000, lambda one=fault: self._suffer(one))  # type: ignore[misc]
        self.new_driver()

    # Chance.

    def coin(self) -> bool:
        """Return one or the other."""
        return self.dice.random() < 0.5

    def latency_us(self) -> int:
        """Return the latency of one message."""
        return self.dice.randint(10, self.options.latency_us)

    def step_us(self) -> int:
        """Return how long something takes inside a worker."""
        slow = 50 if self.slow_sink_until_us > self.clock.now_us else 1
        return slow * self.dice.randint(1, self.options.step_us)

    # The trace.

    def note(self, text: str, detail: object = "") -> None:
        """Add a step to the trace. `detail` is shown to people; it may differ between two equal runs."""
        step = f"{self.clock.now_us} {text}"
        self._digest.update(step.encode())
        self.step_count += 1
        self.steps.append(f"{self.clock.now_us / 1e3:10.3f} ms  {text} {detail!r:.300}" if detail else step)

    @property
    def trace_hash(self) -> str:
        """Return the digest of all steps so far."""
        return self._digest.hexdigest()

    def note_coordinator(self, driver: VirtualDriver) -> None:
        """Remember the phase that a coordinator is in."""
        self.seen[f"phase: {driver.coordinator.phase.name}"] += 1
        checkpoints = driver.coordinator._checkpoints
        if checkpoints is not None:
            self._note_dropped(checkpoints.dropped)
        if driver.coordinator._log is not None:
            self._note_dropped(driver.coordinator._log.dropped)
        self._note_dropped(driver.coordinator.dropped)

    def note_drops(self, task: Task) -> None:
        """Remember what the machines of a task have dropped."""
        self._note_dropped(task._protocol.dropped)
        if task._committer is not None:
            self._note_dropped(task._committer.dropped)

    def _note_dropped(self, dropped: Counter[str]) -> None:
        for reason in dropped:
            self.seen[f"drop: {reason}"] += 1

    # Processes.

    def call_outside(
        self, process: Process, work: Callable[[], Any], answer: Callable[[Any, Exception | None], None]
    ) -> None:
        """Ask something outside: the store, a sink. The request may outlive its sender."""

        def due() -> None:
            if not process.is_alive:
                if self.coin():
                    self.seen["request that outlived its sender"] += 1
                    _attempt(work)
                return
            if process.is_paused and self.coin():
                process.do(due)
                return
            result, error = _attempt(work)
            process.do(lambda: answer(result, error))

        self.clock.after(self.dice.randint(10, self.options.store_us) + self.slow_store_us, due)

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
            if is_owner and self.is_damaged and end.cause is not None and "damaged" in end.cause.message:
                self.seen["ended loudly after a broken promise"] += 1
                self.has_finished = True
            is_expected = not self.is_calm or not is_owner or self.has_finished
            ensure(is_expected, f"I10: without faults, the job fails: {end.cause}")
        self.driver_gone(driver)

    @property
    def is_damaged(self) -> bool:
        """Whether the disk has broken its promise."""
        return bool(self.checkers.damaged)

    def driver_gone(self, driver: VirtualDriver) -> None:
        """A driver is of no use any more: somebody starts another one."""

        def start() -> None:
            if not self.has_finished and not any(one.is_running for one in self.drivers):
                self.new_driver()

        self.clock.after(self.dice.randint(1_000, 300_000), start)

    # Both phases.

    def run(self) -> None:
        """Live through both phases.

        Raises:
            Violation: Something happened that must never happen.
            CrosscutError: A machine was given something impossible.
        """
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
        self.files.heal()
        self.resource.commit_faults.clear()
        self.resource.prepare_faults.clear()
        self.user_faults = self.slow_store_us = self.slow_sink_until_us = 0
        self.flip_next_part = False
        for source in self.sources:
            source.fail_next = 0
        for process in (*self.drivers, *self.workers.values()):
            if process.is_paused:
                process.resume()
        for driver in self.drivers:
            driver.dies_after = None

    def _suffer(self, fault: PlannedFault) -> None:
        if not self.is_calm and suffer(self, fault):
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
                f"host {driver}",
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
            restart=RestartPolicy(10_000, 60_000, 0 if options.seed % 2 else 20, 20, 500),
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


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Violation:
        raise
    except CrosscutError as error:
        return None, error
