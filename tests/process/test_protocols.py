"""Every snapshot protocol on real processes, some of which are killed: the output is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, lose, until
from proving import proven

from crosscut.errors import CheckpointError


@pytest.mark.parametrize(
    "settings",
    [
        {"snapshots": "unaligned"},
        {"snapshots": "aligned, unaligned after 5ms"},
        {"snapshots": "halting"},
        {"snapshots": "aligned", "checkpoints_in_flight": 3, "checkpoint_interval": "20ms"},
        proven({"snapshots": "unaligned", "checkpoints_in_flight": 3, "checkpoint_interval": "20ms"}),
        proven({"snapshots": "aligned", "checkpoint_pause": "50ms"}),
    ],
    ids=lambda one: " ".join(map(str, one.values())),
)
def test_a_killed_worker_costs_no_record_and_doubles_none(
    tmp_path: Path, started: Any, settings: dict[str, object]
) -> None:
    """A1, C1."""
    numbered = NumberedJob(tmp_path, settings=settings, held=True)
    job = started(numbered)
    for count in (1, 2):
        until(lambda count=count: job.report().checkpoints_completed >= 3 * count, "some checkpoints")
        lose(job, started, count % 2)
    numbered.open_gate()
    assert job.wait(DEADLINE_S)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


@pytest.mark.parametrize("snapshots", ["aligned", "halting", "none"])
def test_a_checkpoint_on_request_is_complete_when_the_call_returns(
    tmp_path: Path, started: Any, snapshots: str
) -> None:
    settings = {"snapshots": snapshots, "checkpoint_interval": "1h"}
    numbered = NumberedJob(tmp_path, settings=settings, held=True)
    job = started(numbered)
    found = [job.checkpoint(DEADLINE_S).checkpoint_id for _ in range(3)]
    assert found == [entry.checkpoint_id for entry in numbered.completed()]
    assert found == sorted(set(found))
    numbered.open_gate()
    assert job.wait(DEADLINE_S)
    numbered.check_output_is_exact()
    with pytest.raises(CheckpointError):
        job.checkpoint()
