"""A listener of Structured Streaming, told of a job with PySpark's own events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from crosscut.errors import SettingsError
from crosscut.events import Ended, EngineSwitched, JobEvent, Progressed, Started

UNKNOWN = -1
"""What Spark says itself where it does not know a number."""

_STATE = (
    "numRowsTotal",
    "numRowsUpdated",
    "numRowsRemoved",
    "allUpdatesTimeMs",
    "allRemovalsTimeMs",
    "commitTimeMs",
    "memoryUsedBytes",
    "numRowsDroppedByWatermark",
    "numShufflePartitions",
    "numStateStoreInstances",
)


def telling(listener: StreamingQueryListener) -> Callable[[JobEvent], None]:
    """Return what tells `listener` of the events of a job that it has a method for.

    Raises:
        SettingsError: It is something else.
    """
    if not isinstance(listener, StreamingQueryListener):
        raise SettingsError(
            f"add_listener({listener!r:.100}): expected a pyspark.sql.streaming.StreamingQueryListener; a "
            f"function is for on_event"
        )

    # The start that the listener has been told of, until it is told of its end.
    running: Started | None = None

    def ended(query_id: str, run_id: str, why: str | None) -> None:
        found = {"id": query_id, "runId": run_id, "exception": why, "errorClassOnException": None}
        listener.onQueryTerminated(QueryTerminatedEvent.fromJson(found))

    def notify(event: JobEvent) -> None:
        nonlocal running
        match event:
            case Started():
                running = event
                started = {
                    "id": event.query_id,
                    "runId": event.run_id,
                    "name": event.job,
                    "timestamp": datetime.fromtimestamp(event.at_ms / 1_000, UTC).isoformat(),
                }
                listener.onQueryStarted(QueryStartedEvent.fromJson(started))
            case EngineSwitched() if running is not None:
                # The other engine goes on with it: for Structured Streaming, another run of the query.
                ended(running.query_id, running.run_id, None)
                running = None
            case Progressed():
                listener.onQueryProgress(QueryProgressEvent.fromJson({"progress": whole(event.progress)}))
            case Ended(query_id=str(query_id)) if query_id:
                running = None
                has_failed = event.outcome in ("failed", "fenced")
                ended(query_id, event.run_id, event.cause or event.outcome if has_failed else None)
            case _:
                """Structured Streaming has no word for it."""

    return notify


def whole(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return a progress with everything that PySpark's class asks for."""
    nowhere = {"latestOffset": None}
    unknown = dict.fromkeys(_STATE, UNKNOWN)
    return {
        **progress,
        "stateOperators": [unknown | one for one in progress["stateOperators"]],
        "sources": [nowhere | one for one in progress["sources"]],
        "sink": {"numOutputRows": UNKNOWN} | progress["sink"],
    }
