"""What the engines run on the cluster: the workers of the continuous engine, and batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from crosscut.driver.cluster import Cluster, ClusterRun
from crosscut.errors import InternalError
from crosscut.foundation.ids import AttemptId, WorkerIndex
from crosscut.host.calls import call_on
from crosscut.microbatch.ports import RunOutcome
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.events import WorkersEnded
from crosscut.worker.worker import WorkerPlan


class ClusterWorkers:
    """See `WorkerSupply`. Called on the loop of the job.

    Args:
        post: Takes WorkersEnded; called on any thread.
    """

    def __init__(self, cluster: Cluster, run: ClusterRun, post: Callable[[WorkersEnded], None]) -> None:
        self._cluster = cluster
        self._run = run
        self._post = post
        self._plan: WorkerPlan | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._ended.set()

    def provide(self, plan: WorkerPlan) -> None:
        """Set what the workers are to run; before the first `submit`."""
        self._plan = plan

    def submit(self) -> None:
        """Have the cluster start the workers."""
        if self._plan is None:
            raise InternalError("workers submitted before their plan was made")
        # Each submission has its own: the end of an older one says nothing of this one.
        ended = self._ended = asyncio.Event()

        def note(event: WorkersEnded) -> None:
            self._post(event)
            call_on(self._loop, ended.set)

        self._cluster.submit(self._run, self._plan, note)

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        """Have the cluster end this attempt."""
        self._cluster.replace(worker, attempt)

    async def ended(self, timeout_s: float) -> None:
        """Wait until all workers have ended by themselves, but no longer than this."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return


class ClusterBatches:
    """See `Jobs`."""

    def __init__(self, cluster: Cluster, run: ClusterRun) -> None:
        self._cluster = cluster
        self._run = run

    def run(
        self,
        name: str,
        orders: Sequence[Sequence[StageOrder]],
        description: str,
        returned: Callable[[bytes], None],
        ended: Callable[[RunOutcome], None],
    ) -> None:
        """See `Jobs.run`."""
        self._cluster.run_batch(self._run, name, orders, description, returned, ended)

    def cancel(self, name: str) -> None:
        """See `Jobs.cancel`."""
        self._cluster.cancel(self._run, name)
