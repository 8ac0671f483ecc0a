"""The graphs that worlds are made of. Each says how its output can be compared whatever the order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from crosscut.contracts.context import Context
from crosscut.contracts.process import KeyedProcess
from crosscut.contracts.state import MapState, ValueState
from crosscut.flow.flow import Flow
from crosscut.flow.stream import Stream
from crosscut.flow.tumbling import tumbling
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM, Judgement, SimulatedJob
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource, source_double

Build = Callable[[Flow, Callable[[], Stream], Callable[[Stream], None]], None]


@dataclass(frozen=True)
class Graph(Judgement):
    """A graph of the zoo, with what writes it down as a flow."""

    build: Build


def built(options: Options, graph: Graph | None = None) -> SimulatedJob:
    """Build `graph`; default: the one of the zoo that `options` name."""
    split_count = options.parallelism * options.splits_per_task
    flow = Flow("simulated")
    sources: list[ReplayedSource] = []
    sinks: list[SimulatedSink] = []

    def source() -> Stream:
        number = len(sources)
        splits = {
            f"s{number}-{split}": [((number, split), k) for k in range(options.record_count)]
            for split in range(split_count)
        }
        # One branch ends long before the other.
        duration_ms = options.source_ms // (1 + 4 * number)
        sources.append(
            source_double(
                splits,
                duration_ms,
                options.splits_every_ms,
                stays_open=options.stays_open,
                empty_looks=number * options.empty_looks,
            )
        )
        sources[-1].knows_lag = options.knows_lag
        return flow.source(sources[-1])

    def sink(stream: Stream) -> None:
        sinks.append(SimulatedSink())
        stream.sink(sinks[-1])

    judged_as = graph or {**GRAPHS, **OTHERS}[options.graph]
    judged_as.build(flow, source, sink)
    compiled = flow.compile(options.parallelism, MAX_PARALLELISM)
    # All that its records, and what becomes of them, depend on.
    known_by = judged_as, options.parallelism, split_count, options.record_count
    return SimulatedJob(compiled, tuple(sources), tuple(sinks), judged_as, known_by=known_by)


def _key(record: Any) -> Any:
    (number, split), k = record
    return f"key {(number + 3 * split + 5 * k) % 7}"


def _chain(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    sink(source().map(lambda record: record).key_by(_key).count())


def _rebalance(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    sink(source().rebalance().map(lambda record: record).key_by(_key).count())


def _appended(records: list[Any], record: Any) -> list[Any]:
    records.append(record)
    return records


def _union(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    left, right = source(), source()
    keyed = left.union(right).key_by(_key)
    sink(keyed.aggregate(list, _appended, lambda records: (len(records), records[-1])))


def _diamond(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    records = source()
    left = records.map(lambda record: ("left", record))
    sink(left.union(records.broadcast().map(lambda record: ("right", record))))


def _two_sinks(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    records = source()
    sink(records.filter(lambda record: record[1] % 3 > 0))
    sink(records.key_by(_key).count())


def _totals(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    sink(source().key_by(_key).sum(lambda record: record[1], emit="final").rebalance().map(lambda pair: pair))


def _newest(one: Any, other: Any) -> Any:
    return other


def _step(pair: Any) -> Any:
    _, (record, number, steps) = pair
    return (record, number // 2 if number % 2 == 0 else 3 * number + 1, steps + 1)


def _loop(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    def step(loop: Stream) -> tuple[Stream, Stream]:
        stepped = loop.key_by(lambda record: record[1] % 5).reduce(_newest).map(_step)
        return stepped.filter(lambda record: record[1] != 1), stepped.filter(lambda record: record[1] == 1)

    sink(source().map(lambda record: (record, record[1] % 9 + 2, 0)).iterate(step))


def _nested_loops(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    def inner(loop: Stream) -> tuple[Stream, Stream]:
        less = loop.rebalance().map(lambda record: (record[0], record[1] - 1, record[2]))
        return less.filter(lambda record: record[1] % 3 > 0), less.filter(lambda record: record[1] % 3 == 0)

    def outer(loop: Stream) -> tuple[Stream, Stream]:
        out = loop.iterate(inner).map(lambda record: (*record[:2], record[2] + 1))
        return out.filter(lambda record: record[1] > 0), out.filter(lambda record: record[1] <= 0)

    sink(source().map(lambda record: (record, record[1] % 8 + 1, 0)).iterate(outer))


def _once_round(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    """A task whose output leads to itself, and to other workers."""

    def step(loop: Stream) -> tuple[Stream, Stream]:
        less = loop.flat_map(lambda record: [(record[0], record[1] - 1)] if record[1] else [])
        return less, less

    sink(source().map(lambda record: (record, record[1] % 4)).iterate(step).rebalance())


def _apart(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    """Two flows that have nothing to do with each other."""
    _loop(flow, source, sink)
    _rebalance(flow, source, sink)


def _newest_of_key(so_far: Any, record: Any) -> Any:
    return record


def _is_of_an_even_key(record: Any) -> bool:
    return int(_key(record)[-1]) % 2 == 0


async def _answered(record: Any) -> Any:
    """Take longer for some records than for those that follow them."""
    (_, split), k = record
    await asyncio.sleep((split + 3 * k) % 4 * 0.01)
    return record


def _other_key(record: Any) -> Any:
    return f"other {_key(record)}"


def _detours(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    """Edges that are not by key, before and between shuffles. The records of a key all go the same way."""
    left, right = source(), source()
    changed = left.union(right).key_by(_key).aggregate(_nothing, _newest_of_key).map(lambda pair: pair[1])
    called = changed.filter(_is_of_an_even_key).map_async(_answered, capacity=2, ordered=True)
    uncalled = changed.filter(lambda record: not _is_of_an_even_key(record))
    sink(called.union(uncalled).key_by(_other_key).aggregate(_nothing, _newest_of_key))


def _nothing() -> Any:
    return None


STEP_MS = 1_000
OUT_OF_ORDERNESS_MS = 5 * STEP_MS


def _happened(record: Any) -> int:
    """Return when `record` happened: out of order, but within bounds, and splits are far apart."""
    (number, split), k = record
    return int(100 + 50 * split + 10 * number + k - k * 5 % 6) * STEP_MS


def _event_time(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    """Watermarks of two sources meet, go through three shuffles, and are far apart."""
    left, right = (
        source().assign_timestamps(_happened, out_of_orderness=f"{OUT_OF_ORDERNESS_MS}ms") for _ in range(2)
    )
    keyed = left.union(right).rebalance().map(lambda record: record).key_by(_key)
    sink(keyed.aggregate(list, _appended, lambda records: (len(records), records[-1])).rebalance())


def _two_clocks(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    """Two sources whose records have the same times: the one that comes later is not late."""
    left, right = (
        source().assign_timestamps(_happened, out_of_orderness=f"{OUT_OF_ORDERNESS_MS}ms") for _ in range(2)
    )
    windows = left.union(right).key_by(_key).window(tumbling(f"{2 * STEP_MS}ms"))
    sink(windows.aggregate(list, _appended, sorted))


def _aligned_sources(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    """Two sources, the splits of which are far apart: each waits until those before it have ended."""
    left, right = (
        source().assign_timestamps(
            _happened,
            out_of_orderness=f"{OUT_OF_ORDERNESS_MS}ms",
            idle_after="1h",
            align_within=f"{2 * STEP_MS}ms",
            align_group="both",
        )
        for _ in range(2)
    )
    sink(left.union(right).key_by(_key).aggregate(list, _appended, lambda some: (len(some), some[-1])))


WINDOW_MS = 4 * STEP_MS
CLOCK_MS = 30


class Counts(KeyedProcess[Any, Any]):
    """Counts by windows, with a timer for each beside one that is always deleted; one by the clock a key."""

    counts = MapState[int, int]()
    is_asked = ValueState(default=False)

    def on_record(self, record: Any, ctx: Context) -> Iterable[Any] | None:
        end = (_happened(record) // WINDOW_MS + 1) * WINDOW_MS
        self.counts[end] = self.counts.get(end, 0) + 1
        ctx.set_timer(end)
        ctx.set_timer(end + 1)
        ctx.delete_timer(end + 1)
        if not self.is_asked.get():
            self.is_asked.set(True)
            ctx.set_processing_timer(ctx.now() + CLOCK_MS)
        return None

    def on_timer(self, time: int, ctx: Context) -> Iterable[Any] | None:
        return ((ctx.key, time, self.counts.pop(time, 0)),)

    def on_processing_timer(self, time: int, ctx: Context) -> Iterable[Any] | None:
        return ((ctx.key, "by the clock"),)


class Mortals(KeyedProcess[Any, Any]):
    """Keeps a value that dies, looks at it now and then, and says so if it lives when it is dead."""

    last = ValueState[int](ttl=f"{WINDOW_MS}ms")
    written = ValueState(default=0)
    is_gone = ValueState(default=False)

    def on_record(self, record: Any, ctx: Context) -> Iterable[Any] | None:
        happened = _happened(record)
        self.last.set(happened)
        self.written.set(happened)
        self.is_gone.set(False)
        for lives in range(1, 6):
            ctx.set_timer((happened // WINDOW_MS + lives) * WINDOW_MS)
        return None

    def on_timer(self, time: int, ctx: Context) -> Iterator[Any]:
        yield (ctx.key, time)
        is_there = self.last.get() is not None
        if ctx.timestamp is not None and ctx.watermark != END_OF_TIME:
            # By the time of the timer, however far the watermark is. A run without time does not see it, and
            # for that it is the end of time.
            lives = self.written.get() + WINDOW_MS > ctx.timestamp
            if is_there and self.is_gone.get():
                yield (ctx.key, "has come back")
            if is_there != lives:
                yield (ctx.key, "is dead and there" if is_there else "is alive and gone")
        self.is_gone.set(not is_there)


def _time_to_live(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    timed = source().assign_timestamps(_happened, out_of_orderness=f"{OUT_OF_ORDERNESS_MS}ms")
    sink(timed.key_by(_key).process(Mortals()).rebalance().map(lambda result: result))


def _timers(flow: Flow, source: Callable[[], Stream], sink: Callable[[Stream], None]) -> None:
    """What is said depends on when timers fire, and on how often."""
    left, right = (
        source().assign_timestamps(_happened, out_of_orderness=f"{OUT_OF_ORDERNESS_MS}ms") for _ in range(2)
    )
    sink(left.union(right).key_by(_key).process(Counts()).rebalance().map(lambda result: result))


def _count_and_record(record: Any) -> Iterable[Any]:
    key, (count, last) = record
    return (("count", key, count), ("record", last))


def _count_lane(sink_uid: str, record: Any) -> tuple[Any, Any] | None:
    key, count = record
    return (key, count if isinstance(count, int) else count[0])


def _record_lane(sink_uid: str, record: Any) -> tuple[Any, Any] | None:
    side, (lane, rank) = record
    return ((side, lane), rank)


def _two_sinks_lane(sink_uid: str, record: Any) -> tuple[Any, Any] | None:
    return record[0], record[1]


def _key_and_split_lane(sink_uid: str, record: Any) -> tuple[Any, Any] | None:
    key, (split, rank) = record
    return (key, split), rank


GRAPHS: dict[str, Graph] = {
    "chain": Graph(_chain, lane=_count_lane),
    "union": Graph(_union, tokens=_count_and_record, lane=_count_lane),
    "diamond": Graph(_diamond, lane=_record_lane),
    "rebalance": Graph(_rebalance, lane=_count_lane),
    "two sinks": Graph(_two_sinks, lane=_two_sinks_lane),
    "totals": Graph(_totals, survives_duplicates=False),
    "loop": Graph(_loop),
    "nested loops": Graph(_nested_loops),
}
"""Those that worlds draw from."""

OTHERS: dict[str, Graph] = {
    "once round": Graph(_once_round),
    "apart": Graph(_apart),
    "detours": Graph(_detours, lane=_key_and_split_lane),
    "timers": Graph(_timers, survives_duplicates=False, is_punctual=True),
    "time to live": Graph(_time_to_live, survives_duplicates=False, is_punctual=True),
    "event time": Graph(_event_time, tokens=_count_and_record, is_punctual=True),
    "two clocks": Graph(_two_clocks),
    "aligned sources": Graph(_aligned_sources, tokens=_count_and_record),
}
"""Those that are asked for by name."""
