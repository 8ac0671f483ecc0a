"""A user's own flow in a simulated world: sources and sinks replaced by doubles, everything else as it is.

The functions of the flow run in this process, again and again: they should have no side effects, as in a
real job. Each virtual worker has its own copy of them, and of the module they come from, unless the records
are of classes that are made there: of these there can be only one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any

from crosscut.contracts.connectors import EndOfSplit, Source, Split, Wait
from crosscut.errors import FlowError
from crosscut.flow.flow import Flow
from crosscut.graph.shipping import pack_copies, unpack_copy
from crosscut.graph.specs import JobGraph, SinkSpec, SourceSpec
from crosscut.testing.simulator.blame import UserCode, user_code_error_of
from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.oracle import Cut, has_sequential_run, run_from
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM, Judgement, SimulatedJob
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.violation import ensure
from crosscut.testing.simulator.world import LIVENESS_MS, World
from crosscut.testing.sources import all_splits

SPLITS_MAX = 4
READS_MAX = 1_000
SHOWN_MAX = 3

Samples = Mapping[str, Mapping[str, Sequence[Any]]]
"""Records by split, by uid of the source."""


def sampled(uid: str, source: Source, records_max: int) -> dict[str, list[Any]]:
    """Return the first records of the first splits of a real source.

    Args:
        uid: Of the source.

    Raises:
        ConnectorError: It can't be read.
        UserCodeError: It raised something else, at the position that the error has as its record.
    """
    with UserCode(uid, "the splits"):
        splits = list(islice(all_splits(source, 1), SPLITS_MAX))
    count = max(1, records_max // max(1, len(splits)))
    return {split.split_id: list(_first(uid, source, split, count)) for split in splits}


def _first(uid: str, source: Source, split: Split, count: int) -> Iterator[Any]:
    with UserCode(uid, split.start):
        reader = source.reader(split, split.start)
    try:
        for _ in range(READS_MAX):
            position = reader.position
            with UserCode(uid, position):
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
        has_copies: Each process has functions of its own.
        unstable: Why its output can't be compared, "" if it can: what every sink gets is the same, as a
            bag, in every run without faults.
        outside_state: How its output shows that a function keeps something outside of the job, "" if it
            does not: such a thing is not rolled back with the rest.
    """

    flow: Flow
    samples: Samples
    has_copies: bool = False
    unstable: str = ""
    outside_state: str = ""

    def job(self, options: Options) -> SimulatedJob:
        """Return the job of one world."""
        sources: list[ReplayedSource] = []
        sinks: list[SimulatedSink] = []
        graph = self.flow.compile(options.parallelism, MAX_PARALLELISM)
        doubles: dict[str, Any] = {}

        def double(node: Any) -> Any:
            if isinstance(node.spec, SourceSpec) and node.uid not in doubles:
                sources.append(ReplayedSource(self.samples[node.uid], options.source_ms))
                doubles[node.uid] = SourceSpec(sources[-1])
            if isinstance(node.spec, SinkSpec) and node.uid not in doubles:
                sinks.append(SimulatedSink())
                doubles[node.uid] = SinkSpec(sinks[-1])
            return replace(node, spec=doubles.get(node.uid, node.spec))

        def with_doubles(real: JobGraph) -> JobGraph:
            vertices = (replace(vertex, chain=tuple(map(double, vertex.chain))) for vertex in real.vertices)
            return replace(real, vertices=tuple(vertices))

        played = with_doubles(graph)
        fresh = _fresh_copies(graph) if self.has_copies else None
        # Whether a record that counts twice makes others disappear is the user's affair.
        judged_as = Judgement(survives_duplicates=False)
        is_comparable = not self.unstable and not self.outside_state
        return SimulatedJob(
            played,
            tuple(sources),
            tuple(sinks),
            judged_as,
            is_comparable,
            copy=(lambda: with_doubles(fresh())) if fresh is not None else None,
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
        UserCodeError: A function of the flow raised.
        CrosscutError: A source can't be read, or the flow can't be sent to workers.
        Violation: The flow does not even run without faults, or for too long to be run with some.
    """
    graph = flow.compile(1, MAX_PARALLELISM)
    if not has_sequential_run(graph):
        raise FlowError(
            f"flow {flow.name!r} has a process with states of a task (BroadcastState, SplitState, "
            f"UnionState): its expected output is not known here, since it depends on which records meet in "
            f"which task"
        )
    nodes = [node for vertex in graph.vertices for node in vertex.chain]
    samples = {
        node.uid: sampled(node.uid, node.spec.source, records_max)
        for node in nodes
        if isinstance(node.spec, SourceSpec)
    }
    fresh = _fresh_copies(graph)
    found = Rehearsal(flow, samples, has_copies=not _record_classes(graph))
    one, another = fresh(), fresh()
    first, second = _outputs(one, samples), _outputs(another, samples)
    if difference := _first_difference(first, second):
        return replace(found, unstable=f"two runs in two processes differ: {difference}")
    if difference := _first_difference(first, _outputs(one, samples)):
        return replace(found, outside_state=difference)
    # The checkers must not compare what may not be comparable.
    trial = replace(found, unstable="not known yet")
    for option in options:
        world = trial.world(replace(option, faults=()))
        try:
            world.run()
        finally:
            _check_raised(world)
        ensure(
            4 * world.clock.now_us < LIVENESS_MS * 1_000,
            f"it takes {world.clock.now_us / 1e6:.0f} s of virtual time, and with faults there has to be "
            f"time for several times as much in {LIVENESS_MS / 1_000:g} s",
        )
        lacking, added = world.checkers.difference()
        if lacking or added:
            return replace(
                found,
                unstable=f"with {option.parallelism} workers, records met in another order: "
                f"{shown_difference(lacking, added)}",
            )
    return found


def _check_raised(world: World) -> None:
    """Raise what functions of the user have raised in a world without faults.

    It may have come to its end all the same, or not: what they make of records in one order says little of
    another. Fewer records would only hide it.
    """
    for driver in world.drivers:
        for cause in driver.failures:
            if cause.operator:
                raise user_code_error_of(cause)


def shown_difference(lacking: Counter[Any], added: Counter[Any]) -> str:
    """Return, by sink, the first records that a run lacks, and those that it has too often."""
    uids = sorted({uid for uid, _ in (*lacking, *added)})
    return "; ".join(
        f"sink {uid!r} "
        + " and ".join(filter(None, (_some("lacks", uid, lacking), _some("has", uid, added))))
        for uid in uids
    )


def _some(verb: str, uid: str, tokens: Counter[Any]) -> str:
    found = [token for (one, token), count in tokens.items() for _ in range(count) if one == uid]
    if not found:
        return ""
    more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    return f"{verb} {', '.join(f'{token!r:.100}' for token in found[:SHOWN_MAX])}{more}"


def _fresh_copies(graph: JobGraph) -> Callable[[], JobGraph]:
    """Return what makes copies of `graph`, with functions as new as in a process that has just started."""
    packed = pack_copies(graph)
    # Not `unpack_graph`: that binds the classes of records for all of this process.
    return lambda: unpack_copy(packed)[0]


def _record_classes(graph: JobGraph) -> list[type]:
    """Return the classes that travel with the functions: a copy of such a function makes other records."""
    return unpack_copy(pack_copies(graph))[1]


def _outputs(graph: JobGraph, samples: Samples) -> dict[str, list[Any]]:
    """Return what each sink gets when records are processed one after the other."""
    unread: list[tuple[str, Iterable[Any]]] = [
        (vertex.vertex_id, records)
        for vertex in graph.vertices
        if vertex.source is not None
        for records in samples[vertex.chain[0].uid].values()
    ]
    return run_from(graph, Cut(unread=unread))


def _first_difference(one: Mapping[str, list[Any]], other: Mapping[str, list[Any]]) -> str:
    """Return the first record in which two runs differ; the classes in them may be copies, too."""
    for uid in sorted({*one, *other}):
        pairs = zip_longest(map(repr, one.get(uid, ())), map(repr, other.get(uid, ())), fillvalue="nothing")
        for number, (left, right) in enumerate(pairs, 1):
            if left != right:
                return f"sink {uid!r}, record {number}: {left:.100} and {right:.100}"
    return ""
