"""One stretch of a run: an engine, from the claim of an epoch to its end. `engine="auto"` has several."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark import SparkContext

from crosscut.contracts.invariants import Invariant
from crosscut.contracts.settings import Settings
from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.invariants import InvariantChecker
from crosscut.events import JobEvent as WatchedEvent
from crosscut.foundation.ids import Epoch
from crosscut.graph.shipping import Exceptions, pack_graph
from crosscut.graph.specs import JobGraph
from crosscut.graph.stages import check_batches, stages_of
from crosscut.host.clock import SystemClock
from crosscut.host.failpoints import Failpoints, Plan, armed
from crosscut.microbatch.driver_workers import BatchWorkers
from crosscut.microbatch.output import check_sinks
from crosscut.monitoring.status import Observations
from crosscut.monitoring.worker_logs import WorkerLines
from crosscut.net.connections import Credentials
from crosscut.net.encryption import make_certificate
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import JobEvent
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.log.recovery import Predecessor
from crosscut.protocol.microbatch.engine_switch import Engine, EngineEvent, LagSeen, behind
from crosscut.spark.cluster.batch_job import BatchJobs
from crosscut.spark.cluster.checks import is_loopback
from crosscut.spark.cluster.job_spec import (
    batch_terms,
    committed_output,
    job_terms,
    settings_of,
    task_terms,
)
from crosscut.spark.cluster.placing import placed
from crosscut.spark.cluster.session import LOOPBACK, is_local
from crosscut.spark.cluster.source_notices import ToldSources
from crosscut.spark.cluster.workers import SparkWorkers
from crosscut.spark.data.staging import Staging, staging_timeout_ms
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.task.discovery import found_in
from crosscut.wire.handshake import JOB_BYTES, SECRET_BYTES
from crosscut.worker.lines import LogTerms
from crosscut.worker.worker import WorkerPlan

WORKERS_END_TIMEOUT_S = 5.0
LAST_CUT_TIMEOUT_S = 10.0
"""How long the end of a job waits for the invariants of its last cut."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all stretches of a run stand on.

    Attributes:
        group: Begins the names of the groups of Spark jobs.
        store_url: As every process finds it.
        host: That the driver binds to.
        slots: That Spark has; None: not known.
    """

    context: SparkContext
    name: str
    group: str
    store: CheckpointStore
    store_url: str
    host: str
    is_encrypted: bool
    slots: int | None
    invariants: Sequence[Invariant]


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What runs under one engine: the graph, itself and packed, and the settings with that engine."""

    graph: JobGraph
    packed: bytes
    settings: Settings


def plans_of(
    graph: JobGraph,
    compiled: Callable[[int], JobGraph],
    settings: Settings,
    at_once: int | None,
    checkpoint_url: str,
    exceptions: Exceptions,
) -> dict[Engine, EnginePlan]:
    """Return the plan of each engine that may run.

    Args:
        graph: At the parallelism that was asked for.
        compiled: Makes the same one at another.
        at_once: How many tasks are worth running at once; None: not known.
        exceptions: What of the user's code can't travel in the usual way.

    Raises:
        FlowError: The flow, or one of its sinks, can't run in batches.
    """
    engines: tuple[Engine, ...] = (
        ("continuous", "micro-batch") if settings.engine == "auto" else (settings.engine,)
    )
    plans: dict[Engine, EnginePlan] = {}
    for engine in engines:
        own = settings_of(settings, engine, at_once)
        is_same = own.parallelism == settings.parallelism
        one = placed(graph if is_same else compiled(own.parallelism), checkpoint_url)
        if engine == "micro-batch":
            check_batches(one)
            check_sinks(one)
        plans[engine] = EnginePlan(one, pack_graph(one, exceptions), own)
    return plans


class Stretch:
    """See the module. Everything but `post` is called on the loop of the run.

    Args:
        number: Of the stretch in its run.
        settings: With the engine that it is of.
        tell: Takes the events for listeners.
        seen: What was seen of the job in the stretches before.
        follows: The stretch before; None: there was none.

    Attributes:
        driver: Acts for the coordinator.
    """

    def __init__(
        self,
        ground: Ground,
        number: int,
        graph: JobGraph,
        packed: bytes,
        settings: Settings,
        tell: Callable[[WatchedEvent], None],
        seen: Observations,
        follows: Predecessor | None,
    ) -> None:
        self._ground = ground
        # A group that is cancelled late must not take the next stretch with it.
        self._group = f"{ground.group}-{number}"
        self._graph = graph
        self._packed = packed
        self._settings = settings
        # What is cancelled there never runs again, so each stretch has its own.
        self._staging = Staging(
            ground.context,
            name=ground.name,
            group=f"{self._group}-staging",
            store_url=ground.store_url,
        )
        self._plan = armed()
        self._credentials = Credentials(
            secrets.token_bytes(SECRET_BYTES),
            secrets.token_bytes(JOB_BYTES),
            make_certificate() if ground.is_encrypted else None,
            int(settings.milliseconds("heartbeat_timeout")),
            # On loopback nobody but the administrator can come between.
            seals_frames=not ground.is_encrypted and not is_loopback(ground.host),
        )
        self._supply = self._batch_workers() if settings.engine == "micro-batch" else self._workers()
        self._checker = InvariantChecker(ground.invariants, graph, ground.store, self.post)
        self._told = ToldSources(ground.name, graph)
        terms = job_terms(
            graph,
            settings,
            ground.slots,
            awaits_verdict=any(one.on_broken == "stop" for one in ground.invariants),
            discover_timeout_ms=staging_timeout_ms(graph),
            follows=follows,
        )
        self._identity = terms.identity.driver
        self._sources = terms.sources
        self.driver = CoordinatorDriver(
            name=ground.name,
            terms=terms,
            store=ground.store,
            credentials=self._credentials,
            supply=self._supply,
            discover=lambda epoch: self._staging.assignments(graph, epoch),
            look=lambda: committed_output(graph),
            find=lambda source, known: found_in(graph, source, known),
            failpoints=Failpoints(self._plan, None),
            invariants=self._checker,
            tell=tell,
            lines=WorkerLines(ground.name, are_seen=is_local(ground.context)),
            progress_of=None if settings.engine == "micro-batch" else graph,
            seen=seen,
            completed=self._told.completed,
        )

    async def start(self) -> None:
        """Claim an epoch, and return when that has been done, or could not."""
        if isinstance(self._supply, BatchWorkers):
            self._supply.provide(self.driver)
        else:
            port = await self.driver.listen(self._ground.host)
            self._supply.provide(self._worker_plan(port, self._plan))
        self.driver.start()
        await self.driver.claimed
        if not self.driver.ended.done():
            self._told.begin(self._ground.context, self._settings.trigger)

    async def ended(self, timeout_s: float | None = None) -> EndJob | None:
        """Wait for the end; return how it has ended, None if it has not in time."""
        await asyncio.wait([self.driver.ended], timeout=timeout_s)
        return self.driver.ended.result() if self.driver.ended.done() else None

    @property
    def predecessor(self) -> Predecessor:
        """This stretch, which has ended, for the one that follows."""
        return Predecessor(self._identity, Epoch(self.driver.status().epoch))

    async def close(self) -> None:
        """End what runs in Spark, and all that asks for it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._staging.cancel)
        await loop.run_in_executor(None, self._supply.end, WORKERS_END_TIMEOUT_S)
        await loop.run_in_executor(None, self._checker.close, LAST_CUT_TIMEOUT_S)
        await loop.run_in_executor(None, self._told.close, WORKERS_END_TIMEOUT_S)

    def post(self, event: JobEvent) -> None:
        """Tell this stretch something, from any thread; a later one hears nothing of it."""
        try:
            self.driver.post(event)
        except RuntimeError:
            # The loop has ended, and so has the job.
            return

    def looked(self) -> EngineEvent | None:
        """Return how far behind the job is, as far as there is news of it."""
        if isinstance(self._supply, BatchWorkers):
            return self._supply.newest.visible
        status = self.driver.status()
        if status.phase != Phase.RUNNING.name.lower():
            return None
        now_ms = SystemClock().monotonic_ns() // 1_000_000
        return LagSeen(now_ms, behind(one.lag for one in status.tasks if one.task in self._sources))

    def _workers(self) -> SparkWorkers:
        ground, parallelism = self._ground, self._settings.parallelism
        return SparkWorkers(
            ground.context,
            parallelism=parallelism,
            name=ground.name,
            group=self._group,
            description=f"Crosscut: {ground.name}, {parallelism} workers",
            post=self.post,
        )

    def _batch_workers(self) -> BatchWorkers:
        ground = self._ground
        jobs = BatchJobs(
            ground.context,
            group=self._group,
            name=ground.name,
            parallelism=self._graph.parallelism,
            packed_graph=self._packed,
            stages=[", ".join(one) for one in stages_of(self._graph)],
        )
        return BatchWorkers(
            jobs,
            name=ground.name,
            graph=self._graph,
            store=ground.store,
            store_url=ground.store_url,
            terms=batch_terms(self._settings),
            records_max=self._settings.batch_records_max,
            trigger=self._settings.trigger,
            failpoints=self._plan,
        )

    def _worker_plan(self, port: int, failpoints: Plan | None) -> WorkerPlan:
        settings, ground = self._settings, self._ground
        return WorkerPlan(
            credentials=self._credentials,
            coordinator_host=ground.host,
            coordinator_port=port,
            bind_host=LOOPBACK if is_local(ground.context) else None,
            packed_graph=self._packed,
            store_url=ground.store_url,
            terms=task_terms(settings),
            linger_ms=settings.milliseconds("linger"),
            marks_every_ms=settings.milliseconds("latency_interval"),
            heartbeat_timeout_ms=int(settings.milliseconds("heartbeat_timeout")),
            failpoints=failpoints,
            log=LogTerms(ground.name, settings.log_level, settings.log_format),
        )
