"""What a dynamic source says it has found, checked, and in the words of the protocol."""

from __future__ import annotations

import json

from crosscut.durations import duration_ms
from crosscut.dynamic_source import Discovered, DynamicSource
from crosscut.errors import ConnectorError, CrosscutError, UserCodeError
from crosscut.graph.specs import JobGraph, Vertex
from crosscut.ids import VertexId
from crosscut.interfaces import JSON
from crosscut.operators.operator import shortened, user_code_error
from crosscut.protocol.snapshots import KnownSplits
from crosscut.task.splits import SHARE_BYTES_MAX, check_ids, split_as_json

KNOWN_BYTES_MAX = 1_000_000
"""Of what a source knows: it is in each entry of the job log that it changes in."""


def dynamic_sources(graph: JobGraph) -> tuple[tuple[VertexId, int], ...]:
    """Return the dynamic sources of `graph`, with the milliseconds between two looks.

    Raises:
        SettingsError: `discover_every` of one is no duration.
    """
    return tuple(
        (VertexId(vertex.vertex_id), max(1, int(duration_ms(source.discover_every, "discover_every"))))
        for vertex in graph.vertices
        if (source := dynamic_source(vertex)) is not None
    )


def dynamic_source(vertex: Vertex) -> DynamicSource | None:
    """Return the source of `vertex`, if it is a dynamic one."""
    source = vertex.source.source if vertex.source is not None else None
    return source if isinstance(source, DynamicSource) else None


def found_in(graph: JobGraph, source: VertexId, known: JSON) -> Discovered:
    """Ask a dynamic source of `graph` what has come."""
    (vertex,) = (one for one in graph.vertices if one.vertex_id == source)
    found = dynamic_source(vertex)
    if found is None:
        raise ConnectorError(f"source {source!r} is not dynamic, and was asked for splits that have come")
    return found.discover(known)


def checked_discovery(found: object, uid: str) -> Discovered:
    """Return `found`, which `DynamicSource.discover` of source `uid` has returned, if a job can go by it.

    Raises:
        ConnectorError: It can't; the message says why, and how to mend it.
    """
    if not isinstance(found, Discovered):
        raise ConnectorError(
            f"source {uid!r}: discover() returned {shortened(found)}: expected crosscut.Discovered"
        )
    splits = check_ids(found.splits, uid, "discover")
    rows, known = (_size_bytes(what) for what in ([split_as_json(one) for one in splits], found.known))
    if rows is None or known is None:
        raise ConnectorError(
            f"source {uid!r}: discover() returned {shortened(found)}: splits, and what is known, have to be "
            f"JSON"
        )
    if rows > SHARE_BYTES_MAX:
        raise ConnectorError(
            f"source {uid!r}: discover() returned {len(splits)} splits, {rows} bytes with what it says of "
            f"them; at most {SHARE_BYTES_MAX} bytes fit into a message: return some of them, and the others "
            f"when it is called again"
        )
    if known > KNOWN_BYTES_MAX:
        raise ConnectorError(
            f"source {uid!r}: discover() returned {known} bytes as what is known, at most {KNOWN_BYTES_MAX} "
            f"are possible, since they are part of the checkpoints: keep a count, a time or the largest name "
            f"instead of all names"
        )
    return Discovered(tuple(splits), found.known, found.is_last)


def known_splits(source: VertexId, found: Discovered) -> KnownSplits:
    """Return what a source knows once it has found this."""
    return KnownSplits(source, found.known, found.is_last)


def undiscovered(uid: str, error: Exception) -> CrosscutError:
    """Return what to raise if `discover` of source `uid` has raised `error`."""
    failed = f"source {uid!r}: which splits have come can't be said"
    if isinstance(error, CrosscutError):
        return ConnectorError(f"{failed}: {error}", **error.ids)
    return UserCodeError(
        f"{failed}: {type(error).__name__}: {error}",
        operator=uid,
        record=None,
        traceback=user_code_error(uid, error, None).traceback,
    )


def _size_bytes(what: JSON) -> int | None:
    try:
        return len(json.dumps(what, separators=(",", ":"), allow_nan=False))
    except (TypeError, ValueError):
        return None
