"""Ctrl-C while Spark starts: no process stays behind, and the program can start another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from jobs import DEADLINE_S, children_of, is_gone, until

PROGRAM = """
import json, os
import crosscut as cc

rows = cc.collect()
flow = cc.Flow("interrupted")
flow.source(cc.generate(lambda i: i, count=10)).sink(rows)

for start in range(3):
    print(json.dumps({"start": start}), flush=True)
    try:
        flow.start(cc.Settings(parallelism=1)).wait()
        print(json.dumps({"rows": sorted(rows.records())}), flush=True)
    except KeyboardInterrupt:
        print(json.dumps({"interrupted": start}), flush=True)
"""


def test_ctrl_c_while_spark_starts_leaves_no_java_behind(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(scratch)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            assert program.stdout is not None

            def said() -> dict[str, object]:
                found: dict[str, object] = json.loads(program.stdout.readline()) if program.stdout else {}
                return found

            def interrupt(is_due: Callable[[], object], what: str) -> None:
                # Whoever was there a moment ago may have been a script that has ended.
                family = until(lambda: is_due() and children_of(program.pid), what)
                # As a terminal does it: to every process of the group.
                os.killpg(program.pid, signal.SIGINT)
                started = said()
                assert "interrupted" in started
                until(lambda: all(map(is_gone, family)), f"processes {family} to end")

            assert said() == {"start": 0}
            interrupt(lambda: children_of(program.pid), "the JVM to be launched")
            assert said() == {"start": 1}
            # Spark makes this directory in the constructor of the SparkContext.
            interrupt(lambda: list(scratch.glob("blockmgr-*")), "the SparkContext to be made")
            assert said() == {"start": 2}
            assert said() == {"rows": list(range(10))}
            assert program.wait(DEADLINE_S) == 0
        finally:
            program.kill()
    assert not list(scratch.glob("crosscut-*")), "temporary directories"
