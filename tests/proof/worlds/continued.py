"""Worlds whose job begins with a savepoint of another one, which has done a part of the work.

What the first had committed by then, and what the second commits, is together what the flow has to give.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace

from crosscut.protocol.log.segments import claims_in
from crosscut.savepoints.manifest import opened
from crosscut.savepoints.starting import begin_with
from crosscut.savepoints.writing import write_savepoint
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.testing.simulator.job import assignments_of
from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.simulated_job import SimulatedJob
from crosscut.testing.simulator.world import LOG_KEY, World


class ContinuedWorld(World):
    """A world that another one goes before, without faults, until it has completed some checkpoints.

    Args:
        options: `savepoint_after` says how many.
        before: The job of that world, which is as `job`.
    """

    def __init__(self, options: Options, before: SimulatedJob, job: SimulatedJob) -> None:
        super().__init__(options, job)
        self._before = before
        self._job = job

    def run(self) -> None:
        self._begin()
        super().run()

    def _begin(self) -> None:
        first = self._first_half()
        checkpoints = first.checkers.completed
        if first.has_finished or not checkpoints:
            # Nothing is left to do for another one: this one begins from nothing.
            return
        checkpoint = checkpoints[-1]
        pending = {one.handle for task in checkpoint.snapshots for one in task.snapshot.pending}
        for handle, written in (*first.resource.committed.items(), *first.resource.staged.items()):
            is_before = int(handle.rpartition("/")[2]) <= checkpoint.checkpoint_id
            # Whoever takes a savepoint has its output committed first.
            if handle in pending or (handle in first.resource.committed and is_before):
                self.resource.committed[f"before/{handle}"] = written
        for uid, records in self._before.left_behind.called.items():
            self._job.left_behind.called[uid].extend(records)
        key = LOG_KEY if self.options.seed % 2 else None
        # A directory: savepoints are files for others, and this is no matter of faults.
        with tempfile.TemporaryDirectory(prefix="crosscut-savepoint-") as place:
            path = f"{place}/savepoint"
            claim = claims_in(first.checkers.log)[-1]
            read = CheckpointStore(first.files, first.options.inline_bytes, key).read_part
            write_savepoint(path, checkpoint, claim, read)
            begin_with(
                opened(path),
                CheckpointStore(self.files, self.options.inline_bytes, key),
                self.graph,
                discover=assignments_of,
                look=self.resource.outputs,
                is_fresh=True,
            )
        self.seen["began with a savepoint"] += 1
        if claim.parallelism != self.parallelism_of(1):
            self.seen["began with a savepoint of another parallelism"] += 1

    def _first_half(self) -> World:
        options = replace(self.options, faults=())
        if self._before.may_rescale and options.rescaled_to:
            options = replace(options, parallelism=options.rescaled_to[-1])
        first = World(options, self._before)
        try:
            while len(first.checkers.completed) < self.options.savepoint_after and not first.has_finished:
                first.go_on()
        finally:
            first.close()
        return first
