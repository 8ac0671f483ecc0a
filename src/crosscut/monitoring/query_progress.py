"""What a batch came to, or a job from one checkpoint to the next, in the shape of Structured Streaming's
progress. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

from crosscut.contracts.connectors import JSON
from crosscut.foundation.ids import CheckpointId, Lineage, TaskId
from crosscut.graph.specs import JobGraph, Vertex
from crosscut.protocol.snapshots import Snapshot

Snapshots = Mapping[TaskId, Snapshot]
_ByVertex = Mapping[str, list[Snapshot]]

OFFSETS_MAX = 100
"""Splits whose positions are shown: a progress is for people, and many are kept."""

_NAMESPACE = UUID("7d3e4a0c-1f0b-5c7e-9a61-0d2c54f5b8e3")


@dataclass(frozen=True, slots=True)
class QueryIds:
    """What Structured Streaming calls the same job.

    Attributes:
        query: UUID of the job's history.
        run: UUID of one start.
    """

    query: str = ""
    run: str = ""


@lru_cache(maxsize=16)
def query_ids(lineage: Lineage, driver: str) -> QueryIds:
    """Return the ids of a start of the job with this history, by the token of its driver."""
    if not lineage:
        return QueryIds()
    return QueryIds(str(uuid5(_NAMESPACE, lineage)), str(uuid5(_NAMESPACE, f"{lineage}/{driver}")))


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """When a batch was where, on a clock that does not jump.

    Attributes:
        since_ns: How long its input had to come: since the start of the batch before; None: this is the
            first.
        returned_ns: All its attempts were taken.
        completed_ns: Its entry was durable.
        committed_ns: Its output was visible.
    """

    since_ns: int | None
    started_ns: int
    returned_ns: int
    completed_ns: int
    committed_ns: int

    @property
    def took_s(self) -> float:
        """From its start until its output was visible."""
        return (self.committed_ns - self.started_ns) / 1e9


def progress_of(
    graph: JobGraph,
    ids: QueryIds,
    batch: CheckpointId,
    before: Snapshots,
    after: Snapshots,
    times: BatchTimes,
    started_at: str,
) -> dict[str, Any]:
    """Return the progress of one batch.

    Args:
        before: The snapshots that the batch began with; of the very first one there are none.
        after: Those that it came to.
        started_at: ISO time.
    """
    took_s = times.took_s
    since_s = None if times.since_ns is None else times.since_ns / 1e9
    first, last = _by_vertex(before), _by_vertex(after)
    sources = [_source(one, first, last, took_s, since_s) for one in graph.vertices if one.source is not None]
    rows = sum(one["numInputRows"] for one in sources)
    sinks = [_sink(one, first, last) for one in graph.vertices if one.sink is not None]
    watermarks = [one.watermark for one in after.values() if one.watermark is not None]
    return {
        "id": ids.query,
        "runId": ids.run,
        "name": graph.name,
        "timestamp": started_at,
        "batchId": int(batch),
        "batchDuration": round(took_s * 1_000),
        "durationMs": {
            "addBatch": _ms(times.started_ns, times.returned_ns),
            "commitBatch": _ms(times.returned_ns, times.completed_ns),
            "commitOutput": _ms(times.completed_ns, times.committed_ns),
            "triggerExecution": round(took_s * 1_000),
        },
        "numInputRows": rows,
        "inputRowsPerSecond": _rate(rows, since_s),
        "processedRowsPerSecond": _rate(rows, took_s),
        "eventTime": {"watermark": _shown(min(watermarks))} if watermarks else {},
        "stateOperators": [
            {
                "operatorName": one.chain[0].uid,
                "numRowsTotal": total,
                "memoryUsedBytes": sum(
                    part.size_bytes for each in last.get(one.vertex_id, []) for part in each.parts
                ),
                "numShufflePartitions": graph.parallelism,
                "numStateStoreInstances": graph.parallelism,
            }
            for one in graph.vertices
            if (total := _total(one, last, "state_keys"))
        ],
        "sources": sources,
        "sink": sinks[0] if len(sinks) == 1 else {"description": f"{len(sinks)} sinks"},
        "sinks": sinks,
    }


def _by_vertex(snapshots: Snapshots) -> _ByVertex:
    found: dict[str, list[Snapshot]] = {}
    for task, one in snapshots.items():
        found.setdefault(task.vertex, []).append(one)
    return found


def _source(
    vertex: Vertex, before: _ByVertex, after: _ByVertex, took_s: float, since_s: float | None
) -> dict[str, Any]:
    rows = _gain(vertex, before, after, "records_in")
    source = vertex.source
    return {
        "description": (source.source.describe() if source is not None else "") or vertex.chain[0].uid,
        "startOffset": _positions(vertex, before),
        "endOffset": _positions(vertex, after),
        "numInputRows": rows,
        "inputRowsPerSecond": _rate(rows, since_s),
        "processedRowsPerSecond": _rate(rows, took_s),
    }


def _sink(vertex: Vertex, before: _ByVertex, after: _ByVertex) -> dict[str, Any]:
    sink = vertex.sink
    return {
        "description": (sink.sink.describe() if sink is not None else "") or vertex.chain[-1].uid,
        "numOutputRows": _gain(vertex, before, after, "records_out"),
    }


def _positions(vertex: Vertex, snapshots: _ByVertex) -> dict[str, JSON]:
    """Return the positions of the splits that have not ended, of the first of them only if they are many."""
    found: dict[str, JSON] = {}
    for snapshot in snapshots.get(vertex.vertex_id, []):
        rows: Any = snapshot.positions or []
        found.update((row[0], row[4]) for row in rows)
    shown = sorted(found)[:OFFSETS_MAX]
    more: dict[str, JSON] = {"...": f"{len(found) - len(shown)} more"} if len(found) > len(shown) else {}
    return {one: found[one] for one in shown} | more


def _total(vertex: Vertex, snapshots: _ByVertex, name: str) -> int:
    return sum(getattr(one, name) for one in snapshots.get(vertex.vertex_id, []))


def _gain(vertex: Vertex, before: _ByVertex, after: _ByVertex, name: str) -> int:
    return _total(vertex, after, name) - _total(vertex, before, name)


def _rate(rows: int, seconds: float | None) -> float:
    return rows / seconds if seconds else 0.0


def _ms(begin_ns: int, end_ns: int) -> int:
    return max(0, end_ns - begin_ns) // 1_000_000


def _shown(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat()
