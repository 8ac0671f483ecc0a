"""Evaluates the invariants of a flow on completed checkpoints, off the data path, on the driver.

A thread takes the newest completed checkpoint and reads the parts that predicates ask for through the
store; checkpoints that complete meanwhile wait for nothing, and all but the newest of them are passed over.
It decides nothing: the consequence of a broken invariant is up to the coordinator.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from crosscut.contracts.invariants import Invariant
from crosscut.driver.cuts import PartReader, StoredCut
from crosscut.foundation.ids import CheckpointId
from crosscut.graph.specs import JobGraph
from crosscut.host.calls import StartThread, start_thread
from crosscut.monitoring.status import InvariantStatus
from crosscut.protocol.events import BrokenInvariant, CutJudged
from crosscut.protocol.log.entries import CheckpointCompleted

_LOG = logging.getLogger("crosscut")


class InvariantChecker:
    """The invariants of one job. `offer`, `status` and `close` may be called from any thread.

    Args:
        post: Takes the event of each cut that is done with, from the checker's thread.
        start_thread: Starts that thread: a daemon, since a predicate may never return.
    """

    def __init__(
        self,
        invariants: Sequence[Invariant],
        graph: JobGraph,
        store: PartReader,
        post: Callable[[CutJudged], None],
        start_thread: StartThread = start_thread,
    ) -> None:
        self._invariants = tuple(invariants)
        self._graph = graph
        self._store = store
        self._post = post
        self._changed = threading.Condition()
        self._newest: CheckpointCompleted | None = None
        self._passed_over = 0
        self._start_thread = start_thread
        self._is_working = False
        self._status = {one.name: InvariantStatus(one.name) for one in self._invariants}

    def offer(self, entry: CheckpointCompleted) -> None:
        """Have the cut of `entry` evaluated, unless a newer one is offered before its turn comes."""
        if not self._invariants:
            return
        with self._changed:
            if self._newest is not None:
                self._passed_over += 1
            self._newest = entry
            if self._is_working:
                return
            self._is_working = True
        self._start_thread(self._work, "crosscut-invariants")

    def status(self) -> tuple[InvariantStatus, ...]:
        """Return the status of each invariant, in the order of the flow."""
        with self._changed:
            passed_over = self._passed_over
            return tuple(replace(one, skipped=one.skipped + passed_over) for one in self._status.values())

    def close(self, timeout_s: float) -> bool:
        """Wait for the cut that was offered last; return whether it was evaluated within `timeout_s`."""
        ends_s = time.monotonic() + timeout_s
        with self._changed:
            while self._is_working:
                if not self._changed.wait(max(0.0, ends_s - time.monotonic())):
                    _LOG.warning("the invariants were not evaluated on the last cut within %g s", timeout_s)
                    return False
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                entry, self._newest = self._newest, None
                if entry is None:
                    self._is_working = False
                    self._changed.notify_all()
                    return
            self._post(self._judged(entry))

    def _judged(self, entry: CheckpointCompleted) -> CutJudged:
        cut = StoredCut(entry, self._graph, self._store)
        broken = []
        unjudged = []
        for one in self._invariants:
            cut.unreadable = ""
            message = _evaluated(one, cut)
            if cut.unreadable:
                # Retention may be faster than we are. Damage shows when the job restores the part.
                _LOG.info("invariant %r skips checkpoint %d: %s", one.name, cut.checkpoint_id, cut.unreadable)
                self._note(one.name, skipped=1)
                if one.on_broken == "stop":
                    unjudged.append(one.name)
                continue
            self._note(one.name, evaluated=1)
            if message:
                self._note_broken(one.name, cut.checkpoint_id, message)
                broken.append(BrokenInvariant(one.name, message, stop=one.on_broken == "stop"))
        return CutJudged(entry.checkpoint_id, tuple(broken), tuple(unjudged))

    def _note(self, name: str, *, evaluated: int = 0, skipped: int = 0) -> None:
        with self._changed:
            old = self._status[name]
            self._status[name] = replace(
                old, evaluated=old.evaluated + evaluated, skipped=old.skipped + skipped
            )

    def _note_broken(self, name: str, checkpoint_id: CheckpointId, message: str) -> None:
        with self._changed:
            old = self._status[name]
            self._status[name] = replace(old, broken=old.broken + 1)
            if old.broken_at is None:
                self._status[name] = replace(old, broken=1, broken_at=checkpoint_id, message=message)
        if old.broken_at is None:
            _LOG.warning(
                "invariant %r is broken on the cut of checkpoint %d: %s", name, checkpoint_id, message
            )


def _evaluated(invariant: Invariant, cut: StoredCut) -> str:
    """Return the fault of the cut, "" if there is none."""
    try:
        found = invariant.predicate(cut)
        return "" if found else f"the predicate returned {found!r:.200}"
    except BaseException as error:  # noqa: BLE001 - the user's function may raise anything; that is its verdict
        lines = "".join(traceback.format_exception(error)).rstrip()
        return f"the predicate raised {type(error).__name__}: {error}\n{lines}"
