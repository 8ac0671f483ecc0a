"""A process of the system that is a worker: what a plan becomes on a real machine."""

from __future__ import annotations

import asyncio
from types import ModuleType

from crosscut.foundation.ids import AttemptId, WorkerIndex
from crosscut.graph.shipping import unpack_graph
from crosscut.host.alarms import system_alarm
from crosscut.host.calls import start_thread
from crosscut.host.clock import SystemClock
from crosscut.host.copies import ForkedCopies
from crosscut.host.failpoints import Failpoints
from crosscut.host.interpreter_lock import let_threads_run
from crosscut.host.process import SystemProcess, hosting_a_worker, show_crashes
from crosscut.net.control import report_failed_start
from crosscut.store.checkpoint_store import open_store
from crosscut.store.shared_directories import check_shared
from crosscut.worker.backends import backend
from crosscut.worker.batch_sizer import AdaptiveBatchSizer, hold_ns_max
from crosscut.worker.lines import Lines, logging_of
from crosscut.worker.spill_files import DiskSpaces
from crosscut.worker.worker import Surroundings, Worker, WorkerPlan


def run_worker(plan: WorkerPlan, index: WorkerIndex, attempt: AttemptId) -> None:
    """Run a worker in this process until the coordinator ends it.

    Raises:
        WorkersError: Told to fail, or the coordinator is lost.
    """
    show_crashes()
    uvloop = _uvloop()
    with (
        hosting_a_worker(),
        logging_of(index, plan.log, SystemClock.monotonic_ns) as lines,
        asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner,
    ):
        runner.run(_run(plan, index, attempt, lines))


async def _run(plan: WorkerPlan, index: WorkerIndex, attempt: AttemptId, lines: Lines) -> None:
    try:
        if plan.shared is not None:
            check_shared(plan.shared)
        graph = unpack_graph(plan.packed_graph)
        terms = plan.terms
        ports = Surroundings(
            graph,
            open_store(plan.store_url),
            Failpoints(plan.failpoints, index),
            SystemClock(),
            SystemProcess(),
            start_thread,
            lambda: AdaptiveBatchSizer(plan.terms.batch_rows, hold_ns_max(plan.heartbeat_timeout_ms)),
            lambda: DiskSpaces(terms.spill_dir, terms.spill_bytes),
            backend=backend(
                terms.state_backend, terms.state_dir, graph.max_parallelism, terms.state_cache_bytes
            ),
            lines=lines,
            new_alarm=system_alarm,
            let_threads_run=let_threads_run,
            copies=ForkedCopies(plan.heartbeat_timeout_ms / 1_000),
        )
    except BaseException as error:
        # The user's code can't be loaded here, or the store not be opened.
        address = (plan.coordinator_host, plan.coordinator_port)
        timeout_s = plan.heartbeat_timeout_ms / 1_000
        await report_failed_start(plan.credentials, index, attempt, error, address, timeout_s)
        raise
    await Worker(plan, index, attempt, ports).run()


def _uvloop() -> ModuleType | None:
    try:
        import uvloop
    except ImportError:
        return None
    module: ModuleType = uvloop
    return module
