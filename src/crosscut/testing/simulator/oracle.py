"""What a flow does when nothing goes wrong: records one after the other, in a dozen lines an operator.

It knows nothing of tasks, channels, barriers or batches, so it is also the judge of a consistent cut:
go on from the cut, sequentially, and the output must be that of a run from the beginning.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, assert_never

from crosscut.contracts.connected_process import TASK_KINDS, ConnectedContext, ConnectedProcess
from crosscut.contracts.context import Context
from crosscut.contracts.dead_letters import DEAD_LETTERS, DeadLetter
from crosscut.contracts.process import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    KeyedProcess,
    attached,
    kinds_of,
    timer_tables,
)
from crosscut.errors import CrosscutError, FlowError, InternalError
from crosscut.foundation.callables import several
from crosscut.foundation.keys import stable_hash
from crosscut.foundation.timestamps import END_OF_TIME, TIMESTAMP_MAX, as_timestamp
from crosscut.graph.frames import (
    FrameAggregateSpec,
    FrameKeyBySpec,
    FrameMapSpec,
    FrameRowsSpec,
    FrameSpec,
)
from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec, WindowJoinSpec
from crosscut.graph.specs import (
    AggregateSpec,
    AssignTimestampsSpec,
    AsyncMapSpec,
    CombineSpec,
    ConnectSpec,
    CountSpec,
    FilterSpec,
    FlatMapSpec,
    ForEachSpec,
    InspectSpec,
    JobGraph,
    KeyBySpec,
    LoopSpec,
    MapSpec,
    OperatorNode,
    ProcessSpec,
    ReduceSpec,
    SideOutput,
    SinkSpec,
    SourceSpec,
    SplitSpec,
    StreamProcessSpec,
    SumSpec,
    UnionSpec,
    Vertex,
    dead_letters_of,
)
from crosscut.graph.windows import WindowSpec
from crosscut.operators.operator import text_of, user_code_error
from crosscut.testing.simulator.awaiting import result_of
from crosscut.testing.simulator.blame import UserCode, is_of_user
from crosscut.testing.simulator.cycles import grouped
from crosscut.testing.simulator.frame_oracle import aggregated, key_of, result_row, rows_of
from crosscut.testing.simulator.oracle_states import Clocks, cells_of, copied, rows_copied
from crosscut.testing.simulator.timed_oracle import TimedRun, TimedSpec


class Item(NamedTuple):
    """A record on its way.

    Attributes:
        key: None where it has none.
        time: When it happened; None without event time.
        input: On which input of the next vertex it comes.
    """

    record: Any
    key: Any = None
    time: int | None = None
    input: int = 0


_NOTHING: Any = object()


def state_name(vertex: str, state: str) -> str:
    """Return what a state is called in a cut: a vertex may have several."""
    return f"{vertex}/{state}" if state else vertex


@dataclass
class Cut:
    """The state of a whole job.

    Attributes:
        states: Keyed state by vertex and name; see `state_name`.
        emitted: Keys by vertex with a final result already emitted, so that `emit="final"` stays silent.
        under_way: (vertex, record) in channels.
        unread: (source vertex, records still to be read).
    """

    states: dict[str, dict[Any, Any]] = field(default_factory=dict)
    emitted: dict[str, set[Any]] = field(default_factory=dict)
    under_way: list[tuple[str, Item]] = field(default_factory=list)
    unread: list[tuple[str, Iterable[Any]]] = field(default_factory=list)


def run_from(graph: JobGraph, cut: Cut) -> dict[str, list[Any]]:
    """Return what each sink, by uid, still gets when the job goes on from `cut` until its end.

    Raises:
        UserCodeError: A function of the flow raised.
    """
    return _Run(graph, cut).outputs()


def has_sequential_run(graph: JobGraph, *, ignores_tasks: bool = False) -> bool:
    """Whether `run_from` can run `graph`: all its states belong to keys, and none to a task.

    Unless `ignores_tasks`: what its processes say does not depend on these.
    """
    if ignores_tasks:
        return True
    specs = (node.spec for vertex in graph.vertices for node in vertex.chain)
    processes = (spec.process for spec in specs if isinstance(spec, StreamProcessSpec | ConnectSpec))
    return not any(kind in TASK_KINDS for process in processes for _, kind in kinds_of(process))


class _Run:
    def __init__(self, graph: JobGraph, cut: Cut) -> None:
        self._graph = graph
        self._sets_aside = {node.uid: dead_letters_of(node.spec) for v in graph.vertices for node in v.chain}
        self._cut = cut
        self._vertices: Mapping[str, Vertex] = {one.vertex_id: one for one in graph.vertices}
        self._targets: dict[tuple[str, SideOutput | None], list[tuple[str, int]]] = {}
        for edge in graph.edges:
            copies = graph.parallelism if edge.partitioning == "broadcast" else 1
            self._targets.setdefault((edge.source, edge.side), []).extend(
                [(edge.target, edge.input)] * copies
            )
        # Nothing happens to an item before.
        self._starts = {
            one.vertex_id: int(isinstance(one.chain[0].spec, SourceSpec | UnionSpec | LoopSpec))
            for one in graph.vertices
        }
        self._states = {name: dict(state) for name, state in cut.states.items()}
        self._queue: deque[tuple[str, Item]] = deque(cut.under_way)
        self._processes: dict[str, tuple[KeyedProcess[Any, Any], ConnectedContext]] = {}
        self._timed_runs: dict[str, TimedRun] = {}
        self._rows: dict[str, dict[Any, Any]] = {}
        self._out: dict[str, list[Any]] = {}

    def outputs(self) -> dict[str, list[Any]]:
        for name, records in self._cut.unread:
            self._queue.extend((name, Item(record)) for record in records)
        self._drain()
        # A loop is over when all that feeds it is, and only then its operators say what they say at the end.
        for name in _order(tuple(self._vertices), tuple((e.source, e.target) for e in self._graph.edges)):
            vertex = self._vertices[name]
            for position, node in enumerate(vertex.chain):
                if isinstance(node.spec, ProcessSpec | ConnectSpec):
                    self._fire_all(vertex, position, node)
                if getattr(node.spec, "emit", "") == "final":
                    emitted = self._cut.emitted.get(name, set())
                    for key, value in list(self._states.get(name, {}).items()):
                        if key not in emitted:
                            for item in self._finally(vertex, node, key, value):
                                self._through(vertex, position + 1, item)
                    self._drain()
                if isinstance(node.spec, TimedSpec):
                    for result in self._timed(vertex, node.uid, node.spec).end():
                        # Global windows are of no time where records have none.
                        time = result.time if vertex.has_event_time else None
                        self._through(vertex, position + 1, Item(result.record, None, time))
                    self._drain()
        return self._out

    def _finally(self, vertex: Vertex, node: OperatorNode, key: Any, value: Any) -> Iterable[Item]:
        """Return the final result of a key."""

        def call() -> tuple[Item, ...]:
            return (self._at_the_end(vertex, _pair(node, key, copied(value))),)

        with UserCode(node.uid, (key, value)):
            if not self._sets_aside[node.uid]:
                return call()
            dead_letter = DeadLetter((key, copied(value)), "", node.uid, key)
            return self._attempted(
                vertex, node, call, dead_letter, self._at_the_end(vertex, dead_letter).time
            )

    def _at_the_end(self, vertex: Vertex, record: Any) -> Item:
        return Item(record, None, TIMESTAMP_MAX if vertex.has_event_time else None)

    def _fire_all(self, vertex: Vertex, position: int, node: OperatorNode) -> None:
        """Call a process for all its timers, and for those that it sets then."""
        if not isinstance(node.spec, ProcessSpec | ConnectSpec) or not timer_tables(node.spec.process):
            return
        running, context = self._process(vertex, node.uid, node.spec.process)
        on_timer = {EVENT_TIMERS: running.on_timer, PROCESSING_TIMERS: running.on_processing_timer}
        while due := [
            (time, repr(key), key, table)
            for table in on_timer
            for key, times in self._states.get(state_name(vertex.vertex_id, table), {}).items()
            for time in times
        ]:
            time, _, key, table = min(due, key=lambda one: one[:2])
            context.key = key
            del self._states[state_name(vertex.vertex_id, table)][key][time]
            at = time if vertex.has_event_time else None
            call = partial(_called, on_timer[table], time, context, at)
            with UserCode(node.uid, (context.key, time)):
                if dead_letters_of(node.spec):
                    dead_letter = DeadLetter(None, "", node.uid, key, time)
                    results = self._attempted(vertex, node, call, dead_letter, at)
                else:
                    results = call()
            for one in results:
                self._through(vertex, position + 1, one)
            self._drain()

    def _drain(self) -> None:
        queue, vertices, starts = self._queue, self._vertices, self._starts
        while queue:
            name, item = queue.popleft()
            self._through(vertices[name], starts[name], item)

    def _through(self, vertex: Vertex, position: int, item: Item) -> None:
        chain = vertex.chain
        # Most of what the judge costs goes through here: nothing is called for an item that it doesn't need.
        for node in chain[position:]:
            try:
                if self._sets_aside[node.uid]:
                    dead_letter = DeadLetter(item.record, "", node.uid, item.key)
                    call = partial(self._processed, vertex, node, item)
                    processed = self._attempted(vertex, node, call, dead_letter, item.time)
                else:
                    processed = self._processed(vertex, node, item)
            except BaseException as error:
                if is_of_user(error):
                    raise user_code_error(node.uid, error, item.record) from error
                raise
            position += 1
            if len(processed) != 1:
                for one in processed:
                    self._through(vertex, position, one)
                return
            (item,) = processed
        self._send(vertex, None, item)

    def _send(self, vertex: Vertex, side: SideOutput | None, item: Item) -> None:
        for target, place in self._targets.get((vertex.vertex_id, side), ()):
            at_its_input = item if item.input == place else item._replace(input=place)
            self._queue.append((target, at_its_input))

    def _attempted(
        self,
        vertex: Vertex,
        node: OperatorNode,
        call: Callable[[], tuple[Item, ...]],
        dead_letter: DeadLetter,
        time: int | None,
    ) -> tuple[Item, ...]:
        """Return what `call` does, or have `dead_letter` sent: then nothing has happened but that."""
        before = {name: rows_copied(state) for name, state in self._states.items()}
        queued = len(self._queue)
        try:
            try:
                return call()
            except FlowError as problem:
                if isinstance(node.spec, KeyBySpec):
                    raise TypeError(str(problem)) from problem
                raise
        except (CrosscutError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            for name, state in self._states.items():
                state.clear()
                state.update(before.get(name, {}))
            while len(self._queue) > queued:
                self._queue.pop()
            with_error = replace(dead_letter, error=text_of(error))
            self._send(vertex, SideOutput(node.uid, DEAD_LETTERS), Item(with_error, None, time))
            return ()

    def _processed(self, vertex: Vertex, node: OperatorNode, item: Item) -> tuple[Item, ...]:
        record, key, time, _ = item
        spec = node.spec
        match spec:
            case SourceSpec() | UnionSpec() | LoopSpec():
                return (item,)
            case KeyBySpec(function):
                key = function(record)
                # It raises what a worker would if this is no key.
                stable_hash(key)
                return (Item(record, key, time),)
            case FrameKeyBySpec(columns):
                return (Item(record, key_of(columns, record), time),)
            case SinkSpec():
                self._out.setdefault(node.uid, []).append(record)
                return ()
            case CountSpec() | SumSpec() | ReduceSpec() | AggregateSpec() | FrameAggregateSpec():
                state = self._states.setdefault(vertex.vertex_id, {})
                known = copied(state[key]) if key in state else _NOTHING
                state[key] = value = _folded(spec, known, record)
                return () if spec.emit == "final" else (Item(_pair(node, key, copied(value)), None, time),)
            case AssignTimestampsSpec(function):
                return (item._replace(time=as_timestamp(function(record))),)
            case MapSpec(function):
                return (Item(function(record), None, time),)
            case FilterSpec(function):
                return (item,) if function(record) else ()
            case FlatMapSpec(function):
                return tuple(Item(one, None, time) for one in several(function(record), function))
            case SplitSpec(predicates):
                name = next((name for name, predicate in predicates if predicate(record)), None)
                if name is None:
                    return (item,)
                self._send(vertex, SideOutput(node.uid, name), item)
                return ()
            case FrameSpec() | FrameMapSpec() | FrameRowsSpec():
                return tuple(Item(one, None, time) for one in rows_of(spec, record))
            case CombineSpec():
                raise InternalError(f"operator {node.uid!r} is in no graph that a flow is compiled to")
            case AsyncMapSpec(kind="rate_limit"):
                # Its turns go by the clock of the job.
                return (item._replace(key=None),)
            case AsyncMapSpec(function, _, timeout_ms, retries):
                return (item._replace(record=result_of(function, record, timeout_ms, retries), key=None),)
            case ForEachSpec(function):
                function(record)
                return ()
            case InspectSpec(function):
                function(record)
                return (item,)
            case ProcessSpec(process) | StreamProcessSpec(process) | ConnectSpec(process):
                running, context = self._process(vertex, node.uid, process)
                context.key, context.timestamp = key, time
                if node.inputs[item.input].how != "hash":
                    context.leave_key()
                context.is_other = bool(item.input)
                call = running.on_record
                if isinstance(running, ConnectedProcess) and item.input:
                    call = running.on_other
                found = call(record, context)
                return () if found is None else tuple(Item(one, None, time) for one in several(found, call))
            case WindowSpec() | WindowJoinSpec() | IntervalJoinSpec() | LatestJoinSpec():
                results = self._timed(vertex, node.uid, spec).take(record, key, time, item.input)
                return tuple(Item(one.record, None, one.time) for one in results)
            case _:
                assert_never(spec)

    def _timed(self, vertex: Vertex, uid: str, spec: TimedSpec) -> TimedRun:
        def table(name: str) -> dict[Any, Any]:
            place = state_name(vertex.vertex_id, name)
            if place not in self._rows:
                # A cut's values are others' too.
                self._rows[place] = copy.deepcopy(self._cut.states.get(place, {}))
            return self._rows[place]

        if uid not in self._timed_runs:
            self._timed_runs[uid] = TimedRun(spec, table)
        return self._timed_runs[uid]

    def _process(
        self, vertex: Vertex, uid: str, process: KeyedProcess[Any, Any]
    ) -> tuple[KeyedProcess[Any, Any], ConnectedContext]:
        if uid not in self._processes:
            self._processes[uid] = self._begun(vertex, uid, process)
        return self._processes[uid]

    def _begun(
        self, vertex: Vertex, uid: str, process: KeyedProcess[Any, Any]
    ) -> tuple[KeyedProcess[Any, Any], ConnectedContext]:
        def emit(name: str, record: Any, timestamp: int | None) -> None:
            self._send(vertex, SideOutput(uid, name), Item(record, None, timestamp))

        def state(name: str) -> dict[Any, Any]:
            return self._states.setdefault(state_name(vertex.vertex_id, name), {})

        context = ConnectedContext(emit, Clocks(state(EVENT_TIMERS), state(PROCESSING_TIMERS)))
        # All at once: nothing is early here.
        context.watermark = END_OF_TIME
        running = attached(process, cells_of(process, state), context)
        running.open()
        for context.key in running._initial_keys:
            running._begin_key(context)
        return running, context


@lru_cache(maxsize=64)
def _order(vertices: tuple[str, ...], edges: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the vertices so that each comes after those that feed it, but for those of a loop."""
    targets = {name: [target for source, target in edges if source == name] for name in vertices}
    return tuple(name for cycle in grouped(targets) for name in cycle)


def _called(
    on_timer: Callable[[int, Context], Iterable[Any] | None], time: int, context: Context, at: int | None
) -> tuple[Item, ...]:
    context.timestamp = at
    found = on_timer(time, context)
    return () if found is None else tuple(Item(one, None, at) for one in several(found, on_timer))


def _folded(
    spec: CountSpec | SumSpec | ReduceSpec | AggregateSpec | FrameAggregateSpec, value: Any, record: Any
) -> Any:
    is_first = value is _NOTHING
    match spec:
        case CountSpec():
            return 1 if is_first else value + 1
        case SumSpec(function):
            return (0 if is_first else value) + function(record)
        case ReduceSpec(function):
            return record if is_first else function(value, record)
        case AggregateSpec(initial, add):
            return add(initial() if is_first else value, record)
        case FrameAggregateSpec():
            return aggregated(spec, None if is_first else value, record)
        case _:
            assert_never(spec)


def _pair(node: OperatorNode, key: Any, value: Any) -> Any:
    if isinstance(node.spec, AggregateSpec) and node.spec.result is not None:
        value = node.spec.result(value)
    if isinstance(node.spec, FrameAggregateSpec):
        return result_row(node.spec, key, value)
    return (key, value)
