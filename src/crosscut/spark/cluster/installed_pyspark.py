"""PySpark from its package, which Python has compiled, and not from the archive that Spark puts before it."""

from __future__ import annotations

import os
from collections.abc import Sequence

_ARCHIVES = os.path.join("python", "lib")


def with_archives_last(path: Sequence[str]) -> list[str]:
    """Return the entries of a module search path, with Spark's archives behind the package that they are of.

    Python compiles the modules of an archive anew in every process, which takes a second of processor time
    where a worker starts. An archive of another Spark keeps its place: `SPARK_HOME` decides, then.
    """
    last = [one for one in path if _is_archive_of_package(one, path)]
    return [*(one for one in path if one not in last), *last]


def _is_archive_of_package(entry: str, path: Sequence[str]) -> bool:
    # <site-packages>/pyspark/python/lib/pyspark.zip, and beside it that of py4j, which PySpark requires.
    directory, name = os.path.split(entry)
    home = directory.removesuffix(os.sep + _ARCHIVES)
    if not name.endswith(".zip") or home == directory:
        return False
    site, package = os.path.split(home)
    return package == "pyspark" and site in path and os.path.exists(os.path.join(home, "__init__.py"))
