"""Executors whose host is gone, which Spark itself takes for lost only after minutes.

Spark starts another attempt of a task when it takes the executor for lost: by default when it has heard
nothing of it for two minutes (`spark.network.timeout`). A worker of ours counts as lost much earlier. It may
also be silent in an executor that is well, so that one is asked first; if it does not answer, Spark is told
what it would find out by itself.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

from crosscut.foundation.ids import AttemptId
from crosscut.spark.cluster.session import is_local

ANSWER_S = 2.0
"""How long an executor may take to say that it is there: its JVM does, whatever its Python processes do."""

_TASKS_MAX = 2**31 - 1


def give_up_if_lost(context: SparkContext, group: str, attempt: AttemptId) -> str:
    """Have Spark take the executor of an attempt for lost, if it does not answer.

    Blocks for a few seconds at most. Spark then starts other attempts for all of its tasks, and counts none
    of them as failed.

    Args:
        group: Of the Spark job that the attempt belongs to.

    Returns:
        Which executor was given up, for people; "": none.

    Raises:
        Py4JError: Spark is gone.
    """
    spark = context._jsc.sc() if context._jsc is not None else None
    if spark is None or context._jvm is None or is_local(context):
        return ""
    found = _executor_of(context, spark, group, attempt)
    if found is None:
        return ""
    executor, host = found
    if executor not in _active(spark) or _answers(spark, executor):
        return ""
    # What Spark's HeartbeatReceiver does with an executor that has been silent for too long.
    spark.killAndReplaceExecutor(executor)
    said = f"executor {executor} on {host} does not answer, as the host is gone or silent"
    nobody = context._jvm.scala.Option.empty()
    lost = context._jvm.org.apache.spark.scheduler.ExecutorProcessLost(f"Crosscut: {said}", nobody, False)
    spark.schedulerBackend().removeExecutor(executor, lost)
    return said


def _executor_of(context: SparkContext, spark: Any, group: str, attempt: AttemptId) -> tuple[str, str] | None:
    """Return the executor that runs an attempt, and its host; None: that is not known any more."""
    tracker = context.statusTracker()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            tasks = spark.statusStore().taskList(stage, 0, _TASKS_MAX)
            for place in range(tasks.size()):
                task = tasks.apply(place)
                if task.taskId() == attempt:
                    return str(task.executorId()), str(task.host())
    return None


def _active(spark: Any) -> set[str]:
    found = spark.statusStore().executorList(True)
    return {str(found.apply(place).id()) for place in range(found.size())}


def _answers(spark: Any, executor: str) -> bool:
    """Ask an executor for the stacks of its threads: a question that Spark has anyway."""
    answered = threading.Event()

    def ask() -> None:
        with suppress(Py4JError, OSError):
            if spark.getExecutorThreadDump(executor).isDefined():
                answered.set()

    threading.Thread(target=ask, name="crosscut-executor", daemon=True).start()
    return answered.wait(ANSWER_S)
