"""One operator as several tasks, whose state is stored and goes on in any number of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from tests.property.timed import drawn_records, part_of

import crosscut as cc
from crosscut.contracts.connected_process import Begins
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.keys import groups_of_task, key_group
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.operators.async_map import AsyncMap, CallId, StartCall
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.state.encoding import PartReader
from crosscut.state.keyed import KeyedState

GROUPS = 7
PARALLELISM = st.integers(1, 4)
ROWS_MAX = 3
NOW_MS = 1_000_000

Row = tuple[Any, int, Any]
"""Key, time and record."""


def drawn_turns(inputs: int = 1) -> st.SearchStrategy[list[Any]]:
    """Draw what happens to an operator, in order.

    (input, rows): records come. ("watermark", by), ("clock", by): time goes on. ("restore", n): all tasks
    crash, and n others go on. At the end all input has come.
    """
    rows = st.tuples(st.integers(0, inputs - 1), drawn_records(6))
    watermark = st.tuples(st.just("watermark"), st.integers(0, 12))
    clock = st.tuples(st.just("clock"), st.integers(0, 12))
    restore = st.tuples(st.just("restore"), PARALLELISM)
    return st.lists(st.one_of(rows, rows, watermark, clock, restore), max_size=16)


class Tasks:
    """The tasks of one operator.

    Args:
        make: Returns the operator's stream from one stream for each input.
        inputs: How many it has.
    """

    def __init__(
        self, make: Callable[..., Any], parallelism: int, inputs: int = 1, *, is_timed: bool = True
    ) -> None:
        flow = cc.Flow("tasks")
        streams = [flow.source(cc.items([])) for _ in range(inputs)]
        if is_timed:
            streams = [stream.assign_timestamps(lambda row: row[1]) for stream in streams]
        make(*streams).named("it").sink(cc.collect())
        nodes = (node for vertex in flow.compile(1, GROUPS).vertices for node in vertex.chain)
        (self._node,) = (node for node in nodes if node.uid == "it")
        self._is_timed = is_timed
        self._checkpoint = 0
        self.watermark: int | None = None
        self.now_ms = NOW_MS
        self.states: list[KeyedState] = []
        self.operators: list[Operator] = []
        self._begin(parallelism, [])

    def take(self, place: int, rows: list[Row]) -> list[Any]:
        """Return what comes of records, each at the task that has its key."""
        said: list[Any] = []
        for index, operator in enumerate(self.operators):
            mine = [row for row in rows if self._owner(row[0]) == index]
            batch = Batch([record for _, _, record in mine], [key for key, _, _ in mine])
            batch.timestamps = [time for _, time, _ in mine] if self._is_timed else None
            batch.input = place
            said += operator.process(batch).records + self._advanced(operator, None)
        return said

    def turn(self, turn: Any) -> list[Any]:
        """Return what comes of one that is drawn."""
        match turn:
            case ("watermark", by):
                self.watermark = (self.watermark or 0) + by
                return [one for task in self.operators for one in self._advanced(task, self.watermark)]
            case ("clock", by):
                self.now_ms += by
                return [one for task in self.operators for one in self._advanced(task, None)]
            case ("restore", parallelism):
                return self.restore(parallelism)
            case place, rows:
                return self.take(place, rows)
            case _:
                raise ValueError(turn)

    def end(self) -> list[Any]:
        """Return what is said when all input has come, in time and then as final results."""
        self.watermark = END_OF_TIME
        said = [one for task in self.operators for one in self._advanced(task, END_OF_TIME)]
        return said + [one for task in self.operators for batch, _ in task.end("") for one in batch.records]

    def restore(self, parallelism: int) -> list[Any]:
        """Crash after a checkpoint, and go on with so many tasks; return what was still to be said."""
        self._checkpoint += 1
        parts = [part_of(state, CheckpointId(self._checkpoint)) for state in self.states]
        self._begin(parallelism, parts)
        if self.watermark is None:
            return []
        return [one for task in self.operators for one in self._advanced(task, self.watermark)]

    def _begin(self, parallelism: int, parts: list[bytes]) -> None:
        n = CheckpointId(self._checkpoint)
        self.states, self.operators = [], []
        self._parallelism = parallelism
        for index in range(parallelism):
            state = keyed_state(self._node)
            assert state is not None
            blocks = (block for part in parts for block in PartReader().blocks(part))
            for _ in state.loading_rows(blocks, n, lambda key: self._owner(key) == index):  # noqa: B023
                pass
            operator = build(self._node, state, None, (), Begins(int(n), index))
            assert operator is not None
            operator.time_budget.begin(ROWS_MAX)
            operator.time_budget.now_ms = self.now_ms
            for _ in operator.loading():
                pass
            operator.begin_at(self.watermark)
            self.states.append(state)
            self.operators.append(operator)

    def _owner(self, key: Any) -> int:
        group = key_group(key, GROUPS)
        count = self._parallelism
        (owner,) = (index for index in range(count) if group in groups_of_task(index, GROUPS, count))
        return owner

    def _advanced(self, operator: Operator, watermark: int | None) -> list[Any]:
        operator.time_budget.now_ms = self.now_ms
        said: list[Any] = []
        while (made := operator.advance(watermark)) is not None:
            said += made.records
        return said


class Calls(Tasks):
    """The same of an operator that asks for calls."""

    @property
    def asked(self) -> list[tuple[AsyncMap, StartCall]]:
        """The calls that are under way."""
        for operator in self.operators:
            assert isinstance(operator, AsyncMap)
            for call in operator.requests:
                self._under_way[id(operator), call.call_id] = (operator, call)
            operator.requests.clear()
        return list(self._under_way.values())

    def answer(self, number: int, function: Callable[[Any], Any]) -> list[Any]:
        """Let one of the calls end; return what goes on."""
        asked = self.asked
        if not asked:
            return []
        operator, call = asked[number % len(asked)]
        del self._under_way[id(operator), call.call_id]
        try:
            operator.returned(call.call_id, function(call.record))
        except LookupError as error:
            operator.raised(call.call_id, error)
        return operator.release(ROWS_MAX).records

    def _begin(self, parallelism: int, parts: list[bytes]) -> None:
        # Those of tasks that are gone: nobody hears how they end.
        self._under_way: dict[tuple[int, CallId], tuple[AsyncMap, StartCall]] = {}
        super()._begin(parallelism, parts)
