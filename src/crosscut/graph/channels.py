"""From edges between vertices to channels between tasks, always in the same order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.graph.specs import Edge, JobGraph

CHANNELS_KEPT_MAX = 16_384
"""That are not made again, of those used last."""


def channels_of(graph: JobGraph, edge: Edge) -> tuple[ChannelId, ...]:
    """Return the channels of `edge`, by source index, then target index."""
    return tuple(channel for index in range(graph.parallelism) for channel in leaving(graph, edge, index))


def inputs_of(graph: JobGraph, task: TaskId) -> tuple[ChannelId, ...]:
    """Return the channels that `task` reads from, by input, then source index."""
    return _entering(graph, task, [edge for edge in graph.edges if edge.target == task.vertex])


def back_edges_of(graph: JobGraph, task: TaskId) -> frozenset[ChannelId]:
    """Return those of them that close a cycle."""
    edges = [edge for edge in graph.edges if edge.target == task.vertex and edge.back_edge]
    return frozenset(_entering(graph, task, edges))


def outputs_of(graph: JobGraph, task: TaskId) -> tuple[ChannelId, ...]:
    """Return the channels that `task` writes to, by the order of the edges, then target index."""
    return tuple(
        channel
        for edge in graph.edges
        if edge.source == task.vertex
        for channel in leaving(graph, edge, task.index)
    )


def depths_of(graph: JobGraph) -> dict[VertexId, int]:
    """Return how many edges the longest way from a source to each vertex has, back edges aside."""
    depths: dict[VertexId, int] = {}
    for vertex in graph.vertices:
        senders = (one.source for one in graph.edges if one.target == vertex.vertex_id and not one.back_edge)
        depths[VertexId(vertex.vertex_id)] = max((depths[VertexId(one)] + 1 for one in senders), default=0)
    return depths


def read_aside(graph: JobGraph, uid: str) -> frozenset[str]:
    """Return the names of those side outputs of operator `uid` that somebody reads."""
    sides = (edge.side for edge in graph.edges)
    return frozenset(side.name for side in sides if side is not None and side.uid == uid)


def leaving(graph: JobGraph, edge: Edge, source: int) -> tuple[ChannelId, ...]:
    """Return the channels of `edge` that start at its source's task `source`, by target index."""
    return tuple(_channel(edge, source, target) for target in _peers(graph, edge, source))


def _entering(graph: JobGraph, task: TaskId, edges: Iterable[Edge]) -> tuple[ChannelId, ...]:
    return tuple(
        _channel(edge, source, task.index) for edge in edges for source in _peers(graph, edge, task.index)
    )


def _peers(graph: JobGraph, edge: Edge, index: int) -> range:
    """Return the indices at the other end; every partitioning is symmetric in this."""
    return range(index, index + 1) if edge.partitioning == "forward" else range(graph.parallelism)


def _channel(edge: Edge, source: int, target: int) -> ChannelId:
    return _channel_between(edge.input, VertexId(edge.source), source, VertexId(edge.target), target)


@lru_cache(maxsize=CHANNELS_KEPT_MAX)
def _channel_between(
    input_index: int, source: VertexId, source_index: int, target: VertexId, target_index: int
) -> ChannelId:
    # Both ends of a local channel, and each epoch, get one object: dictionaries find it without comparing.
    return ChannelId(input_index, TaskId(source, source_index), TaskId(target, target_index))
