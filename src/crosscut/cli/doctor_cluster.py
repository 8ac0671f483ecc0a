"""`crosscut doctor --cluster`: what the executors of a cluster have, against what the driver has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from crosscut.cli.doctor import Finding
from crosscut.errors import InternalError, SettingsError
from crosscut.foundation.urls import local_path
from crosscut.spark.cluster.session import slots
from crosscut.spark.cluster.submitted import Submission, default_master
from crosscut.spark.cluster.survey import ExecutorAnswer, survey

CLOCK_DIFFERENCE_MAX_S = 1.0
TASKS_UNKNOWN = 16
"""Where Spark does not say how many tasks can run at once."""


def cluster_findings(submission: Submission, directory: str | None) -> Iterator[Finding]:
    """Look at each executor of the cluster that the options or spark-defaults.conf name."""
    if submission.master is None and default_master() is None:
        raise SettingsError(
            "there is no cluster to ask: give --master, or spark.master in spark-defaults.conf"
        )
    configuration = {
        # That of Crosscut may be missing where it would be asked for.
        "spark.python.daemon.module": "pyspark.daemon",
        # Each executor is asked, also one that registers late.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        **submission.configuration,
    }
    if directory is not None and (path := local_path(directory)) is not None:
        directory = os.path.abspath(path)
    with Submission(submission.master, configuration, ()).context("doctor") as context:
        if context is None:
            raise InternalError("no Spark was made though a cluster is named")
        answers = survey(context, directory, slots(context) or TASKS_UNKNOWN)
        yield Finding("cluster", "ok", f"{context.master}: {len(answers)} executors have answered")
    yield from compared(answers, has_directory=directory is not None)


def compared(answers: Iterable[ExecutorAnswer], *, has_directory: bool) -> Iterator[Finding]:
    """Yield for each executor what is wrong there, or one finding that nothing is."""
    own = ".".join(map(str, sys.version_info[:3]))
    for one in answers:
        what = f"executor on {one.host}"
        problems = list(_problems(one, own, what))
        yield from problems
        if not problems:
            clock = "" if one.clock_ahead_s is None else f", clock {1e3 * one.clock_ahead_s:+.0f} ms"
            store = ", sees the checkpoint directory" if has_directory else ""
            yield Finding(what, "ok", f"Python {one.python}, reaches the driver{store}{clock}")


def _problems(one: ExecutorAnswer, own: str, what: str) -> Iterator[Finding]:
    if one.python.split(".")[:2] != own.split(".")[:2]:
        yield Finding(
            what,
            "problem",
            f"Python {one.python}, the driver has {own}",
            "set PYSPARK_PYTHON to the same version",
        )
    for name, theirs in one.packages.items():
        ours = version(name)
        if theirs != ours:
            found = f"{name} {theirs}" if theirs else f"no {name}"
            yield Finding(
                what,
                "problem",
                f"{found}, the driver has {ours}",
                f"install {name}=={ours} there, or set PYSPARK_PYTHON",
            )
    if one.connection:
        yield Finding(
            what,
            "problem",
            f"can't reach the driver: {one.connection}",
            "set spark.driver.host to an address of the driver that executors reach, and open its ports",
        )
    if one.store:
        yield Finding(
            what,
            "problem",
            f"can't read what the driver has written to the checkpoint directory: {one.store}",
            "use a directory that all machines share under one name, or an object store",
        )
    if one.clock_ahead_s is not None and abs(one.clock_ahead_s) > CLOCK_DIFFERENCE_MAX_S:
        yield Finding(
            what,
            "warning",
            f"its clock is {one.clock_ahead_s:+.1f} s from the driver's",
            "synchronise the clocks (NTP): processing time and latencies go by them",
        )
