"""The JVM in which Spark's driver runs: Ctrl-C at its start leaves none behind, its end is noticed.

PySpark keeps one JVM for the life of the process, in attributes of SparkContext. It starts the JVM by itself
where there is none, and if Ctrl-C comes meanwhile, it takes away the directory in which the JVM wants to
say where it listens: that JVM then never ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from crosscut.errors import WorkersError
from crosscut.store.log_key import without_log_key

GONE = "Spark's JVM is gone"

_LOOK_EVERY_S = 0.02
_END_TIMEOUT_S = 10.0


def launch(conf: SparkConf, environment: Mapping[str, str]) -> JavaGateway:
    """Start a JVM for a SparkContext with this configuration; interrupted, it leaves none behind.

    As PySpark's own `launch_gateway`, to which it leaves the connection.

    Args:
        environment: Variables of the JVM, besides those of this process.

    Raises:
        WorkersError: The JVM has ended at once. What it had to say it has written to standard error.
    """
    spark_submit = Path(_find_spark_home()) / "bin" / "spark-submit"
    command = [str(spark_submit)]
    for name, value in conf.getAll():
        command += ["--conf", f"{name}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    with tempfile.TemporaryDirectory(prefix="crosscut-spark-") as directory:
        address = Path(directory) / "address"
        variables = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)}
        with _interrupts_wait():
            process = subprocess.Popen(
                command,
                # Spark hands the environment on to the workers: the key of the job log stays here.
                env={**without_log_key(os.environ), **environment, **variables},
                # The JVM ends when this pipe does.
                stdin=subprocess.PIPE,
                # Ctrl-C in a terminal, and the SIGTERM of a supervisor to the whole group, would reach the
                # JVM as well, and end the workers before a last checkpoint.
                start_new_session=True,
            )
        try:
            return _connected(process, address)
        except BaseException:
            _end(process)
            raise


def is_gone(context: SparkContext) -> bool:
    """Tell whether the JVM of `context` has ended. Asks it; so this blocks if the JVM does."""
    jvm = context._jvm
    if jvm is None:
        return True
    try:
        jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        return True
    return False


def forget() -> None:
    """Have PySpark forget its JVM, and whatever was made in it; end the JVM if this process has started it.

    Without this PySpark would try to talk to it for the rest of the process's life.
    """
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        # Not to be asked to stop: it may not be there, or be half made.
        context._jsc = None
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        _end(process)


def _connected(process: subprocess.Popen[bytes], address: Path) -> JavaGateway:
    # It is renamed into place, so it is whole once it is there.
    while not address.exists():
        code = process.poll()
        if code is not None:
            raise WorkersError(
                f"Spark did not start: its JVM ended with exit code {code}; its output is above. Check "
                f"the memory, Spark's settings, SPARK_HOME and PYSPARK_SUBMIT_ARGS",
                may_pass=False,
            )
        time.sleep(_LOOK_EVERY_S)
    with address.open("rb") as file:
        port: int = read_int(file)  # type: ignore[no-untyped-call]
        secret: str = UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]
    with environment_of(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    gateway.proc = process
    return gateway


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_TIMEOUT_S)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Have Ctrl-C wait for the end of the block: in the middle of it the new process is not yet known."""
    if threading.current_thread() is not threading.main_thread():
        # It is raised in the main thread only.
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before: Any = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        # None: it was not set by Python, and can't be set by Python again.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def environment_of(**values: str) -> Iterator[None]:
    """Set environment variables for the block only: Spark reads these once, when it starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
