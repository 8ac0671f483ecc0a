"""A cut as it is stored: the parts of one completed checkpoint, read on the driver.

Parts are loaded here, on the driver: only those that the log entry of this job names, only after their
SHA-256 matched it, and only if the user asked for their contents. Workers wrote them, so only data is loaded
(see `crosscut.foundation.data_pickles`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from crosscut.contracts.invariants import Cut
from crosscut.errors import CheckpointError, FlowError, InternalError, StoreError
from crosscut.foundation.data_pickles import only_data
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.graph.components import component_of
from crosscut.graph.frames import FrameAggregateSpec
from crosscut.graph.specs import (
    AggregateSpec,
    ConnectSpec,
    CountSpec,
    JobGraph,
    OperatorSpec,
    ProcessSpec,
    ReduceSpec,
    StreamProcessSpec,
    SumSpec,
    Vertex,
)
from crosscut.operators.cells import visible_values
from crosscut.protocol.checkpoint.termination import is_exhausted, stillness
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Part, Snapshot
from crosscut.state.keyed import MAIN
from crosscut.state.reading import stored_contents
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.task.channel_log import decoded_log
from crosscut.wire.batches import decode_batch

_ATTEMPTS = 5


class PartReader(Protocol):
    """Where snapshots are stored; called in a thread."""

    def read_part(self, part: Part) -> bytes: ...


class StoredCut(Cut):
    """See `Cut`. For one thread.

    Attributes:
        unreadable: Why a part could not be read, "" if none was refused: what a predicate has made of
            this cut then says nothing.
    """

    def __init__(self, entry: CheckpointCompleted, graph: JobGraph, store: PartReader) -> None:
        self._entry = entry
        self._graph = graph
        self._store = store
        self._values: dict[str, dict[str, dict[Any, Any]]] = {}
        self._in_flight: dict[str, list[Any]] | None = None
        self.unreadable = ""

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self._entry.checkpoint_id

    @property
    def epoch(self) -> Epoch:
        return self._entry.epoch

    @property
    def is_quiet(self) -> bool:
        sources = {vertex.vertex_id for vertex in self._graph.vertices if vertex.source is not None}
        return all(
            not one.snapshot.in_flight and (one.snapshot.ended or one.task.vertex not in sources)
            for one in self._entry.snapshots
        )

    def is_exhausted(self, uid: str) -> bool:
        component = component_of(self._vertex_of(uid).vertex_id, self._graph.edges)
        return is_exhausted(component, stillness(self._entry.snapshots))

    def values(self, uid: str, state: str = MAIN) -> Mapping[Any, Any]:
        vertex = self._vertex_of(uid)
        names = next((_states_of(one.spec) for one in vertex.chain if one.uid == uid), [])
        if not names:
            raise FlowError(
                f"operator {uid!r} has no keyed state: expected a count, sum, reduce, aggregate or process; "
                f"name it with .named(...) and ask for that name",
                operator=uid,
            )
        if state not in names:
            raise FlowError(
                f"operator {uid!r} has no state {state!r}: expected one of {', '.join(map(repr, names))}",
                operator=uid,
            )
        if uid not in self._values:
            tables: dict[str, dict[Any, Any]] = {name: {} for name in names}
            for snapshot in self._snapshots_of(vertex):
                with only_data():
                    contents = stored_contents(snapshot.parts, self._read)
                for name, values in contents.items():
                    tables[name].update(values)
            for node in vertex.chain:
                if isinstance(node.spec, ProcessSpec | StreamProcessSpec | ConnectSpec):
                    tables = visible_values(node.spec.process, uid, tables)
            self._values[uid] = tables
        return self._values[uid][state]

    def in_flight(self, uid: str | None = None) -> Sequence[Any]:
        if uid is not None and self._vertex_of(uid).chain[0].uid != uid:
            raise FlowError(
                f"no record is ever in flight to operator {uid!r}: it is called directly by the one before "
                f"it; ask for {self._vertex_of(uid).vertex_id!r}, at which its records arrive",
                operator=uid,
            )
        if self._in_flight is None:
            found: dict[str, list[Any]] = {vertex.vertex_id: [] for vertex in self._graph.vertices}
            for one in self._entry.snapshots:
                for part in one.snapshot.log:
                    for logged in decoded_log(self._read(part)):
                        with only_data():
                            found[logged.channel.target.vertex] += decode_batch(logged.data).records
            self._in_flight = found
        if uid is not None:
            return self._in_flight[uid]
        return [record for records in self._in_flight.values() for record in records]

    def _vertex_of(self, uid: str) -> Vertex:
        for vertex in self._graph.vertices:
            if any(node.uid == uid for node in vertex.chain):
                return vertex
        named = ", ".join(repr(node.uid) for vertex in self._graph.vertices for node in vertex.chain)
        raise FlowError(f"the flow has no operator {uid!r}; it has {named}", operator=uid)

    def _snapshots_of(self, vertex: Vertex) -> list[Snapshot]:
        return [one.snapshot for one in self._entry.snapshots if one.task.vertex == vertex.vertex_id]

    def _read(self, part: Part) -> bytes:
        try:
            return self._store.read_part(part)
        except StoreError as error:
            self.unreadable = str(error)
            raise


def newest_values(store: CheckpointStore, graph: JobGraph, uid: str, state: str) -> dict[Any, Any]:
    """Return what `Cut.values` says of the newest completed checkpoint in `store`. Blocks.

    Raises:
        CheckpointError: None is complete yet.
        FlowError: The flow has no such operator, or it has no such keyed state.
        StateError: A class in the state can't be loaded here.
        StoreError: It is damaged, or it takes longer to read a checkpoint than the job keeps one.
    """
    for attempt in range(_ATTEMPTS):
        completed = [entry for _, entry in store.tail(1) if isinstance(entry, CheckpointCompleted)]
        if not completed:
            raise CheckpointError(f"flow {graph.name!r} has no completed checkpoint yet to read state from")
        cut = StoredCut(completed[-1], graph, store)
        try:
            return dict(cut.values(uid, state))
        except StoreError:
            # Retention may have taken its parts meanwhile: then there is a newer one.
            newest = [entry for _, entry in store.tail(1) if isinstance(entry, CheckpointCompleted)][-1]
            if newest.checkpoint_id == cut.checkpoint_id or attempt == _ATTEMPTS - 1:
                raise
    raise InternalError("the last attempt has neither returned nor raised")


def _states_of(spec: OperatorSpec) -> list[str]:
    match spec:
        case CountSpec() | SumSpec() | ReduceSpec() | AggregateSpec() | FrameAggregateSpec():
            return [MAIN]
        case ProcessSpec(_, states) | StreamProcessSpec(_, states) | ConnectSpec(_, states):
            return [name for name, _ in states]
        case _:
            return []
