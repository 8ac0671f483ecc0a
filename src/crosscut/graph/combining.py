"""Which folds are begun before their shuffle, where a batch is a whole. Pure."""

from __future__ import annotations

from dataclasses import replace
from operator import add

from crosscut.graph.specs import (
    AggregateSpec,
    CombinedFold,
    CombineSpec,
    CountSpec,
    Input,
    JobGraph,
    KeyBySpec,
    OperatorNode,
    OperatorSpec,
    SumSpec,
)


def combined(graph: JobGraph) -> JobGraph:
    """Return `graph` with folds begun before their shuffle, wherever nobody can tell.

    The task that makes the keys folds the records of each, and sends accumulators; the fold after the shuffle
    merges them. A fold has to say that this is the same: a count, a sum, an aggregate with `merge`
    (docs/decisions/0066-combined-before-the-shuffle.md). It must say nothing before the end of input, since
    an update belongs to one record; nobody else may read these keys with their records; and it must not set
    records aside that raise, since an accumulator is none.
    """
    heads = {one.vertex_id: one.chain[0] for one in graph.vertices}
    chains = {one.vertex_id: one.chain for one in graph.vertices}
    for vertex in graph.vertices:
        key_by = vertex.chain[-1]
        readers = [one for one in graph.edges if one.source == vertex.vertex_id and one.side is None]
        if not isinstance(key_by.spec, KeyBySpec) or len(readers) != 1:
            continue
        head = heads[readers[0].target]
        if (fold := _combinable(head.spec)) is None:
            continue
        # Under the name of the fold: it is its code that runs there, and may fail.
        begun = OperatorNode(head.uid, CombineSpec(fold), (Input(key_by.uid, "forward"),))
        chains[vertex.vertex_id] = (*chains[vertex.vertex_id], begun)
        chains[head.uid] = (replace(head, spec=_merging(fold)), *chains[head.uid][1:])
    return replace(graph, vertices=tuple(replace(one, chain=chains[one.vertex_id]) for one in graph.vertices))


def _combinable(spec: OperatorSpec) -> CombinedFold | None:
    match spec:
        case CountSpec("final") | SumSpec(_, "final", "fail"):
            return spec
        case AggregateSpec(emit="final", on_error="fail") if spec.merge is not None:
            return spec
        case _:
            return None


def _merging(fold: CombinedFold) -> AggregateSpec:
    """Return what takes accumulators where `fold` takes records, and has the same state and result."""
    match fold:
        case AggregateSpec(initial, _, result, emit, merge=merge) if merge is not None:
            return AggregateSpec(initial, merge, result, emit)
        case _:
            return AggregateSpec(int, add, None, "final")
