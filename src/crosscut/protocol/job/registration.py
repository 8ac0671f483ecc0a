"""Who is missing before records can flow: workers that must register, then workers that must be ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from crosscut.foundation.ids import Epoch, Lineage, WorkerIndex
from crosscut.protocol.effects import CloseLink, JobEffect, SubmitWorkers
from crosscut.protocol.events import LinkId, WorkersEnded
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.job.workers import WorkerRegistry
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.ownership import Ownership
from crosscut.protocol.messages import FailureCause, RegisterWorker, WorkerFailed
from crosscut.protocol.splits.rescaling import StateAssignment, state_assignment


class WorkerRegistration:
    """Workers from the time they are asked for until all of an epoch are ready.

    Args:
        registry: Who has which place.
        dropped: Counts stale and repeated input.
    """

    def __init__(self, terms: CoordinatorSpec, registry: WorkerRegistry, dropped: Counter[str]) -> None:
        self._terms = terms
        self._registry = registry
        self._is_submitted = False
        self._ready: set[WorkerIndex] = set()
        self.dropped = dropped

    def submit(self) -> list[JobEffect]:
        """Ask Spark for workers, unless it runs them already."""
        if self._is_submitted:
            return []
        self._is_submitted = True
        return [SubmitWorkers()]

    def register(self, link: LinkId, newcomer: RegisterWorker) -> list[JobEffect]:
        """Take a worker that registers, or turn it away."""
        if self._registry.knows(link):
            self.dropped["repeated registration"] += 1
            return []
        if not self._registry.is_proven(link, newcomer):
            self.dropped["registration as somebody else"] += 1
            who = f"attempt {newcomer.attempt} of worker {newcomer.worker}"
            return self._registry.turn_away(link, f"this link has not proven to be {who}")
        return self._registry.register(link, newcomer)

    def start_failed(self, link: LinkId, message: WorkerFailed, *, is_ending: bool) -> FailureCause | None:
        """Take a worker's word that it can't start; return the cause if that is a failure of the job.

        Args:
            is_ending: The job takes no other worker any more.
        """
        if not self._registry.is_proven(link, message):
            self.dropped["failed start of somebody else"] += 1
            return None
        if is_ending or not self._registry.lacks(link, message):
            self.dropped["failed start that does not matter"] += 1
            return None
        told = f"worker {message.worker} could not start: {message.cause.message}"
        return replace(message.cause, message=told)

    def workers_ended(self, event: WorkersEnded) -> tuple[list[JobEffect], FailureCause]:
        """Note that Spark has ended all workers; return the failure that this is."""
        # Whoever of them still speaks has outlived its Spark job (SPARK-18761): it must not keep a
        # place from the attempts of the next one.
        effects: list[JobEffect] = [CloseLink(place.link) for place in self._registry.dismiss_all()]
        self._is_submitted = False
        if event.is_final:
            return effects, FailureCause("WorkersError", event.reason, is_final=True, is_transient=True)
        return effects, FailureCause(
            "SparkJobEnded", f"Spark ended the workers: {event.reason}", is_transient=True
        )

    def shares(self, restored: CheckpointCompleted | None, log: Ownership) -> StateAssignment:
        """Return what each task has of `restored`."""
        terms, identity = self._terms, self._terms.identity
        return state_assignment(
            restored,
            identity.parallelism,
            identity.max_parallelism,
            log.writers,
            {task.vertex for task in terms.sinks},
            terms.edges,
        )

    def deploy(
        self,
        epoch: Epoch,
        lineage: Lineage,
        shares: StateAssignment,
        log: Ownership,
        deaths: Callable[[WorkerIndex], int],
    ) -> list[JobEffect]:
        """Give all workers their tasks, with their shares of the restored checkpoint; none is ready yet.

        Args:
            deaths: Those for which a worker tries batches in a copy of its process first.
        """
        self._ready = set()
        return self._registry.deploy(epoch, lineage, shares, log.splits, self._terms.identity.driver, deaths)

    def ready(self, index: WorkerIndex) -> bool:
        """Note that a worker is ready; return whether all are now."""
        self._ready.add(index)
        return len(self._ready) == self._terms.identity.parallelism

    def too_few(self) -> FailureCause:
        """Return why the job can't start: not every worker has registered in time."""
        return FailureCause(
            "WorkersError",
            self._registry.too_few(self._terms.start_timeout_ms, self._terms.slots),
            is_transient=True,
        )

    def too_slow(self) -> FailureCause:
        """Return why the epoch can't start: not every worker was ready in time."""
        told = self._registry.too_slow(self._ready, self._terms.start_timeout_ms)
        return FailureCause("Timeout", told, is_transient=True)
