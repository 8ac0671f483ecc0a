"""A Spark of the user's own: what it hands to its workers, and what it takes from them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
import crosscut as cc

def main(directory, marker):
    builder = SparkSession.builder.master("local[8,1000000]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    context = session.sparkContext
    flow = cc.Flow("counts")
    records = cc.collect()
    flow.source(cc.items([1, 2, 3])).sink(records)
    for strict in (True, False):
        try:
            flow.start(cc.Settings(checkpoint_dir=directory, parallelism=1, strict=strict)).wait()
        except cc.errors.SettingsError as error:
            print("REFUSED", error)
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


@dataclass(frozen=True)
class Ran:
    """One run of the program.

    Attributes:
        said: On standard output and error.
        marker: What an attack would make.
    """

    said: str
    marker: Path


KEY = "k" * 32


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    directory = tmp_path_factory.mktemp("own-spark")
    program, marker = directory / "program.py", directory / "marker"
    program.write_text(PROGRAM)
    environment = {**os.environ, "CROSSCUT_LOG_KEY": KEY}
    done = subprocess.run(
        [sys.executable, str(program), str(directory / "state"), str(marker)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Ran(done.stdout + done.stderr, marker)


def test_a_task_that_sends_code_as_an_update_of_an_accumulator_runs_none(ran: Ran) -> None:
    assert "COUNTED 1 [1, 2, 3]" in ran.said
    assert not ran.marker.exists()
    assert "accumulator was refused" in ran.said


def test_a_spark_that_has_the_key_is_named_and_refused_if_strict(ran: Ran) -> None:
    """The key was there when the user's Spark started."""
    assert ran.said.count("REFUSED this Spark has CROSSCUT_LOG_KEY in the environment of its workers") == 1
    assert ran.said.count("CROSSCUT_LOG_KEY in the environment of its workers") > 1, "a warning, too"
    assert KEY not in ran.said
