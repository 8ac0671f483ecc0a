"""A job from its start to its end on a cluster in this process: below the port, all is what ships."""

from __future__ import annotations

import ast
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, JobsInThreads, LocalJobs

import crosscut as cc
from crosscut.connectors.files.staged_files import StagedFiles
from crosscut.driver import engine_run, job_runner, running_job
from crosscut.driver.cluster import ClusterRun
from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.engine_run import Network, RunContext
from crosscut.driver.job_spec import assignments, job_spec
from crosscut.driver.run_ports import RunPorts
from crosscut.driver.running_job import RunningJob
from crosscut.errors import CheckpointError
from crosscut.events import Ended, EngineSwitched, JobEvent
from crosscut.foundation.ids import AttemptId, Epoch, WorkerIndex
from crosscut.graph.shipping import Exceptions
from crosscut.graph.specs import JobGraph
from crosscut.host.calls import start_thread
from crosscut.microbatch.host_cache import remove_host_cache
from crosscut.microbatch.output import Output
from crosscut.microbatch.ports import RunOutcome
from crosscut.microbatch.stage import StageOrder
from crosscut.monitoring.metrics import shown_settings
from crosscut.protocol.events import CancelRequested, StopRequested, WorkersEnded
from crosscut.protocol.job.job_run import JobBroken, JobRun
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.messages import FailureCause, SplitAssignment
from crosscut.store.checkpoint_store import open_store
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.worker.worker import WorkerPlan

DEADLINE_S = 60.0
RECORDS = 60
LONG_AGO = datetime(1984, 1, 1, tzinfo=UTC)


class ClusterInThreads:
    """See `Cluster`. Batches run in threads; workers are submitted, and never start."""

    slots = None

    def __init__(self, graph: JobGraph, store_url: str) -> None:
        self._jobs = JobsInThreads(LocalJobs(graph, store_url, Random(1), FaultProfile()))
        self.calls: list[str] = []
        self.submitted = threading.Event()
        self.may_discover = threading.Event()
        self.may_discover.set()
        self.may_end = threading.Event()
        self.may_end.set()

    def discover(self, run: ClusterRun, graph: JobGraph, epoch: Epoch) -> tuple[SplitAssignment, ...]:
        assert self.may_discover.wait(DEADLINE_S)
        return assignments(graph)

    def submit(self, run: ClusterRun, plan: WorkerPlan, ended: Callable[[WorkersEnded], None]) -> None:
        self.calls.append(f"submit {run.group}")
        self._ended = ended
        self.submitted.set()

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        self.calls.append(f"replace {attempt}")

    def run_batch(
        self,
        run: ClusterRun,
        batch: str,
        orders: Sequence[Sequence[StageOrder]],
        description: str,
        returned: Callable[[bytes], None],
        ended: Callable[[RunOutcome], None],
    ) -> None:
        self._jobs.run(batch, orders, description, returned, ended)

    def cancel(self, run: ClusterRun, batch: str) -> None:
        self.calls.append(f"cancel {batch}")

    def end(self, run: ClusterRun, ended: Callable[[], None]) -> None:
        self.calls.append(f"end {run.group}")

        def end() -> None:
            assert self.may_end.wait(DEADLINE_S)
            ended()

        threading.Thread(target=end, daemon=True).start()

    def workers_are_gone(self, why: str) -> None:
        """No worker will ever run here again."""
        self._ended(WorkersEnded(why, is_final=True))


class Page:
    """See `Shown`."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def start(self) -> None:
        self.seen.append("owned")

    def close(self) -> None:
        self.seen.append("closed")


class OwnPorts:
    """Another clock than the machine's, numbers instead of random bytes, and threads that are noted."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.remove_cache: Callable[[str, str | None], object] = remove_host_cache
        self._drawn = 0

    @property
    def as_given(self) -> RunPorts:
        return RunPorts(
            None,
            self,
            self.start_thread,
            self.draw_bytes,
            remove_cache=lambda url, state_dir: self.remove_cache(url, state_dir),
        )

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def now(self) -> datetime:
        return LONG_AGO

    def start_thread(self, work: Callable[[], None], name: str) -> None:
        self.threads.append(name)
        start_thread(work, name)

    def draw_bytes(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(count, "big")


class World:
    """One job, and all that it can be seen by."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.out = cc.collect(directory / "out")
        flow = cc.Flow("here")
        bounded = ReplayedSource({"s": list(range(RECORDS))})
        source = cc.generate(int, rate=100) if settings["engine"] == "auto" else bounded
        flow.source(source).key_by(lambda n: n % 7).reduce(lambda before, one: one).sink(self.out)
        url = str(directory / "checkpoints")
        given = cc.Settings(checkpoint_dir=url, parallelism=2, checkpoint_interval="10ms", **settings)
        graph = flow.compile(2, given.max_parallelism)
        store = open_store(url)
        self.cluster = ClusterInThreads(graph, url)
        spec = job_spec(
            flow.name,
            given,
            lambda parallelism: flow.compile(parallelism, given.max_parallelism),
            store_url=url,
            invariants=flow.invariants,
            slots=None,
            at_once=2,
            discover_timeout_ms=0,
            exceptions=Exceptions(),
        )
        network = Network("127.0.0.1", "127.0.0.1", is_encrypted=False, seals_frames=True, is_local=True)
        self.ports = OwnPorts()
        self._context = RunContext(self.cluster, spec, "group", store, network, self.ports.as_given)
        self._page = Page()
        self.job = RunningJob(flow.name, graph, url, shown_settings(given))
        self._events: list[JobEvent] = []
        self.job.listeners.add(self._events.append)

    def start(self) -> None:
        """Return when the job owns its directory, or has ended."""
        self.job.start(self._context, self._page, lambda: self._page.seen.append("released"))

    def switched(self) -> list[str]:
        """Return the engines that have followed."""
        return [one.engine for one in self._events if isinstance(one, EngineSwitched)]

    @property
    def end_event(self) -> Ended:
        """What listeners hear of the end."""
        (said,) = [one for one in self._events if isinstance(one, Ended)]
        return said

    def ended(self) -> str:
        """Return how the job has ended, having checked what is so at every end."""
        assert self.job.ended.wait(DEADLINE_S)
        assert self.job.end is not None
        said = self.end_event
        assert said is self._events[-1]
        assert said.outcome == self.job.end.outcome == self.job.phase
        assert self._page.seen in (["owned", "released", "closed"], ["released", "closed"])
        return said.outcome


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    # The workers that a job waits for at its end were never there.
    monkeypatch.setattr(engine_run, "WORKERS_END_TIMEOUT_S", 0.05)
    made: list[World] = []

    def make(**settings: Any) -> World:
        made.append(World(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.cluster.may_discover.set()
        one.cluster.may_end.set()
        one.job.cancel()
        assert one.job.ended.wait(DEADLINE_S)


def until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_a_job_in_batches_runs_to_its_end(world: Callable[..., World]) -> None:
    one = world(engine="micro-batch")
    one.start()
    assert one.ended() == "finished"
    assert len(one.out.records()) == RECORDS
    assert one.cluster.calls == ["end group-1"]
    assert one.job.error is None


def test_a_job_that_is_cancelled_gives_back_what_the_cluster_holds(world: Callable[..., World]) -> None:
    one = world(engine="continuous")
    one.start()
    assert one.cluster.submitted.wait(DEADLINE_S)
    assert one.job.phase == "gathering"
    one.job.cancel()
    assert one.ended() == "cancelled"
    assert one.cluster.calls == ["submit group-1", "end group-1"]


@pytest.mark.parametrize("request_", [CancelRequested(), StopRequested()], ids=["cancel", "stop"])
def test_a_request_before_the_loop_of_the_job_runs_is_not_lost(
    world: Callable[..., World], request_: CancelRequested | StopRequested
) -> None:
    """Ctrl-C may come when the thread of the job has only just started."""
    one = world(engine="continuous")
    one.cluster.may_discover.clear()
    one.job.post(request_)
    one.start()
    assert one.ended() in ("cancelled", "stopped")
    assert one.cluster.calls == ["end group-1"]


def test_a_cluster_that_is_gone_for_good_ends_the_job(world: Callable[..., World]) -> None:
    one = world(engine="continuous")
    one.start()
    assert one.cluster.submitted.wait(DEADLINE_S)
    one.cluster.workers_are_gone("the cluster was stopped")
    assert one.ended() == "failed"
    assert one.job.end is not None
    assert one.job.end.cause is not None
    assert "the cluster was stopped" in one.job.end.cause.message


def test_an_engine_run_is_closed_before_the_other_engine_starts(world: Callable[..., World]) -> None:
    one = world(engine="auto")
    one.start()
    assert one.cluster.submitted.wait(DEADLINE_S)
    assert one.switched() == ["continuous"]
    assert one.cluster.calls == ["end group-1", "submit group-2"]
    assert one.job.phase == "gathering"
    one.job.post(StopRequested())
    assert one.ended() == "stopped"
    assert one.cluster.calls[-1] == "end group-2"


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [(StopRequested(), "stopped"), (CancelRequested(), "cancelled")],
    ids=["stop", "cancel"],
)
def test_a_request_between_two_engine_runs_does_not_wait_for_the_second_one(
    world: Callable[..., World], request_: CancelRequested | StopRequested, outcome: str
) -> None:
    one = world(engine="auto")
    one.cluster.may_end.clear()
    one.start()
    until(lambda: one.cluster.calls == ["end group-1"])
    assert one.job.phase == "switching"
    before = one.job.status()
    one.job.post(request_)
    one.cluster.may_end.set()
    assert one.ended() == outcome
    assert one.switched() == []
    assert one.cluster.calls == ["end group-1"]
    check_progress(one)
    assert before.resumes_from is not None
    assert one.job.status().resumes_from == before.resumes_from
    assert one.end_event.resumes_from == before.resumes_from


def test_a_cluster_that_can_not_be_asked_fails_the_job(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(engine="continuous")

    def refuse(*arguments: object) -> None:
        raise OSError("no cluster")

    monkeypatch.setattr(one.cluster, "submit", refuse)
    one.start()
    assert one.ended() == "failed"
    assert "no cluster" in str(one.job.end)


def test_a_job_that_has_not_run_has_no_store(world: Callable[..., World]) -> None:
    one = world(engine="continuous")
    with pytest.raises(CheckpointError, match="has not run"):
        _ = one.job.store
    one.job.post(CancelRequested())
    one.start()


def fail() -> None:
    raise OSError("can't start new thread")


@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_a_job_that_breaks_gives_everything_back(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """What shows the job fails while the engine run goes on."""
    one = world(engine=engine)
    monkeypatch.setattr(one._page, "start", fail)
    one.start()
    assert one.ended() == "failed"
    assert one.cluster.calls[-1] == "end group-1"
    assert str(one.job.error) == "can't start new thread"
    assert one.end_event.epoch == 1
    assert one.end_event.query_id
    status = one.job.status()
    assert (status.phase, status.cause) == ("ended", "can't start new thread")
    assert one.job.metrics().status == "failed"
    assert one.job.metrics().summary == status


def test_the_status_of_a_job_that_breaks_between_two_engine_runs_is_that_of_the_job(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(engine="auto")
    real = job_runner.EngineRun

    def made(context: RunContext, number: int, *rest: Any) -> job_runner.EngineRun:
        if number == 2:
            raise OSError("no certificate")
        return real(context, number, *rest)

    monkeypatch.setattr(job_runner, "EngineRun", made)
    one.start()
    assert one.ended() == "failed"
    status = one.job.status()
    assert (status.phase, status.cause) == ("ended", "no certificate")
    assert one.cluster.calls == ["end group-1"], "the first engine run is closed twice"
    check_progress(one)
    assert one.job.metrics().status == "failed"


def check_progress(one: World) -> None:
    batches = [each["batchId"] for each in one.job.progress()]
    assert batches
    assert batches == sorted(set(batches)), "batches are reported twice"


def test_the_last_event_of_a_job_that_breaks_has_what_its_engine_run_owns(
    world: Callable[..., World],
) -> None:
    one = world(engine="auto")
    one.start()
    assert one.cluster.submitted.wait(DEADLINE_S)
    before = one.job.status()
    loop, runner = one.job._loop, one.job._runner
    assert loop is not None and runner is not None
    loop.call_soon_threadsafe(runner.handle, JobBroken(FailureCause("OSError", "disk")))
    assert one.ended() == "failed"
    said = one.end_event
    assert (said.epoch, said.resumes_from, said.cause) == (before.epoch, before.resumes_from, "disk")
    assert said.epoch == 2
    assert said.resumes_from is not None
    check_progress(one)


def test_an_engine_run_is_closed_also_if_it_can_not_hand_over(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner.EngineRun, "predecessor", property(lambda run: fail()))
    one = world(engine="auto")
    one.start()
    assert one.ended() == "failed"
    assert str(one.job.error) == "can't start new thread"
    assert one.cluster.calls == ["end group-1"]


def test_a_job_is_switching_until_the_next_engine_run_is_there(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a thread that looks while the event is handled that ends the run before."""
    one = world(engine="auto")
    real, seen = JobRun._start, []

    def start(machine: JobRun) -> Any:
        seen.append(one.job._is_switching)
        return real(machine)

    monkeypatch.setattr(JobRun, "_start", start)
    one.start()
    assert one.cluster.submitted.wait(DEADLINE_S)
    assert seen == [False, True]
    assert one.job.phase == "gathering"
    one.job.cancel()


def test_a_host_cache_that_can_not_be_removed_does_not_keep_a_job_from_ending(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_return = threading.Event()
    one = world(engine="micro-batch")
    one.ports.remove_cache = lambda *arguments: may_return.wait(DEADLINE_S)
    one.start()
    assert one.ended() == "finished"
    assert not may_return.is_set()
    may_return.set()
    assert "the state cache of this host has not been removed" in caplog.text


def test_the_writers_of_batches_are_called_in_threads_of_the_job(world: Callable[..., World]) -> None:
    one = world(engine="micro-batch")
    one.start()
    assert one.ended() == "finished"
    assert any(name.startswith("crosscut-output Output.") for name in one.ports.threads)


@pytest.mark.parametrize("raised", [OSError("no cluster"), SystemExit(3)], ids=["error", "exit"])
def test_a_cluster_that_can_not_be_released_does_not_keep_the_end_of_a_job_from_being_told(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture, raised: BaseException
) -> None:
    def release() -> None:
        raise raised

    one = world(engine="micro-batch")
    one.job.start(one._context, one._page, release)
    assert one.job.ended.wait(DEADLINE_S)
    assert one.end_event.outcome == "finished"
    assert one.job.status().phase == "ended"
    assert one._page.seen == ["owned", "closed"]
    assert f"of its resources could not be closed: {type(raised).__name__}: {raised}" in caplog.text


def test_ctrl_c_in_the_start_of_the_thread_cancels_the_job(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(engine="continuous")
    start = one.job._thread.start

    def interrupted() -> None:
        start()
        raise KeyboardInterrupt

    monkeypatch.setattr(one.job._thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.start()
    assert one.ended() == "cancelled"


def test_a_job_whose_thread_can_not_start_is_not_waited_for(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(engine="continuous")
    with monkeypatch.context() as patched, pytest.raises(OSError, match="new thread"):
        patched.setattr(one.job._thread, "start", fail)
        one.start()
    assert not one.job.ended.is_set()
    # Nothing is left of it but the request: a thread that does start ends at once.
    one.start()
    assert one.ended() == "cancelled"


def test_a_status_is_that_of_one_engine_run(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other engine starts right after the loop of the job has been asked."""
    one = world(engine="auto")
    one.cluster.may_end.clear()
    one.start()
    until(lambda: one.cluster.calls == ["end group-1"])
    real = running_job.read_on

    def slow(*arguments: Any) -> Any:
        found = real(*arguments)
        one.cluster.may_end.set()
        assert one.cluster.submitted.wait(DEADLINE_S)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(running_job, "read_on", slow)
        assert one.job.phase == "switching"
    assert one.job.phase == "gathering"


def test_an_engine_run_that_can_not_start_is_closed(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*arguments: object) -> int:
        raise OSError("no such address")

    monkeypatch.setattr(CoordinatorDriver, "listen", refuse)
    one = world(engine="continuous")
    one.start()
    assert one.ended() == "failed"
    assert str(one.job.error) == "no such address"
    assert one.cluster.calls == ["end group-1"]


def test_a_job_whose_task_on_the_loop_is_cancelled_ends(world: Callable[..., World]) -> None:
    one = world(engine="continuous")
    one.start()
    assert one.cluster.submitted.wait(DEADLINE_S)
    loop, runner = one.job._loop, one.job._runner
    assert loop is not None and runner is not None
    (drive,) = runner._tasks
    loop.call_soon_threadsafe(drive.cancel)
    assert one.ended() == "failed"
    assert one.cluster.calls[-1] == "end group-1"


def test_a_cluster_that_never_answers_does_not_keep_a_job_from_ending(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_run, "CLUSTER_END_TIMEOUT_S", 0.05)
    one = world(engine="micro-batch")
    one.cluster.may_end.clear()
    one.start()
    assert one.ended() == "finished"
    assert "the cluster has not ended the job's tasks" in caplog.text


def patch_on_driver(
    monkeypatch: pytest.MonkeyPatch, method: str, patched: Callable[[StagedFiles], None]
) -> None:
    """Replace a method of the sink's writers for calls that the driver makes, not those of batches."""
    real = getattr(StagedFiles, method)

    def call(writer: StagedFiles, *arguments: object) -> object:
        if threading.current_thread().name.startswith("crosscut-output"):
            return patched(writer)
        return real(writer, *arguments)

    monkeypatch.setattr(StagedFiles, method, call)


def test_a_cluster_that_can_not_be_asked_to_end_changes_nothing_about_a_finished_job(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = world(engine="micro-batch")
    monkeypatch.setattr(one.cluster, "end", lambda *arguments: fail())
    closed: list[StagedFiles] = []
    patch_on_driver(monkeypatch, "close", closed.append)
    one.start()
    assert one.ended() == "finished"
    assert len(closed) == 2, "what comes after the failed step is closed as well"
    assert "OSError: can't start new thread" in caplog.text


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3)], ids=["error", "exit"])
def test_a_finished_job_does_not_fail_because_its_sink_can_not_be_closed(
    world: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    raised: BaseException,
) -> None:
    closed: list[StagedFiles] = []

    def close(writer: StagedFiles) -> None:
        closed.append(writer)
        raise raised

    patch_on_driver(monkeypatch, "close", close)
    one = world(engine="micro-batch")
    one.start()
    assert one.ended() == "finished"
    assert len(one.out.records()) == RECORDS
    assert len(closed) == 2, "each writer is closed"
    assert f"could not be closed: {type(raised).__name__}: {raised}" in caplog.text


@pytest.mark.parametrize("call", ["commit", "recover", "begin_attempt", "write", "prepare"])
def test_a_sink_that_exits_fails_the_job_at_once(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Not after `checkpoint_timeout`: a thread that has ended would answer never."""

    def leave(*arguments: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(StagedFiles, call, leave)
    long = {"checkpoint_timeout": "1h", "start_timeout": "1h", "commit_attempts": 1}
    one = world(engine="micro-batch", restart=cc.Restart(failures=0), **long)
    one.start()
    assert one.ended() == "failed"
    assert one.job.end is not None and one.job.end.cause is not None
    assert "SystemExit" in f"{one.job.end.cause.kind} {one.job.end.cause.message}"


def test_a_writer_is_closed_also_if_another_one_can_not_recover(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[StagedFiles] = []
    closed: list[StagedFiles] = []
    real = StagedFiles.recover

    def recover(writer: StagedFiles, *arguments: Any) -> None:
        made.append(writer)
        if len(made) == 1:
            raise ConnectionError("the service is away")
        real(writer, *arguments)

    monkeypatch.setattr(StagedFiles, "recover", recover)
    patch_on_driver(monkeypatch, "close", closed.append)
    one = world(engine="micro-batch", restart=cc.Restart(failures=0))
    one.start()
    assert one.ended() == "failed"
    assert len(made) == 2
    assert {id(writer) for writer in closed} == {id(writer) for writer in made}
    assert len(closed) == 2, "once each"


def test_an_error_of_our_own_in_a_commit_ends_the_job(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*arguments: object) -> None:
        raise KeyError("sums-0")

    monkeypatch.setattr(Output, "commit", broken)
    one = world(engine="micro-batch", checkpoint_timeout="1h")
    one.start()
    assert one.ended() == "failed"
    assert "sums-0" in str(one.job.end)


def test_a_signal_handler_may_post_while_its_thread_posts(world: Callable[..., World]) -> None:
    one = world(engine="continuous")

    class Interrupted(list[Any]):
        def append(self, event: object) -> None:
            super().append(event)
            if len(self) == 1:
                # As a handler does, in the thread that it interrupts.
                one.job.post(StopRequested())

    early = one.job._early = Interrupted()
    posting = threading.Thread(target=one.job.post, args=(CancelRequested(),), daemon=True)
    posting.start()
    posting.join(DEADLINE_S)
    assert early == [CancelRequested(), StopRequested()]
    assert not posting.is_alive()
    one.start()


@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_engine_runs_use_the_machine_through_their_ports_only(
    world: Callable[..., World], engine: str
) -> None:
    one = world(engine=engine)
    one.start()
    if engine == "continuous":
        assert one.cluster.submitted.wait(DEADLINE_S)
        one.job.post(StopRequested())
    one.ended()
    assert {event.at_ms for event in one._events} == {int(LONG_AGO.timestamp() * 1_000)}
    (claim,) = claims_in([entry for _, entry in one.job.store.tail(1)])
    # Two draws before were for the secret and the number of the job.
    assert (claim.driver, claim.lineage) == (f"{3:016x}", f"{4:016x}")
    kinds = {name.split()[0] for name in one.ports.threads}
    assert kinds >= {"crosscut-store", "crosscut-closing"}
    assert ("crosscut-output" in kinds) == (engine == "micro-batch")


def test_what_runs_a_job_imports_nothing_of_the_machine() -> None:
    """It could not run in a virtual world then."""
    forbidden = {"SystemClock", "armed", "secrets", "start_thread", "threading", "time", "run_in_executor"}
    for module in (engine_run, job_runner):
        tree = ast.parse(inspect.getsource(module))
        imported = [
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        ]
        imported += [
            alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
        ]
        called = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        assert forbidden.isdisjoint(imported), module
        assert "run_in_executor" not in called
