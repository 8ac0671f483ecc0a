"""Options for the JVMs of Spark that tests start, which live for seconds: no C2, no G1, archived classes.

A SparkContext starts with half of the processor time, and a SparkSession with a quarter. To make the
archive takes as much as six starts: only long runs, those with several processes, have one. A JVM that does
not find it, or is of another version, reads the classes from the jars, as always.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clustered import QUICK_TO_START
from jobs import DEADLINE_S
from pyspark import SparkContext

from crosscut.spark.cluster.session import spark_session

_VARIABLE = "SPARK_SUBMIT_OPTS"
# It says on standard output that it can't use an archive, where tests read.
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"


@contextmanager
def quick_jvms() -> Iterator[None]:
    """Let the JVMs that are started here compile for a short life."""
    with _options(QUICK_TO_START):
        yield


@contextmanager
def archived_classes(directory: Path) -> Iterator[None]:
    """Let the JVMs that are started here use one archive, too; whoever is the first has it made meanwhile.

    Args:
        directory: The same for all processes of a run.
    """
    archive = directory / "spark.jsa"
    try:
        directory.joinpath("spark.jsa.begun").touch(exist_ok=False)
    except FileExistsError:
        maker = None
    else:
        with _options(f"{QUICK_TO_START} {_SILENT} -XX:ArchiveClassesAtExit={archive}.partial"):
            maker = subprocess.Popen([sys.executable, __file__, str(archive)])
    try:
        with _options(f"{QUICK_TO_START} {_SILENT} -XX:SharedArchiveFile={archive}"):
            yield
    finally:
        if maker is not None:
            _end(maker)


@contextmanager
def _options(text: str) -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = text
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def _end(maker: subprocess.Popen[bytes]) -> None:
    try:
        maker.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        # Nobody needs it any more. Its JVM ends with it.
        maker.kill()
        maker.wait()


def _make(archive: Path) -> None:
    session, _ = spark_session(1, "class archive")
    session.sparkContext.parallelize([1], 1).map(str).collect()
    session.range(10).selectExpr("id % 2 AS key").groupBy("key").count().collect()
    jvm = SparkContext._gateway.proc
    session.stop()
    # The archive is whole when the JVM that writes it is gone, which ends with its input.
    jvm.stdin.close()
    jvm.wait(DEADLINE_S)
    Path(f"{archive}.partial").rename(archive)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
