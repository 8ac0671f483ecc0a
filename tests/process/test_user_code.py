"""User code that raises, exits, crashes or hangs, in every place where it is called.

A bad function may end the job, with one clear error; it may not hang it, lose output, or leave a
process behind.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, MANY_RESTARTS, NumberedJob, Once, Record, limit_s, until
from proving import proven

import crosscut as cc
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext, SinkWriter
from crosscut.errors import FlowError, JobFailedError
from crosscut.store.checkpoint_store import open_store

BAD = 4_000
"""The number of the record that does harm."""

FEW_RESTARTS = cc.Restart(failures=3, delay_step="20ms", delay_max="50ms")


def raise_elsewhere(pid: int) -> None:
    if os.getpid() != pid:
        raise LookupError("not in this process")


def raise_in_spark() -> None:
    if "pyspark.daemon" in sys.modules:
        raise LookupError("not in this process")


class HereOnly:
    """Can be pickled, and not be unpickled in any other process."""

    def __reduce__(self) -> Any:
        return raise_elsewhere, (os.getpid(),)


class NotInSpark:
    """Can be unpickled in any process but those of Spark."""

    def __reduce__(self) -> Any:
        return raise_in_spark, ()


class OddError(BaseException):
    """What nobody expects to be raised."""


def raises() -> None:
    raise LookupError("the user's own words")


def raises_oddly() -> None:
    raise OddError("the user's own words")


def raises_stop_iteration() -> None:
    next(iter(()))


def exits() -> None:
    sys.exit(3)


def interrupts() -> None:
    raise KeyboardInterrupt


def exits_at_once() -> None:
    os._exit(3)


def crashes() -> None:
    ctypes.string_at(0)


def never_ends() -> None:
    for _ in itertools.count():
        pass


def sleeps_for_ever() -> None:
    threading.Event().wait()


def never_ends_in_c() -> None:
    """Holds the interpreter lock, and looks at no signal: no Python code of this process runs any more."""
    sum(itertools.repeat(0))


BETWEEN = 998
"""Between two numbers that belong to one split and to one key."""


@dataclass(frozen=True)
class BadInTurn:
    """Does one harm after the other, each at a record of its own, and once in the life of the job."""

    harms: tuple[Callable[[], Any], ...]
    directory: Path

    def __call__(self, one: Record) -> Record:
        place, rest = divmod(one[1] - BAD, BETWEEN)
        if not rest and 0 <= place < len(self.harms) and Once(self.directory / f"harm-{place}")():
            self.harms[place]()
        return one


@dataclass(frozen=True)
class Bad:
    """Does harm at one record: always, or once in the life of the job."""

    harm: Callable[[], Any]
    once: Once | None = None

    def __call__(self, one: Record) -> Record:
        if one[1] == BAD and (self.once is None or self.once()):
            self.harm()
        return one


HARMS = [
    raises,
    raises_oddly,
    raises_stop_iteration,
    exits,
    interrupts,
    exits_at_once,
    crashes,
]
HANGS = [never_ends, sleeps_for_ever, never_ends_in_c]


def failure(job: Any, started: Any, deadline_s: float = DEADLINE_S) -> str:
    """Return the error that the job ends with."""
    with pytest.raises(JobFailedError) as caught:
        started.finish(job, deadline_s=deadline_s)
    assert job.status == "failed"
    return str(caught.value)


@pytest.mark.parametrize("place", ["hook", "keyed_hook"])
def test_what_user_code_does_once_costs_a_restart_and_nothing_else(
    tmp_path: Path, started: Any, place: str
) -> None:
    """L1, I1, I2, I10: exceptions, exits and crashes in a row, in a map and in a keyed function."""
    hooks: dict[str, Any] = {place: BadInTurn(tuple(HARMS), tmp_path)}
    numbered = NumberedJob(tmp_path, count=BAD + len(HARMS) * BETWEEN, rate=None, **hooks)
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts == len(HARMS)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


@pytest.mark.parametrize("harm", HANGS, ids=lambda one: one.__name__)
def test_what_hangs_once_is_ended_by_the_watchdog_and_replaced(
    tmp_path: Path, started: Any, harm: Callable[[], Any]
) -> None:
    """L1, L2, I10: a loop, a lock, and C code that holds the interpreter lock."""
    bad = Bad(harm, Once(tmp_path / "harm"))
    settings = {"heartbeat_timeout": limit_s(0.8), "restart": MANY_RESTARTS}
    numbered = NumberedJob(tmp_path, count=10_000, rate=None, hook=bad, settings=settings)
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts >= 1
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


@pytest.mark.parametrize("harm", [raises, proven(raises_oddly), exits])
def test_what_user_code_always_does_ends_the_job_with_operator_record_and_traceback(
    tmp_path: Path, started: Any, harm: Callable[[], Any]
) -> None:
    """K1, L1, I12: restarted a few times, then given up; what was committed before stays."""
    numbered = NumberedJob(tmp_path, hook=Bad(harm))
    job = started(numbered)
    text = failure(job, started)
    assert "job 'numbered' failed" in text
    assert "operator '2-map' raised" in text
    assert f"record: ('key-{BAD % 499}', {BAD})" in text
    assert "the same record failed 3 times in a row" in text
    assert f"in {harm.__name__}" in text, "the user's own line"
    assert "job.py" not in text
    assert "runner.py" not in text, "none of ours"
    numbered.check_nothing_is_visible_too_early()
    # Repaired, the job goes on from its last checkpoint, and all is well.
    repaired = NumberedJob(tmp_path, hook=Bad(harm, Once(tmp_path)))
    started.finish(started(repaired))
    repaired.check_output_is_exact()


@pytest.mark.parametrize("harm", [exits_at_once, crashes], ids=lambda one: one.__name__)
def test_a_process_that_always_dies_ends_the_job_with_the_reason(
    tmp_path: Path, started: Any, harm: Callable[[], Any]
) -> None:
    """L1, I12: where no copy may be made there is no traceback to show, so the error says which process and
    where to look."""
    restart = cc.Restart(failures=3, delay_step="20ms", delay_max="50ms", same_record=0)
    numbered = NumberedJob(tmp_path, rate=None, hook=Bad(harm), settings={"restart": restart})
    text = failure(started(numbered), started)
    assert "given up after 4 failures" in text
    assert "worker " in text
    assert "its process has ended" in text


@pytest.mark.parametrize("harm", [never_ends, proven(sleeps_for_ever), never_ends_in_c])
def test_what_always_hangs_ends_the_job_with_the_reason(
    tmp_path: Path, started: Any, harm: Callable[[], Any]
) -> None:
    """L2, I12: within a few heartbeat timeouts, and the message says that it was a hang.

    A lock is like a loop here; that the watchdog ends it, the test of what hangs once shows.
    """
    timeout_s = limit_s(2)
    settings = {"heartbeat_timeout": timeout_s, "restart": cc.Restart(failures=1)}
    numbered = NumberedJob(tmp_path, rate=None, hook=Bad(harm), settings=settings)
    text = failure(started(numbered), started)
    assert f"heartbeat_timeout={timeout_s:g} s" in text
    if "silent for more than" in text:
        # On a machine under load the coordinator may lose its patience first: it knows no more.
        return
    if harm is never_ends_in_c:
        assert "its process has ended" in text
    else:
        assert "operator '2-map'" in text
        assert f"('key-{BAD % 499}', {BAD})" in text
        assert f"in {harm.__name__}" in text


@dataclass(frozen=True)
class SlowAt:
    """A service that answers slowly at the beginning, and again in the middle of a batch much later."""

    seconds: float

    def __call__(self, one: Record) -> Record:
        if one[1] < 200 or 20_300 <= one[1] < 20_500:
            threading.Event().wait(self.seconds)
        return one


def test_a_function_that_is_slow_from_the_start_and_becomes_slow_again_costs_time_and_nothing_else(
    tmp_path: Path, started: Any
) -> None:
    """K3: each batch takes longer than a call may, each call less, and checkpoints go on."""
    # The test lasts five times as long, besides what the machine adds.
    timeout_s = min(limit_s(4), 15.0)
    numbered = NumberedJob(
        tmp_path,
        count=21_000,
        rate=None,
        # 200 records take more than twice the limit, wherever they are in a batch.
        hook=SlowAt(timeout_s * 0.012),
        settings={"heartbeat_timeout": timeout_s, "restart": cc.Restart(failures=0)},
    )
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts == 0
    assert len(job.checkpoints()) > 2
    numbered.check_output_is_exact()


def test_a_generator_that_never_stops_is_a_hang(tmp_path: Path, started: Any) -> None:
    """L1: flat_map takes everything that the function yields, so it never gives the loop back."""
    flow = cc.Flow("endless")
    source = flow.source(cc.generate(lambda i: i, count=10))
    source.flat_map(lambda _: itertools.repeat(1)).sink(cc.files.write_jsonl(tmp_path / "out"))
    timeout_s = limit_s(2)
    settings = {"heartbeat_timeout": timeout_s, "restart": cc.Restart(failures=0)}
    job = started(Written(flow, tmp_path, settings))
    assert f"heartbeat_timeout={timeout_s:g} s" in failure(job, started)


@dataclass(frozen=True)
class Written:
    """A flow that a test has written itself, with the settings of all tests."""

    flow: cc.Flow
    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def start(self, spark: Any) -> Any:
        settings = NumberedJob(self.directory, settings={"restart": FEW_RESTARTS} | self.settings)
        return self.flow.start(settings.all_settings(), spark=spark)


# State.


def test_state_that_can_not_be_stored_ends_the_job_with_the_key(tmp_path: Path, started: Any) -> None:
    """L1, I12: in the snapshot. No checkpoint can ever complete, so nothing was committed."""
    flow = cc.Flow("locks")
    keyed = flow.source(cc.generate(lambda i: i, rate=1_000)).key_by(lambda i: i)
    keyed.aggregate(threading.Lock, lambda lock, _: lock, lambda _: 1).sink(
        cc.files.write_jsonl(tmp_path / "out")
    )
    job = started(Written(flow, tmp_path, {"checkpoint_failures": 2}))
    text = failure(job, started)
    assert "3 checkpoints in a row failed" in text
    assert "the state of key " in text
    assert "of type lock, can't be stored" in text
    assert list((tmp_path / "out").glob("part-*")) == []


# A sink of the user's own.


@dataclass(frozen=True)
class BadSink(cc.Sink):
    """Writes as `cc.files.write_jsonl` does, and does harm in some methods: always, or once in each.

    Attributes:
        markers: Where it notes what it has done once; None: it does it always.
    """

    inner: Any
    harms: dict[str, Callable[[], Any]]
    markers: Path | None = None

    def writer(self, context: SinkContext) -> SinkWriter:
        self.pass_by("writer")
        return BadWriter(self, self.inner.writer(context))

    def pass_by(self, method: str) -> None:
        harm = self.harms.get(method)
        if harm is not None and (self.markers is None or Once(self.markers / f"harm-{method}")()):
            harm()


class BadWriter(SinkWriter):
    def __init__(self, sink: BadSink, inner: SinkWriter) -> None:
        self._sink = sink
        self._inner = inner

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._sink.pass_by("recover")
        # It commits what was restored, if anything was.
        if permit is not None:
            self._sink.pass_by("commit")
        self._inner.recover(permit, handles)
        if permit is not None:
            self._sink.pass_by("committed")

    def write(self, records: list[Any]) -> None:
        self._sink.pass_by("write")
        self._inner.write(records)

    def rotate(self, checkpoint_id: Any) -> Any:
        self._sink.pass_by("rotate")
        return self._inner.rotate(checkpoint_id)

    def prepare(self, transaction: Any) -> JSON:
        self._sink.pass_by("prepare")
        return self._inner.prepare(transaction)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._sink.pass_by("commit")
        self._inner.commit(permit, handles)
        self._sink.pass_by("committed")

    def close(self) -> None:
        self._inner.close()
        self._sink.pass_by("close")


METHODS = ["writer", "recover", "write", "rotate", "prepare", "commit", "committed"]
SINK_HARMS = [raises, raises_oddly, raises_stop_iteration, exits, exits_at_once]


@dataclass(frozen=True)
class SinkJob(NumberedJob):
    """A NumberedJob with a sink that does harm."""

    harms: dict[str, Callable[[], Any]] = field(default_factory=dict)
    is_once: bool = True

    def sink(self) -> cc.Sink:
        return BadSink(super().sink(), self.harms, self.directory if self.is_once else None)


@pytest.mark.parametrize("shift", [0, *map(proven, range(1, len(SINK_HARMS)))])
def test_what_a_sink_does_once_costs_a_restart_at_most(tmp_path: Path, started: Any, shift: int) -> None:
    """L1, F1, I2, FLINK-10455: in open, write, snapshot, commit, and when the commit has been done.

    Each harm, and each method, but not each pair: what is raised is caught around a method, whatever it is.
    """
    harms = {method: SINK_HARMS[(place + shift) % len(SINK_HARMS)] for place, method in enumerate(METHODS)}
    numbered = SinkJob(tmp_path, count=4_000, rate=None, harms=harms)
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert {path.name for path in tmp_path.glob("harm-*")} == {f"harm-{method}" for method in METHODS}
    # Two tasks may fail at once.
    assert 1 <= job.report().restarts <= len(METHODS)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


@pytest.mark.parametrize("harm", [raises, proven(raises_oddly), proven(exits), exits_at_once])
def test_what_a_sink_does_when_it_is_closed_harms_nobody(
    tmp_path: Path, started: Any, harm: Callable[[], Any]
) -> None:
    """L1, A5: close is called when the epoch is over already, here because of a failure and at the end."""
    bad = Bad(raises, Once(tmp_path / "first"))
    numbered = SinkJob(tmp_path, count=10_000, hook=bad, harms={"close": harm}, is_once=False)
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


@pytest.mark.parametrize(
    "method",
    ["writer", proven("recover"), "write", proven("rotate"), "prepare", "commit", proven("committed")],
)
def test_what_a_sink_always_does_ends_the_job_with_its_words(
    tmp_path: Path, started: Any, method: str
) -> None:
    """L1, I12: in a start, with records, for a snapshot, in a commit."""
    settings = {"restart": FEW_RESTARTS, "commit_attempts": 2}
    numbered = SinkJob(tmp_path, rate=None, harms={method: raises}, is_once=False, settings=settings)
    text = failure(started(numbered), started)
    assert "the user's own words" in text
    assert "task sums[" in text, "the task with the sink is to blame, also in a restore"
    numbered.check_nothing_is_visible_too_early()


@pytest.mark.parametrize("method", ["prepare", "commit", proven("recover")])
def test_a_sink_that_hangs_once_in_the_background_is_given_up_and_tried_again(
    tmp_path: Path, started: Any, method: str
) -> None:
    """L2, I10: the event loop is alive, so heartbeats do not tell; timeouts do.

    That of a start is long: the coordinator's unit tests fire it in `recover`, in no time.
    """
    numbered = SinkJob(
        tmp_path,
        count=20_000,
        harms={method: sleeps_for_ever},
        settings={
            "checkpoint_timeout": limit_s(2),
            # What hangs in `recover` is given up after this; a busy machine starts workers in it.
            "start_timeout": limit_s(25) if method == "recover" else DEADLINE_S,
            "checkpoint_failures": 1_000,
            "restart": MANY_RESTARTS,
        },
    )
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()


def test_a_sink_that_hangs_when_it_is_closed_is_ended_by_the_watchdog(tmp_path: Path, started: Any) -> None:
    """L2: in close, behind a failure and at the end of the job."""
    numbered = SinkJob(
        tmp_path,
        count=10_000,
        hook=Bad(raises, Once(tmp_path / "first")),
        harms={"close": sleeps_for_ever},
        is_once=False,
        settings={"heartbeat_timeout": limit_s(1.5), "restart": MANY_RESTARTS},
    )
    started.finish(started(numbered), numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


def test_code_that_can_not_be_loaded_in_the_workers_ends_the_job_soon_and_by_name(
    tmp_path: Path, started: Any
) -> None:
    """Spark would start attempt after attempt, and the job end for want of workers, long after."""
    odd = NotInSpark()
    flow = cc.Flow("not-in-spark")
    flow.source(cc.generate(lambda i: i)).map(lambda i: (i, odd)).sink(cc.files.write_jsonl(tmp_path / "out"))
    settings = cc.Settings(
        parallelism=2, checkpoint_dir=str(tmp_path / "checkpoints"), start_timeout="10m", restart=FEW_RESTARTS
    )
    job = started.flow(flow, settings)
    with pytest.raises(JobFailedError, match="could not start: not in this process") as caught:
        assert job.wait(DEADLINE_S)
    assert "in raise_in_spark" in str(caught.value)
    assert "given up after 4 failures" in str(caught.value)


def test_code_that_no_other_process_can_load_is_refused_before_the_job_starts(
    tmp_path: Path, spark: Any
) -> None:
    """P9."""
    here_only = HereOnly()
    flow = cc.Flow("here-only")
    flow.source(cc.generate(lambda i: i)).map(lambda i: (i, here_only)).sink(
        cc.files.write_jsonl(tmp_path / "out")
    )
    with pytest.raises(
        FlowError, match=r"can't be loaded in a fresh interpreter.*LookupError: not in this process"
    ):
        flow.start(cc.Settings(parallelism=1, checkpoint_dir=str(tmp_path / "checkpoints")), spark)
    assert not (tmp_path / "checkpoints" / "log").exists()


class InterruptedSource(cc.Source):
    """Ctrl-C comes while it says what there is to read, which it does until `gate` exists."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        os.kill(os.getpid(), signal.SIGINT)
        until(self.gate.exists, "the gate to be opened", 2 * DEADLINE_S)
        return []

    def reader(self, split: cc.Split, position: JSON) -> Any:
        raise AssertionError("the job was interrupted before it had any split to read")


def test_an_interrupted_start_leaves_no_job_behind(tmp_path: Path, spark: Any) -> None:
    """Nobody would have a handle to it."""
    flow = cc.Flow("interrupted")
    flow.source(InterruptedSource(tmp_path / "gate")).sink(cc.files.write_jsonl(tmp_path / "out"))
    with pytest.raises(KeyboardInterrupt):
        flow.start(cc.Settings(checkpoint_dir=str(tmp_path / "checkpoints")), spark=spark)
    threads = [one for one in threading.enumerate() if one.name == "crosscut-interrupted"]
    try:
        until(lambda: not any(one.is_alive() for one in threads), "the job to end, whatever the source does")
    finally:
        (tmp_path / "gate").touch()
    assert open_store(str(tmp_path / "checkpoints")).tail(1) == []
