"""A process that the user gives to `process`, checked."""

from __future__ import annotations

from typing import Any

from crosscut.contracts.connected_process import ConnectedProcess, StreamProcess, state_problem
from crosscut.contracts.process import KeyedProcess, call_problem, kinds_of, states_of
from crosscut.flow.arguments import flow_error, shown
from crosscut.flow.draft import Draft
from crosscut.foundation.callables import function_problem


def states_of_process(draft: Draft, process: Any, *, keyed: bool) -> tuple[tuple[str, str], ...]:
    """Return name and kind of each state of `process`, if it is one for such records."""
    expected = "KeyedProcess" if keyed else "StreamProcess"
    problem = ""
    if not isinstance(process, KeyedProcess):
        hint = f": make one, as in {process.__name__}()" if isinstance(process, type) else ""
        problem = f"expected a crosscut.{expected}, found {shown(process)}{hint}"
    elif isinstance(process, ConnectedProcess):
        problem = "a ConnectedProcess reads two streams: write .connect(other).process(...)"
    elif isinstance(process, StreamProcess) and keyed:
        problem = "these records have keys, and a StreamProcess knows none: expected a crosscut.KeyedProcess"
    elif not isinstance(process, StreamProcess) and not keyed:
        problem = (
            "a KeyedProcess needs keys, and these records have none: put .key_by(function) in front of it, "
            "or make it a crosscut.StreamProcess"
        )
    elif found := function_problem(process.on_record, "record", "ctx"):
        problem = f"on_record: {found}"
    else:
        problem = call_problem(process)
    if problem:
        raise flow_error(draft, "process", problem)
    if problem := state_problem(process, kinds_of(process), keyed=keyed, broadcast=False):
        raise flow_error(draft, "process", problem)
    return states_of(process)
