"""A Spark of the program's own, and jobs in batches on it: `python theirs.py DIRECTORY`."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext

import crosscut as cc


def started(directory: Path, name: str, *, strict: bool = False, **conf: str) -> dict[str, Any]:
    """Run a job on a new SparkContext; return what was said of Spark's local directory."""
    set_up = SparkConf().setMaster("local[4,1000000]").setAppName(name).set("spark.ui.enabled", "false")
    for key, value in conf.items():
        set_up.set(key.replace("_", "."), value)
    flow = cc.Flow(name)
    flow.source(cc.items([1, 2, 3])).key_by(lambda one: one).count().sink(
        cc.files.write_jsonl(directory / name)
    )
    settings = cc.Settings(
        engine="micro-batch",
        parallelism=2,
        checkpoint_dir=str(directory / f"{name}-checkpoints"),
        strict=strict,
    )
    found: dict[str, Any] = {"error": ""}
    with SparkContext(conf=set_up) as context, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            flow.start(settings, spark=context).wait()
        except cc.errors.SettingsError as error:
            found["error"] = str(error)
    found["warnings"] = [str(one.message) for one in caught if "local directory" in str(one.message)]
    return found


def main(directory: Path) -> None:
    private, public = directory / "private", directory / "public"
    private.mkdir(0o700)
    public.mkdir(0o755)
    os.environ.pop("SPARK_LOCAL_DIRS", None)
    report = {
        "private": started(directory, "one", strict=True, spark_local_dir=str(private)),
        "public": started(directory, "two", spark_local_dir=str(public)),
        "strict": started(directory, "three", strict=True, spark_local_dir=str(public)),
        "encrypted": started(
            directory, "four", strict=True, spark_local_dir=str(public), spark_io_encryption_enabled="true"
        ),
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
