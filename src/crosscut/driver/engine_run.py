"""One engine run of a job: from the claim of an epoch to its end. `engine="auto"` has several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from crosscut.driver.cluster import Cluster, ClusterRun
from crosscut.driver.cluster_workers import ClusterBatches, ClusterWorkers
from crosscut.driver.invariants import InvariantChecker
from crosscut.driver.job_spec import EngineSpec, JobSpec, committed_output
from crosscut.driver.run_ports import RunPorts
from crosscut.driver.slow_sinks import warned_if_slow
from crosscut.driver.source_notices import SourceNotices
from crosscut.events import JobEvent as WatchedEvent
from crosscut.foundation.ids import Epoch
from crosscut.graph.stages import stages_of
from crosscut.host.calls import Calls, call_on
from crosscut.microbatch.driver_workers import BatchWorkers
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.status import Observations
from crosscut.monitoring.worker_logs import WorkerLines
from crosscut.net.connections import Credentials
from crosscut.protocol.events import JobEvent
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.log.recovery import Predecessor
from crosscut.protocol.microbatch.engine_switch import BatchVisible, LagSeen, behind
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.store.shared_directories import SharedDirectories
from crosscut.task.discovery import found_in
from crosscut.wire.handshake import JOB_BYTES, SECRET_BYTES
from crosscut.worker.worker import WorkerPlan

WORKERS_END_TIMEOUT_S = 5.0
CLUSTER_END_TIMEOUT_S = 30.0
"""Limit on waiting for the cluster when an engine run ends. The next epoch fences tasks that still run."""
LAST_CUT_TIMEOUT_S = 10.0
"""How long the end of a job waits for the invariants of its last cut."""


@dataclass(frozen=True, slots=True)
class Network:
    """How the processes of a job reach each other.

    Attributes:
        host: That the driver listens on.
        workers_host: That workers listen on; None: each on its own address.
        seals_frames: Whether each frame has a MAC: without TLS, where somebody could change frames.
        is_local: All processes are on this machine, and workers write to the standard error of this one.
    """

    host: str
    workers_host: str | None
    is_encrypted: bool
    seals_frames: bool
    is_local: bool


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all engine runs of a job share.

    Attributes:
        group: Begins the names of what the cluster runs.
        shared: Directories that workers look at before they start; None: all are on one host.
    """

    cluster: Cluster
    spec: JobSpec
    group: str
    store: CheckpointStore
    network: Network
    ports: RunPorts
    shared: SharedDirectories | None = None


class EngineRun:
    """See the module. Everything but `post` is called on the loop of the job.

    Args:
        number: Of the run in its job.
        notify: Takes the events for listeners.
        seen: What was seen of the job in the runs before.
        follows: The run before; None: there was none.

    Attributes:
        driver: Acts for the coordinator.
    """

    def __init__(
        self,
        context: RunContext,
        number: int,
        spec: EngineSpec,
        notify: Callable[[WatchedEvent], None],
        seen: Observations,
        follows: Predecessor | None,
    ) -> None:
        self._context = context
        self._spec = spec
        job, network, store, ports = context.spec, context.network, context.store, context.ports
        is_batches = spec.engine == "micro-batch"
        self._run = ClusterRun(
            name=job.name,
            # A group that is cancelled late must not take the next run with it.
            group=f"{context.group}-{number}",
            number=number,
            parallelism=spec.graph.parallelism,
            packed_graph=spec.packed,
            stages=tuple(", ".join(one) for one in stages_of(spec.graph)) if is_batches else (),
        )
        self._loop = asyncio.get_running_loop()
        self._calls = Calls("crosscut-closing", ports.start_thread)
        self._credentials = Credentials(
            ports.draw_bytes(SECRET_BYTES),
            ports.draw_bytes(JOB_BYTES),
            ports.new_certificate() if network.is_encrypted else None,
            spec.job.heartbeat_timeout_ms,
            seals_frames=network.seals_frames,
        )
        workers = ClusterWorkers(context.cluster, self._run, self.post)
        self._supply = self._batch_workers() if is_batches else workers
        self._checker = InvariantChecker(job.invariants, spec.graph, store, self.post, ports.start_thread)
        self._notices = SourceNotices(job.name, spec.graph, ports.start_thread)
        terms = spec.job_after(follows, ports.draw_bytes)
        self._identity = terms.identity.driver
        graph = spec.graph
        self.driver = ports.new_driver(
            name=job.name,
            terms=terms,
            store=store,
            credentials=self._credentials,
            supply=self._supply,
            discover=lambda epoch: context.cluster.discover(self._run, graph, epoch),
            look=lambda: committed_output(graph, partial(warned_if_slow, self._loop)),
            find=lambda source, known: found_in(graph, source, known),
            failpoints=ports.new_failpoints(),
            clock=ports.clock,
            start_thread=ports.start_thread,
            invariants=self._checker,
            notify=notify,
            lines=WorkerLines(job.name, are_seen=network.is_local),
            progress_of=None if is_batches else graph,
            seen=seen,
            completed=self._notices.completed,
        )

    async def start(self) -> None:
        """Claim an epoch, and return when that has been done, or could not."""
        if isinstance(self._supply, BatchWorkers):
            self._supply.provide(self.driver)
        else:
            port = await self.driver.listen(self._context.network.host)
            self._supply.provide(self._worker_plan(port))
        if not self.driver.ended.done():
            # It was not cancelled meanwhile.
            self.driver.start()
        await asyncio.shield(self.driver.claimed)
        if not self.driver.ended.done():
            self._notices.begin(self._spec.trigger)

    @property
    def predecessor(self) -> Predecessor:
        """This run, which has ended, for the one that follows."""
        return Predecessor(self._identity, Epoch(self.driver.status().epoch))

    async def close(self) -> list[Exception]:
        """End what the cluster runs, and all that asks for it, also of a run that has not started.

        Returns:
            What has failed. The steps that follow are taken all the same.
        """
        steps: tuple[Callable[[], Awaitable[object]], ...] = (
            self._workers_ended,
            self._cluster_ended,
            self._writers_closed,
            partial(self._in_thread, self._checker.close, LAST_CUT_TIMEOUT_S),
            partial(self._in_thread, self._notices.close, WORKERS_END_TIMEOUT_S),
            self.driver.close,
        )
        failed: list[Exception] = []
        for step in steps:
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - returned
                failed.append(error)
        return failed

    async def _in_thread(self, close: Callable[[float], object], timeout_s: float) -> None:
        await asyncio.wrap_future(self._calls.start(close, timeout_s))

    async def _workers_ended(self) -> None:
        if isinstance(self._supply, BatchWorkers):
            self._supply.give_up()
        else:
            await self._supply.ended(WORKERS_END_TIMEOUT_S)

    async def _cluster_ended(self) -> None:
        over = asyncio.Event()

        def ended() -> None:
            call_on(self._loop, over.set)

        self._context.cluster.end(self._run, ended)
        try:
            async with asyncio.timeout(CLUSTER_END_TIMEOUT_S):
                await over.wait()
        except TimeoutError:
            LOGGER.warning(
                "job %r: the cluster has not ended the job's tasks within %g s; tasks that still run "
                "there can't change anything",
                self._run.name,
                CLUSTER_END_TIMEOUT_S,
            )

    async def _writers_closed(self) -> None:
        if isinstance(self._supply, BatchWorkers):
            await self._supply.close(WORKERS_END_TIMEOUT_S)

    def post(self, event: JobEvent) -> None:
        """Post an event to this run, from any thread; a later run does not receive it."""
        self.driver.post(event)

    def lag(self) -> BatchVisible | LagSeen | None:
        """Return how far behind the job is, as far as there is news of it."""
        if isinstance(self._supply, BatchWorkers):
            return self._supply.newest.visible
        status = self.driver.status()
        if status.phase != Phase.RUNNING.name.lower():
            return None
        now_ms = self._context.ports.clock.monotonic_ns() // 1_000_000
        return LagSeen(now_ms, behind(one.lag for one in status.tasks if one.task in self._spec.job.sources))

    def _batch_workers(self) -> BatchWorkers:
        context, spec = self._context, self._spec
        ports = context.ports
        return BatchWorkers(
            ClusterBatches(context.cluster, self._run),
            name=context.spec.name,
            graph=spec.graph,
            store=context.store,
            store_url=context.spec.store_url,
            terms=spec.tasks,
            records_max=spec.records_max,
            trigger=spec.trigger,
            plan=ports.plan,
            failpoints=ports.new_failpoints(),
            clock=ports.clock,
            start_thread=ports.start_thread,
            remove_cache=ports.remove_cache,
        )

    def _worker_plan(self, port: int) -> WorkerPlan:
        context, spec = self._context, self._spec
        return WorkerPlan(
            credentials=self._credentials,
            coordinator_host=context.network.host,
            coordinator_port=port,
            bind_host=context.network.workers_host,
            packed_graph=spec.packed,
            store_url=context.spec.store_url,
            terms=spec.tasks,
            linger_ms=spec.linger_ms,
            marker_interval_ms=spec.marker_interval_ms,
            heartbeat_timeout_ms=spec.job.heartbeat_timeout_ms,
            failpoints=context.ports.plan,
            log=spec.log,
            progress_key=context.store.progress_key(context.spec.name),
            shared=context.shared,
        )
