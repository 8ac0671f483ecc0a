"""The port between the driver of a job and the cluster that runs it: Spark, or a simulated one.

No method blocks but `discover`. Results come through the callbacks that are passed in. A cluster may call
them on any thread, also before the method has returned, so a callback only posts to the loop of its job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from crosscut.foundation.ids import AttemptId, Epoch, WorkerIndex
from crosscut.graph.specs import JobGraph
from crosscut.microbatch.ports import RunOutcome
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.events import WorkersEnded
from crosscut.protocol.messages import SplitAssignment
from crosscut.worker.worker import WorkerPlan


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """One engine run, as the cluster sees it.

    Attributes:
        name: Of the flow, for the cluster's own pages.
        group: Identifies the run; no other run, of this job or another, has the same one.
        number: Of the run in its job, from 1 on. A run starts after the one before has ended.
        parallelism: Of the graph.
        packed_graph: For the workers of batches; those of the other engine have it in their plan.
        stages: What to call each stage of a batch.
    """

    name: str
    group: str
    number: int
    parallelism: int
    packed_graph: bytes
    stages: tuple[str, ...]


class Cluster(Protocol):
    """Where a job runs. Called on the loop of the driver, but for `discover`.

    After `end` of a run, or of a later one, nothing starts for it any more: what would start something raises
    WorkersError.
    """

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once; None: not known."""

    def discover(self, run: ClusterRun, graph: JobGraph, epoch: Epoch) -> tuple[SplitAssignment, ...]:
        """Ask every source of `graph` for its splits, and stage input that only the cluster can read.

        Called in a thread, as sources block. `end` makes it return.

        Raises:
            ConnectorError: A source can't tell, or its input can't be staged.
            WorkersError: The run has ended.
        """

    def submit(self, run: ClusterRun, plan: WorkerPlan, ended: Callable[[WorkersEnded], None]) -> None:
        """Start `run.parallelism` workers; the cluster replaces those that die.

        Args:
            ended: Called once, when no worker is left and none will be replaced.

        Raises:
            WorkersError: The run has ended.
        """

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        """End one attempt, best effort, so that another one starts."""

    def run_batch(
        self,
        run: ClusterRun,
        batch: str,
        orders: Sequence[Sequence[StageOrder]],
        description: str,
        returned: Callable[[bytes], None],
        ended: Callable[[RunOutcome], None],
    ) -> None:
        """Run one batch: the orders by stage and index.

        Args:
            batch: Identifies this attempt at the batch within the run.
            returned: Called with the result of each partition of the last stage, encoded; see
                `crosscut.microbatch.shuffle.encoded_result`.
            ended: Called once, after all results.

        Raises:
            WorkersError: The run has ended.
        """

    def cancel(self, run: ClusterRun, batch: str) -> None:
        """Give up an attempt at a batch, best effort."""

    def end(self, run: ClusterRun, ended: Callable[[], None]) -> None:
        """Give up all that still belongs to `run`, and release what is kept for it.

        Args:
            ended: Called once, when that is done, or has not been possible in a few seconds.
        """
