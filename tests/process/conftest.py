"""One SparkContext for all tests of this process, and jobs that leave nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attempts import Attempts
from class_archive import archived_classes, quick_jvms
from drivers import Driver
from jobs import DEADLINE_S, Armed, hosts_tasks, state_of, until
from pyspark import SparkContext

from crosscut.host.failpoints import VARIABLE
from crosscut.spark.cluster.session import spark_context

Start = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Children can be interrupted, although a shell has this process, in the background, ignore Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In a run with several processes, the JVMs of all share one archive of classes."""
    base = tmp_path_factory.getbasetemp()
    with archived_classes(base.parent) if "PYTEST_XDIST_WORKER" in os.environ else quick_jvms():
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkContext]:
    context, _ = spark_context(3, "process tests")
    yield context
    context.stop()


class Started:
    """The jobs of one test, and every worker process that was seen in them."""

    def __init__(self, spark: SparkContext) -> None:
        self.spark = spark
        self._jobs: list[Any] = []
        self.pids: set[int] = set()

    def __call__(self, numbered: Any) -> Any:
        """Start a job and have it cleaned up."""
        job = numbered.start(self.spark)
        self._jobs.append(job)
        return job

    def flow(self, flow: Any, settings: Any) -> Any:
        """Start a flow, likewise."""
        self._jobs.append(flow.start(settings, spark=self.spark))
        return self._jobs[-1]

    def watch(self, job: Any) -> list[int]:
        """Return the pids of the job's workers now, by index, and remember them."""
        pids = [one.pid for one in job.workers()]
        self.pids.update(pids)
        return pids

    def finish(self, job: Any, *checks: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
        """Wait until `job` has ended well, running the checks again and again meanwhile."""

        def has_ended() -> bool:
            for check in checks:
                check()
            self.watch(job)
            return bool(job.wait(0.02))

        until(has_ended, f"the end of {job!r}", deadline_s)

    def end(self) -> None:
        for job in self._jobs:
            if job._run._thread.is_alive():
                self.watch(job)
                job.cancel()
        for pid in self.pids:
            if state_of(pid) == "T":
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(hosts_tasks, self.pids)), f"workers {self.pids} to end")


@pytest.fixture
def started(spark: SparkContext) -> Iterator[Started]:
    jobs = Started(spark)
    yield jobs
    jobs.end()


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Callable[[Any], Attempts]]:
    """Start attempts of a job's workers that Spark knows nothing of."""
    made: list[Attempts] = []

    def of(job: Any) -> Attempts:
        made.append(Attempts(job, tmp_path))
        return made[-1]

    yield of
    for one in made:
        one.end()


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., Armed]:
    """Arm failpoints for the jobs that this test starts in this process."""

    def armed(*traps: str) -> Armed:
        plan = Armed(tmp_path / "failpoints", traps)
        monkeypatch.setenv(VARIABLE, plan.value)
        return plan

    return armed


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    """Start drivers in processes of their own, and leave nothing of them behind."""
    drivers: list[Driver] = []

    def start(*arguments: Any, **settings: Any) -> Driver:
        drivers.append(Driver(*arguments, **settings))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.kill()
        driver.family_is_gone()
