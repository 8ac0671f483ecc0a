"""Spark's own Python daemon, with the code of a worker loaded before it forks.

A Python worker is a fork of this process. Loading Crosscut takes it a third of a second of processor time:
half of what passes from the loss of a worker to records that flow again.
"""

from __future__ import annotations

import gc

from pyspark import daemon

import crosscut.spark.cluster.workers  # noqa: F401 - loaded for the forks

if __name__ == "__main__":
    # What is loaded stays: no collection in a fork has to look at it, and copy its pages by doing so.
    gc.freeze()
    daemon.manager()
