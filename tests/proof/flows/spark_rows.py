"""Processors for `transform_with_state`, as a user of PySpark writes them: states of each kind, timers, rows.

Loaded only for flows that have one: others need no pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, assert_never

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.proof.flows.added_steps import RowStateName, Transform
from tests.proof.flows.functions import key_of
from tests.proof.flows.processes import WRONG

from crosscut.foundation.timestamps import TIMESTAMP_MAX

HELD_MS = 5


def transformed(stream: Any, step: Transform, uid: str) -> Any:
    """Return the stream of a `transform`."""
    rows = stream.map(_as_row).named(f"{uid}-rows")
    keyed = rows.key_by(partial(_key, step)).named(f"{uid}-keys")
    processor, time_mode = _processor(step.state)
    said = keyed.transform_with_state(processor, "key STRING, said STRING", time_mode).named(uid)
    return said.map(partial(_as_record, step)).named(f"{uid}-records")


def _as_row(one: Any) -> Any:
    return Row(record=one)


def _key(step: Transform, row: Any) -> Any:
    return key_of(step.key, step.modulus, row.record)


def _as_record(step: Transform, row: Any) -> Any:
    if row.key is None:
        return row.said
    # The key comes as a tuple; one that is a tuple comes as it is.
    return (row.key if "energy" in step.key else row.key[0], row.said)


def _processor(state: RowStateName) -> tuple[StatefulProcessor, str]:
    match state:
        case "value" | "list" | "map":
            return _Tallying(state), "None"
        case "timers":
            return _Holding(is_event_time=False), "ProcessingTime"
        case "event timers":
            return _Holding(is_event_time=True), "EventTime"
        case _:
            assert_never(state)


class _Tallying(StatefulProcessor):
    def __init__(self, state: RowStateName) -> None:
        self._kind = state

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._counted: Callable[[Any], int] = getattr(self, f"_by_{self._kind}")
        match self._kind:
            case "value":
                self._state: Any = handle.getValueState("seen", "count INT")
            case "list":
                self._state = handle.getListState("seen", "record STRING")
            case _:
                self._state = handle.getMapState("seen", "place INT", "record STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            yield Row(key=key, said=self._counted(row.record))

    def close(self) -> None:
        pass

    def _by_value(self, one: Any) -> int:
        count = self._state.get()[0] + 1 if self._state.exists() else 1
        self._state.update((count,))
        return int(count)

    def _by_list(self, one: Any) -> int:
        self._state.appendValue((one,))
        return len(list(self._state.get()))

    def _by_map(self, one: Any) -> int:
        count = len(list(self._state.keys()))
        # Some entries go and come back.
        if count % 2:
            last = self._state.getValue((count - 1,))
            self._state.removeKey((count - 1,))
            self._state.updateValue((count - 1,), last)
        self._state.updateValue((count,), (one,))
        return len(list(self._state.iterator()))


class _Holding(StatefulProcessor):
    """Says what is wrong if a timer fires early, twice or for nothing, or if one is missing or left over."""

    def __init__(self, *, is_event_time: bool) -> None:
        self._is_event_time = is_event_time

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._held = handle.getMapState("held", "due BIGINT", "records STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield from self._complaints()
        due = self._now(timerValues) + HELD_MS
        (held,) = self._held.getValue((due,)) or ([],)
        self._held.updateValue((due,), ([*held, *(row.record for row in rows)],))
        self._handle.registerTimer(due)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        due = expiredTimerInfo.getExpiryTimeInMs()
        # What has ended in processing time does not wait.
        is_early = self._is_event_time and timerValues.getCurrentWatermarkInMs() < due
        found = self._held.getValue((due,))
        if is_early or found is None:
            yield Row(key=None, said=WRONG)
            return
        self._held.removeKey((due,))
        for one in found[0]:
            yield Row(key=None, said=one)
        yield from self._complaints()

    def close(self) -> None:
        pass

    def _complaints(self) -> Iterator[Any]:
        held = self._held.keys()
        if sorted(self._handle.listTimers()) != sorted(due for (due,) in held):
            yield Row(key=None, said=WRONG)

    def _now(self, values: Any) -> int:
        if self._is_event_time:
            return min(int(values.getCurrentWatermarkInMs()), TIMESTAMP_MAX)
        return int(values.getCurrentProcessingTimeInMs())
