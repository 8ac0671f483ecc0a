"""ProcessHarness: one process under test, without Spark, workers or a flow."""

from __future__ import annotations

import pickle  # noqa: S403 - of what the test itself gives
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from math import isclose
from typing import Any, Generic, TypeVar

from crosscut.connectors.simple.items import items
from crosscut.contracts.connected_process import FROM_NOTHING, Begins, ConnectedProcess
from crosscut.contracts.context import ABSENT
from crosscut.contracts.process import EVENT_TIMERS, PROCESSING_TIMERS, TIMERS, KeyedProcess, declared
from crosscut.errors import FlowError, InternalError, SettingsError
from crosscut.flow.arguments import output_name
from crosscut.flow.flow import Flow
from crosscut.foundation.batch import Batch
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.keys import encoded_key
from crosscut.foundation.timestamps import Moment, as_timestamp
from crosscut.graph.specs import OperatorNode, SideOutput
from crosscut.operators.building import build, keyed_state
from crosscut.operators.cells import visible_values
from crosscut.operators.operator import Operator
from crosscut.operators.process import Process
from crosscut.state.keyed import KeyedState
from crosscut.task.chain import Chain

RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")

_UID = "process"
_TIMERS_PER_STEP = 1_000


class ProcessHarness(Generic[RecordT, ResultT]):
    """Calls one process as a task of a job does: the same operator, state and timers, in this process.

    The methods that move the process on return the results that it has emitted meanwhile. Time stands still
    until the test moves it: event time with `watermark`, processing time with `advance_clock`. The process
    gets copies of records, and the test copies of results, as if each went to another task.

    Args:
        process: A `KeyedProcess`, or a `ConnectedProcess` whose first stream is keyed.
        key: The key of a record, as in `key_by`: a function or the name of a field. None: each call of
            `record` gives the key.
        other_key: The same for the other stream of a `ConnectedProcess`. None: that stream is broadcast.
        side_outputs: Names of the side outputs that the flow reads, as in `["late"]`. `ctx.output` with
            another name is an error, as in a job.
        now: The processing time at the beginning, in milliseconds since 1970 or as a `datetime`.

    Attributes:
        emitted: All results, each with its timestamp (None without event time).

    Raises:
        FlowError: A flow would refuse the process.

    Examples:
        >>> import crosscut as cc
        >>> from crosscut.testing import ProcessHarness
        >>> class Silence(cc.KeyedProcess):
        ...     def on_record(self, record, ctx):
        ...         ctx.set_timer(ctx.timestamp + 60_000)
        ...     def on_timer(self, time, ctx):
        ...         yield f"{ctx.key} is silent"
        >>> harness = ProcessHarness(Silence(), key="sensor")
        >>> harness.record({"sensor": "s1"}, timestamp=0)
        []
        >>> harness.watermark(60_000)
        ['s1 is silent']
    """

    def __init__(
        self,
        process: KeyedProcess[RecordT, ResultT],
        *,
        key: Callable[[RecordT], Any] | str | None = None,
        other_key: Callable[[Any], Any] | str | None = None,
        side_outputs: Iterable[str] = (),
        now: int | Moment = 0,
    ) -> None:
        # A flow checks the arguments, as it does for a job.
        flow = Flow("harness")
        keyed: Any = flow.source(items([])).key_by(_given_by_the_call if key is None else key).named("key")
        if isinstance(process, ConnectedProcess):
            second: Any = flow.source(items([]))
            other = second.broadcast() if other_key is None else second.key_by(other_key).named("other")
            stream = keyed.connect(other).process(process)
        else:
            stream = keyed.process(process)
        if isinstance(side_outputs, str):
            raise FlowError(f"side_outputs={side_outputs!r}: expected names, as in [{side_outputs!r}]")
        self._declared = process
        nodes = {node.uid: node for node in stream.named(_UID)._draft.nodes()}
        self._node = nodes[_UID]
        self._keys = None if key is None else _built(nodes["key"], None)
        self._other_keys = _built(nodes["other"], None) if "other" in nodes else None
        self._is_connected = isinstance(process, ConnectedProcess)
        self._aside: dict[str, list[Any]] = {
            output_name(stream._draft, "side_outputs", name): [] for name in side_outputs
        }
        self._now_ms = _timestamp("now", now)
        self._watermark: int | None = None
        # A flow would refuse a process with on_timer on records without timestamps.
        self._has_timers = (EVENT_TIMERS, TIMERS) in self._node.spec.states
        self._is_timed: bool | None = True if self._has_timers else None
        self._has_ended = False
        self._restart_count = 0
        self.emitted: list[tuple[ResultT, int | None]] = []
        self._state = _new_state(self._node)
        self._start()

    @property
    def now(self) -> int:
        """The processing time, in milliseconds since 1970."""
        return self._now_ms

    @property
    def process(self) -> Any:
        """The copy of the process that is called, which a job makes as well."""
        return self._operator._process

    def record(
        self, record: RecordT, *, key: Any = ABSENT, timestamp: int | Moment | None = None
    ) -> list[Any]:
        """Call `on_record`; return what it emits.

        Args:
            key: Of the record, if the harness has no function for it.
            timestamp: When the record happened, in milliseconds since 1970 or as a `datetime` with a time
                zone. Give it to all records of a test, or to none; a process with `on_timer` needs it.

        Raises:
            FlowError: An argument is not as described, or the record can't be copied or has no key that a
                job would accept.
            UserCodeError: The process raised. That exception is the `__cause__`.
        """
        batch = self._batch(record, timestamp)
        if self._keys is not None:
            if key is not ABSENT:
                raise FlowError(
                    f"key={key!r:.100}: the harness has a function for keys; leave one of them out"
                )
            batch = self._keys.process(batch)
        elif key is ABSENT:
            raise FlowError("the record has no key: pass key= to ProcessHarness or to record")
        else:
            batch.keys = [key]
        return self._process_batch(batch)

    def other(self, record: Any, *, timestamp: int | Moment | None = None) -> list[Any]:
        """Call `on_other` of a `ConnectedProcess`; return what it emits.

        Args:
            timestamp: As in `record`.

        Raises:
            FlowError, UserCodeError: As in `record`.
        """
        if not self._is_connected:
            raise FlowError(
                f"other: {type(self.process).__qualname__} reads one stream; expected a ConnectedProcess"
            )
        batch = self._batch(record, timestamp)
        if self._other_keys is not None:
            batch = self._other_keys.process(batch)
        batch.input = 1
        return self._process_batch(batch)

    def watermark(self, time: int | Moment) -> list[Any]:
        """Move event time on to `time`; return what the timers emit that are due then.

        Args:
            time: In milliseconds since 1970, or a `datetime` with a time zone.

        Raises:
            FlowError: The watermark is later already, `time` is no time, or records of this test have no
                timestamps.
            UserCodeError: As in `record`.
        """
        self._refuse_after_end()
        if self._is_timed is False:
            raise FlowError("the records of this test have no timestamps: pass timestamp= with each")
        watermark = _timestamp("watermark", time)
        if self._watermark is not None and watermark < self._watermark:
            raise FlowError(f"watermark {watermark}: it is {self._watermark} already, and never moves back")
        self._is_timed = True
        self._watermark = watermark
        return self._run(lambda: self._chain.forward_news(Batch([], watermark=watermark)))

    def advance_clock(self, duration: Duration) -> list[Any]:
        """Move processing time on; return what the timers emit that are due then.

        Args:
            duration: "500ms", "5s", or a number of seconds: 0.5 is half a second. Whole milliseconds, as
                the clock has no smaller unit.

        Raises:
            SettingsError: It is no duration, or has a fraction of a millisecond.
            UserCodeError: As in `record`.
        """
        self._refuse_after_end()
        exact_ms = duration_ms(duration, "duration")
        whole_ms = round(exact_ms)
        if not isclose(whole_ms, exact_ms, abs_tol=1e-6):
            raise SettingsError(
                f"duration={duration!r} is {exact_ms:g} ms: expected whole milliseconds; a number is one of "
                f"seconds"
            )
        self._now_ms += whole_ms
        self._chain.set_clock(self._now_ms)
        return self._run(lambda: self._chain.ring(is_fed=False))

    def end(self) -> list[Any]:
        """End the input: all timers that are left fire, and `close` is called. Return what they emit.

        Raises:
            UserCodeError: As in `record`.
        """
        self._refuse_after_end()
        self._has_ended = True

        def end() -> None:
            for _ in self._chain.end():
                self._finish_step()

        made = self._run(end)
        self._chain.close()
        return made

    def restart(self) -> None:
        """Take a checkpoint, lose the task, and restore the checkpoint in a new one.

        Declared state and timers survive, all else that the process has is lost, as after a failure.

        Raises:
            StateError: A value can't be stored or read.
        """
        self._refuse_after_end()
        self._chain.close()
        self._restart_count += 1
        checkpoint_id = CheckpointId(self._restart_count)
        self._state.freeze(checkpoint_id)
        part = b"".join(self._state.encoded(checkpoint_id, CheckpointId(0)))
        self._state = _new_state(self._node)
        for _ in self._state.loading([(checkpoint_id, part)], checkpoint_id):
            pass
        self._start(checkpoint_id)

    def values(self, state: str) -> dict[Any, Any]:
        """Return a copy of a state, by key, as `Cut.values` does.

        A value that has expired may still be shown for a quarter of its time to live.

        Args:
            state: Its name in the class of the process.

        Raises:
            FlowError: The process declares no such state.
        """
        states = declared(self._declared)
        if state not in states:
            known = ", ".join(map(repr, states)) or "none"
            raise FlowError(f"{type(self.process).__qualname__} has no state {state!r}: it declares {known}")
        return deepcopy(visible_values(self._declared, _UID, {state: self._rows(state)})[state])

    def timers(self) -> dict[Any, list[int]]:
        """Return the times of the event-time timers that are set, by key."""
        return self._times(EVENT_TIMERS)

    def processing_timers(self) -> dict[Any, list[int]]:
        """Return the times of the processing-time timers that are set, by key."""
        return self._times(PROCESSING_TIMERS)

    def side_output(self, name: str) -> list[Any]:
        """Return all records that were sent to a side output.

        Raises:
            FlowError: `side_outputs` of the harness does not have it.
        """
        if name not in self._aside:
            raise FlowError(
                f"side output {name!r} is not read: pass side_outputs=[{name!r}] to ProcessHarness"
            )
        return list(self._aside[name])

    def _start(self, restored: CheckpointId | None = None) -> None:
        begins = FROM_NOTHING if restored is None else Begins(restored, 0)
        operator = _built(self._node, self._state, self._aside, begins)
        if not isinstance(operator, Process):
            raise InternalError(f"the operator of a process is a {type(operator).__name__}")
        self._operator = operator
        for _ in operator.loading():
            pass
        self._chain = Chain([operator], self._emit, self._emit_aside, has_event_time=True)
        self._chain.set_clock(self._now_ms)
        if restored is not None:
            self._chain.restore(self._watermark, None, (), is_new=False)
            self._run(self._finish_step)

    def _batch(self, record: Any, timestamp: int | Moment | None) -> Batch:
        self._refuse_after_end()
        copied = _copied(record, "the record")
        if timestamp is None:
            if self._is_timed:
                why = "its process has on_timer" if self._has_timers else "this test uses event time"
                raise FlowError(f"the record has no timestamp, and {why}: pass timestamp= with each")
            return Batch([copied])
        if self._is_timed is False:
            raise FlowError("the record has a timestamp, and those before it have none: pass it with each")
        return Batch([copied], None, [_timestamp("timestamp", timestamp)])

    def _process_batch(self, batch: Batch) -> list[Any]:
        for key in batch.keys or ():
            # A job refuses other keys where it routes records by them.
            encoded_key(key)
        self._is_timed = batch.timestamps is not None
        return self._run(lambda: self._chain.process(batch))

    def _run(self, step: Callable[[], object]) -> list[Any]:
        count = len(self.emitted)
        self._chain.begin(_TIMERS_PER_STEP)
        step()
        self._finish_step()
        return [result for result, _ in self.emitted[count:]]

    def _finish_step(self) -> None:
        while self._chain.is_midway:
            self._chain.go_on()

    def _emit(self, batch: Batch) -> None:
        timestamps: Sequence[int | None] = batch.timestamps or [None] * len(batch)
        if not self._is_timed:
            timestamps = [None] * len(batch)
        results = [_copied(result, "a result") for result in batch.records]
        self.emitted += zip(results, timestamps, strict=True)

    def _emit_aside(self, batch: Batch, side: SideOutput) -> None:
        self._aside[side.name] += [_copied(record, "a record of a side output") for record in batch.records]

    def _rows(self, table: str) -> dict[Any, Any]:
        rows = dict(self._state.tables[table].items())
        if table not in self._state.named:
            return rows
        by_key: dict[Any, dict[Any, Any]] = {}
        for (key, name), value in rows.items():
            by_key.setdefault(key, {})[name] = value
        return by_key

    def _times(self, table: str) -> dict[Any, list[int]]:
        if table not in self._state.named:
            return {}
        return {key: sorted(times) for key, times in self._rows(table).items()}

    def _refuse_after_end(self) -> None:
        if self._has_ended:
            raise FlowError("the input has ended: after end() a process is not called any more")


def _timestamp(name: str, value: Any) -> int:
    try:
        return as_timestamp(value)
    except (TypeError, ValueError) as error:
        raise FlowError(f"{name}={value!r:.100}: {error}") from error


def _copied(value: Any, what: str) -> Any:
    """Return a copy, as the task has it that a record is sent to: in a job it is pickled on its way.

    Raises:
        FlowError: There can't be one.
    """
    try:
        return pickle.loads(pickle.dumps(value, protocol=5))  # noqa: S301 - dumped here
    except Exception as error:
        raise FlowError(
            f"{what} can't be pickled, as a job does to send it to another task: {type(error).__name__}: "
            f"{error}: {value!r:.100}; use plain values, or instances of classes of a module"
        ) from error


def _given_by_the_call(record: Any) -> Any:
    """Stand for the key function of a harness without one."""
    raise InternalError("the key is given with the record")


def _new_state(node: OperatorNode) -> KeyedState:
    state = keyed_state(node)
    if state is None:
        raise InternalError(f"operator {node.uid!r} has no keyed state")
    return state


def _built(
    node: OperatorNode,
    state: KeyedState | None,
    read_aside: Collection[str] = (),
    begins: Begins = FROM_NOTHING,
) -> Operator:
    operator = build(node, state, None, read_aside, begins)
    if operator is None:
        raise InternalError(f"operator {node.uid!r} does nothing to a batch")
    return operator
