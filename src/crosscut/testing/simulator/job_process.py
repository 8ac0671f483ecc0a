"""A virtual process with the real runner of a job in it: one engine run after the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from crosscut.driver.engine_run import Network, RunContext
from crosscut.driver.job_runner import JobRunner
from crosscut.driver.job_spec import BATCH_TIMEOUT_MIN_MS, EngineChoice, EngineSpec, JobSpec
from crosscut.driver.run_ports import RunPorts
from crosscut.errors import CrosscutError
from crosscut.events import Ended, EngineSwitched, JobEvent
from crosscut.graph.specs import JobGraph
from crosscut.protocol.events import JobEvent as CoordinatorEvent
from crosscut.protocol.microbatch.engine_switch import Engine
from crosscut.task.flow_control import UNBOUNDED_BYTES
from crosscut.testing.simulator.cluster import VirtualCluster
from crosscut.testing.simulator.driver import DriverProcess, WatchedDriver
from crosscut.testing.simulator.job import certificate, plan_of, terms_of
from crosscut.testing.simulator.scheduler import Spark
from crosscut.testing.simulator.violation import ensure
from crosscut.testing.simulator.worker import Moments
from crosscut.worker.lines import LogSettings

if TYPE_CHECKING:
    from crosscut.testing.simulator.world import World

SINK_TIMEOUT_FACTOR = 10
"""A batch commits for all tasks of a sink, one call after the other."""


class JobProcess(DriverProcess):
    """The process of a driver whose job runs in batches, or under both engines.

    Attributes:
        runner: Runs the job; None: the process has only begun.
    """

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.cluster = VirtualCluster(world, self)
        self.runner: JobRunner | None = None
        self._ended_us: int | None = None

    @property
    def spark(self) -> Spark | None:
        return self.cluster.workers

    @property
    def graph(self) -> JobGraph:
        return self.runner.graph if self.runner is not None else super().graph

    async def _drive(self) -> None:
        world = self.world
        runner = self.runner = JobRunner(self._context(), self._on_event, self._owned)
        world.drops.watch(runner.machine)
        end = await runner.run()
        error = runner.error
        ensure(
            error is None or isinstance(error, CrosscutError),
            f"I10: {self} breaks with {type(error).__name__}: {error}",
        )
        world.note(f"{self}: the job has {end.outcome}", end)
        self.end = end
        world.job_ended(self, end, self._ended_us)
        await asyncio.sleep(0)

    def end_spark_job(self, reason: str) -> None:
        self.cluster.give_up(reason)

    def post(self, event: CoordinatorEvent) -> None:
        self.do(lambda: self.runner.post(event) if self.runner is not None else None)

    def _owned(self) -> None:
        self.world.seen["job owns its directory"] += 1

    def _on_event(self, event: JobEvent) -> None:
        if isinstance(event, Ended):
            self._ended_us = self.clock.now_us
        elif isinstance(event, EngineSwitched):
            self.world.seen[f"over to {event.engine}"] += 1
            self.world.note(f"{self} goes over to {event.engine}", event)

    def _new_driver(self, **given: Any) -> WatchedDriver:
        self.driver = WatchedDriver(self, **given)
        # Under the one engine that is `BatchWorkers`, which has the machine of the batches.
        self.world.drops.watch(given["supply"])
        return self.driver

    def _context(self) -> RunContext:
        world, options = self.world, self.world.options
        parallelism = world.parallelism_of(self.number)
        engines: dict[Engine, EngineSpec] = {}
        if options.engine == "auto":
            engines["continuous"] = self._spec("continuous", parallelism)
            engines["micro-batch"] = self._spec("micro-batch", options.batch_parallelism or parallelism)
        else:
            engines[options.engine] = self._spec(options.engine, parallelism)
        choice = EngineChoice(options.caught_up_at, options.behind_at, options.behind_for_ms, options.look_ms)
        spec = JobSpec(
            name="simulated",
            engines=engines,
            choice=choice if options.engine == "auto" else None,
            invariants=(),
            store_url="virtual",
            savepoint_timeout_s=1.0,
            shown_settings={},
        )
        network = Network(
            self.host,
            None,
            is_encrypted=options.is_encrypted,
            seals_frames=world.credentials.seals_frames,
            is_local=False,
        )
        ports = RunPorts(
            None,
            self,
            self.start_thread,
            world.draw_bytes,
            new_failpoints=partial(Moments, world, self),
            new_certificate=certificate,
            new_driver=self._new_driver,
            remove_cache=lambda url, state_dir: None,
        )
        return RunContext(self.cluster, spec, f"driver-{self.number}", world.store_of(self), network, ports)

    def _spec(self, engine: Engine, parallelism: int) -> EngineSpec:
        world, options = self.world, self.world.options
        graph = world.graph_of(self.number, parallelism)
        terms = terms_of(options, graph, self.number)
        plan = plan_of(options, world.credentials, (self.host, 0))
        tasks = plan.terms
        if engine == "micro-batch":
            checkpoints = replace(
                terms.checkpoints,
                are_batches=True,
                periodic=True,
                in_flight_max=1,
                timeout_ms=max(terms.checkpoints.timeout_ms, BATCH_TIMEOUT_MIN_MS),
            )
            terms = replace(terms, checkpoints=checkpoints, together=frozenset())
            # As `crosscut.driver.job_spec.batch_task_settings`, with batches of a few records.
            tasks = replace(
                tasks,
                channel_bytes=UNBOUNDED_BYTES,
                snapshots="aligned",
                is_periodic=True,
                spill_bytes=0,
                sink_timeout_ms=SINK_TIMEOUT_FACTOR * tasks.sink_timeout_ms,
            )
        return EngineSpec(
            engine=engine,
            graph=graph,
            packed=b"",
            job=terms,
            tasks=tasks,
            linger_ms=options.linger_ms,
            marker_interval_ms=options.marker_interval_ms,
            log=LogSettings("simulated"),
            records_max=options.batch_records,
            trigger="interval",
        )
