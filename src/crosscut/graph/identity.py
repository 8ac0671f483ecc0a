"""What a flow is, as a claim of its checkpoint directory says it."""

from __future__ import annotations

from crosscut.contracts.connectors import Sink, Source
from crosscut.contracts.refused_records import SinkWithDeadLetters
from crosscut.errors import ConnectorError
from crosscut.graph.compile import kind_of
from crosscut.graph.specs import JobGraph, OperatorNode, SinkSpec, SourceSpec
from crosscut.protocol.log.identity import FlowIdentity, OperatorIdentity, OperatorInput

_DETAILS_MAX = 1_000


def identity_of(graph: JobGraph) -> FlowIdentity:
    """Return the identity of the flow that `graph` was compiled from.

    Raises:
        ConnectorError: A source or sink describes itself by something else than a line of text.
    """
    return FlowIdentity(
        graph.name, tuple(_operator(node) for vertex in graph.vertices for node in vertex.chain)
    )


def _operator(node: OperatorNode) -> OperatorIdentity:
    connector: Source | Sink | None = None
    if isinstance(node.spec, SourceSpec):
        connector = node.spec.source
    elif isinstance(node.spec, SinkSpec):
        sink = node.spec.sink
        connector = sink.sink if isinstance(sink, SinkWithDeadLetters) else sink
    return OperatorIdentity(
        node.uid,
        kind_of(node.spec),
        tuple(OperatorInput(*read) for read in node.inputs),
        getattr(node.spec, "emit", ""),
        # Without the module: the same program is __main__ when run and has a name when imported.
        type(connector).__qualname__ if connector is not None else "",
        _details(node.uid, connector) if connector is not None else "",
        ", ".join(f"{name} ({kind})" for name, kind in getattr(node.spec, "states", ())),
    )


def _details(uid: str, connector: Source | Sink) -> str:
    details: object = connector.describe()
    if not isinstance(details, str) or len(details) > _DETAILS_MAX or "\n" in details:
        raise ConnectorError(
            f"{type(connector).__qualname__}.describe() of operator {uid!r} returned "
            f"{repr(details)[:80]}: expected one line of at most {_DETAILS_MAX} characters",
            operator=uid,
        )
    return details
