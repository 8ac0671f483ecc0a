"""Sources that live on the driver, too: they are told that the job owns its directory, what completed
checkpoints have of them, and that it is over."""

from __future__ import annotations

import logging
from concurrent.futures import wait
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.contracts.driver_source import DriverSource
from crosscut.contracts.engines import TriggerName
from crosscut.foundation.ids import VertexId
from crosscut.graph.specs import JobGraph
from crosscut.host.calls import StartThread
from crosscut.host.one_by_one import OneByOne
from crosscut.protocol.log.entries import CheckpointCompleted

_LOG = logging.getLogger("crosscut")


class SourceNotices:
    """Those of one graph. What may block is done in a thread, one thing after the other."""

    def __init__(self, name: str, graph: JobGraph, start_thread: StartThread) -> None:
        self._sources: dict[VertexId, DriverSource[Any]] = {}
        for vertex in graph.vertices:
            source = vertex.source.source if vertex.source is not None else None
            if isinstance(source, DriverSource):
                self._sources[VertexId(vertex.vertex_id)] = source
        self._calls = OneByOne(f"crosscut-sources-{name}", start_thread) if self._sources else None

    def begin(self, trigger: TriggerName) -> None:
        """The job owns its directory."""
        for source in self._sources.values():
            source.begin(ends=trigger == "available_now")

    def completed(self, entry: CheckpointCompleted) -> None:
        """A checkpoint is complete; returns at once."""
        if self._calls is not None:
            self._calls.add(lambda: self._notify(entry))

    def close(self, timeout_s: float) -> None:
        """No other will be; let them stop. Blocks."""
        if self._calls is None:
            return
        stops = {uid: self._calls.add(source.stop()) for uid, source in self._sources.items()}
        self._calls.end()
        stopped, _ = wait(stops.values(), timeout_s)
        for uid, stop in stops.items():
            if stop not in stopped:
                _LOG.warning(
                    "source %r has not stopped within %g s of the end of the engine run", uid, timeout_s
                )
            elif (error := stop.exception()) is not None:
                _LOG.warning("source %r could not be stopped: %s: %s", uid, type(error).__name__, error)

    def _notify(self, entry: CheckpointCompleted) -> None:
        known = {one.source: one.known for one in entry.known_splits}
        for uid, source in self._sources.items():
            if uid not in known:
                continue
            unread: list[JSON] = []
            for one in entry.snapshots:
                rows: Any = one.snapshot.positions if one.task.vertex == uid else None
                unread += [row[2] for row in rows or []]
            try:
                source.completed(known[uid], unread)
            except Exception as error:  # noqa: BLE001 - what is kept too long does the job no harm
                _LOG.warning(
                    "source %r could not be informed of checkpoint %d: %s: %s",
                    uid,
                    entry.checkpoint_id,
                    type(error).__name__,
                    error,
                )
