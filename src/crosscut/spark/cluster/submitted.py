"""A SparkContext on the cluster that a command line or spark-defaults.conf names."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import IllegalArgumentException
from pyspark.find_spark_home import _find_spark_home

from crosscut.errors import SettingsError
from crosscut.foundation.urls import local_path
from crosscut.spark.cluster import gateway
from crosscut.spark.cluster.java import find_java
from crosscut.spark.cluster.session import DAEMON_MODULE, TASK_FAILURES, interrupts_kept, local_context
from crosscut.spark.cluster.versions import check_version

_MASTER_LINE = re.compile(r"\s*spark\.master\s*[=:\s]\s*(\S.*?)\s*")
_LOCAL = re.compile(r"local(?:\[[^\]]*\])?")


def default_master() -> str | None:
    """Return the master that spark-defaults.conf names, as spark-submit would find it; None: none."""
    directory = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    try:
        lines = (Path(directory) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        # Spark says what is wrong with it, if it is used.
        return None
    # As Java reads properties: the last one counts.
    found = [match[1] for match in map(_MASTER_LINE.fullmatch, lines) if match is not None]
    return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Submission:
    """The Spark that a command line asks for.

    Attributes:
        master: None: as spark-defaults.conf says.
        configuration: Settings of Spark.
        import_path: Where this process finds the modules of `--py-files`.
    """

    master: str | None
    configuration: Mapping[str, str]
    import_path: tuple[str, ...]

    @classmethod
    def of(
        cls, master: str | None, configuration: Sequence[str], py_files: str | None, archives: str | None
    ) -> Submission:
        """Return what these options ask for.

        Args:
            configuration: Such as "spark.executor.memory=2g".
            py_files: Separated by commas, as `archives`.

        Raises:
            SettingsError: One is no setting of Spark, or a file is not there.
        """
        found = {}
        for one in configuration:
            key, equals, value = one.partition("=")
            if not equals or not key.startswith("spark.") or not value:
                raise SettingsError(
                    f"--conf {one!r}: expected KEY=VALUE with a key of Spark, such as spark.cores.max=8"
                )
            found[key] = value
        if py_files is not None:
            found["spark.submit.pyFiles"] = py_files
        if archives is not None:
            found["spark.archives"] = archives
        return cls(master, found, tuple(_import_path(py_files)) if py_files else ())

    @contextmanager
    def context(self, name: str, parallelism: int = 1) -> Iterator[SparkContext | None]:
        """Make the SparkContext, and stop it at the end; None: nothing is asked for.

        Args:
            parallelism: A local Spark without a given number of slots has at least so many.

        Raises:
            SettingsError: This version of PySpark is not supported, or there is no Java.
            WorkersError: Spark does not start.
        """
        if self.master is None and not self.configuration and default_master() is None:
            yield None
            return
        master = self.master or default_master()
        try:
            if master is None or _LOCAL.fullmatch(master):
                # As without options: on loopback, and lost workers are replaced.
                made = local_context(parallelism, f"crosscut: {name}", self.configuration, master)
            else:
                made = submitted_context(f"crosscut: {name}", self.master, self.configuration)
        except (Py4JError, IllegalArgumentException) as error:
            lines = str(error).strip().splitlines() or [repr(error)]
            raise SettingsError(f"Spark does not start with these settings: {lines[-1].strip()}") from error
        try:
            yield made
        finally:
            made.stop()


def _import_path(py_files: str) -> Iterator[str]:
    for one in py_files.split(","):
        path = local_path(one)
        if path is None:
            continue
        if not os.path.exists(path):
            raise SettingsError(f"--py-files: there is no file {one!r}")
        absolute = os.path.abspath(path)
        yield os.path.dirname(absolute) if absolute.endswith(".py") else absolute


def submitted_context(name: str, master: str | None, configuration: Mapping[str, str]) -> SparkContext:
    """Return a new SparkContext, as spark-submit would make it for a program.

    What `configuration` does not say, spark-defaults.conf does. In addition, Spark replaces lost workers
    without end (`spark.task.maxFailures`), and forks them from Crosscut's daemon, unless either is set.

    Args:
        master: None: as spark-defaults.conf says, else local.

    Raises:
        SettingsError: This version of PySpark is not supported, or there is no Java.
        WorkersError: Spark does not start.
    """
    check_version()
    conf = SparkConf(loadDefaults=False)
    conf.setAppName(name)
    for key, value in configuration.items():
        conf.set(key, value)
    if master is not None:
        conf.setMaster(master)
    with interrupts_kept(), find_java().launch_home() as java_home:
        made = gateway.launch(conf, {"JAVA_HOME": str(java_home), "PYSPARK_DRIVER_PYTHON": sys.executable})
        try:
            # With the defaults that spark-submit has read.
            all_of_it = SparkConf(_jvm=made.jvm)
            all_of_it.setIfMissing("spark.task.maxFailures", str(TASK_FAILURES))
            all_of_it.setIfMissing("spark.python.daemon.module", DAEMON_MODULE)
            return SparkContext(conf=all_of_it, gateway=made)
        except BaseException:
            SparkContext._gateway = made
            gateway.forget()
            raise
