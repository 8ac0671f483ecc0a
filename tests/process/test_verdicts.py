"""The verdict of the invariants on the last cut, over several starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs import NumberedJob

import crosscut as cc


def is_wrong(cut: cc.Cut) -> bool:
    return len(list(cut.values("sums"))) == 99


def is_right(cut: cc.Cut) -> bool:
    return not is_wrong(cut)


class WithInvariant:
    """A job of 100 numbers whose only cut is the final one."""

    def __init__(self, directory: Path, predicate: Any) -> None:
        self.numbered = NumberedJob(
            directory, count=100, rate=None, settings={"checkpoint_interval": "1h", "snapshots": "none"}
        )
        self.predicate = predicate

    def start(self, spark: Any) -> Any:
        flow = self.numbered.flow()
        flow.invariant("99 keys", self.predicate, on_broken="stop")
        return flow.start(self.numbered.all_settings(), spark=spark)


def test_a_final_cut_that_was_found_broken_is_judged_again_by_the_next_start(
    tmp_path: Path, started: Any
) -> None:
    """Else it would be enough to start a job twice for it to have finished."""
    for _ in range(2):
        job = started(WithInvariant(tmp_path, is_wrong))
        with pytest.raises(cc.errors.JobFailedError, match="'99 keys' is broken") as failed:
            started.finish(job)
        assert failed.value.ids["cause"].kind == "InvariantBroken"
    job = started(WithInvariant(tmp_path, is_right))
    started.finish(job)
    assert job.status == "finished"
    WithInvariant(tmp_path, is_right).numbered.check_output_is_exact()
