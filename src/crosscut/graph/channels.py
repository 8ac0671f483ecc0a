"""From edges between vertices to channels between tasks, always in the same order."""

from __future__ import annotations

from crosscut.graph.specs import Edge, JobGraph
from crosscut.ids import ChannelId, TaskId, VertexId


def channels_of(graph: JobGraph, edge: Edge) -> tuple[ChannelId, ...]:
    """Return the channels of `edge`, by source index, then target index."""
    return tuple(channel for index in range(graph.parallelism) for channel in _leaving(graph, edge, index))


def inputs_of(graph: JobGraph, task: TaskId) -> tuple[ChannelId, ...]:
    """Return the channels that `task` reads from, by edge index, then source index."""
    return tuple(
        _channel(edge, source, task.index)
        for edge in graph.edges
        if edge.target == task.vertex
        for source in _peers(graph, edge, task.index)
    )


def outputs_of(graph: JobGraph, task: TaskId) -> tuple[ChannelId, ...]:
    """Return the channels that `task` writes to, by edge index, then target index."""
    return tuple(
        channel
        for edge in graph.edges
        if edge.source == task.vertex
        for channel in _leaving(graph, edge, task.index)
    )


def _leaving(graph: JobGraph, edge: Edge, source: int) -> tuple[ChannelId, ...]:
    return tuple(_channel(edge, source, target) for target in _peers(graph, edge, source))


def _peers(graph: JobGraph, edge: Edge, index: int) -> range:
    """Return the indices at the other end; every partitioning is symmetric in this."""
    return range(index, index + 1) if edge.partitioning == "forward" else range(graph.parallelism)


def _channel(edge: Edge, source: int, target: int) -> ChannelId:
    return ChannelId(edge.index, TaskId(VertexId(edge.source), source), TaskId(VertexId(edge.target), target))
