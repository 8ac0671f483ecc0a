"""`import crosscut` is cheap: whoever only writes a flow does not pay for Spark or Arrow."""

from __future__ import annotations

import json
import subprocess
import sys


def test_import_crosscut_loads_neither_pyspark_nor_pyarrow() -> None:
    program = "import json, sys, crosscut; print(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(json.loads(printed.stdout))
    assert "crosscut.flow.flow" in loaded
    assert loaded.isdisjoint({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})
