"""Two streams that one process reads: `connect`."""

from __future__ import annotations

from collections.abc import Callable
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from crosscut.callables import argument_problem
from crosscut.connected_process import ConnectedProcess, state_problem
from crosscut.errors import FlowError
from crosscut.flow.draft import Draft, DraftInput, DraftOperator
from crosscut.graph.specs import ConnectSpec
from crosscut.keyed_process import kinds_of, states_of, timer_problem

if TYPE_CHECKING:
    from crosscut.flow.stream import Stream

Record = TypeVar("Record")
Other = TypeVar("Other")
Result = TypeVar("Result")


class ConnectedStreams(Generic[Record, Other]):
    """Two streams on their way to one process.

    Args:
        inputs: What the process reads, first the stream that `connect` was called on.
        keyed: The records of that one have keys.
        broadcast: The other one is broadcast.
    """

    def __init__(
        self,
        draft: Draft,
        inputs: tuple[DraftInput, DraftInput],
        made: Callable[[DraftOperator], Stream[Any]],
        *,
        keyed: bool,
        broadcast: bool,
    ) -> None:
        self._draft = draft
        self._inputs = inputs
        self._made = made
        self._keyed = keyed
        self._broadcast = broadcast

    def process(self, process: ConnectedProcess[Record, Other, Result]) -> Stream[Result]:
        """Call a process of your own for each record of either stream.

        Returns:
            What its `on_record` and `on_other` return or yield.

        Raises:
            FlowError: It is none for two streams, or declares states that it can't have here.
        """
        if not isinstance(process, ConnectedProcess):
            hint = f": make one, as in {process.__name__}()" if isinstance(process, type) else ""
            raise self._error(
                f"expected a crosscut.ConnectedProcess, found {shortened(process)} of type "
                f"{type(process).__name__}{hint}"
            )
        for name, method in (("on_record", process.on_record), ("on_other", process.on_other)):
            if problem := argument_problem(method, "record", "ctx"):
                raise self._error(f"{name}: {problem}")
        if problem := timer_problem(process):
            raise self._error(problem)
        if problem := state_problem(process, kinds_of(process), keyed=self._keyed, broadcast=self._broadcast):
            raise self._error(problem)
        return self._made(self._draft.add("connect", ConnectSpec(process, states_of(process)), *self._inputs))

    def _error(self, problem: str) -> FlowError:
        label = self._draft.label("connect")
        return FlowError(f"flow {self._draft.name!r}, operator {label!r}: {problem}", operator=label)
