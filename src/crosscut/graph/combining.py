"""Which folds are begun before their shuffle, where a batch is a whole. Pure."""

from __future__ import annotations

from dataclasses import replace
from operator import add

from crosscut.contracts.columns import ColumnSource, field_of
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
    SourceSpec,
    SumSpec,
)


def combined(graph: JobGraph) -> JobGraph:
    """Return `graph` with folds begun before their shuffle, wherever that makes no difference.

    The task that makes the keys folds the records of each, and sends accumulators; the fold after the shuffle
    merges them. A fold has to say that this is the same: a count, a sum, an aggregate with `merge`
    (docs/decisions/0066-combined-before-the-shuffle.md). It must say nothing before the end of input, since
    an update belongs to one record; no other operator may read these keys with their records; and it must
    not set records aside that raise, since an accumulator is none.
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
        chains[vertex.vertex_id] = (*_in_columns(chains[vertex.vertex_id], fold), begun)
        chains[head.uid] = (replace(head, spec=_merging(fold)), *chains[head.uid][1:])
    return replace(graph, vertices=tuple(replace(one, chain=chains[one.vertex_id]) for one in graph.vertices))


def _in_columns(chain: tuple[OperatorNode, ...], fold: CombinedFold) -> tuple[OperatorNode, ...]:
    """Return `chain` with columns in place of records, where these are counted and nothing else.

    The key has to be a column as it is: a function that does anything is called once for each record.
    """
    match chain:
        case (
            OperatorNode(spec=SourceSpec(ColumnSource() as source)) as head,
            OperatorNode(spec=KeyBySpec(function, on_error="fail") as key_by) as last,
        ) if isinstance(fold, CountSpec) and (field := field_of(function)) is not None:
            return (
                replace(head, spec=SourceSpec(source.in_columns())),
                replace(last, spec=replace(key_by, field=field)),
            )
        case _:
            return chain


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
        case AggregateSpec(initial, _, result, emit, merge=merge, kind=kind) if merge is not None:
            return AggregateSpec(initial, merge, result, emit, kind=kind)
        case _:
            return AggregateSpec(int, add, None, "final")
