"""Directories that each host of a standalone cluster has for itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import unshared
from jobs import DEADLINE_S
from standalone import Cluster, standing_cluster

PRIVATE = "private"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(place: Path) -> Iterator[Cluster]:
    private = place / PRIVATE
    private.mkdir()
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a mount of a process of its own takes root")
    with standing_cluster(place / "work", private) as one:
        yield one


def said(directory: Path, cluster: Cluster, store: Path) -> str:
    directory.mkdir()
    driver = subprocess.run(
        [sys.executable, unshared.__file__, str(directory), cluster.master_url, str(store)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert driver.returncode == 0, driver.stderr
    return str(json.loads(driver.stdout.splitlines()[-1]))


def test_directories_that_hosts_share_are_used(place: Path, cluster: Cluster) -> None:
    directory = place / "shared"
    assert said(directory, cluster, directory / "checkpoints") == "finished"
    lines = [line for one in (directory / "out").glob("part-*") for line in one.read_text().splitlines()]
    assert len(lines) == 400


def test_a_checkpoint_directory_that_a_host_has_for_itself_is_refused(place: Path, cluster: Cluster) -> None:
    """P5: named at the start, before a lost worker shows that its state is gone."""
    text = said(place / "store", cluster, place / PRIVATE / "checkpoints")
    assert f"'checkpoint_dir': {place / PRIVATE / 'checkpoints'} on host" in text
    assert "mount the same file system on all hosts, or use an object store" in text


def test_a_sink_whose_directory_a_host_has_for_itself_is_refused(place: Path, cluster: Cluster) -> None:
    """P5: not one file is written that the driver does not see."""
    text = said(place / PRIVATE / "sink", cluster, place / "checkpoints")
    assert f"'out': {place / PRIVATE / 'sink' / 'out'} on host" in text
