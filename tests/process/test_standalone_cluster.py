"""Jobs on a standalone cluster of real processes: a master, two workers, and executors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import clustered
import pytest
from jobs import DEADLINE_S, is_gone, until
from standalone import Cluster, is_executor, standing_cluster
from switched import Stretch, Switched
from wandering import Wandering
from watching import Watcher


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standing_cluster(tmp_path_factory.mktemp("cluster")) as one:
        yield one


def executor_of(pid: int) -> int:
    """Return the executor that a process of the job's code belongs to."""
    while True:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if is_executor(pid):
            return pid


def asked(link: str, path: str, body: Any = None, *, origin: str = "", status: int = 200) -> bytes:
    """Return what the page says, to a browser that has its link."""
    address, _, token = link.partition("#")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    if origin:
        headers["Origin"] = origin
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            found = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        found = error.code, error.read()
    assert found[0] == status, found
    return bytes(found[1])


def test_stragglers_are_overtaken_and_a_killed_executor_is_made_up_for_and_output_is_exact(
    tmp_path: Path, cluster: Cluster
) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    driver = subprocess.Popen(
        [sys.executable, clustered.__file__, str(directory), cluster.master_url, cluster.web_url],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    numbered = clustered.troubled(directory)
    watcher = Watcher(numbered)
    try:
        # The straggler's batch is over by then, though the attempt that straggles has not come to its end.
        until(lambda: (directory / "waiting").exists() or driver.poll() is not None, "the second half")
        assert driver.poll() is None, driver.communicate()[1]
        assert (directory / "straggled").exists()
        pid = int(until((directory / "waiting").read_text, "the waiting attempt"))
        # Meanwhile the page is found through the master's proxy, and who has its link may act.
        written = directory / "link"
        link = until(lambda: written.exists() and written.read_text(), "the link of the page")
        assert re.fullmatch(rf"{re.escape(cluster.web_url)}/proxy/app-[^/]+/crosscut/numbered/#.+", link)
        assert b"page.js" in asked(link, "")
        assert json.loads(asked(link, "api/job"))["job"]["name"] == "numbered"
        told = asked(link, "api/savepoint", {"path": str(directory)}, origin=cluster.web_url, status=409)
        assert "a savepoint needs a directory of its own" in json.loads(told)["said"]
        killed = executor_of(pid)
        os.kill(killed, signal.SIGKILL)
        until(lambda: is_gone(killed), "the end of the executor")
        (directory / "go on").touch()

        def ended() -> Any:
            watcher.look()
            try:
                return driver.communicate(timeout=0.1)
            except subprocess.TimeoutExpired:
                return None

        out, errors = until(ended, "the end of the job", 2 * DEADLINE_S)
    finally:
        (directory / "never").touch()
        if driver.poll() is None:
            driver.kill()
            driver.communicate()
    assert driver.returncode == 0, errors
    # Spark has made up for all of it: the job has not gone back once.
    assert json.loads(out.splitlines()[-1])["status"] == "finished"
    assert json.loads(out.splitlines()[-1])["epoch"] == 1
    numbered.check_output_is_exact()


DRAWN, MOMENTS = 72, 1
"""The flow, and what happens to it when."""


def test_a_drawn_flow_goes_from_engine_to_engine_and_to_another_cluster_whoever_is_killed(
    tmp_path: Path, cluster: Cluster
) -> None:
    """A6, B1, B2, B3, F1, H1: executors die under both engines, and a driver."""
    dice = Random(MOMENTS)
    first, second = dice.sample(("continuous", "micro-batch"), 2)
    job = Switched(tmp_path, DRAWN)
    wandering = Wandering(job, MOMENTS)

    def stretch(engine: str, until: str) -> Stretch:
        # Of each cluster two or more slots are always there.
        return Stretch(engine, dice.randint(1, 2 if engine == "continuous" else 3), until)

    try:
        stretches = [stretch(first, "over-1"), stretch(second, "never")]
        wandering.drive(1, "local-cluster[2,1,512]", stretches, ())
        wandering.has_started(0)
        wandering.kill_executor()
        (tmp_path / "over-1").touch()
        wandering.has_started(1)
        wandering.kill_driver()
        stretches = [stretch(second, "over-2"), stretch(first, "")]
        wandering.drive(2, cluster.master_url, stretches, cluster.pids)
        wandering.has_started(0)
        wandering.kill_executor()
        (tmp_path / "over-2").touch()
        wandering.has_started(1)
        wandering.has_ended()
    finally:
        wandering.end()
    assert wandering.said()[-1]["ended"] == "finished"
    wandering.watcher.judge()
    assert wandering.watcher.shown == job.expected()
    job.numbered.check_output_is_exact()


SUBMITTED = """
import crosscut as cc
from helping import doubled

flow = cc.Flow("submitted")
(
    flow.source(cc.generate(lambda number: number, count=1_000))
    .map(doubled)
    .key_by(lambda number: number % 4)
    .sum()
    .sink(cc.files.write_jsonl("out"))
)
"""


@pytest.mark.parametrize("how", ["options", "spark-defaults.conf"])
def test_run_uses_the_cluster_that_options_or_defaults_name(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    """Also with a module of its own in an archive, which no machine has installed."""
    (tmp_path / "app.py").write_text(SUBMITTED)
    with zipfile.ZipFile(tmp_path / "helping.zip", "w") as archive:
        archive.writestr("helping.py", "def doubled(number):\n    return 2 * number\n")
    settings = {"spark.cores.max": "2", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    arguments, variables = ["--py-files", "helping.zip"], {"PYSPARK_PYTHON": sys.executable}
    if how == "options":
        arguments += ["--master", cluster.master_url]
        arguments += [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    else:
        lines = [
            f"{name}  {value}" for name, value in {"spark.master": cluster.master_url, **settings}.items()
        ]
        (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
        variables["SPARK_CONF_DIR"] = str(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "crosscut", "run", "app.py:flow", "--plain", "--shared", *arguments],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert ran.returncode == 0, ran.stderr
    sums = {}
    for path in (tmp_path / "out").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            key, total = json.loads(line)
            sums[key] = max(total, sums.get(key, 0))
    assert sums == {key: sum(2 * n for n in range(1_000) if 2 * n % 4 == key) for key in (0, 2)}
    # The master has run it.
    with urllib.request.urlopen(f"{cluster.web_url}/json/", timeout=DEADLINE_S) as answer:
        finished = json.load(answer)["completedapps"]
    assert "crosscut: submitted" in [one["name"] for one in finished]


def test_doctor_asks_each_executor_and_names_what_is_missing_there(cluster: Cluster, tmp_path: Path) -> None:
    settings = ("spark.cores.max=4", "spark.executor.memory=512m", "spark.driver.host=127.0.0.1")
    command = [sys.executable, "-m", "crosscut", "doctor", "--json", "--checkpoint-dir", str(tmp_path)]
    command += ["--master", cluster.master_url, *(text for one in settings for text in ("--conf", one))]
    # The interpreter below the virtual environment has no Crosscut.
    for python, code in ((sys.executable, 0), (os.path.realpath(sys.executable), 1)):
        ran = subprocess.run(
            command,
            env={**os.environ, "PYSPARK_PYTHON": python},
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
        )
        assert ran.returncode == code, ran.stderr
        first, *others = [json.loads(line) for line in ran.stdout.splitlines()]
        assert first["found"] == f"{cluster.master_url}: 2 executors have answered"
        if code == 0:
            assert [one["level"] for one in others] == ["ok", "ok"]
            assert all("sees the checkpoint directory" in one["found"] for one in others)
        else:
            missing = [one for one in others if "no crosscut" in one["found"]]
            assert len(missing) == 2 and all(one["level"] == "problem" for one in missing)
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
