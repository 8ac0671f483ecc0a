"""Which records have timestamps: those of `assign_timestamps`, and all that is made from them."""

from __future__ import annotations

from collections.abc import Sequence

from crosscut.contracts.dead_letters import DEAD_LETTERS
from crosscut.contracts.process import EVENT_TIMERS, TIMERS
from crosscut.contracts.windows import CountWindow, Early, GlobalWindow
from crosscut.errors import FlowError
from crosscut.graph.joins import IntervalJoinSpec, WindowJoinSpec
from crosscut.graph.specs import AssignTimestampsSpec, Input, OperatorNode, OperatorSpec
from crosscut.graph.windows import WindowSpec


def timed_operators(name: str, nodes: Sequence[OperatorNode]) -> frozenset[str]:
    """Return the uids of the operators that send records with timestamps.

    Args:
        name: Of the flow.
        nodes: Each after all that it reads from; the head of a loop comes before what comes around to it.

    Raises:
        FlowError: Records with timestamps and records without would meet, or an operator goes by times that
            its records don't have.
    """
    timed: set[str] = set()
    by_uid = {node.uid: node for node in nodes}

    def is_timed(read: Input) -> bool:
        one = by_uid[read.uid]
        if read.output == DEAD_LETTERS and isinstance(one.spec, AssignTimestampsSpec):
            # What can't be given a time has the one that it came with.
            return any(map(is_timed, one.inputs))
        return read.uid in timed

    for node in nodes:
        if isinstance(node.spec, AssignTimestampsSpec) or any(map(is_timed, node.inputs)):
            timed.add(node.uid)
    for node in nodes:
        if isinstance(node.spec, AssignTimestampsSpec):
            continue
        without = [read.uid for read in node.inputs if not is_timed(read)]
        if without and node.uid in timed:
            having = next(read.uid for read in node.inputs if is_timed(read))
            raise FlowError(
                f"flow {name!r}, operator {node.uid!r}: records of {having!r} have timestamps, those of "
                f"{without[0]!r} have none: call assign_timestamps on both streams before they meet, or on "
                f"neither and then after it",
                operator=node.uid,
            )
    for node in nodes:
        if node.uid not in timed and _goes_by_event_time(node.spec):
            raise FlowError(
                f"flow {name!r}, operator {node.uid!r}: it goes by event time, and its records have none: "
                f"say when each happened, with assign_timestamps(...), before key_by",
                operator=node.uid,
            )
        if node.uid not in timed and (EVENT_TIMERS, TIMERS) in getattr(node.spec, "states", ()):
            raise FlowError(
                f"flow {name!r}, operator {node.uid!r}: it has on_timer, and its records have no timestamps, "
                f"so its timers would never be due: call assign_timestamps on the stream before it, or write "
                f"on_processing_timer instead",
                operator=node.uid,
            )
    return frozenset(timed)


def _goes_by_event_time(spec: OperatorSpec) -> bool:
    if isinstance(spec, WindowSpec):
        return not isinstance(spec.window, CountWindow | GlobalWindow) or isinstance(spec.trigger, Early)
    return isinstance(spec, IntervalJoinSpec | WindowJoinSpec)
