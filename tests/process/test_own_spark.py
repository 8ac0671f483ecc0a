"""A Spark of the user's own: what it hands to its workers, and what it takes from them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
import crosscut as cc

def main(directory, marker, mode):
    builder = SparkSession.builder.master("local[8,1000000]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    context = session.sparkContext
    flow = cc.Flow("counts")
    records = cc.collect()
    flow.source(cc.items([1, 2, 3])).sink(records)
    settings = cc.Settings(checkpoint_dir=directory, parallelism=1, strict=mode == "strict")
    try:
        flow.start(settings).wait()
    except cc.errors.SettingsError as error:
        print("REFUSED", error)
        return
    counted = context.accumulator(0)

    def attack(n):
        class Runs:
            def __reduce__(self):
                return os.mkdir, (marker,)
        counted.add(1)
        if n:
            counted._value = Runs()

    context.parallelize([0, 1], 2).foreach(attack)
    print("COUNTED", counted.value, sorted(records.records()))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def run(tmp_path: Path, mode: str, key: str) -> str:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "CROSSCUT_LOG_KEY": key}
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "state"), str(tmp_path / "marker"), mode],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def test_a_task_that_sends_code_as_an_update_of_an_accumulator_runs_none(tmp_path: Path) -> None:
    said = run(tmp_path, "run", "k" * 32)
    assert "COUNTED 1 [1, 2, 3]" in said
    assert not (tmp_path / "marker").exists()
    assert "accumulator was refused" in said
    # The key was there when the user's Spark started.
    assert "CROSSCUT_LOG_KEY in the environment of its workers" in said


def test_a_spark_that_has_the_key_is_refused_if_strict(tmp_path: Path) -> None:
    key = "k" * 32
    said = run(tmp_path, "strict", key)
    assert "REFUSED this Spark has CROSSCUT_LOG_KEY in the environment of its workers" in said
    assert key not in said
