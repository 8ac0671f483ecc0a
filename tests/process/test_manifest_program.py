"""The program of the Kubernetes manifest, on a local Spark: SIGTERM, as a pod gets it, stops it in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jobs import DEADLINE_S, until

from crosscut.spark.cluster.java import find_java

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"


def rows_of(output: Path) -> list[tuple[str, int]]:
    lines = [line for path in output.rglob("*.jsonl") for line in path.read_text().splitlines()]
    return [(word, count) for word, count in map(json.loads, lines)]


def test_the_program_of_the_manifest_runs_and_sigterm_ends_it_with_a_last_checkpoint(tmp_path: Path) -> None:
    if find_java().bundled:
        pytest.skip("the program makes a SparkSession of its own, which needs a Java on the machine")
    objects = list(yaml.safe_load_all(MANIFEST.read_text()))
    (data,) = [one["data"] for one in objects if one["kind"] == "ConfigMap"]
    (tmp_path / "words.py").write_text(data["words.py"])
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[4,1000000]\nspark.ui.enabled false\nspark.driver.host 127.0.0.1\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "words.py"],
        cwd=tmp_path,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "DATA": str(tmp_path), "POD_NAME": "driver"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: rows_of(tmp_path / "out") or driver.poll() is not None, "committed output")
        assert driver.poll() is None, driver.communicate()[1]
        driver.send_signal(signal.SIGTERM)
        _, errors = driver.communicate(timeout=DEADLINE_S)
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 128 + signal.SIGTERM, errors
    rows = rows_of(tmp_path / "out")
    counts = dict.fromkeys((word for word, _ in rows), 0)
    for word, _ in rows:
        counts[word] += 1
    assert sorted(rows) == sorted((word, n + 1) for word, count in counts.items() for n in range(count))
    # A stop that could not take its last checkpoint, or not commit it, warns.
    assert "RuntimeWarning" not in errors
