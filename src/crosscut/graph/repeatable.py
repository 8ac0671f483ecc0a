"""Sources that read other records after a failure, and sinks that show records at once: not together."""

from __future__ import annotations

from collections.abc import Sequence

from crosscut.errors import FlowError
from crosscut.graph.specs import OperatorNode, SinkSpec, SourceSpec


def check_repeatable(name: str, nodes: Sequence[OperatorNode]) -> None:
    """Refuse a flow that could leave records in its output which no source has any more.

    Args:
        name: Of the flow.
        nodes: Each after all that it reads from, but for the heads of loops.

    Raises:
        FlowError: A sink that shows records at once is behind a source that does not repeat them.
    """
    sources = [
        node.uid for node in nodes if isinstance(node.spec, SourceSpec) and not node.spec.source.is_repeatable
    ]
    for uid in sources:
        reached = {uid}
        size = 0
        while len(reached) > size:
            size = len(reached)
            reached |= {node.uid for node in nodes if any(one.uid in reached for one in node.inputs)}
        for node in nodes:
            if node.uid in reached and isinstance(node.spec, SinkSpec) and node.spec.sink.shows_at_once:
                raise FlowError(
                    f"flow {name!r}: source {uid!r} may give other records after a failure, and sink "
                    f"{node.uid!r} shows records before their checkpoint is complete: a record that does "
                    f"not come again would stay there for ever. Use a sink that is exactly once, such as "
                    f"crosscut.postgres.sink(..., key=...), or read changes only, with snapshot=False",
                    operator=node.uid,
                )
