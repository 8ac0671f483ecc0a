"""Spark as a cluster, as far as that can be seen without Spark."""

from __future__ import annotations

import threading
from collections.abc import Sized
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import crosscut as cc
from crosscut.driver.cluster import ClusterRun
from crosscut.errors import WorkersError
from crosscut.foundation.ids import Epoch
from crosscut.microbatch.ports import RunOutcome
from crosscut.spark.cluster import session, spark_cluster
from crosscut.spark.cluster.batch_job import BatchJobs
from crosscut.spark.cluster.spark_cluster import SparkCluster
from crosscut.testing.simulator.sources import ReplayedSource

DEADLINE_S = 60.0
RUN = ClusterRun("here", "group-1", 1, 1, b"", ())


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(session, "slots", lambda context: 2)
    return []


def spark(cancelled: list[str]) -> Any:
    scheduler = SimpleNamespace(cancelJobGroupAndFutureJobs=cancelled.append)
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scheduler), _jvm=None)


def test_nothing_starts_for_an_engine_run_that_has_ended(cancelled: list[str]) -> None:
    """The thread that asks the sources may be late: the end came before its first call."""
    flow = cc.Flow("here")
    flow.source(ReplayedSource({"s": [1]})).sink(cc.collect())
    cluster = SparkCluster(spark(cancelled), "/store")
    before = sizes(cluster)
    for number in (1, 2):
        ended = threading.Event()
        cluster.end(replace(RUN, group=f"group-{number}", number=number), ended.set)
        assert ended.wait(DEADLINE_S)
    assert cancelled == ["group-1-staging", "group-1", "group-2-staging", "group-2"]
    for number in (1, 2):
        with pytest.raises(WorkersError, match="has ended"):
            cluster.discover(
                replace(RUN, group=f"group-{number}", number=number), flow.compile(1, 128), Epoch(1)
            )
    assert sizes(cluster) == before, "a job that changes its engine for months keeps something of each run"


@pytest.mark.parametrize("way", ["cancel", "end"])
def test_a_batch_is_cancelled_also_while_it_is_planned(
    cancelled: list[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Spark must know that before the job is submitted."""
    monkeypatch.setattr(spark_cluster, "why_lost", lambda context: "")
    planning, may_plan = threading.Event(), threading.Event()
    ended, is_told = threading.Event(), threading.Event()

    def plan(*arguments: object, **others: object) -> None:
        planning.set()
        assert may_plan.wait(DEADLINE_S)
        raise RuntimeError("cancelled")

    def cancel(group: str) -> None:
        cancelled.append(group)
        if group == "group-1-1":
            is_told.set()

    context = spark(cancelled)
    context._jsc.sc().cancelJobGroupAndFutureJobs = cancel
    context._jvm, context.setJobGroup = object(), plan
    cluster = SparkCluster(context, "/store")
    cluster.run_batch(RUN, "1", [], "batch 1", lambda data: None, lambda outcome: ended.set())
    assert planning.wait(DEADLINE_S)
    if way == "cancel":
        cluster.cancel(RUN, "1")
    else:
        cluster.end(RUN, lambda: None)
    assert is_told.wait(DEADLINE_S)
    may_plan.set()
    assert ended.wait(DEADLINE_S)


def test_no_batch_is_planned_after_the_end(cancelled: list[str]) -> None:
    """The thread that runs it may be late."""
    context = spark(cancelled)
    context._jvm = object()
    jobs = BatchJobs(context, RUN)
    jobs.end()
    with pytest.raises(WorkersError, match="after the end"):
        list(jobs.run("1", [], "batch 1"))


def sizes(cluster: SparkCluster) -> dict[str, int]:
    return {name: len(one) for name, one in vars(cluster).items() if isinstance(one, Sized)}


def test_a_batch_ends_also_if_spark_can_not_be_asked_why(
    cancelled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda error: raised.set())

    def unknown(context: Any) -> str:
        raise RuntimeError("not from this thread")

    monkeypatch.setattr(spark_cluster, "why_lost", unknown)
    cluster = SparkCluster(spark(cancelled), "/store")
    said: list[RunOutcome] = []
    ended = threading.Event()

    def end(outcome: RunOutcome) -> None:
        said.append(outcome)
        ended.set()

    cluster.run_batch(RUN, "1", [], "batch 1", lambda data: None, end)
    assert ended.wait(DEADLINE_S)
    assert raised.wait(DEADLINE_S)
    assert "Spark can't run the batch" in said[0].error


def test_the_pool_of_the_caller_holds_in_the_threads_that_submit(cancelled: list[str]) -> None:
    """Spark knows a pool by the thread: that of the caller waits for nothing."""
    properties: list[tuple[str, str]] = []
    context = spark(cancelled)
    context.setLocalProperty = lambda name, value: properties.append((name, value))
    cluster = SparkCluster(context, "/store", "patient")
    ended = threading.Event()
    cluster.run_batch(RUN, "batch-1", [], "", lambda data: None, lambda outcome: ended.set())
    assert ended.wait(DEADLINE_S)
    assert properties[0] == ("spark.scheduler.pool", "patient")
