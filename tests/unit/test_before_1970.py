"""Times before 1970, in all that goes by event time: as those after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

import crosscut as cc
from crosscut.contracts.settings import BackendName

LATER_MS = 10 * 365 * 86_400_000
"""By so much all is moved on, to after 1970, to be compared with."""
RECORDS = [(key, n * 700 + (n * 7919) % 600) for n in range(-30, 30) for key in ("a", "b")]


class Alarms(cc.KeyedProcess[Any, Any]):
    """Sets a timer for each record, a value that dies, and one timer that is past when it is set."""

    last = cc.ValueState[int](ttl="3s")

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        self.last.set(record[1])
        ctx.set_timer(record[1] + 1_000)
        ctx.set_timer(record[1] - 5_000)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterable[Any]:
        yield (ctx.key, time, self.last.get() is not None, ctx.timestamp)


def tumbling(stream: Any) -> Any:
    return stream.key_by(lambda one: one[0]).window(cc.tumbling("1s")).count()


def sliding(stream: Any) -> Any:
    return stream.key_by(lambda one: one[0]).window(cc.sliding("3s", every="1s")).count()


def session(stream: Any) -> Any:
    return stream.key_by(lambda one: one[0]).window(cc.session("500ms")).count()


def counted(stream: Any) -> Any:
    return stream.key_by(lambda one: one[0]).window(cc.count_window(3)).count()


def interval(stream: Any) -> Any:
    left, right = stream.key_by(lambda one: one[0]), stream.key_by(lambda one: one[0])
    return left.interval_join(right, "-1s", "1s")


def latest(stream: Any) -> Any:
    left = stream.key_by(lambda one: one[0])
    return left.latest_join(stream.filter(lambda one: one[1] % 3 == 0).key_by(lambda one: one[0]))


def alarms(stream: Any) -> Any:
    return stream.key_by(lambda one: one[0]).process(Alarms())


def output(build: Callable[[Any], Any], by_ms: int, backend: BackendName, directory: Path) -> Counter[str]:
    """Return what a flow says of the records, moved on by `by_ms`, with all times as they were."""
    out = cc.collect(directory / f"out-{by_ms}")
    flow = cc.Flow("times")
    records = sorted(((key, time + by_ms) for key, time in RECORDS), key=lambda one: one[1])
    build(flow.source(cc.items(records)).assign_timestamps(lambda one: one[1])).sink(out)
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=17),
        parallelism=1,
        state_backend=backend,
        checkpoint_dir=directory / f"checkpoints-{by_ms}",
        checkpoint_interval="10ms",
    )
    graph = flow.compile(1, 128)

    def made(graph: Any, url: str) -> LocalJobs:
        return LocalJobs(graph, url, Random(1), FaultProfile(), backend)

    end, _ = run_batches(graph, settings, made)
    assert end is not None and end.outcome == "finished", end
    return Counter(repr(_moved(one, -by_ms)) for one in out.records())


def _moved(found: Any, by_ms: int) -> Any:
    """Return a result with its times moved: whole numbers that are no counts."""
    if isinstance(found, cc.Windowed):
        return (found.key, found.start + by_ms, found.end + by_ms, found.value)
    if isinstance(found, tuple | list):
        return tuple(_moved(one, by_ms) for one in found)
    if isinstance(found, int) and not isinstance(found, bool):
        return found + by_ms
    return found


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("build", [tumbling, sliding, session, counted, interval, latest, alarms])
def test_all_is_before_1970_as_after_it(
    build: Callable[[Any], Any], backend: BackendName, tmp_path: Path
) -> None:
    before = output(build, 0, backend, tmp_path)
    assert before == output(build, LATER_MS, backend, tmp_path)
    assert any("-" in one for one in before)
