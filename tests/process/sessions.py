"""A program with a Spark of its own, as a notebook has it: `python sessions.py DIRECTORY`.

It reports on standard output, one JSON object a line. The steps are judged in test_program_session.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from jobs import DEADLINE_S, NumberedJob, until
from pyspark import SparkContext

import crosscut as cc
from crosscut.spark.cluster.session import is_own


def report(step: str, **found: Any) -> None:
    print(json.dumps({"step": step, **found}), flush=True)


def end_of(job: Any) -> dict[str, Any]:
    try:
        job.wait(DEADLINE_S)
    except cc.errors.JobFailedError as error:
        return {"error": str(error), "kind": type(error.__cause__).__name__}
    return {"error": "", "kind": ""}


def refusal(numbered: NumberedJob, spark: Any = None) -> str:
    try:
        numbered.start(spark)
    except cc.CrosscutError as error:
        return str(error)
    return ""


def main(directory: Path) -> None:
    context = SparkContext("local[4]", "theirs")
    # What PySpark takes where nobody says anything else: the first python3 of the PATH.
    context.pythonExec = "/usr/bin/no-such-python3"
    first = NumberedJob(directory / "first", rate=None, held=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job = first.start()
    until(lambda: job.status == "running" and job.checkpoints(), "a checkpoint")
    spark = context.statusTracker()
    stages = [getattr(spark.getStageInfo(one), "name", "") for one in spark.getActiveStageIds()]
    report("started", warnings=[f"{one.filename}: {one.message}" for one in caught], stages=stages)
    report("second", error=refusal(NumberedJob(directory / "second", parallelism=3)))
    lost = job.workers()[0].pid
    os.kill(lost, signal.SIGKILL)
    until(lambda: job.report().recoveries and job.status == "running", "the recovery")
    report("recovered", lost=lost, pids=[one.pid for one in job.workers()])
    first.open_gate()
    report("finished", **end_of(job), python=context.pythonExec)

    last = NumberedJob(directory / "last", rate=None, held=True)
    job = last.start(context)
    until(lambda: job.status == "running" and job.checkpoints(), "a checkpoint")
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    ended = end_of(job)
    report("lost", **ended, status=job.status, checkpoints=len(job.checkpoints()))
    report("their dead one", error=refusal(last, context))
    last.open_gate()
    job = last.start()
    report("again", **end_of(job), own=is_own(job._run._context.cluster._context))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
