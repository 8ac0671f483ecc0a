"""Two streams that one process reads: `connect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from crosscut.contracts.connected_process import ConnectedProcess, state_problem
from crosscut.contracts.process import call_problem, kinds_of, states_of
from crosscut.errors import FlowError
from crosscut.flow.arguments import flow_error, shown
from crosscut.flow.draft import Draft, DraftInput
from crosscut.flow.tail import Advised
from crosscut.foundation.callables import function_problem
from crosscut.graph.specs import ConnectSpec

if TYPE_CHECKING:
    from crosscut.flow.stream import Stream

Record = TypeVar("Record")
Other = TypeVar("Other")
Result = TypeVar("Result")


class ConnectedStreams(Advised, Generic[Record, Other]):
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
        *,
        keyed: bool,
        broadcast: bool,
    ) -> None:
        self._draft = draft
        self._inputs = inputs
        self._keyed = keyed
        self._broadcast = broadcast

    def process(
        self, process: ConnectedProcess[Record, Other, Result], *, name: str | None = None
    ) -> Stream[Result]:
        """Call a process of your own for each record of either stream.

        Args:
            process: Its class declares the state.
            name: Names the operator, as `named` does.

        Returns:
            What its `on_record` and `on_other` return or yield.

        Raises:
            FlowError: It is none for two streams, or declares states that it can't have here.
        """
        from crosscut.flow.stream import Stream

        if not isinstance(process, ConnectedProcess):
            hint = f": make one, as in {process.__name__}()" if isinstance(process, type) else ""
            raise self._error(f"expected a crosscut.ConnectedProcess, found {shown(process)}{hint}")
        for method in (process.on_record, process.on_other):
            if problem := function_problem(method, "record", "ctx"):
                raise self._error(f"{method.__name__}: {problem}")
        if problem := call_problem(process):
            raise self._error(problem)
        if problem := state_problem(process, kinds_of(process), keyed=self._keyed, broadcast=self._broadcast):
            raise self._error(problem)
        spec = ConnectSpec(process, states_of(process))
        return Stream(self._draft, self._draft.add("connect", spec, *self._inputs, name=name))

    def _error(self, problem: str) -> FlowError:
        return flow_error(self._draft, "connect", problem)


def connected(draft: Draft, first: DraftInput, other: Any, *, keyed: bool) -> ConnectedStreams[Any, Any]:
    """Return `first` and the input that `other` is, on their way to one process; see `Stream.connect`."""
    from crosscut.flow.keyed_stream import KeyedStream
    from crosscut.flow.stream import Stream

    if not isinstance(other, Stream | KeyedStream):
        raise flow_error(draft, "connect", f"expected a stream, found {shown(other)}")
    if other._draft is not draft:
        raise flow_error(
            draft,
            "connect",
            f"stream {other._operator.uid!r} belongs to flow {other._draft.name!r}: only streams of one flow "
            f"can be connected; make both from the same Flow object",
        )
    second = other._input
    return ConnectedStreams(
        draft,
        (first, second),
        keyed=keyed,
        broadcast=second.how == "broadcast",
    )
