"""The Spark to run on: the one that is there, else a local one that starts fast and keeps quiet."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from weakref import WeakSet

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from crosscut.errors import SettingsError, WorkersError
from crosscut.spark.accumulators import load_updates_as_data
from crosscut.spark.cluster import gateway
from crosscut.spark.cluster.java import find_java
from crosscut.spark.cluster.local_dirs import ENVIRONMENT, LOCAL_DIRS, SETTING, removed_by_jvm
from crosscut.spark.cluster.slots import holders
from crosscut.spark.cluster.versions import check_version

LOOPBACK = "127.0.0.1"

DAEMON_MODULE = "crosscut.spark.cluster.daemon"

TASK_FAILURES = 1_000_000
"""Spark replaces a lost worker this often; how often is too often, our restart strategy decides.
Spark's own default in local mode is one attempt."""

_LOCAL_MASTER = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?")
_LOCAL_CLUSTER_MASTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]")

SLOTS_MIN = 16
SLOTS_FOR_EACH = 4
"""Of a Spark that is made here: so many flows of the size of the first one have room in it."""

starting = threading.RLock()
"""Held from looking for a SparkContext until its slots are taken."""

_own: WeakSet[SparkContext] = WeakSet()
_LOG = logging.getLogger("crosscut")


def spark_context(parallelism: int, name: str) -> tuple[SparkContext, bool]:
    """Return the SparkContext to run on, and whether it was made here and is the caller's to stop.

    A SparkContext that is active is used as it is. Under `spark-submit` one is made as the command
    line says. Otherwise a local one is made, on loopback, that replaces lost workers without end. One
    that was made here before, and is too small, gives way to a larger one when it is unused.

    Crosscut needs no more of Spark than this: a SparkSession would add about 2 s to
    the start (docs/decisions/0011-spark-context.md).

    Args:
        parallelism: Spark tasks that the job will hold as long as it runs.
        name: Shown in Spark's UI, if the SparkContext is made here.

    Raises:
        SettingsError: This version of PySpark is not supported, there is no Java, or the program uses Spark
            Connect, which can't run RDD jobs.
        WorkersError: Spark does not start, or the program's own, on a cluster, is gone.
    """
    if "SPARK_REMOTE" in os.environ or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        raise SettingsError(
            "this program uses Spark Connect (SPARK_REMOTE or SPARK_CONNECT_MODE_ENABLED is set), which "
            "can't run workers; start it without, or submit it to the cluster with spark-submit"
        )
    check_version()
    load_updates_as_data()
    with starting:
        active = SparkContext._active_spark_context
        if active is not None and gateway.is_gone(active):
            _forget_lost(active)
        elif active is not None and _is_outgrown(active, parallelism):
            active.stop()
        elif active is not None:
            return active, False
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            return SparkContext(), True
        context = local_context(parallelism, name)
        _own.add(context)
        return context, True


def spark_session(parallelism: int, name: str) -> tuple[SparkSession, bool]:
    """As `spark_context`, for a caller that needs DataFrames: with the SparkSession on top."""
    _, made = spark_context(parallelism, name)
    return SparkSession.builder.getOrCreate(), made


def is_local(context: SparkContext) -> bool:
    """Tell whether all of Spark's processes are on this machine."""
    return (context.master or "").startswith("local")


def is_own(context: SparkContext) -> bool:
    """Tell whether `context` was made by `spark_context`."""
    return context in _own


def has_session(context: SparkContext) -> bool:
    """Tell whether the program has a SparkSession on `context`."""
    session = SparkSession._instantiatedSession
    return session is not None and session._sc is context


def check_is_there(context: SparkContext) -> None:
    """Refuse a SparkContext that can run nothing any more.

    Raises:
        WorkersError: It has been stopped, or its JVM is gone.
    """
    if context._jsc is None:
        raise WorkersError("the SparkContext has been stopped: make a new one")
    if gateway.is_gone(context):
        if context is SparkContext._active_spark_context:
            # Else it would stay, and no other could be made in this process.
            gateway.forget()
        raise WorkersError(f"{gateway.GONE}; make a new SparkSession")


def _forget_lost(context: SparkContext) -> None:
    gateway.forget()
    if not is_local(context):
        raise WorkersError(
            f"{gateway.GONE}: it was the program's, on {context.master}; make a new SparkSession, or start "
            f"the flow again to have it run on a local Spark"
        )
    _LOG.warning("%s: a new one is started", gateway.GONE)


def _is_outgrown(context: SparkContext, parallelism: int) -> bool:
    """Tell whether a Spark that was made here is too small, and unused."""
    if not is_own(context) or has_session(context) or holders(context):
        return False
    found = slots(context)
    return found is not None and found < parallelism


def encrypts_traffic(conf: Callable[[str], str | None]) -> bool:
    """Tell whether Spark encrypts what its processes say to each other, which includes our job's secret.

    `spark.ssl.enabled` is not asked: it is about Spark's web pages, and its RPC does not inherit it.

    Args:
        conf: Gives a configuration value, or None if it is not set.
    """

    def is_on(name: str) -> bool:
        return (conf(name) or "").strip().lower() == "true"

    # Without authentication there is no key to encrypt with: Spark then ignores both of the others.
    return is_on("spark.ssl.rpc.enabled") or (
        is_on("spark.authenticate")
        and (is_on("spark.network.crypto.enabled") or is_on("spark.authenticate.enableSaslEncryption"))
    )


def slots(context: SparkContext) -> int | None:
    """Return how many Spark tasks can run at once, or None if that can't be known.

    On a cluster this is what the configuration allows at most, not what has registered so far:
    executors come and go, and a job must not be refused for being early.
    """
    conf = context.getConf()

    def processors() -> int:
        # What `*` means: Java's view, which knows the limits of a container where os.cpu_count doesn't.
        jvm = context._jvm
        return int(jvm.java.lang.Runtime.getRuntime().availableProcessors()) if jvm else 1

    return configured_slots(conf.get("spark.master", ""), conf.get, processors)


def tasks_at_once(context: SparkContext) -> int | None:
    """Return how many tasks are worth running at once, None if unknown: local mode's slots are threads."""
    found = slots(context)
    return min(found, os.cpu_count() or 1) if found is not None and is_local(context) else found


def configured_slots(
    master: str, conf: Callable[[str], str | None], processors: Callable[[], int]
) -> int | None:
    """Decide `slots` from Spark's master URL and configuration.

    Args:
        master: `spark.master`.
        conf: Gives a configuration value, or None if it is not set.
        processors: Gives the number of this machine's processors, as Java counts them.
    """
    cores = _configured_cores(master, conf, processors)
    return None if cores is None else cores // int(conf("spark.task.cpus") or 1)


def _configured_cores(
    master: str, conf: Callable[[str], str | None], processors: Callable[[], int]
) -> int | None:
    local = _LOCAL_MASTER.fullmatch(master)
    if local:
        return processors() if local[1] == "*" else int(local[1] or 1)
    local_cluster = _LOCAL_CLUSTER_MASTER.fullmatch(master)
    if local_cluster:
        return int(local_cluster[1]) * int(local_cluster[2])
    limit = conf("spark.cores.max")
    if limit:
        return int(limit)
    executors, cores = conf("spark.executor.instances"), conf("spark.executor.cores")
    if executors and cores and (conf("spark.dynamicAllocation.enabled") or "false") == "false":
        return int(executors) * int(cores)
    return None


def local_context(
    parallelism: int, name: str, configuration: Mapping[str, str] | None = None, master: str | None = None
) -> SparkContext:
    """Make a local Spark with slots for `parallelism` workers, on loopback, that replaces lost ones.

    Args:
        configuration: Settings of Spark, which take precedence.
        master: Says how many slots, as local[4]; None: there are some for other flows, too.
    """
    # Slots are threads, not processors, and cost nothing while they are unused: there are some for
    # other flows, and for whatever else the program does with this Spark.
    slot_count = max(SLOTS_MIN, SLOTS_FOR_EACH * parallelism, os.cpu_count() or 1)
    conf = SparkConf()
    given = _LOCAL_MASTER.fullmatch(master) if master is not None else None
    shown_count = (given[1] or "1") if given is not None else str(slot_count)
    conf.setMaster(f"local[{shown_count},{TASK_FAILURES}]").setAppName(name)
    conf.set("spark.default.parallelism", str(os.cpu_count() or 1))
    conf.set("spark.driver.host", LOOPBACK).set("spark.driver.bindAddress", LOOPBACK)
    conf.set("spark.port.maxRetries", "100")
    conf.set("spark.ui.showConsoleProgress", "false")
    # Spark starts a replacement for a silent worker only when it has killed it, and gives it 2 s to end
    # by itself before. Ours has been silent for the whole heartbeat timeout by then.
    conf.set("spark.python.task.killTimeout", "100ms")
    conf.set("spark.python.daemon.module", DAEMON_MODULE)
    with as_file(files("crosscut.spark") / "log4j2.properties") as log_settings:
        # The weaker of Spark's two ways to give Java options: a user's own still come on top. The
        # JVM only schedules and never sees a record, so its best compiler costs more than it gains.
        conf.set(
            "spark.driver.defaultJavaOptions",
            f'-XX:TieredStopAtLevel=1 "-Dlog4j2.configurationFile={log_settings.as_uri()}"',
        )
        for key, value in (configuration or {}).items():
            conf.set(key, value)
        with interrupts_kept(), gateway.environment_of(PYSPARK_PYTHON=sys.executable):
            directories = _private_dirs()
            conf.set(SETTING, ",".join(directories))
            # The JVM of an earlier, stopped SparkContext may still be there; it is used again.
            try:
                made = SparkContext._gateway or _launched(conf, directories)
            except BaseException:
                LOCAL_DIRS.remove()
                raise
            try:
                context = SparkContext(conf=conf, gateway=made)
                removed_by_jvm(context._jvm, directories)
                return context
            except BaseException:
                # Ctrl-C, say: there may be half a SparkContext in that JVM, which allows no second one.
                SparkContext._gateway = made
                gateway.forget()
                LOCAL_DIRS.remove()
                raise


def _private_dirs() -> list[str]:
    try:
        return LOCAL_DIRS.make(has_jvm=SparkContext._gateway is not None)
    except OSError as error:
        raise SettingsError(
            f"can't make a local directory for Spark: {error}; set {ENVIRONMENT} to a directory in which you "
            f"may write"
        ) from error


def _launched(conf: SparkConf, directories: Sequence[str]) -> JavaGateway:
    with find_java().launch_home() as java_home:
        return gateway.launch(
            conf,
            {
                "JAVA_HOME": str(java_home),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                # Without it Spark's UI listens on every address of the machine.
                "SPARK_LOCAL_IP": LOOPBACK,
                # Where it is set, it takes precedence over the configuration.
                **({ENVIRONMENT: ",".join(directories)} if ENVIRONMENT in os.environ else {}),
            },
        )


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Undo what SparkContext does to Ctrl-C: cancel all Spark jobs, and with them our workers.

    A job that is stopped by Ctrl-C needs them for its last checkpoint.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # Like SparkContext: only the main thread may, and only there it did.
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)
