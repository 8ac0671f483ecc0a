"""What one sees who tries things out: a list as input, records as they go by, lines when they are final."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jobs import DEADLINE_S

from crosscut import errors

PROGRAM = """
import crosscut as cc

flow = cc.Flow("look")
(
    flow.source(cc.items("to be or not to be".split()))
    .inspect(lambda word: print("seen", word))
    .key_by(lambda word: word)
    .count(emit="final")
    .sink(cc.printing("counts"))
)
job = flow.start(cc.Settings(parallelism=2, checkpoint_dir="look"))
assert isinstance(job, cc.Job)
job.wait()
print(job.status)
"""


def test_records_are_shown_on_the_terminal_in_order_as_they_go_by_and_when_they_are_committed(
    tmp_path: Path,
) -> None:
    program = tmp_path / "look.py"
    program.write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-P", str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(errors.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ran.stdout == "finished\n", ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith(("seen ", "counts: "))]
    assert lines[:6] == [f"seen {word}" for word in ["to", "be", "or", "not", "to", "be"]]
    assert sorted(lines[6:]) == [f"counts: {pair}" for pair in [("be", 2), ("not", 1), ("or", 1), ("to", 2)]]
