"""A real job that goes on at another parallelism each time it is started, with kills in between (H1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, KEYS, NumberedJob, lose, until
from proving import proven


@pytest.mark.parametrize(("snapshots", "backend"), [("aligned", "rocksdb"), proven("unaligned", "memory")])
def test_a_job_goes_from_one_worker_to_three_to_two_and_to_four_and_its_output_is_exact(
    tmp_path: Path, started: Any, snapshots: str, backend: str
) -> None:
    settings = {"snapshots": snapshots, "retain": 100, "state_backend": backend}
    numbered = NumberedJob(tmp_path, count=40_000, parallelism=1, branches=2, held=1, settings=settings)

    def runs_for_a_while(job: Any) -> None:
        before = job.report().records_read

        def reads_on() -> bool:
            seen = job.report()
            assert seen.state_keys <= KEYS, "rows of tasks that are there no more do not count"
            return bool(seen.records_read > before + 300)

        until(reads_on, "records")
        job.checkpoint(DEADLINE_S)

    job = started(numbered)
    runs_for_a_while(job)
    job.stop()
    for parallelism, before in ((3, 1), (2, 3), (4, 2)):
        there = replace(numbered, parallelism=parallelism)
        job = started(there)
        runs_for_a_while(job)
        restored = f"at parallelism {parallelism}, was {before}"
        assert restored in job.report().takeover
        lose(job, started, parallelism - 1)
        runs_for_a_while(job)
        if parallelism == 4:
            numbered.open_gate()
            assert job.wait(DEADLINE_S)
        else:
            # As a power cut would leave it: the newest transactions are not committed.
            job.cancel()
    numbered.check_output_is_exact()
