"""`crosscut doctor --cluster`: what it says of the answers of executors."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from crosscut.cli.commands import program
from crosscut.cli.doctor_cluster import compared
from crosscut.spark.cluster.survey import ExecutorAnswer

OWN = ".".join(map(str, sys.version_info[:3]))
GOOD = ExecutorAnswer(
    host="a",
    python=OWN,
    packages={"crosscut": version("crosscut"), "pyspark": version("pyspark")},
    connection="",
    store="",
    clock_ahead_s=0.004,
)


def test_an_executor_that_is_as_the_driver_is_fine() -> None:
    (found,) = compared([GOOD], has_directory=True)
    assert (found.what, found.level) == ("executor on a", "ok")
    assert found.found == f"Python {OWN}, reaches the driver, sees the checkpoint directory, clock +4 ms"


@pytest.mark.parametrize(
    ("answer", "level", "text", "advice"),
    [
        (replace(GOOD, python="3.8.1"), "problem", "Python 3.8.1, the driver has", "PYSPARK_PYTHON"),
        (
            replace(GOOD, packages={"crosscut": ""}),
            "problem",
            "no crosscut, the driver has",
            "install crosscut==",
        ),
        (replace(GOOD, packages={"pyspark": "4.0.1"}), "problem", "pyspark 4.0.1, the", "install pyspark=="),
        (
            replace(GOOD, connection="h:1: refused"),
            "problem",
            "can't reach the driver: h:1",
            "spark.driver.host",
        ),
        (replace(GOOD, store="FileNotFoundError: x"), "problem", "FileNotFoundError", "share under one name"),
        (replace(GOOD, clock_ahead_s=-7.5), "warning", "its clock is -7.5 s from", "NTP"),
    ],
    ids=["python", "no crosscut", "pyspark", "connection", "store", "clock"],
)
def test_each_difference_is_a_finding_with_what_to_do(
    answer: ExecutorAnswer, level: str, text: str, advice: str
) -> None:
    (found,) = compared([answer], has_directory=True)
    assert found.level == level and text in found.found and advice in found.advice


def test_without_a_cluster_there_is_nothing_to_ask(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    result = CliRunner().invoke(program, ["doctor", "--cluster"])
    assert result.exit_code == 2 and "there is no cluster to ask: give --master" in result.output
