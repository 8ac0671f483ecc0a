"""Workers that die, at the worst moments: what is committed is what a run without failures commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs import NumberedJob


def test_a_run_without_failures_is_exact(tmp_path: Path, started: Any) -> None:
    numbered = NumberedJob(tmp_path)
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()
