"""A process under test: records, watermark and clock from a test, operator and state as in a job."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import crosscut as cc
from crosscut.errors import CrosscutError, FlowError, StateError, UserCodeError
from crosscut.testing import ProcessHarness

NAIVE = datetime.datetime(2026, 1, 1)


class Click(NamedTuple):
    user: str
    page: str


class Visits(cc.KeyedProcess[Click, tuple[str, list[str]]]):
    """The pages of a visit, a minute after its last click."""

    pages = cc.ListState[str]()
    due = cc.ValueState[int]()

    def __init__(self) -> None:
        self.seen = 0

    def on_record(self, click: Click, ctx: cc.Context) -> Iterator[Any]:
        self.seen += 1
        if click.page == "/secret":
            ctx.output("alarms", click)
            return
        if (due := self.due.get()) is not None:
            ctx.delete_timer(due)
        assert ctx.timestamp is not None
        self.due.set(ctx.timestamp + 60_000)
        ctx.set_timer(ctx.timestamp + 60_000)
        self.pages.append(click.page)
        yield from ()

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[tuple[str, list[str]]]:
        yield ctx.key, self.pages.get()
        self.pages.clear()
        self.due.clear()


def test_records_and_a_watermark_give_what_the_process_gives_in_a_job() -> None:
    harness = ProcessHarness(Visits(), key="user")
    assert harness.record(Click("ada", "/"), timestamp=0) == []
    assert harness.record(Click("ada", "/shop"), timestamp=30_000) == []
    assert harness.record(Click("bob", "/"), timestamp=31_000) == []
    assert harness.watermark(89_999) == []
    assert harness.watermark(90_000) == [("ada", ["/", "/shop"])]
    assert harness.values("pages") == {"bob": ["/"]}
    assert harness.end() == [("bob", ["/"])]
    assert harness.emitted == [(("ada", ["/", "/shop"]), 90_000), (("bob", ["/"]), 91_000)]


def test_timers_can_be_seen_by_key() -> None:
    harness = ProcessHarness(Visits(), key=lambda click: click.user)
    harness.record(Click("ada", "/"), timestamp=0)
    harness.record(Click("ada", "/"), timestamp=5)
    assert harness.timers() == {"ada": [60_005]}
    assert harness.processing_timers() == {}


def test_a_restart_keeps_declared_state_and_timers_and_nothing_else() -> None:
    process = Visits()
    harness = ProcessHarness(process, key="user")
    harness.record(Click("ada", "/"), timestamp=0)
    harness.watermark(10)
    assert harness.process.seen == 1
    harness.restart()
    assert harness.process.seen == process.seen == 0
    assert harness.values("pages") == {"ada": ["/"]}
    assert harness.watermark(60_000) == [("ada", ["/"])]


def test_a_side_output_has_to_be_declared_as_somebody_has_to_read_it_in_a_flow() -> None:
    with pytest.raises(UserCodeError, match="alarms"):
        ProcessHarness(Visits(), key="user").record(Click("ada", "/secret"), timestamp=0)
    harness = ProcessHarness(Visits(), key="user", side_outputs=["alarms"])
    harness.record(Click("ada", "/secret"), timestamp=3)
    assert harness.side_output("alarms") == [Click("ada", "/secret")]


class Polls(cc.KeyedProcess[str, str]):
    def on_record(self, record: str, ctx: cc.Context) -> Iterator[str]:
        ctx.set_processing_timer(ctx.now() + 1_000)
        yield from ()

    def on_processing_timer(self, time: int, ctx: cc.Context) -> Iterator[str]:
        yield f"{ctx.key} at {time}"


def test_the_clock_is_moved_by_the_test_alone() -> None:
    harness = ProcessHarness(Polls(), now=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    start = harness.now
    assert harness.record("x", key="a") == []
    assert harness.processing_timers() == {"a": [start + 1_000]}
    assert harness.advance_clock("999ms") == []
    assert harness.advance_clock("1ms") == [f"a at {start + 1_000}"]
    assert harness.emitted == [(f"a at {start + 1_000}", None)]


class Boom(cc.KeyedProcess[Any, Any]):
    is_closed = False

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        raise ValueError("no such card")

    def close(self) -> None:
        type(self).is_closed = True


def test_an_error_names_the_record_and_has_the_users_own_as_its_cause() -> None:
    with pytest.raises(UserCodeError, match="no such card") as raised:
        ProcessHarness(Boom()).record(5, key="a")
    assert isinstance(raised.value.__cause__, ValueError)


def test_end_closes_the_process() -> None:
    Boom.is_closed = False
    harness = ProcessHarness(Boom())
    with pytest.raises(UserCodeError):
        harness.record(5, key="a")
    harness.end()
    assert Boom.is_closed
    with pytest.raises(FlowError, match="end"):
        harness.record(1, key="a")


def local_object() -> object:
    class Local:
        pass

    return Local()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda one: one.record(Click("ada", "/"), key="bob", timestamp=0), "key"),
        (lambda one: one.watermark("soon"), "timestamp"),
        (lambda one: one.values("nothing"), "no state 'nothing'.*'due', 'pages'"),
        (lambda one: one.side_output("nothing"), "side output 'nothing'"),
        (lambda one: (one.watermark(10), one.watermark(9)), "9.*10"),
        (lambda one: one.other(3), "ConnectedProcess"),
        (lambda one: one.advance_clock(-1), "-1"),
        (lambda one: one.advance_clock(0.0004), r"0\.4 ms.*whole milliseconds"),
        (lambda one: one.advance_clock("1.5ms"), "whole milliseconds"),
        (lambda one: one.record(Click("ada", "/")), "timestamp.*on_timer"),
        (lambda one: one.record(Click("ada", "/"), timestamp="soon"), "timestamp='soon'"),
        (lambda one: one.record(Click("ada", "/"), timestamp=0.5), "timestamp=0.5"),
        (lambda one: one.record(Click("ada", "/"), timestamp=10**15), "timestamp=1000.*microseconds"),
        (lambda one: one.record(Click("ada", "/"), timestamp=NAIVE), "no time zone"),
        (lambda one: one.record(Click("ada", threading.Lock()), timestamp=0), "can't be pickled"),
        (lambda one: one.record(Click("ada", lambda: 1), timestamp=0), "record can't be pickled.*lambda"),
        (lambda one: one.record(Click("ada", local_object()), timestamp=0), "record can't be pickled.*Local"),
        (lambda one: one.watermark(0.5), "watermark=0.5"),
        (lambda one: ProcessHarness(Visits(), now=0.5), "now=0.5"),  # type: ignore[arg-type]
        (lambda one: ProcessHarness(Visits(), side_outputs="late"), r"side_outputs='late'.*\['late'\]"),
        (lambda one: ProcessHarness(Visits(), side_outputs=[""]), "names|name"),
        (lambda one: ProcessHarness(Visits(), side_outputs=[5]), "5"),  # type: ignore[list-item]
    ],
)
def test_what_no_job_would_do_is_an_error(call: Any, problem: str) -> None:
    with pytest.raises(CrosscutError, match=problem):
        call(ProcessHarness(Visits(), key="user"))


def test_all_records_of_a_test_have_timestamps_or_none() -> None:
    harness = ProcessHarness(Keeps(), key="user", side_outputs=["aside"])
    harness.record({"user": "ada"})
    for call in (lambda: harness.record({"user": "ada"}, timestamp=1), lambda: harness.watermark(1)):
        with pytest.raises(FlowError, match="timestamp"):
            call()
    harness = ProcessHarness(Keeps(), key="user", side_outputs=["aside"])
    harness.watermark(1)
    with pytest.raises(FlowError, match="timestamp"):
        harness.record({"user": "ada"})


@pytest.mark.parametrize(("refused", "taken"), [(None, 1), (1, None)])
def test_a_refused_record_does_not_decide_whether_records_have_timestamps(
    refused: int | None, taken: int | None
) -> None:
    harness = ProcessHarness(Keeps(), key="user", side_outputs=["aside"])
    with pytest.raises(FlowError):
        harness.record({"user": 0.5}, timestamp=refused)
    assert len(harness.record({"user": "ada"}, timestamp=taken)) == 1


class Keeps(cc.KeyedProcess[dict[str, Any], list[Any]]):
    """Emits and keeps the same objects, which it changes with each record."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def on_record(self, record: dict[str, Any], ctx: cc.Context) -> Iterator[list[Any]]:
        record["seen"] = True
        self.records.append(record)
        ctx.output("aside", self.records)
        yield self.records


def test_the_process_and_the_test_share_no_objects() -> None:
    harness = ProcessHarness(Keeps(), key="user", side_outputs=["aside"])
    record = {"user": "ada"}
    (first,) = harness.record(record)
    harness.record({"user": "bob"})
    assert record == {"user": "ada"}
    assert first == harness.side_output("aside")[0] == [{"user": "ada", "seen": True}]
    record["user"] = "eve"
    assert harness.process.records[0]["user"] == "ada"


def test_the_clock_moves_by_seconds_in_whole_milliseconds() -> None:
    harness = ProcessHarness(Polls())
    for duration in (0.001, "2ms", 0.3, 1):
        harness.advance_clock(duration)
    assert harness.now == 1_303


def test_what_can_be_no_key_is_refused_as_in_a_job() -> None:
    with pytest.raises(FlowError, match="key"):
        ProcessHarness(Polls()).record("x")
    with pytest.raises(FlowError, match=r"0\.5"):
        ProcessHarness(Polls()).record("x", key=0.5)


def test_a_process_that_no_flow_takes_is_refused_at_once() -> None:
    with pytest.raises(FlowError, match="make one, as in Visits"):
        ProcessHarness(Visits)  # type: ignore[arg-type]


class Unstorable(cc.KeyedProcess[Any, Any]):
    value = cc.ValueState[Any]()

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        self.value.set(lambda: record)


def test_a_restart_finds_values_that_no_checkpoint_can_store() -> None:
    harness = ProcessHarness(Unstorable())
    harness.record(5, key="a")
    with pytest.raises(StateError):
        harness.restart()


class Remembers(cc.KeyedProcess[int, int]):
    entries = cc.MapState[int, int](ttl="1s")

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[int]:
        yield self.entries.get(record, 0)
        self.entries[record] = self.entries.get(record, 0) + 1


def test_a_map_is_shown_as_a_dictionary_and_values_expire_with_the_watermark() -> None:
    harness = ProcessHarness(Remembers(), key=lambda _: "k")
    assert harness.record(7, timestamp=0) == [0]
    assert harness.record(7, timestamp=0) == [1]
    assert harness.values("entries") == {"k": {7: 2}}
    harness.watermark(1_000)
    assert harness.record(7, timestamp=1_000) == [0]
    # By a quarter of the time to live later it has been removed, too.
    harness.watermark(2_250)
    assert harness.values("entries") == {}


class Rules(cc.ConnectedProcess[Click, tuple[str, int], str]):
    limits = cc.BroadcastState[str, int]()
    visits = cc.MapState[str, int]()

    def on_record(self, record: Click, ctx: cc.Context) -> Iterator[str]:
        self.visits[record.page] = count = self.visits.get(record.page, 0) + 1
        if count > self.limits.get(record.page, 100):
            yield f"{ctx.key}: {record.page} {count} times"

    def on_other(self, record: tuple[str, int], ctx: cc.Context) -> None:
        self.limits[record[0]] = record[1]


def test_the_other_stream_of_a_connected_process_is_broadcast() -> None:
    harness = ProcessHarness(Rules(), key="user")
    assert harness.record(Click("ada", "/")) == []
    assert harness.other(("/", 1)) == []
    assert harness.record(Click("ada", "/")) == ["ada: / 2 times"]
    harness.restart()
    assert harness.record(Click("ada", "/")) == ["ada: / 3 times"]
    assert harness.values("visits") == {"ada": {"/": 3}}


class Paid(cc.ConnectedProcess[str, str, str]):
    ordered = cc.ValueState[str]()

    def on_record(self, record: str, ctx: cc.Context) -> None:
        self.ordered.set(record)

    def on_other(self, record: str, ctx: cc.Context) -> Iterator[str]:
        yield f"{self.ordered.get()} paid by {record}"


def test_the_other_stream_has_keys_if_a_function_for_them_is_given() -> None:
    harness = ProcessHarness(Paid(), key=lambda order: order[0], other_key=lambda payment: payment[0])
    harness.record("1 book")
    assert harness.other("1 card") == ["1 book paid by 1 card"]
    assert harness.other("2 card") == ["None paid by 2 card"]
