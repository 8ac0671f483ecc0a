"""Spark's own Python daemon, with the code of a worker loaded before it forks.

A Python worker is a fork of this process. Loading Crosscut takes it a third of a second of processor time:
half of what passes from the loss of a worker to records that flow again.
"""

from __future__ import annotations

import gc
import sys

from crosscut.spark.cluster.installed_pyspark import with_archives_last

# Before PySpark is imported, and for what the forks import.
sys.path[:] = with_archives_last(sys.path)

from pyspark import daemon  # noqa: E402

import crosscut.spark.cluster.workers  # noqa: E402, F401 - loaded for the forks

if __name__ == "__main__":
    # What is loaded stays: no collection in a fork has to look at it, and copy its pages by doing so.
    gc.freeze()
    daemon.manager()
