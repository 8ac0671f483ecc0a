"""A user's own flow in a simulated world: sources and sinks replaced by doubles, everything else as it is.

The functions of the flow run as they are, in this process, again and again: they should have no side
effects, as in a real job. All virtual workers share what they share in a module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crosscut.flow.flow import Flow
from crosscut.graph.specs import JobGraph, SinkSpec, SourceSpec
from crosscut.interfaces import EndOfSplit, Source, Wait
from crosscut.testing.simulator.graphs import MAX_PARALLELISM, Graph, SimulatedJob
from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.oracle import Cut, run_from
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.world import World

SPLITS_MAX = 4
READS_MAX = 1_000


def sampled(source: Source, records_max: int) -> dict[str, list[Any]]:
    """Return the first records of the first splits of a real source.

    Raises:
        ConnectorError: It can't be read.
    """
    splits = list(source.splits(1))[:SPLITS_MAX]
    return {
        split.split_id: list(_first(source, split, max(1, records_max // len(splits)))) for split in splits
    }


def _first(source: Source, split: Any, count: int) -> Iterator[Any]:
    reader = source.reader(split, split.start)
    try:
        for _ in range(READS_MAX):
            found = reader.read(count)
            if isinstance(found, EndOfSplit):
                return
            if not isinstance(found, Wait):
                yield from found[:count]
                count -= len(found)
                if count <= 0:
                    return
    finally:
        reader.close()


@dataclass(frozen=True)
class Rehearsal:
    """A flow with what its sources hold, ready to be simulated.

    Attributes:
        samples: Records by split, by uid of the source.
        is_comparable: What every sink gets is the same, as a bag, in every run without faults.
    """

    flow: Flow
    samples: dict[str, dict[str, list[Any]]]
    is_comparable: bool = True

    def job(self, options: Options) -> SimulatedJob:
        """Return the job of one world."""
        sources: list[ReplayedSource] = []
        sinks: list[SimulatedSink] = []
        graph = self.flow.compile(options.parallelism, MAX_PARALLELISM)

        def double(node: Any) -> Any:
            if isinstance(node.spec, SourceSpec):
                sources.append(ReplayedSource(self.samples[node.uid], options.source_ms))
                return replace(node, spec=SourceSpec(sources[-1]))
            if isinstance(node.spec, SinkSpec):
                sinks.append(SimulatedSink())
                return replace(node, spec=SinkSpec(sinks[-1]))
            return node

        vertices = tuple(replace(vertex, chain=tuple(map(double, vertex.chain))) for vertex in graph.vertices)
        judged_as = Graph(lambda *_: None)
        return SimulatedJob(
            replace(graph, vertices=vertices), tuple(sources), tuple(sinks), judged_as, self.is_comparable
        )

    def world(self, options: Options) -> World:
        """Return a world in which the flow runs."""
        return World(options, self.job(options))


def rehearsal(flow: Flow, records_max: int, options: Sequence[Options]) -> Rehearsal:
    """Sample the sources of `flow` and find out whether its output can be compared.

    Args:
        records_max: Of each source.
        options: Worlds to run it in, without faults.

    Raises:
        CrosscutError: A source can't be read.
        Violation: The flow does not even run without faults.
    """
    samples = {
        node.uid: sampled(node.spec.source, records_max)
        for node in _nodes(flow.compile(1, MAX_PARALLELISM))
        if isinstance(node.spec, SourceSpec)
    }
    found = Rehearsal(flow, samples, is_comparable=False)
    for one in options:
        world = found.world(replace(one, faults=()))
        world.run()
        lacking, added = world.checkers.difference()
        if lacking or added or not _is_repeatable(found.job(one).graph):
            return found
    return replace(found, is_comparable=True)


def _nodes(graph: JobGraph) -> Iterator[Any]:
    for vertex in graph.vertices:
        yield from vertex.chain


def _is_repeatable(graph: JobGraph) -> bool:
    """Whether the sequential run gives the same twice."""

    def outputs() -> str:
        cut = Cut(
            unread=[
                (vertex.vertex_id, records)
                for vertex in graph.vertices
                if vertex.source is not None and isinstance(vertex.source.source, ReplayedSource)
                for records in vertex.source.source.records.values()
            ]
        )
        return repr(run_from(graph, cut))

    return outputs() == outputs()
