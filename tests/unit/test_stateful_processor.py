"""PySpark's StatefulProcessor, run as it is: the examples of its documentation, its states, wrong use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # type: ignore[attr-defined]
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from tests.unit.test_keyed_process import Site

import crosscut as cc
from crosscut.errors import FlowError, UserCodeError
from crosscut.foundation.ids import CheckpointId
from crosscut.state.encoding import PartReader

OUTPUT = StructType([StructField("id", StringType()), StructField("count", IntegerType())])
STATE = StructType([StructField("value", IntegerType())])


class Violations(StatefulProcessor):
    """As in the documentation of `GroupedData.transformWithState`, where `handleInputRows` takes two."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.num_violations_state = handle.getValueState("numViolations", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row]) -> Iterator[Row]:  # type: ignore[override]
        new_violations = 0
        count = 0
        if self.num_violations_state.exists():
            existing_violations = self.num_violations_state.get()[0]  # type: ignore[index]
        else:
            existing_violations = 0
        for row in rows:
            if row.temperature is not None:
                count += 1
                if row.temperature > 100:
                    new_violations += 1
        self.num_violations_state.update((new_violations + existing_violations,))
        yield Row(id=key[0], count=count)

    def close(self) -> None:
        pass


def site_of(processor: StatefulProcessor, output: Any = OUTPUT, **options: Any) -> Site:
    stream = cc.Flow("f").source(cc.items([1])).key_by(lambda record: record)
    sunk = stream.transform_with_state(processor, output, **options)
    return Site(sunk._operator.spec.process)


def test_the_example_of_the_documentation() -> None:
    site = site_of(Violations())
    given = [("0", 123), ("0", 23), ("1", 33), ("1", 188), ("1", 88)]
    rows = site.gives(*((key, Row(id=key, temperature=value)) for key, value in given))
    assert rows == [Row(id=key, count=1) for key, _ in given]
    assert site.rows("numViolations") == {"0": (1,), "1": (1,)}


class Everything(StatefulProcessor):
    """Does what a record says to a state of each kind."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "a INT, `b c` DECIMAL(10, 2)")
        self.items = handle.getListState("items", "a struct<x: int, y: int>")
        self.entries = handle.getMapState("entries", "name STRING", "count INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield (repr(eval(row.what)),)  # type: ignore[misc] # noqa: S307 - the tests' own words

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.value.update((initialState.start, 0))


def said(*expressions: str) -> list[Any]:
    site = site_of(Everything(), "said STRING")
    return [eval(row.said) for row in site.gives(*(("k", {"what": one}) for one in expressions))]  # noqa: S307


def test_a_value_state_is_a_tuple_that_may_be_absent() -> None:
    assert said(
        "self.value.get()", "self.value.exists()", "self.value.update((1, 2))", "self.value.get()",
        "self.value.clear()", "self.value.exists()",
    ) == [None, False, None, (1, 2), None, False]  # fmt: skip


def test_a_list_state_is_appended_to_and_replaced() -> None:
    assert said(
        "self.items.exists()", "self.items.appendValue((1,))", "self.items.appendList([(2,), (3,)])",
        "list(self.items.get())", "self.items.put([(9,)])", "list(self.items.get())", "self.items.clear()",
        "self.items.exists()",
    ) == [False, None, None, [(1,), (2,), (3,)], None, [(9,)], None, False]  # fmt: skip


def test_a_map_state_has_entries() -> None:
    assert said(
        "self.entries.exists()", "self.entries.updateValue(('a',), (1,))", "self.entries.getValue(('a',))",
        "self.entries.containsKey(('b',))", "self.entries.updateValue(('b',), (2,))",
        "sorted(self.entries.iterator())", "sorted(self.entries.keys())", "sorted(self.entries.values())",
        "self.entries.removeKey(('a',))", "self.entries.getValue(('a',))", "self.entries.removeKey(('a',))",
        "self.entries.clear()", "self.entries.exists()",
    ) == [
        False, None, (1,), False, None, [(("a",), (1,)), (("b",), (2,))], [("a",), ("b",)], [(1,), (2,)],
        None, None, None, None, False,
    ]  # fmt: skip


def test_a_row_of_initial_state_is_taken_in_once_before_the_first_record_of_its_key() -> None:
    site = site_of(Everything(), "said STRING", initial_state={"k": {"start": 40}})
    found = site.gives(
        ("k", {"what": "self.value.get()"}),
        ("k", {"what": "self.value.clear()"}),
        ("k", {"what": "self.value.get()"}),
        ("other", {"what": "self.value.get()"}),
    )
    assert [row.said for row in found] == ["(40, 0)", "None", "None", "None"]


class Reminded(Everything):
    """Sets a timer for a key with initial state; says what it has when that fires."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        super().handleInitialState(key, initialState, timerValues)
        self.items.appendValue((timerValues.getCurrentProcessingTimeInMs(),))
        self.handle.registerTimer(500)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(said=f"{key[0]} {self.value.get()} at {expiredTimerInfo.getExpiryTimeInMs()}")


def begun(site: Site, mine: str = "abc", rows_max: int = 1_000) -> list[str]:
    """Let a task that owns some keys begin, and hear the time go on; return what it says."""
    operator = site.operator
    operator.own(lambda key: key in mine)
    said: list[str] = []
    while (alarm_ms := operator.next_alarm_ms) is not None:
        operator.time_budget.now_ms = max(operator.time_budget.now_ms, alarm_ms)
        operator.time_budget.begin(rows_max)
        while (made := operator.advance(None)) is not None:
            said += [row.said for row in made.records]
            operator.time_budget.begin(rows_max)
    return said


ROWS = {"a": {"start": 1}, "b": {"start": 2}, "c": {"start": 3}, "d": {"start": 4}}


@pytest.mark.parametrize("rows_max", [1, 1_000])
def test_initial_state_is_given_to_every_key_of_the_task_though_no_record_comes(rows_max: int) -> None:
    site = site_of(Reminded(), "said STRING", initial_state=ROWS)
    assert begun(site, "acx", rows_max) == ["a (1, 0) at 500", "c (3, 0) at 500"]
    assert site.rows("value") == {"a": (1, 0), "c": (3, 0)}


def test_at_the_end_of_input_too_initial_state_is_taken_in_and_its_timers_fire() -> None:
    site = site_of(Reminded(), "said STRING", initial_state=ROWS)
    site.operator.own(lambda key: key == "b")
    found = []
    while (made := site.operator.advance(cc.END_OF_TIME)) is not None:
        found += [row.said for row in made.records]
    assert found == ["b (2, 0) at 500"]


def test_no_key_gets_its_initial_state_again_after_a_restore_wherever_it_is_then() -> None:
    """H1: keys go to other tasks, and what they have been given goes with them."""
    first = site_of(Reminded(), "said STRING", initial_state=ROWS)
    first.operator.own(lambda key: key in "ab")
    first.gives(("a", {"what": "self.value.clear()"}))
    while first.operator.advance(None) is not None:
        pass
    state = first.state
    state.freeze(CheckpointId(1))
    data = b"".join(state.encoded(CheckpointId(1), CheckpointId(0)))
    for mine, missing in (("a", set()), ("bd", {"d"})):
        after = site_of(Reminded(), "said STRING", initial_state=ROWS)
        for _ in after.state.loading_rows(PartReader().blocks(data), CheckpointId(1), mine.__contains__):
            pass
        for _ in after.operator.loading():
            pass
        given = [one for one in begun(after, mine) if one.partition(" ")[0] in missing]
        assert len(given) == len(missing)
        assert ("a" in after.rows("value")) is False and ("b" in mine) == ("b" in after.rows("value"))
        assert all(len(items) == 1 for items in after.rows("items").values())


def test_initial_state_may_be_taken_out_of_the_program_once_it_was_given() -> None:
    first = site_of(Reminded(), "said STRING", initial_state=ROWS)
    begun(first)
    first.state.freeze(CheckpointId(1))
    data = b"".join(first.state.encoded(CheckpointId(1), CheckpointId(0)))
    after = site_of(Reminded(), "said STRING")
    for _ in after.state.loading([(CheckpointId(1), data)], CheckpointId(1)):
        pass
    assert begun(after) == []
    assert after.rows("value") == {"a": (1, 0), "b": (2, 0), "c": (3, 0)}


def test_what_handle_initial_state_raises_is_blamed_on_its_key() -> None:
    site = site_of(Reminded(), "said STRING", initial_state={"a": {"begin": 1}})
    with pytest.raises(UserCodeError, match="start") as error:
        begun(site)
    assert error.value.record == "{'initial state of': 'a'}"


def test_initial_state_of_what_can_not_be_a_key_is_refused() -> None:
    with pytest.raises(FlowError, match="of type float can't be a key"):
        site_of(Everything(), "said STRING", initial_state={1.5: {"start": 1}})


class Named(NamedTuple):
    what: str


@dataclasses.dataclass
class Data:
    what: str


@pytest.mark.parametrize("record", [Named("key"), Data("key"), {"what": "key"}, Row(what="key")])
def test_what_has_named_fields_is_a_row(record: Any) -> None:
    assert site_of(Everything(), "said STRING").gives((7, record)) == [Row(said="(7,)")]


def test_anything_else_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserCodeError, match=r"takes rows, found 7 of type int: make rows of the records"):
        site_of(Everything(), "said STRING").gives(("k", 7))


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("self.value.update((1,))", r"state 'value' was given \(1,\): expected a tuple of 2 \(a, b c\)"),
        ("self.entries.getValue('a')", r"state 'entries' was given 'a': expected a tuple of 1 \(name\)"),
        ("self.handle.getValueState('late', 'a INT')", r"state 'late' is used outside of init\(\)"),
        ("self.handle.registerTimer(5)", r"timers need a time mode: set time_mode"),
    ],
)
def test_wrong_use_of_state_is_named(expression: str, problem: str) -> None:
    with pytest.raises(UserCodeError, match=problem):
        site_of(Everything(), "said STRING", time_mode="None").gives(("k", {"what": expression}))


@pytest.mark.parametrize("yielded", ["'x'", "Row(other=1)", "Row(said=1, more=2)", "(1, 2)"])
def test_a_row_that_does_not_fit_the_output_type_is_named(yielded: str) -> None:
    class Wrong(Everything):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            yield eval(yielded)  # noqa: S307

    with pytest.raises(
        UserCodeError, match=r"expected a pyspark\.sql\.Row with the fields of output_type, said"
    ):
        site_of(Wrong(), "said STRING").gives(("k", {"what": ""}))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            (Everything, "a INT"),
            r"found <class .*Everything'>: make one, as in Everything\(\)",
        ),
        ((7, "a INT"), "expected a pyspark.sql.streaming.StatefulProcessor, found 7"),
        ((Everything(), 7), "expected a StructType or text like 'id STRING, count INT', found 7"),
        ((Everything(), "a"), "expected a StructType or text"),
        (
            (Everything(), "a INT", "often"),
            "'ProcessingTime' or 'EventTime', found 'often'",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(FlowError, match=problem):
        cc.Flow("f").source(cc.items([1])).key_by(lambda r: r).transform_with_state(*arguments)


class Timed(StatefulProcessor):
    """The last of each key after a quiet time; a TTL beside it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "value INT")
        self.seen = handle.getValueState("seen", "value BOOLEAN", 100)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            was_seen = self.seen.exists()
            self.seen.update((True,))
            for timer in self.handle.listTimers():
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(row.at + 50)
            self.handle.registerTimer(row.at + 60)
            self.last.update((row.at,))
            now, watermark = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
            yield Row(key=key[0], what=f"seen {was_seen}, now {now}, watermark {watermark}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        expired = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(what=f"{self.last.get()[0]} at {expired}", key=key[0])  # type: ignore[index]


def whats(rows: Any) -> list[tuple[str, str]]:
    return [(row.key, row.what) for row in rows]


def test_timers_and_ttl_of_processing_time() -> None:
    site = site_of(Timed(), "key STRING, what STRING")
    site.operator.time_budget.now_ms = 1_000
    assert whats(site.gives(("a", {"at": 1_000}), ("b", {"at": 1_005}), ("a", {"at": 1_010}))) == [
        ("a", "seen False, now 1000, watermark -1"),
        ("b", "seen False, now 1000, watermark -1"),
        ("a", "seen True, now 1000, watermark -1"),
    ]
    assert site.operator.advance(None) is None
    site.operator.time_budget.now_ms = 1_060
    site.operator.time_budget.begin(100)
    fired = site.operator.advance(None)
    assert fired is not None
    assert whats(fired.records) == [("b", "1005 at 1055"), ("a", "1010 at 1060")]
    site.operator.time_budget.now_ms = 1_100
    assert whats(site.gives(("a", {"at": 1_200}))) == [("a", "seen False, now 1100, watermark -1")]


def test_timers_of_event_time() -> None:
    site = site_of(Timed(), "key STRING, what STRING", time_mode="EventTime")
    site.operator.time_budget.begin(100)
    assert site.operator.advance(7) is None
    assert whats(site.gives(("a", {"at": 10}))) == [("a", "seen False, now 0, watermark 7")]
    fired = site.operator.advance(60)
    assert fired is not None
    assert whats(fired.records) == [("a", "10 at 60")]


def test_close_is_called_once_for_a_processor_that_was_initialised_and_blamed_if_it_raises() -> None:
    class Closing(Everything):
        def close(self) -> None:
            raise ValueError("no")

    opened, unused = site_of(Closing(), "said STRING"), site_of(Closing(), "said STRING")
    unused.operator.close()
    opened.gives(("k", {"what": "key"}))
    with pytest.raises(UserCodeError, match="raised ValueError: no"):
        opened.operator.close()
    opened.operator.close()


class Recent(StatefulProcessor):
    """The values of the last 100 ms."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.recent = handle.getListState("recent", "value INT", 100)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.values is not None:
                self.recent.appendList([(value,) for value in row.values])
            elif row.new is not None:
                self.recent.put([(value,) for value in row.new])
            yield Row(seen=[value for (value,) in self.recent.get()], exists=self.recent.exists())


def test_each_item_of_a_list_with_a_ttl_has_a_life_of_its_own_as_in_spark() -> None:
    site = site_of(Recent(), "seen ARRAY<INT>, exists BOOLEAN")
    for now, values, new, seen in (
        (0, [1, 2], None, [1, 2]),
        (60, [3], None, [1, 2, 3]),
        (100, None, None, [3]),
        (120, [4], None, [3, 4]),
        (160, None, None, [4]),
        (170, None, [5, 6], [5, 6]),
        (269, None, None, [5, 6]),
        (270, None, None, []),
    ):
        site.operator.time_budget.now_ms = now
        (row,) = site.gives(("a", {"values": values, "new": new}))
        assert (row.seen, row.exists) == (seen, bool(seen)), now


def test_items_of_a_list_that_have_expired_are_gone_also_where_it_always_grows() -> None:
    site = site_of(Recent(), "seen ARRAY<INT>, exists BOOLEAN")
    for now in range(1_000):
        site.operator.time_budget.now_ms = now
        site.gives(("a", {"values": [now], "new": None}))
    ((_, items),) = site.rows("recent").values()
    assert len(items) <= 125
