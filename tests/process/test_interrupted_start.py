"""Ctrl-C while Spark starts: no process stays behind, and the program can start another one."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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

ARCHIVE, FILE = "/some.jar", "/some.txt"


def empty_archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w"):
        pass
    return content.getvalue()


class _Handler(BaseHTTPRequestHandler):
    server: HeldFiles

    def do_GET(self) -> None:
        held, content = self.server, self.server.contents[self.path]
        held.asked[self.path].set()
        assert held.may[self.path].wait(DEADLINE_S), f"{self.path} is held for ever"
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            """Whoever has asked was killed meanwhile."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base calls it
        """Nobody reads it."""


class HeldFiles(ThreadingHTTPServer):
    """What Spark fetches as it starts, when it may: so it is still starting, however fast or slow it is.

    The archive is fetched by the JVM before anybody can talk to it, the file by the constructor of the
    SparkContext.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents = {ARCHIVE: empty_archive(), FILE: b"nothing"}
        self.asked = {path: threading.Event() for path in self.contents}
        self.may = {path: threading.Event() for path in self.contents}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def arguments(self) -> str:
        """What makes Spark fetch them."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return f"--jars {url}{ARCHIVE} --files {url}{FILE} pyspark-shell"


def test_ctrl_c_while_spark_starts_leaves_no_java_behind(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    held = HeldFiles()
    environment = {
        **os.environ,
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
        "PYSPARK_SUBMIT_ARGS": held.arguments,
    }
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

            def interrupt(start: int, waits_for: str) -> None:
                until(held.asked[waits_for].is_set, f"Spark to want {waits_for}")
                family = children_of(program.pid)
                assert family
                # As a terminal does it: to every process of the group.
                os.killpg(program.pid, signal.SIGINT)
                assert said() == {"interrupted": start}
                until(lambda: all(map(is_gone, family)), f"processes {family} to end")
                held.may[waits_for].set()

            assert said() == {"start": 0}
            interrupt(0, ARCHIVE)
            assert said() == {"start": 1}
            interrupt(1, FILE)
            assert said() == {"start": 2}
            assert said() == {"rows": list(range(10))}
            assert program.wait(DEADLINE_S) == 0
        finally:
            program.kill()
            held.shutdown()
            held.server_close()
    # The JVM of the last start removes its directory as it ends, which is soon after the program.
    until(lambda: not list(scratch.glob("crosscut-*")), "temporary directories to be removed")
