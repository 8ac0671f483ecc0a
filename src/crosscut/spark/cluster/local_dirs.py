"""The directories of Spark on this machine, which hold records and state in its shuffle files.

Spark makes them readable for every user (`blockmgr-*` has mode 0755, a shuffle file 0644).
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from crosscut.host.temporary import TemporaryDirectory

ENVIRONMENT = "SPARK_LOCAL_DIRS"
SETTING = "spark.local.dir"

_PREFIX = "crosscut-spark-local-"
_DEFAULT = re.compile(rf"^\s*{re.escape(SETTING)}[\s=:]+(\S.*?)\s*$", re.MULTILINE)


class LocalDirs:
    """The private local directories of each Spark that this process has started.

    They belong to a JVM, which removes them when it ends, whatever becomes of this process. The next start
    removes those of a JVM that was killed.
    """

    def __init__(self) -> None:
        self._made: list[TemporaryDirectory] = []
        self._lock = threading.Lock()

    def make(self, *, has_jvm: bool) -> list[str]:
        """Make new directories below those that the user has chosen for Spark, and return their paths.

        Args:
            has_jvm: The JVM of earlier directories still runs, and may use them.

        Raises:
            OSError: A directory cannot be made.
        """
        with self._lock:
            if not has_jvm:
                self._remove()
            made = [TemporaryDirectory(_PREFIX, parent) for parent in chosen_parents()]
            self._made += made
        return [one.path for one in made]

    def remove(self) -> None:
        """Remove all of them: no JVM uses them."""
        with self._lock:
            self._remove()

    def _remove(self) -> None:
        while self._made:
            self._made.pop().remove()


LOCAL_DIRS = LocalDirs()


def chosen_parents() -> list[str]:
    """Return the directories that a Spark of this user would use: as Spark finds them."""
    configured = os.environ.get(ENVIRONMENT) or _in_defaults_file()
    return [one.strip() for one in configured.split(",") if one.strip()] or [tempfile.gettempdir()]


def _in_defaults_file() -> str:
    directory = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    with suppress(OSError):
        found = _DEFAULT.findall(Path(directory, "spark-defaults.conf").read_text(errors="replace"))
        return str(found[-1]) if found else ""
    return ""


def removed_by_jvm(jvm: Any, paths: Sequence[str]) -> None:
    """Have the JVM remove the directories when it ends, which it does soon after this process."""
    for path in paths:
        jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(path))


def open_local_dirs(context: SparkContext) -> list[str]:
    """Return the local directories of a local Spark in which other users can read its shuffle files.

    Executors of a cluster are not examined: Spark's standalone workers, YARN and Kubernetes give each
    application private directories. A Spark that encrypts what it writes to local disks has none.
    """
    conf = context.getConf()
    if context._jvm is None or (conf.get("spark.io.encryption.enabled", None) or "").lower() == "true":
        return []
    with suppress(FileNotFoundError):
        # A directory that the JVM has made shows what its umask lets others do.
        if not os.stat(context._temp_dir).st_mode & stat.S_IXOTH:
            return []
    roots = context._jvm.org.apache.spark.util.Utils.getConfiguredLocalDirs(context._jsc.sc().conf())
    return [path for path in map(str, roots) if is_open(path, os.lstat)]


def is_open(path: str, status_of: Callable[[str], os.stat_result]) -> bool:
    """Return whether other users can open files in the directory `path`: all directories above let them pass.

    Args:
        status_of: Returns the status of a path, as `os.lstat`.
    """
    directory = Path(os.path.realpath(path))
    return all(
        stat.S_IMODE(status_of(str(one)).st_mode) & stat.S_IXOTH for one in (directory, *directory.parents)
    )
