"""What a dynamic source says it has found, checked, and in the words of the protocol."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from crosscut.contracts.connectors import JSON
from crosscut.contracts.dynamic_source import Discovered, DynamicSource
from crosscut.errors import ConnectorError, CrosscutError
from crosscut.foundation.durations import duration_ms
from crosscut.foundation.ids import VertexId
from crosscut.graph.specs import JobGraph, Vertex
from crosscut.operators.connector_errors import connector_code_error
from crosscut.operators.operator import shortened
from crosscut.protocol.snapshots import KnownSplits
from crosscut.task.splits import SHARE_BYTES_MAX, SPLITS_SHOWN_MAX, check_ids, split_as_json

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
    if found.is_last and found.is_coming:
        # It is never asked again, and could not take it back: a job would wait for others for ever.
        raise ConnectorError(
            f"source {uid!r}: discover() says that there will never be others, and that others are coming: "
            f"expected is_last or is_coming, not both"
        )
    splits = check_ids(found.splits, uid, "discover")
    for one in splits:
        if not isinstance(one.split_id, str) or not isinstance(one.weight, int | float):
            raise ConnectorError(
                f"source {uid!r}: discover() returned {shortened(one)}: expected text as the id of a split, "
                f"and a number as its weight"
            )
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
    return replace(found, splits=tuple(splits))


def found_first(found: Discovered, restored: Collection[str], uid: str) -> Discovered:
    """Return what a source has found at its first call, in a job that has begun without such calls.

    It had all its splits from the beginning. Those that are not among the `restored` ones have been read to
    their end, or have come since: only if no others ever come is it known which.

    Raises:
        ConnectorError: It is not known.
    """
    others = [one.split_id for one in found.splits if one.split_id not in restored]
    if others and not found.is_last:
        shown = ", ".join(map(shortened, others[:SPLITS_SHOWN_MAX]))
        raise ConnectorError(
            f"source {uid!r}: the checkpoint is of before the source looked for splits while the job runs, "
            f"and does not have {len(others)} that are there, such as {shown}. Whether they were read to "
            f"their end or have come since is not known: start a new job (another .named() or "
            f"checkpoint_dir) from where this one is"
        )
    return replace(found, splits=())


def known_splits(source: VertexId, found: Discovered) -> KnownSplits:
    """Return what a source knows once it has found this."""
    return KnownSplits(source, found.known, found.is_last)


def undiscovered(uid: str, error: Exception) -> CrosscutError:
    """Return what to raise if `discover` of source `uid` has raised `error`."""
    failed = f"source {uid!r}: which splits have come can't be said"
    if isinstance(error, CrosscutError):
        return ConnectorError(f"{failed}: {error}", **error.ids)
    return connector_code_error(f"{failed}: {type(error).__name__}: {error}", uid, error)


def _size_bytes(what: JSON) -> int | None:
    try:
        return len(json.dumps(what, separators=(",", ":"), allow_nan=False))
    except (TypeError, ValueError):
        return None
