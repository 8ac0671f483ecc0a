"""An archive of Spark's classes, for all JVMs of a run: with it a start takes half of the processor time.

To make it takes as much as four starts: only long runs, those with several processes, have one. A JVM that
does not find it, or is of another version, reads the classes from the jars, as always.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs import DEADLINE_S
from pyspark import SparkContext

from crosscut.spark.cluster.session import spark_context

_VARIABLE = "SPARK_SUBMIT_OPTS"
# It says on standard output that it can't use an archive, where tests read.
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"


@contextmanager
def archived_classes(directory: Path) -> Iterator[None]:
    """Let the JVMs that are started here use one archive; whoever is the first has it made meanwhile.

    Args:
        directory: The same for all processes of a run.
    """
    archive = directory / "spark.jsa"
    before = os.environ.get(_VARIABLE)
    try:
        directory.joinpath("spark.jsa.begun").touch(exist_ok=False)
    except FileExistsError:
        maker = None
    else:
        environment = {**os.environ, _VARIABLE: f"{_SILENT} -XX:ArchiveClassesAtExit={archive}.partial"}
        maker = subprocess.Popen([sys.executable, __file__, str(archive)], env=environment)
    os.environ[_VARIABLE] = f"{_SILENT} -XX:SharedArchiveFile={archive}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
        if maker is not None:
            _end(maker)


def _end(maker: subprocess.Popen[bytes]) -> None:
    try:
        maker.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        # Nobody needs it any more. Its JVM ends with it.
        maker.kill()
        maker.wait()


def _make(archive: Path) -> None:
    context, _ = spark_context(1, "class archive")
    context.parallelize([1], 1).map(str).collect()
    jvm = SparkContext._gateway.proc
    context.stop()
    # The archive is whole when the JVM that writes it is gone, which ends with its input.
    jvm.stdin.close()
    jvm.wait(DEADLINE_S)
    Path(f"{archive}.partial").rename(archive)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
