"""States whose values live for a time, and states with a serializer of their own; over both backends."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow
import pytest
from hypothesis import given, settings

import crosscut as cc
from crosscut.contracts.process import declared
from crosscut.errors import FlowError, SettingsError, StateError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.graph.specs import OperatorNode, ProcessSpec
from crosscut.operators.building import NewState, build, keyed_state
from crosscut.operators.cells import plain_value
from crosscut.operators.process import Process
from crosscut.state.expiry import ExpiryInMemory
from crosscut.state.keyed import KeyedState
from crosscut.state.named import NamedTable
from crosscut.state.rocksdb.state import RocksState
from crosscut.worker.backends import OnDisk

N1, N2 = CheckpointId(1), CheckpointId(2)


class Site:
    """A process as the operator that runs it, with its state and its time."""

    def __init__(self, process: cc.KeyedProcess[Any, Any], new: NewState = KeyedState) -> None:
        states = tuple((name, one.form) for name, one in declared(process).items())
        self._node = OperatorNode("the-process", ProcessSpec(process, states), ())
        state = keyed_state(self._node, new)
        assert state is not None
        self.begin(state)

    def begin(self, state: KeyedState) -> None:
        """Another epoch begins with this state."""
        self.state = state
        operator = build(self._node, state, None)
        assert isinstance(operator, Process)
        self.operator = operator

    def fresh(self, new: NewState = KeyedState) -> KeyedState:
        state = keyed_state(self._node, new)
        assert state is not None
        return state

    def gives(
        self, *records: tuple[Any, Any], at: int | None = None, watermark: int | None = None
    ) -> list[Any]:
        self.operator.advance(watermark)
        timestamps = None if at is None else [at] * len(records)
        batch = Batch([record for _, record in records], [key for key, _ in records], timestamps)
        return self.operator.process(batch).records


class Timed(cc.KeyedProcess[str, Any]):
    value = cc.ValueState[int](default=7, ttl="10ms")
    items = cc.ListState[int](ttl="10ms")
    entries = cc.MapState[str, int](ttl="10ms")
    most = cc.ReducingState[int](max, ttl="10ms")
    ever = cc.ValueState[int](0)

    def on_record(self, record: str, ctx: cc.Context) -> Iterator[Any]:
        yield eval(record)  # noqa: S307 - the tests' own words


@pytest.fixture(params=["memory", "rocksdb"])
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewState]:
    if request.param == "memory":
        yield KeyedState
        return
    backend = OnDisk(str(tmp_path / "state"), 16)
    yield backend.new_state(TaskId(VertexId("v"), 0))
    backend.close()


def stored(state: KeyedState, n: CheckpointId) -> None:
    """Take a checkpoint and complete it."""
    state.freeze(n)
    if isinstance(state, RocksState):
        for _ in state.writing(n):
            pass
        state.link(n)
        state._stored[n] = {}
    else:
        b"".join(state.encoded(n, CheckpointId(0)))
    for _ in state.complete(n):
        pass


def test_an_expired_value_is_as_if_it_had_been_cleared(new: NewState) -> None:
    site = Site(Timed(), new)
    site.gives(("a", "self.value.set(1)"), ("a", "self.items.append(1)"), ("a", "self.most.add(5)"), at=100)
    site.gives(("a", "self.entries.update(x=1)"), at=100)
    site.gives(("a", "self.entries.update(y=2)"), at=105)
    look = "(self.value.get(), self.value.exists, self.items.get(), dict(self.entries), self.most.get())"
    assert site.gives(("a", look), at=109, watermark=109) == [(1, True, [1], {"x": 1, "y": 2}, 5)]
    assert site.gives(("a", look), at=110, watermark=110) == [(7, False, [], {"y": 2}, None)]
    assert site.gives(
        ("a", "('x' in self.entries, len(self.entries), self.entries.get('x'), list(self.entries))"), at=112
    ) == [(False, 1, None, ["y"])]
    site.gives(("a", "self.most.add(3)"), ("a", "self.items.append(2)"), at=120)
    assert site.gives(("a", look), at=121, watermark=121) == [(7, False, [2], {}, 3)]


def test_a_value_that_is_set_again_begins_a_new_life(new: NewState) -> None:
    site = Site(Timed(), new)
    for at in range(100, 200, 5):
        site.gives(("a", "self.value.set(1)"), at=at, watermark=at)
    assert site.gives(("a", "self.value.get()"), at=200, watermark=204) == [1]
    assert site.gives(("a", "self.value.get()"), at=200, watermark=205) == [7]


def test_expired_values_are_removed_though_nobody_asks_for_them(new: NewState) -> None:
    site = Site(Timed(), new)
    site.gives(*[(key, "self.value.set(1)") for key in range(1_000)], at=100)
    site.gives(*[(key, "self.entries.update(x=1)") for key in range(1_000)], at=100)
    stored(site.state, N1)
    assert len(site.state) == 2_000
    for _ in range(30):
        site.gives(("b", "self.ever.set(1)"), at=120, watermark=115)
    assert len(site.state) == 1


class Yielding(cc.KeyedProcess[str, Any]):
    """Yields what its states give, and goes on to change it."""

    value = cc.ValueState[list[str]]()
    short = cc.ValueState[list[str]](ttl="10ms")
    entries = cc.MapState[str, list[str]]()
    added = cc.AggregatingState[str, list[str]](list, lambda some, one: [some.append(one), some][1])
    reduced = cc.ReducingState[list[str]](lambda some, more: [some.extend(more), some][1])

    def on_record(self, record: str, ctx: cc.Context) -> Iterator[Any]:
        value, short, entry = self.value.get() or [], self.short.get() or [], self.entries.get("x", [])
        for one in (value, short, entry):
            one.append(record)
        self.value.set(value)
        self.short.set(short)
        self.entries["x"] = entry
        self.added.add(record)
        self.reduced.add([record])
        yield value, short, entry, self.added.get(), self.reduced.get()


def test_what_a_process_yields_stays_as_it_was_whatever_is_done_to_its_state(new: NewState) -> None:
    """Else what is said would depend on which records come in one batch."""
    site = Site(Yielding(), new)
    expected = [(["x"],) * 5, (["x", "y"],) * 5, (["x", "y", "z"],) * 5]
    assert site.gives(("a", "x"), ("a", "y"), ("a", "z"), at=100) == expected
    stored(site.state, N1)
    assert site.gives(("a", "!"), ("a", "?"), at=100)[0] == (["x", "y", "z", "!"],) * 5


class Keeping(cc.KeyedProcess[str, Any]):
    """Changes the items that it is given of a list, and keeps them."""

    items = cc.ListState[dict[str, int]]()

    def __init__(self) -> None:
        self.kept: list[dict[str, int]] = []

    def on_record(self, record: str, ctx: cc.Context) -> Iterator[Any]:
        if record == "add":
            self.items.append({"n": 0})
        if record == "change":
            for one in (*self.items, *self.items.get(), *self.kept):
                one["n"] += 1
                self.kept.append(one)
        yield self.items.get()


def test_items_of_a_list_that_are_changed_and_not_set_change_neither_state_nor_snapshot(
    new: NewState,
) -> None:
    """While a snapshot is being encoded, records are processed. Nor does it change what was said before."""
    site = Site(Keeping(), new)
    assert site.gives(("a", "add"), ("a", "change")) == [[{"n": 0}]] * 2
    assert site.gives(("a", "change"), ("a", "look")) == [[{"n": 0}]] * 2
    site.state.freeze(N1)
    assert site.gives(("a", "change"), ("a", "look")) == [[{"n": 0}]] * 2
    if not isinstance(site.state, RocksState):
        part = b"".join(site.state.encoded(N1, CheckpointId(0)))
        site.begin(site.fresh())
        for _ in site.state.loading([(N1, part)], N1):
            pass
        assert dict(site.state.tables["items"].items()) == {"a": [{"n": 0}]}


def test_expired_values_are_removed_as_fast_as_new_ones_are_written(new: NewState) -> None:
    """However many come with a batch: else a time to live would not bound the state."""
    site = Site(Timed(), new)
    most = 0
    for now in range(1_000, 1_080):
        site.gives(*[((now, n), "self.value.set(1)") for n in range(500)], at=now, watermark=now)
        if now % 5 == 0:
            stored(site.state, CheckpointId(now))
            most = max(most, len(site.state))
    assert most <= 500 * 10 * 2.5, "rows live for 10 ms, and so long again at most"


def test_what_has_expired_stays_so_after_a_restore_and_a_roll_back() -> None:
    """A TTL that resurrects would be seen here."""
    site = Site(Timed())
    site.gives(("a", "self.value.set(1)"), at=100)
    site.state.freeze(N1)
    part = b"".join(site.state.encoded(N1, CheckpointId(0)))
    for _ in site.state.complete(N1):
        pass
    for _ in range(3):
        site.gives(("b", "self.ever.set(1)"), at=120, watermark=115)
    assert not site.state.tables["value"].has("a")
    site.state.roll_back(N1)
    site.begin(site.state)
    assert site.gives(("a", "self.value.get()"), at=120, watermark=115) == [7]
    assert not site.state.tables["value"].has("a"), "it is removed again"
    other = site.fresh()
    for _ in other.loading([(N1, part)], N1):
        pass
    site.begin(other)
    assert site.gives(("a", "self.value.get()"), at=120, watermark=115) == [7]
    assert not other.tables["value"].has("a")


def test_processing_time_is_the_one_that_the_operator_is_told(new: NewState) -> None:
    class Briefly(cc.KeyedProcess[int, Any]):
        last = cc.ValueState[int](ttl="10ms", ttl_time="processing")

        def on_record(self, record: int, ctx: cc.Context) -> Iterator[Any]:
            yield self.last.get()
            self.last.set(record)

    site = Site(Briefly(), new)
    said = []
    for now in (1_000, 1_009, 1_018, 1_028, 1_029):
        site.operator.time_budget.now_ms = now
        said += site.gives(("a", now))
    assert said == [None, 1_000, 1_009, None, 1_028]
    stored(site.state, N1)
    for now in (2_000, 2_005, 2_010):
        site.operator.time_budget.now_ms = now
        site.gives(("b", 1))
    assert not site.state.tables["last"].has("a")


def tick(operator: Process, now_ms: int) -> None:
    """What a task does by its clock, while no record comes."""
    operator.time_budget.now_ms = now_ms
    alarm_ms = operator.next_alarm_ms
    if alarm_ms is not None and alarm_ms <= now_ms:
        assert operator.advance(None) is None
        # There is time for other things in between, however much has expired.
        assert (operator.next_alarm_ms or now_ms + 1) > now_ms


def test_what_has_expired_is_removed_in_bounded_time_though_no_record_comes_any_more(new: NewState) -> None:
    class Briefly(cc.KeyedProcess[int, Any]):
        last = cc.ValueState[int](ttl="10s", ttl_time="processing")
        seen = cc.ValueState[int](ttl="10ms")

        def on_record(self, record: int, ctx: cc.Context) -> None:
            self.last.set(record)
            self.seen.set(record)

    site = Site(Briefly(), new)
    tables = site.state.tables
    site.operator.time_budget.now_ms = 1_000_000
    site.gives(*[(key, 1) for key in range(2_000)], at=100)
    stored(site.state, N1)
    tick(site.operator, 1_000_000)
    assert (len(tables["last"]), len(tables["seen"])) == (2_000, 2_000)
    # The watermark comes once, and goes no further: also then all that is over is removed.
    site.operator.advance(None)
    site.operator.advance(120)
    for now_ms in range(1_000_000, 1_013_000, 20):
        tick(site.operator, now_ms)
    assert (len(tables["last"]), len(tables["seen"])) == (0, 0)


class AtTimers(cc.KeyedProcess[tuple[str, int], Any]):
    """Sets a value, and says at timers whether it is alive; records are ("set", _), ("at", time), ..."""

    value = cc.ValueState[int](ttl="10ms")

    def on_record(self, record: tuple[str, int], ctx: cc.Context) -> None:
        what, time = record
        match what:
            case "set":
                self.value.set(time)
            case "at":
                ctx.set_timer(time)
            case _:
                ctx.set_processing_timer(time)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield time, self.value.get()

    def on_processing_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield f"clock {time}", self.value.get()
        self.value.set(time)
        ctx.set_timer(0)


def said_at(site: Site, watermark: int | None) -> list[Any]:
    said: list[Any] = []
    while (made := site.operator.advance(watermark)) is not None:
        said += made.records
        site.operator.time_budget.rest = None
    return said


def test_a_timer_finds_what_is_alive_at_its_own_time_however_far_the_watermark_jumps(new: NewState) -> None:
    for watermark in (200, cc.END_OF_TIME):
        site = Site(AtTimers(), new)
        site.operator.time_budget.begin(100)
        site.gives(("a", ("set", 1)), *[("a", ("at", time)) for time in (105, 109, 110, 150)], at=100)
        assert said_at(site, watermark) == [(105, 1), (109, 1), (110, None), (150, None)]


def test_what_has_expired_once_does_not_come_back_for_a_timer_of_an_older_time(new: NewState) -> None:
    site = Site(AtTimers(), new)
    site.operator.time_budget.begin(100)
    site.gives(("a", ("set", 1)), at=100, watermark=0)
    said_at(site, 110)
    site.gives(("a", ("at", 105)), at=112)
    assert said_at(site, None) == [(105, None)]
    # Likewise one that a timer of the clock has set, which comes after all that the watermark has made due;
    # wherever a snapshot is taken in between.
    site.gives(("a", ("clock", 1_000)), at=112)
    site.operator.time_budget.now_ms = 1_000
    site.operator.time_budget.begin(1)
    made = site.operator.advance(300)
    assert made is not None and made.records == [("clock 1000", None)]
    assert site.state.named["event timers"].get(("a", 0))[1] == 300


def test_what_a_timer_of_the_clock_sets_lives_from_the_time_that_is_known(new: NewState) -> None:
    site = Site(AtTimers(), new)
    site.operator.time_budget.begin(100)
    site.gives(("a", ("clock", 1_000)), at=100, watermark=500)
    site.operator.time_budget.now_ms = 1_000
    assert said_at(site, None) == [("clock 1000", None), (0, 1_000)]
    site.gives(("a", ("at", 509)), ("a", ("at", 510)), at=500)
    assert said_at(site, 900) == [(509, 1_000), (510, None)]


def test_what_is_set_before_any_time_is_known_lives_from_the_first_that_is(new: NewState) -> None:
    site = Site(AtTimers(), new)
    site.operator.time_budget.begin(1_000)
    site.gives(*[(key, ("clock", 1_000)) for key in range(300)], at=100)
    site.operator.time_budget.now_ms = 1_000
    assert len(said_at(site, None)) == 300
    stored(site.state, N1)
    assert len(site.state.tables["value"]) == 300
    # Wherever a snapshot is taken before that: it is in the rows.
    said_at(site, 100_000)
    for now_ms in range(1_000, 1_100, 5):
        tick(site.operator, now_ms)
    site.gives(*[(key, ("at", 100_009)) for key in (0, 299)], at=100_000)
    site.gives(*[(key, ("at", 100_010)) for key in (0, 299)], at=100_000)
    assert sorted(said_at(site, 100_020), key=str) == [(100_009, 1_000)] * 2 + [(100_010, None)] * 2
    for now_ms in range(2_000, 2_100, 5):
        tick(site.operator, now_ms)
    assert len(site.state.tables["value"]) == 0


def test_event_time_is_refused_for_records_without_timestamps_by_name() -> None:
    with pytest.raises(UserCodeError, match=r"'the-process', state 'value': its ttl is in event time"):
        Site(Timed()).gives(("a", "self.value.set(1)"))


def test_mistakes_are_found_where_they_are_written() -> None:
    with pytest.raises(SettingsError, match="ttl='soon': expected a duration"):
        cc.ValueState(ttl="soon")
    with pytest.raises(FlowError, match="ttl=0: expected at least 1 ms"):
        cc.ValueState(ttl=0)
    with pytest.raises(FlowError, match="ttl_time='wall': expected 'event' or 'processing'"):
        cc.ValueState(ttl=1, ttl_time="wall")  # type: ignore[arg-type]
    with pytest.raises(FlowError, match=r"serializer=<class .*: expected a crosscut.Serializer; make one"):
        cc.ValueState(serializer=cc.ArrowSerializer)  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()), max_size=60),
    st.integers(1, 20),
)
def test_what_is_there_is_what_was_written_less_than_a_ttl_ago(
    steps: list[tuple[str, int, bool]], ttl_ms: int
) -> None:
    """Against a dict of times, whatever the order of event times."""

    class One(cc.KeyedProcess[bool, Any]):
        last = cc.ValueState[int](ttl=ttl_ms / 1_000)

        def on_record(self, record: bool, ctx: cc.Context) -> Iterator[Any]:
            yield self.last.get()
            if record:
                assert ctx.timestamp is not None
                self.last.set(ctx.timestamp)

    site, written, watermark = Site(One()), dict[str, int](), 0
    for key, time, is_write in steps:
        watermark = max(watermark, time - 5)
        alive = written.get(key, -100) + ttl_ms > watermark
        assert site.gives((key, is_write), at=time, watermark=watermark) == [written[key] if alive else None]
        if is_write:
            written[key] = time
    for _ in range(3):
        site.gives(("d", False), at=1_000, watermark=1_000)
    assert len(site.state) == 0, "all are removed in the end"


def test_rows_are_due_a_quarter_of_the_time_to_live_late_at_most_and_a_bounded_number_at_once() -> None:
    expiry = ExpiryInMemory(100)
    for row in range(50):
        expiry.note(row, 1_000 + row)
    assert expiry.due(1_099, 1_000) == []
    found: set[int] = set()
    for now in range(1_100, 1_200):
        some = expiry.due(now, 7)
        assert len(some) <= 7
        found |= set(some)
        assert all(1_000 + row + 100 <= now for row in some)
    assert found == set(range(50))
    assert expiry._slots == {}


# Serializers.


class Visit(msgspec.Struct):
    page: str
    seconds: int = 0


@dataclass
class Plain:
    page: str


class Visits(cc.KeyedProcess[str, Any]):
    last = cc.ValueState[Visit](serializer=cc.MsgspecSerializer(Visit))
    pages = cc.ListState[str](serializer=cc.MsgspecSerializer(list[str]))
    times = cc.MapState[str, Any](
        serializer=cc.ArrowSerializer(pyarrow.struct({"n": pyarrow.int64(), "s": pyarrow.string()}))
    )
    brief = cc.ValueState[Visit](serializer=cc.MsgspecSerializer(Visit), ttl="10ms")

    def on_record(self, record: str, ctx: cc.Context) -> Iterator[Any]:
        yield eval(record)  # noqa: S307 - the tests' own words


def test_values_are_kept_as_the_bytes_of_their_serializer(new: NewState) -> None:
    site = Site(Visits(), new)
    said = site.gives(
        ("a", "self.last.set(Visit('/', 3))"),
        ("a", "self.pages.append('/')"),
        ("a", "self.times.update(x={'n': 1, 's': None})"),
        ("a", "self.brief.set(Visit('/b'))"),
        ("a", "(self.last.get(), self.pages.get(), dict(self.times), len(self.times), self.brief.get())"),
        at=100,
    )
    assert said[-1] == (Visit("/", 3), ["/"], {"x": {"n": 1, "s": None}}, 1, Visit("/b"))
    assert site.state.tables["last"].peek("a") == b"\0\1" + msgspec.msgpack.encode(Visit("/", 3))
    states = declared(Visits())
    rows = {"last": "a", "pages": "a", "times": ("a", "x"), "brief": "a"}
    shown = {
        name: plain_value(states[name], site.state.tables[name].peek(row), "here", row)
        for name, row in rows.items()
    }
    assert shown == {
        "last": Visit("/", 3),
        "pages": ["/"],
        "times": {"n": 1, "s": None},
        "brief": Visit("/b"),
    }
    assert site.gives(("a", "self.brief.exists"), at=110, watermark=110) == [False]


def test_an_old_value_that_cant_be_read_names_operator_state_key_and_versions() -> None:
    site = Site(Visits())
    site.gives(("a", "self.last.set(Visit('/', 3))"))

    class Changed(cc.KeyedProcess[str, Any]):
        last = cc.ValueState[Any](serializer=cc.MsgspecSerializer(list[int], version=2))

        def on_record(self, record: str, ctx: cc.Context) -> Iterator[Any]:
            yield self.last.get()

    other = Site(Changed())
    other.state.tables["last"].put("a", site.state.tables["last"].peek("a"))
    with pytest.raises(
        UserCodeError,
        match=r"operator 'the-process', state 'last', key 'a': a value of version 1 can't be read by "
        r"MsgspecSerializer version 2: ValidationError",
    ):
        other.gives(("a", ""))


def test_an_old_value_is_read_by_what_the_newer_version_says_of_it() -> None:
    old = cc.MsgspecSerializer(Visit).dumps(Visit("/", 3))
    newer = cc.MsgspecSerializer(
        Plain, version=2, older=lambda plain, version: Plain(f"{plain} of {version}")
    )
    assert newer.loads(old, 1) == Plain("{'page': '/', 'seconds': 3} of 1")
    assert newer.loads(newer.dumps(Plain("/")), 2) == Plain("/")
    assert pickle.loads(pickle.dumps(cc.MsgspecSerializer(Visit))).loads(old, 1) == Visit("/", 3)


def test_a_value_that_cant_be_written_names_operator_state_and_key() -> None:
    with pytest.raises(
        UserCodeError, match=r"state 'last', key 'a': a value of type object can't be written by"
    ):
        Site(Visits()).gives(("a", "self.last.set(object())"))


def test_a_pickled_value_that_cant_be_read_names_its_state_and_its_key(new: NewState) -> None:
    class Gone:
        def __reduce__(self) -> Any:
            return _raise, ()

    site = Site(Timed(), new)
    site.state.tables["ever"].put("a", Gone())
    stored(site.state, N1)
    table = site.state.tables["ever"]
    if isinstance(site.state, RocksState):
        with pytest.raises(
            StateError, match="state 'ever' of key 'a' can't be decoded: ValueError: not this one"
        ):
            table.get("a")
        return
    site.state.tables["ever"].put("b", Gone())
    site.state.freeze(N2)
    part = b"".join(site.state.encoded(N2, CheckpointId(0)))
    with pytest.raises(
        StateError, match=r"state 'ever' of one of the keys .*'a'.*: ValueError: not this one"
    ):
        for _ in site.fresh().loading([(N2, part)], N2):
            pass


def _raise() -> None:
    raise ValueError("not this one")


def test_what_is_stored_is_part_of_what_the_flow_is() -> None:
    forms = {name: one.form for name, one in declared(Visits()).items()}
    assert forms["last"] == "value, MsgspecSerializer"
    assert forms["brief"] == "value, ttl in event time, MsgspecSerializer"
    assert isinstance(Site(Visits()).state.named["times"], NamedTable)
