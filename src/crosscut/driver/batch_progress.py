"""What a batch came to, in the shape of Structured Streaming's progress. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from crosscut.graph.specs import JobGraph, Vertex
from crosscut.ids import CheckpointId, TaskId
from crosscut.interfaces import JSON
from crosscut.protocol.snapshots import Snapshot

Snapshots = Mapping[TaskId, Snapshot]


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """When a batch was where, on a clock that does not jump.

    Attributes:
        before_ns: The start of the batch before; None: this is the first.
        returned_ns: All its attempts were taken.
        completed_ns: Its entry was durable.
        committed_ns: Its output was visible.
    """

    before_ns: int | None
    started_ns: int
    returned_ns: int
    completed_ns: int
    committed_ns: int


def progress_of(
    graph: JobGraph,
    job: str,
    batch: CheckpointId,
    before: Snapshots,
    after: Snapshots,
    times: BatchTimes,
    started_at: str,
) -> dict[str, Any]:
    """Return the progress of one batch.

    Args:
        job: Names the job's history.
        before: The snapshots that the batch began with; of the very first one there are none.
        after: Those that it came to.
        started_at: ISO time.
    """
    took_s = (times.committed_ns - times.started_ns) / 1e9
    since_s = None if times.before_ns is None else (times.started_ns - times.before_ns) / 1e9
    sources = [
        _source(one, before, after, took_s, since_s) for one in graph.vertices if one.source is not None
    ]
    rows = sum(one["numInputRows"] for one in sources)
    sinks = [_sink(one, before, after) for one in graph.vertices if one.sink is not None]
    watermarks = [one.watermark for one in after.values() if one.watermark is not None]
    return {
        "id": job,
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
                "numShufflePartitions": graph.parallelism,
            }
            for one in graph.vertices
            if (total := _total(one, after, "state_keys"))
        ],
        "sources": sources,
        "sink": sinks[0] if len(sinks) == 1 else {"description": f"{len(sinks)} sinks"},
        "sinks": sinks,
    }


def _source(
    vertex: Vertex, before: Snapshots, after: Snapshots, took_s: float, since_s: float | None
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


def _sink(vertex: Vertex, before: Snapshots, after: Snapshots) -> dict[str, Any]:
    sink = vertex.sink
    return {
        "description": (sink.sink.describe() if sink is not None else "") or vertex.chain[-1].uid,
        "numOutputRows": _gain(vertex, before, after, "records_out"),
    }


def _positions(vertex: Vertex, snapshots: Snapshots) -> dict[str, JSON]:
    """Return the positions of the splits that have not ended."""
    found: dict[str, JSON] = {}
    for snapshot in _of(vertex, snapshots):
        rows: Any = snapshot.positions or []
        found.update((split_id, at) for split_id, _, _, _, at in rows)
    return dict(sorted(found.items()))


def _of(vertex: Vertex, snapshots: Snapshots) -> Iterable[Snapshot]:
    return [one for task, one in sorted(snapshots.items()) if task.vertex == vertex.vertex_id]


def _total(vertex: Vertex, snapshots: Snapshots, name: str) -> int:
    return sum(getattr(one, name) for one in _of(vertex, snapshots))


def _gain(vertex: Vertex, before: Snapshots, after: Snapshots, name: str) -> int:
    return _total(vertex, after, name) - _total(vertex, before, name)


def _rate(rows: int, seconds: float | None) -> float:
    return rows / seconds if seconds else 0.0


def _ms(begin_ns: int, end_ns: int) -> int:
    return max(0, end_ns - begin_ns) // 1_000_000


def _shown(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat()
