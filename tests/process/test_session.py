"""The local Spark that Crosscut starts: lost workers are replaced, quietly; errors show; there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from jobs import DEADLINE_S

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import crosscut as cc
from crosscut.spark.cluster.checks import held_slots
from crosscut.spark.cluster.slots import holders
from crosscut.spark.cluster.session import is_local, slots, spark_context

marks = sys.argv[1]

def work(index, records):
    attempts = len(os.listdir(marks))
    Path(marks, str(attempts)).touch()
    if attempts < 6:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempts < 8:
        raise LookupError("a module is missing")
    # Without an import of ours: it was there before the fork.
    yield sum(records) if "crosscut.worker.worker" in sys.modules else -1

context, made = spark_context(2, "kills")
print(json.dumps({
    "made": made,
    "made_again": spark_context(2, "kills")[1],
    "slots": slots(context),
    "local": is_local(context),
    "ctrl_c_is_ours": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "ui": context.uiWebUrl,
    "result": context.parallelize([1, 2], 1).mapPartitionsWithIndex(work).collect(),
}))
context.stop()
again, made = spark_context(64, "again")
print(json.dumps({"made": made, "has_room": slots(again) >= 128, "default": again.defaultParallelism}))

holding = held_slots("first", 64, again)
same, made = spark_context(slots(again) + 1, "too large")
try:
    held_slots("too large", slots(again) - 63, same)
except cc.CrosscutError as error:
    print(json.dumps({"made": made, "error": str(error)}))
holding.release()
larger, made = spark_context(slots(again) + 1, "larger")
print(json.dumps({"made": made, "stopped": again._jsc is None, "holders": len(holders(larger))}))
larger.stop()
"""


def test_lost_workers_are_replaced_quietly_and_errors_are_shown_once(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=2 * DEADLINE_S
    )

    assert ran.returncode == 0, ran.stderr
    first, again, refused, larger = (json.loads(line) for line in ran.stdout.splitlines())
    expected: dict[str, Any] = {
        "made": True,
        "made_again": False,
        "local": True,
        "ctrl_c_is_ours": True,
        "result": [3],
    }
    assert first.items() >= expected.items()
    assert first["slots"] >= 3
    assert first["ui"].startswith("http://127.0.0.1:")
    assert again == {"made": True, "has_room": True, "default": os.cpu_count()}
    assert not refused["made"], "it is in use"
    assert "of which job 'first' holds 64" in refused["error"]
    assert "a SparkSession of your own, with master 'local[" in refused["error"]
    assert larger == {"made": True, "stopped": True, "holders": 0}
    assert ran.stderr.count("LookupError: a module is missing") == 1
    assert "Python worker exited" not in ran.stderr
    assert "\tat " not in ran.stderr, "no Java stack traces"
