"""A machine without Java: Spark starts on the runtime of the wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from jobs import DEADLINE_S

TOOLS = ("bash", "sh", "env", "dirname", "head", "ps", "uname", "python3")
"""What Spark's start scripts call. `java` may live in the same directory as these."""

PROGRAM = """
import json, os
from crosscut.spark.cluster.java import find_java
from crosscut.spark.cluster.session import spark_context

context, made = spark_context(2, "bundled-java")
properties = context._jvm.java.lang.System
print(json.dumps({
    "bundled": find_java().bundled,
    "made": made,
    "java_home": properties.getProperty("java.home"),
    "expected_java_home": str(find_java().home),
    "result": context.parallelize(range(2), 2).map(lambda number: number + 1).collect(),
    "java_home_in_environment": os.environ.get("JAVA_HOME"),
}))
context.stop()
"""


def test_spark_runs_on_the_bundled_java_where_the_machine_has_none(tmp_path: Path) -> None:
    tools, scratch = tmp_path / "tools", tmp_path / "scratch"
    tools.mkdir()
    scratch.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "TMPDIR": str(scratch)}

    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )

    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["bundled"] and answer["made"]
    assert Path(answer["java_home"]).samefile(answer["expected_java_home"])
    assert answer["result"] == [1, 2]
    assert answer["java_home_in_environment"] is None
    assert not list(scratch.glob("crosscut-java-*")), "the script's directory is gone once Spark runs"
